"""Products whose sums are in tensor memory: descriptors as PTX has them, and what is found wrong with their use."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Launch, Source
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.inspect import nvrtc

from .test_warpgroups import arranged

Array = np.ndarray[Any, Any]
BFLOAT = np.dtype(ml_dtypes.bfloat16)

PIECE, ROWS, K = 16, 128, 16
SWIZZLES = {0: 1, 32: 2, 64: 4, 128: 8}
"""Bytes of a pattern's row → its pieces."""
MODES = {0: 0, 128: 2, 64: 4, 32: 6}
"""→ bits 61 to 63 of a descriptor (PTX ISA, "Shared memory descriptor")."""

KERNEL = (
    Source.file("tensor_memory.cuh").text
    + """
// y [128, N] = a [128, 16] x b [16, N] of operands where their descriptors say; four warps and one more.
extern "C" __global__ void product(
    const uint4* x, int pieces, unsigned long long a, unsigned long long b, unsigned instruction, int n, float* y
) {
    extern __shared__ __align__(1024) uint4 memory[];
    Mbarrier* const done = reinterpret_cast<Mbarrier*>(memory + pieces);
    unsigned* const slot = reinterpret_cast<unsigned*>(done + 1);
    for (int i = threadIdx.x; i < pieces; i += 160) memory[i] = x[i];
    fence_proxy_async();
    if (threadIdx.x == 0) mbarrier_init(done, 1);
    if (threadIdx.x < 32) tensor_allocate<256>(slot);
    tensor_fence_before();
    __syncthreads();
    tensor_fence_after();
    const unsigned sums = *slot;
    if (threadIdx.x == 128) {
        tensor_multiply(sums, a, b, instruction, false);
        tensor_arrive(done);
    }
    __syncwarp();
    if (threadIdx.x < 128) {
        mbarrier_wait(done, 0);
        tensor_fence_after();
        for (int start = 0; start < n; start += 32) {
            float d[32];
            tensor_load(d, sums + start + (threadIdx.x / 32 << 21));
            tensor_wait(d);
            for (int i = 0; i < 32; i++) y[threadIdx.x * n + start + i] = d[i];
        }
    }
    tensor_fence_before();
    __syncthreads();
    if (threadIdx.x < 32) {
        tensor_fence_after();
        tensor_free<256>(sums);
    }
}
"""
)


def encoded(start: int, leading: int, stride: int, swizzle: int) -> int:
    """A descriptor."""
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | MODES[swizzle] << 61


def instruction(n: int, dtype: np.dtype[Any] = BFLOAT, turned: tuple[bool, bool] = (False, False)) -> int:
    """PTX ISA, "Instruction descriptor", .kind::f16."""
    kind = int(dtype == BFLOAT)
    return 1 << 4 | kind << 7 | kind << 10 | turned[0] << 15 | turned[1] << 16 | n >> 3 << 17 | ROWS >> 4 << 24


