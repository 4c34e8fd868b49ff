"""Launches whose arguments are packed: kernels read from memory what they are given otherwise."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onnxfuse import kernels
from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.device.device import Launch, Source, TensorMap
from onnxfuse.kernels.device.packed import MAP_WORDS, WORD, Map, Packed, Start, start_once
from onnxfuse.kernels.device.replay import Capture, Launches, Value, record
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.emulator.library import Run
from onnxfuse.kernels.emulator.loaded import kernel
from onnxfuse.kernels.emulator.memory import _words
from onnxfuse.kernels.gemm import forms
from onnxfuse.kernels.gemm.autotune import VARIABLE
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from tests.attention_cases import Case, expected
from tests.kernel_runs import run
from tests.kernels.rows.test_several import CASES as SEVERAL
from tests.region_runs import Case as RegionCase
from tests.region_runs import expected as outputs_of
from tests.region_runs import function, operands
from tests.row_cases import assert_close

FLOAT, HALF = np.dtype(np.float32), np.dtype(np.float16)


class Packing(Emulated):
    """Takes packed arguments, as a driver does."""

    multiprocessors = 132

    def __init__(self) -> None:
        super().__init__(checked=False)
        self.started: list[tuple[str, int]] = []

    def starter(self, launch: Launch) -> Start:
        found = kernel(launch.source, launch.entry, False)

        def start(table: int, blocks: int) -> None:
            self.started.append((launch.entry, blocks))
            _, y, z = (*launch.grid, 1, 1)[:3]
            arguments = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
            block = (*launch.block, 1, 1)[:3]
            part = Run(arguments=arguments, grid=(blocks, y, z), block=block, dynamic_bytes=launch.shared)
            part.last_block = blocks * y * z
            with found.copies.one() as library:
                library.launch(launch.entry, part)

        return start

    def encoded(self, map: TensorMap, address: int) -> bytes:
        return bytes(_words(map, address))


def test_a_tensor_map_is_made_anew_where_its_address_changes() -> None:
    """And is in the places that are its own, as an argument of 128 bytes."""
    seen: list[bytes] = []
    made: list[int] = []

    def start(table: int, blocks: int) -> None:
        (number, map) = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[:2]
        seen.append(ctypes.string_at(number, 4) + ctypes.string_at(map, WORD * MAP_WORDS))

    def encode(address: int) -> bytes:
        made.append(address)
        return bytes([address]) * (WORD * MAP_WORDS)

    packed = Packed([start], [[1, 2]], 1, 0, [np.int32(7), *[np.uint64(0)] * MAP_WORDS], [Map(2, 0, encode)])
    for address in (3, 3, 4):
        packed([1], [address], [])
    number = np.int32(7).tobytes()
    assert seen == [number + bytes([address]) * 128 for address in (3, 3, 4)]
    assert made == [3, 4]
    start_once(start, 1, [number, encode(5)])
    assert seen[-1] == number + bytes([5]) * 128


def test_a_product_by_tensor_maps_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replayed on other arrays of the same shapes, as by the device that takes no packed arguments."""
    monkeypatch.setenv(VARIABLE, "tma")
    monkeypatch.setattr(forms, "proofs", lambda: SimpleNamespace(holds=lambda *_: True))
    device = Packing()
    device.architecture = "sm_90"
    kernel = FusedMatMul({"activation": "Relu"})
    for shift in (0.0, 1.0):
        a, b = (np.resize(np.arange(7) - 3 + shift, shape).astype(HALF) for shape in ((136, 264), (264, 136)))
        (y,) = run(kernel, [a, b], device)
        np.testing.assert_array_equal(y, np.maximum(a.astype(FLOAT) @ b.astype(FLOAT), 0).astype(HALF))
    assert device.started == [("gemm", 4)] * 2