def launched(text: str, memory: Array, a: int, b: int, said: int, n: int, device: Any = None) -> Array:
    y = np.empty((ROWS, n), np.float32)
    device = device or Emulated(checked=True)
    launch = Launch(Source("product.cu", text), "product", (1,), (160,), memory.nbytes + 32)
    given = [memory, np.int32(memory.nbytes // PIECE), np.uint64(a), np.uint64(b), np.uint32(said), np.int32(n), y]
    with device.fresh(y):
        device.launch(launch, given)
    return y


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize(("dtype", "n"), [(np.dtype(np.float16), 64), (BFLOAT, 160)], ids=str)
def test_descriptors_say_where_elements_are(
    swizzle: int, turned: tuple[bool, bool], dtype: np.dtype[Any], n: int
) -> None:
    """The canonical layouts are those of wgmma, and so are leading and stride offset in each."""
    rng = np.random.default_rng(n + swizzle)
    a, b = (rng.standard_normal((rows, K)).astype(dtype) for rows in (ROWS, n))
    memory, row = np.zeros(56 << 10 >> 1, dtype), SWIZZLES[swizzle] * 8 * PIECE
    descriptors, start = [], 2048
    for matrix, other in zip((a, b), turned, strict=True):
        if not swizzle:
            leading, stride = len(matrix) * PIECE, 8 * PIECE
        else:
            leading, stride = (2 * row, row) if other else (PIECE, row)
        arranged(memory, matrix, start, leading, stride, swizzle, other)
        descriptors.append(encoded(start, leading, stride, swizzle))
        start += 26 << 10
    y = launched(KERNEL, memory, *descriptors, instruction(n, dtype, turned), n)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-5)


def test_what_kernels_say_is_what_ptx_says() -> None:
    """PTX ISA, "Instruction descriptor" and "Shared memory descriptor", as the header makes them."""
    text = Source.file("tensor_memory.cuh").text + (
        'extern "C" __global__ void told(unsigned* y, unsigned long long* z) {\n'
        "    extern __shared__ __align__(1024) uint4 memory[];\n"
        "    y[0] = instruction_descriptor<__half, 256, false>();\n"
        "    y[1] = instruction_descriptor<__nv_bfloat16, 128, true>();\n"
        "    z[0] = tensor_descriptor(memory + 64, 8192, 1024);\n}\n"
    )
    y, z = np.zeros(2, np.uint32), np.zeros(1, np.uint64)
    Emulated().launch(Launch(Source("told.cu", text), "told", (1,), (1,), 4096), [y, z])
    assert list(y) == [instruction(256, np.dtype(np.float16)), instruction(128, BFLOAT, (False, True))]
    assert int(z[0]) == encoded(1024, 8192, 1024, 128)


def plain(text: str, device: Any = None, said: int = 0) -> Array:
    """A product of operands in the pattern of 128 bytes."""
    memory = np.random.default_rng(0).standard_normal(24 << 10 >> 1).astype(np.float16)
    starts = (encoded(start, 16, 1024, 128) for start in (0, 16 << 10))
    return launched(text, memory, *starts, said or instruction(64, np.dtype(np.float16)), 64, device)


ISSUED = "if (threadIdx.x == 128) {"
WAITED = "mbarrier_wait(done, 0);\n        tensor_fence_after();"
LOADED = "tensor_load(d, sums + start + (threadIdx.x / 32 << 21));"
FREED = "tensor_free<256>(sums);"
MISTAKES: dict[str, tuple[str, str, str]] = {
    "no commit": ("tensor_arrive(done);", "", "deadlock.*lacks 1 arrivals"),
    "a commit before it": (
        "tensor_multiply(sums, a, b, instruction, false);\n        tensor_arrive(done);",
        "tensor_arrive(done);\n        tensor_multiply(sums, a, b, instruction, false);",
        "race: column .* of whose product's end no mbarrier",
    ),
    "another thread's commit": (
        "tensor_arrive(done);\n    }",
        "}\n    if (threadIdx.x == 129) tensor_arrive(done);",
        "race",
    ),
    "no wait": (WAITED, "", "race: column .* of whose product's end|which nobody has written"),
    "no wait but a barrier": (
        f"if (threadIdx.x < 128) {{\n        {WAITED}",
        "__syncthreads();\n tensor_fence_after();\n    if (threadIdx.x < 128) {\n",
        "race: column .* of whose product's end",
    ),
    "one warp waits": (WAITED, f"if (threadIdx.x < 32) {{ {WAITED} }}", "race: column|which nobody has written"),
    "no fence behind the wait": (WAITED, "mbarrier_wait(done, 0);", "race: column .* of whose product's end"),
    "no fence of memory": ("fence_proxy_async();", "", r"no fence\.proxy\.async between"),
    "no barrier": (
        "__syncthreads();\n    tensor_fence_after();",
        "tensor_fence_after();",
        "race|not initialised|no barrier|no thread of the block",
    ),
    "no fence before the barrier": (
        "tensor_fence_before();\n    __syncthreads();\n    tensor_fence_after();",
        "__syncthreads();\n    tensor_fence_after();",
        r"that warp 0 allocated, with no barrier and tcgen05\.fence",
    ),
    "no fence behind the barrier": (
        "__syncthreads();\n    tensor_fence_after();",
        "__syncthreads();",
        r"that warp 0 allocated, with no barrier and tcgen05\.fence",
    ),
    "the lanes of another warp": (
        "threadIdx.x / 32 << 21",
        "(threadIdx.x / 32 ^ 1) << 21",
        "lanes from .* on are its own",
    ),
    "the first lanes for all": (" + (threadIdx.x / 32 << 21)", "", "lanes from .* on are its own"),
    "an address of each lane": (LOADED, LOADED.replace("start +", "start + threadIdx.x % 2 +"), "different operands"),
    "the first column for granted": (
        "const unsigned sums = *slot;",
        "const unsigned sums = 0;",
        "which are not allocated",
    ),
    "columns beyond": ("sums + start +", "sums + 240 + start +", "which are not allocated"),
    "columns nobody wrote": ("sums + start +", "sums + 64 + start +", "which nobody has written"),
    "added to nothing": ("instruction, false)", "instruction, true)", "which has no sums"),
    "not allocated": ("if (threadIdx.x < 32) tensor_allocate<256>(slot);", "", "no thread of the block has written"),
    "allocated twice": (
        "tensor_allocate<256>(slot);",
        "{ tensor_allocate<256>(slot); tensor_allocate<32>(slot); }",
        "behind tcgen05.relinquish",
    ),
    "more than there are": (
        "tensor_allocate<256>(slot);",
        "{ emulator::tcgen05_alloc(slot, 512); emulator::tcgen05_alloc(slot, 256); }",
        "32 columns|256 columns of tensor memory are never free",
    ),
    "no power of two": ("tensor_allocate<256>", "tensor_allocate<96>", "a power of two from 32 to 512"),
    "less than can be": ("tensor_allocate<256>", "tensor_allocate<16>", "a power of two from 32 to 512"),
    "by some lanes": (
        "if (threadIdx.x < 32) tensor_allocate",
        "if (threadIdx.x < 31) tensor_allocate",
        "deadlock|exit",
    ),
    "not freed": (FREED, "", "that nobody frees"),
    "freed in part": ("tensor_free<256>", "tensor_free<128>", "were not allocated so"),
    "freed twice": (FREED, FREED + FREED, "were not allocated so"),
    "freed too early": (
        "tensor_fence_before();\n    __syncthreads();\n    if (threadIdx.x < 32) {",
        "if (threadIdx.x < 32) {",
        "race: column .* which warp . loads|are not allocated",
    ),
    "freed with no fence before": (
        "tensor_fence_before();\n    __syncthreads();\n    if",
        "__syncthreads();\n    if",
        "race: column .* which warp . loads",
    ),
    "freed with no fence behind": (
        f"tensor_fence_after();\n        {FREED}",
        FREED,
        "race: column .* which warp . loads",
    ),
    "two threads": (
        ISSUED,
        "if (threadIdx.x == 128 || threadIdx.x == 129) {",
        "of a second thread|more than 1 arrivals",
    ),
    "written meanwhile": (
        "__syncwarp();\n    if (threadIdx.x < 128) {",
        "__syncthreads();\n    memory[threadIdx.x] = x[0];\n    if (threadIdx.x < 128) {",
        "while a product that reads it is under way",
    ),
    "no descriptor of this architecture": ("(sums, a, b,", "(sums, a ^ 1ull << 46, b,", "mean nothing"),
    "a pattern of none": ("(sums, a, b,", "(sums, a ^ 3ull << 61, b,", "of a pattern that is not emulated"),
    "a base offset": ("(sums, a, b,", "(sums, a | 1ull << 50, b,", "base offset"),
    "beyond what was copied": ("(sums, a, b,", "(sums, a + 2048, b,", "no thread of the block|bytes at byte"),
    "rows from another lane": ("(sums, a, b,", "(sums | 32 << 16, a, b,", "begin in lane 0"),
}


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_the_correct_twin_passes(order: Any) -> None:
    found = plain(KERNEL, Emulated(order=order, seed=3))
    np.testing.assert_array_equal(found, plain(KERNEL, Emulated(checked=False)))


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake: str, order: Any) -> None:
    before, after, message = MISTAKES[mistake]
    assert before in KERNEL
    at = KERNEL.rindex(before)  # the kernel stands behind its header
    with pytest.raises(KernelError, match=message):
        plain(KERNEL[:at] + after + KERNEL[at + len(before) :], Emulated(order=order, seed=5))