CASES = {
    "one launch": Case(20, 20, 32, heads=4, mask=(2, 1, 20, 20)),
    "the parts of a row put together": Case(1, 300, 32, batches=1, heads=4),
    "keys turned apart, and parts": Case(1, 1, 32, batches=1, past=300, angles="chosen"),
    "a past, and a mask of one key": Case(1, 1, 32, past=40, heads=4, mask=(2, 1, 1, 1)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_attention_reads_what_is_packed(case: Case) -> None:
    node, device = Attention(case.node), Packing()
    inputs = case.inputs(HALF)
    for _ in range(2):
        for got, want in zip(run(node, inputs, device), expected(case.node, inputs), strict=True):
            assert_close(got, want)
    assert device.started


def test_a_cache_that_grows_gives_its_lengths_as_values() -> None:
    node, device = Attention({}), Packing()
    for past in (*range(126, 131), 700, 129):  # one part, several, and one again
        inputs = Case(1, 1, 32, past=past, heads=4, mask=(2, 1, 1, past + 1), seed=past).inputs(HALF)
        for got, want in zip(run(node, inputs, device), expected({}, inputs), strict=True):
            assert_close(got, want)
    assert {entry for entry, _ in device.started} == {"attention_present", "attention", "attention_combine"}
    assert len(node._plans) == 2, "an even and an odd number of keys"


def test_products_and_rows_read_what_is_packed() -> None:
    rng = np.random.default_rng(0)
    a, b, bias = (rng.standard_normal(shape, np.float32) for shape in ((5, 2048), (2048, 24), (24,)))
    device = Packing()
    device.vendor = None
    y = run(kernels.find("FusedMatMul")({"activation": "Relu"}), [a, b, bias], device)[0]
    np.testing.assert_allclose(y, np.maximum(a @ b + bias, 0), 1e-4, 1e-4)
    (norm,) = run(kernels.find("Softmax")({}), [a], device)
    np.testing.assert_allclose(norm, np.exp(a) / np.exp(a).sum(-1, keepdims=True), 1e-5, 1e-6)
    assert [entry for entry, _ in device.started[:2]] == ["partial", "finish"], "parts of sums in scratch memory"


COPY = Source(
    "copy.cu",
    'extern "C" __global__ void copy(const float* x, float* y, long long first, int count, bool twice, float by) {\n'
    "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < count) y[first + i] = x[i] * by * (twice ? 2 : 1);\n"
    "}\n",
)


def copies(device: Packing, x: Any, y: Any) -> Launches:
    """Two values: the first place, and how many."""

    def write(recorder: Capture, inputs: Any, outputs: Any) -> None:
        first, count, blocks = (Value(i, t) for i, t in enumerate((np.int64, np.int32, np.int64)))
        arguments = (inputs[0], outputs[0], first, count, np.bool_(True), np.float32(0.5))
        recorder.launch(Launch(COPY, "copy", (1,), (32,)), arguments, blocks=blocks)

    return record(write, device, [x], [y])


SKIP = (
    "(a, b, x, g) => (y, s) { p = MatMul(a, b) s = Add(p, x) y = LayerNormalization(s, g) }",
    [(37, 40), (40, 130), (37, 130), (130,)],
)
SHARED = (SKIP[0], [(3, 2048), (2048, 40), (3, 40), (40,)])


@pytest.mark.parametrize(
    ("case", "entries"),
    [
        (SKIP, ["product_rows"]),
        (SHARED, ["product_rows"]),
        (SEVERAL["the gradient of a norm"], ["row_passes", "column_sums"]),
    ],
    ids=["counters", "counters and parts", "parts of columns"],
)
def test_regions_that_have_memory_of_their_own_read_what_is_packed(case: RegionCase, entries: list[str]) -> None:
    body, arrays, device = function(case[0]), operands(case), Packing()
    node = kernels.of_region(body, ["float32"] * len(arrays), ["float32"] * len(body.output))({})
    for _ in range(2):
        for got, want in zip(run(node, arrays, device), outputs_of(body, arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=5e-5)
    assert [entry for entry, _ in device.started] == 2 * entries


def test_values_are_read_in_their_own_width() -> None:
    x, device = np.arange(200, dtype=np.float32), Packing()
    made = copies(device, x, np.zeros(200, np.float32))
    slow = copies(Emulated(), x, np.zeros(200, np.float32))  # type: ignore[arg-type]
    for first, count in ((0, 200), (3, 70), (150, 1)):
        for launches in (made, slow):
            y = np.zeros(200, np.float32)
            launches((x, y), (first, count, -(-count // 32)))
            want = np.zeros(200, np.float32)
            want[first : first + count] = x[:count]
            np.testing.assert_array_equal(y, want)
    assert [blocks for _, blocks in device.started] == [7, 3, 1]


def test_threads_have_memory_of_their_own() -> None:
    seen: list[bytes] = []

    def start(table: int, blocks: int) -> None:
        if blocks:
            both(0, 7)  # Another call begins before this one has launched.
        place = ctypes.c_void_p.from_address(table).value
        assert place is not None
        seen.append(ctypes.string_at(place, 8))

    made = Packed([start], [[0]], 1, 0, [])

    def both(blocks: int, pointer: int) -> None:
        made([blocks], [pointer], [])

    both(1, 5)
    assert [int.from_bytes(one, "little") for one in seen] == [7, 5]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: made([0], [n], []), range(100)))
    assert sorted(int.from_bytes(one, "little") for one in seen[2:]) == list(range(100))


def test_an_error_is_the_callers_and_the_next_call_goes_on() -> None:
    def start(table: int, blocks: int) -> None:
        if not blocks:
            raise ValueError("refused")

    made = Packed([start], [[0]], 1, 0, [])
    with pytest.raises(ValueError, match="refused"):
        made([0], [1], [])
    made([1], [1], [])