FIELDS = {
    "sums of 16 bits": (1 << 4, "not float32"),
    "other operands": (1 << 7, "both float16 or both bfloat16"),
    "a kind of another": (1 << 8, "both float16 or both bfloat16"),
    "negated": (1 << 13, "negates"),
    "sparse": (1 << 2, "mean nothing here"),
    "64 rows": ((8 ^ 4) << 24, "64 x 64, which has no such product"),
    "no columns": (8 << 17, "128 x 0, which has no such product"),
    "columns of no shape": (1 << 17, "128 x 72, which has no such product"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_wrong_field_of_the_instruction_is_told(field: str) -> None:
    bits, message = FIELDS[field]
    with pytest.raises(KernelError, match=message):
        plain(KERNEL, said=instruction(64, np.dtype(np.float16)) ^ bits)


def test_fields_that_are_another_product_make_other_numbers() -> None:
    """bfloat16 for float16, fewer columns, neighbours the other way: nobody can tell from what is said alone."""
    right, own = plain(KERNEL), np.dtype(np.float16)
    for said in (instruction(64, BFLOAT), *(instruction(64, own, turned) for turned in ((True, False), (False, True)))):
        assert not np.allclose(plain(KERNEL, said=said), right, rtol=1e-2, atol=1e-2)
    with pytest.raises(KernelError, match="which nobody has written"):
        plain(KERNEL, said=instruction(32, own))
    wrong = KERNEL.replace("(sums, a, b,", "(sums, a ^ 6ull << 61, b,")  # of 64 bytes
    assert not np.allclose(plain(wrong), right, rtol=1e-2, atol=1e-2)


def test_loads_are_nobodys_until_they_are_waited_for() -> None:
    early = KERNEL.replace(
        "            tensor_wait(d);\n", "            const float seen = d[0];\n            tensor_wait(d);\n"
    )
    assert np.isnan(plain(early.replace("+ i] = d[i];", "+ i] = seen;"))).all()
    with pytest.raises(KernelError, match=r"of which a load or store is not waited for|race: column"):
        plain(KERNEL.replace("            tensor_wait(d);\n", ""))


def test_sums_are_added_to_in_order_and_several_products_end_with_the_last() -> None:
    begun = "tensor_multiply(sums, a, b, instruction, false);"
    twice = KERNEL.replace(begun, begun + begun.replace("false", "true"))
    np.testing.assert_allclose(plain(twice), 2 * plain(KERNEL), rtol=1e-5, atol=1e-5)


END = "    tensor_fence_before();\n    __syncthreads();\n    if (threadIdx.x < 32) {\n        tensor_fence_after();"
SECOND = """    Mbarrier* const loaded = done + 2;
    if (threadIdx.x == 128) mbarrier_init(loaded, COUNT);
    __syncthreads();
    if (threadIdx.x < 128) {
        float d[32];
        tensor_load(d, sums + (threadIdx.x / 32 << 21));
        tensor_wait(d);
        TOLD
    }
    MET
    if (threadIdx.x == 128) {
        WAITED
        tensor_multiply(sums, a, b, instruction, false);
        tensor_arrive(done);
    }
    __syncwarp();
    if (threadIdx.x < 128) mbarrier_wait(done, 1);
"""
"""Sums that are loaded once more, and written again."""
ARRIVE = "if (threadIdx.x % 32 == 0) mbarrier_arrive(loaded);"
WAIT = "mbarrier_wait(loaded, 0); tensor_fence_after();"
BEFORE, AFTER, MEET = "tensor_fence_before();", "tensor_fence_after();", "__syncthreads();"
AGAIN: dict[str, tuple[str, str, str, str, bool]] = {
    "a barrier and fences": ("4", "", BEFORE + MEET, AFTER, True),
    "an mbarrier and fences": ("4", BEFORE + "__syncwarp();" + ARRIVE, "", WAIT, True),
    "nothing between": ("4", "", "", "", False),
    "no fence before the barrier": ("4", "", MEET, AFTER, False),
    "no fence behind the barrier": ("4", "", BEFORE + MEET, "", False),
    "no barrier": ("4", BEFORE, "", AFTER, False),
    "no fence before the arrival": ("4", ARRIVE, "", WAIT, False),
    "no fence behind the wait": ("4", BEFORE + ARRIVE, "", "mbarrier_wait(loaded, 0);", False),
    "three of four warps": ("3", BEFORE + "if (threadIdx.x < 96) " + ARRIVE, "", WAIT, False),
}


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("name", AGAIN)
def test_sums_are_written_again_by_who_knows_that_all_have_loaded(name: str, order: Any) -> None:
    count, told, met, waited, right = AGAIN[name]
    second = SECOND.replace("COUNT", count).replace("TOLD", told).replace("MET", met).replace("WAITED", waited)
    text = KERNEL.replace(END, second + END)
    assert text != KERNEL
    device = Emulated(order=order)
    if right:
        np.testing.assert_array_equal(plain(text, device), plain(KERNEL))
        return
    with pytest.raises(KernelError, match=r"race: column .* which warp . loads"):
        plain(text, device)


@pytest.mark.parametrize("architecture", ["sm_90a", "sm_100", "sm_120a"])
def test_only_one_architecture_has_them(architecture: str) -> None:
    source = Source("product.cu", KERNEL)
    found = nvrtc.resources(source, "sm_100f")["product"]
    assert found.spill_loads == found.spill_stores == 0
    with pytest.raises(KernelError, match="tcgen05"):
        nvrtc.resources(source, architecture)
