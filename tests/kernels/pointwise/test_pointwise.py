"""Kernels generated from function bodies: every elementwise op, run by the emulator against float64."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfuse import kernels
from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Launch, TensorType
from onnxfuse.kernels.device.kernel import Kernel
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.pointwise import pointwise
from onnxfuse.kernels.pointwise.expressions import source
from onnxfuse.language import catalogue as language
from tests.kernel_runs import ATTRIBUTES, BFLOAT16, FLOAT16, FLOAT32, Array, far, reference, run, types

CATALOGUE = language.load()
CHECKED = Emulated(order="random")
OPS = sorted(
    name for name, rule in CATALOGUE.definitions.items() if rule.kernel == "pointwise" and name != "RotaryEmbedding"
)


def kernel(op: str, **attributes: Any) -> Kernel:
    return pointwise.kernel(op, CATALOGUE)(attributes)


def texts(made: Kernel, arrays: Sequence[Any]) -> list[str]:
    """The sources that a kernel runs on such inputs."""
    assert isinstance(made, pointwise.Pointwise)
    outputs = (True,) * len(made.signature.outputs)
    return [loop.source.text for loop in made._plan(tuple(types(arrays)), outputs, True)[1]]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], size: float = 4.0) -> Array:
    return (rng.standard_normal(shape) * size).astype(dtype)


# ------------------------------------------------------------------------------------------------------- every op


def test_every_elementwise_rule_is_served() -> None:
    assert len(OPS) >= 19
    assert {rule.kernel for rule in CATALOGUE if rule.kernel.startswith(("pointwise", "rotary"))} == {"pointwise"}


@pytest.mark.parametrize(
    ("dtype", "shape", "by"),
    [
        (FLOAT32, (3, 5, 8), 0),
        (FLOAT16, (3, 5, 8), 0),
        (BFLOAT16, (3, 5, 8), 0),
        (FLOAT32, (3, 5, 7), 0),
        (FLOAT32, (3, 5, 8), 1),
        (FLOAT32, (4, 0), 0),
    ],
    ids=["float32", "float16", "bfloat16", "odd", "misaligned", "empty"],
)
@pytest.mark.parametrize("op", OPS)
def test_an_op_is_its_body(op: str, dtype: np.dtype[Any], shape: tuple[int, ...], by: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, shape, dtype) for _ in CATALOGUE.definitions[op].tensors]
    attributes = ATTRIBUTES.get(op, {})
    (actual,) = run(kernel(op, **attributes), arrays, CHECKED, by)
    (expected,) = reference(op, attributes, arrays, CATALOGUE)
    assert actual.dtype == dtype
    # The derivative is a sum that is 0 somewhere: there its terms say how far rounding goes.
    assert not far(actual, expected, np.abs(arrays[0]) if op.endswith("Grad") else 0.0)


LIMITS: dict[str, tuple[float, float, float]] = {
    # op: values at 1e30, at -100, at -inf
    "Celu": (1e30, -2.0, -2.0),
    "Elu": (1e30, -1.5, -1.5),
    "Gelu": (1e30, -0.0, np.nan),
    "HardSigmoid": (1.0, 0.0, 0.0),
    "HardSwish": (1e30, -0.0, np.nan),
    "LeakyRelu": (1e30, -1.0, -np.inf),
    "Mish": (1e30, -100 * np.exp(-100.0), np.nan),
    "QuickGelu": (1e30, -0.0, np.nan),
    "Relu": (1e30, 0.0, 0.0),
    "Selu": (1.0507009873554805e30, -1.7580993408473766, -1.7580993408473766),
    "Shrink": (1e30, -99.75, -np.inf),
    "Softplus": (1e30, np.exp(-100.0), 0.0),
    "Softsign": (1.0, -100 / 101, np.nan),
    "Swish": (1e30, -0.0, np.nan),
    "Tanh": (1.0, -1.0, -1.0),
    "ThresholdedRelu": (1e30, 0.0, 0.0),
}
"""Where float64 bodies overflow on their way (Softplus at 1e30), or are 0 * inf."""


@pytest.mark.parametrize(
    ("x", "slope"),
    [((2, 3, 8), (8,)), ((2, 3, 8), (3, 1)), ((2, 3, 8), (2, 1, 1)), ((2, 3, 8), (1,)), ((2, 3, 7), (7,))],
)
def test_an_operand_broadcasts(x: tuple[int, ...], slope: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    arrays = [numbers(rng, x, FLOAT16), numbers(rng, slope, FLOAT16)]
    (actual,) = run(kernel("PRelu"), arrays, CHECKED)
    assert not far(actual, reference("PRelu", {}, arrays, CATALOGUE)[0])


# ----------------------------------------------------------------------------------------------------------- rotary

ROTARY = [
    # head, rotated channels (0 for all), interleaved, heads in 3-D, position_ids
    (16, 0, 0, False, False),
    (16, 0, 1, False, True),
    (32, 16, 0, True, True),
    (16, 8, 1, True, False),
    (10, 0, 0, True, True),
    (20, 6, 1, False, False),
    (2, 0, 0, False, False),
    (2, 0, 1, True, True),
]


def rotary(case: tuple[int, int, int, bool, bool], dtype: np.dtype[Any]) -> tuple[dict[str, Any], list[Array | None]]:
    head, rotated, interleaved, flat, gathered = case
    rng = np.random.default_rng(head)
    b, n, s, h = 2, 3, 5, (rotated or head) // 2
    angles = rng.standard_normal((11, h) if gathered else (b, s, h))
    arrays: list[Array | None] = [
        numbers(rng, (b, s, n * head) if flat else (b, n, s, head), dtype),
        np.cos(angles).astype(dtype),
        np.sin(angles).astype(dtype),
    ]
    if gathered:
        arrays.append(rng.integers(0, 11, (b, s)))
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": rotated, "num_heads": n if flat else 0}
    return {k: v for k, v in attributes.items() if v}, arrays


@pytest.mark.parametrize(("case", "dtype"), list(zip(ROTARY, [FLOAT32, FLOAT16, BFLOAT16] * 3, strict=False)))
def test_rotary_embedding_in_all_its_forms(case: tuple[int, int, int, bool, bool], dtype: np.dtype[Any]) -> None:
    attributes, arrays = rotary(case, dtype)
    (actual,) = run(kernel("RotaryEmbedding", **attributes), arrays, CHECKED)
    (expected,) = reference("RotaryEmbedding", attributes, arrays, CATALOGUE)
    assert not far(actual, expected, scale=1.0)


def test_a_rotation_moves_vectors() -> None:
    """Both kinds of pairs are read and written 16 bytes at a time; nothing is divided or picked in a lane."""
    for case in ROTARY[:2]:
        attributes, arrays = rotary(case, FLOAT16)
        (text,) = texts(kernel("RotaryEmbedding", **attributes), arrays)
        lanes = text[text.index("for (int v") :]
        assert "quotient" not in lanes
        assert "? value" not in lanes
        assert "[8]" in text


def test_a_position_outside_the_table_reads_nothing() -> None:
    """onnxruntime's CUDA kernels give 0 there; the emulator would stop at an access out of bounds."""
    attributes, arrays = rotary((16, 0, 0, False, True), FLOAT32)
    positions = arrays[3]
    assert positions is not None
    positions[0, 0], positions[0, 1] = 11, -12
    positions[0, 2] = -1
    (actual,) = run(kernel("RotaryEmbedding", **attributes), arrays, CHECKED)
    assert (actual[0, :, :2] == 0).all()
    positions[0, 0], positions[0, 1] = 0, 0
    (expected,) = reference("RotaryEmbedding", attributes, arrays, CATALOGUE)
    assert not far(actual[0, :, 2:], expected[0, :, 2:], scale=1.0)


# ------------------------------------------------------------------------------------------------- sizes and sources


def test_a_new_batch_size_compiles_nothing() -> None:
    for op, attributes, shapes in (
        ("Gelu", {}, [(None, 7, 64)]),
        ("SwiGLU", {}, [(None, 7, 64), (None, 7, 64)]),
        ("PRelu", {}, [(None, 7, 64), (64,)]),
        ("PRelu", {}, [(None, 7, 64), (7, 1)]),
        ("RotaryEmbedding", {}, [(None, 4, 7, 64), (None, 7, 32), (None, 7, 32)]),
        ("RotaryEmbedding", {"interleaved": 1}, [(None, 4, 7, 64), (None, 7, 32), (None, 7, 32)]),
        ("RotaryEmbedding", {"num_heads": 4}, [(None, 7, 256), (None, 7, 32), (None, 7, 32)]),
    ):
        made = kernel(op, **attributes)
        sources = {
            text
            for batch in (2, 3, 4, 8, 33)
            for text in texts(made, [np.empty([n or batch for n in shape], np.float16) for shape in shapes])
        }
        assert len(sources) == 1, op


def test_work_counts_what_is_moved() -> None:
    made = kernel("PRelu")
    work = made.work([TensorType(FLOAT16, (10, 64)), TensorType(FLOAT16, (64,))])
    assert (work.read, work.written) == (2 * (640 + 64), 2 * 640)
    assert work.flops == 640
    gathered = kernel("RotaryEmbedding").work(
        [
            TensorType(FLOAT32, (1, 4, 2, 16)),
            TensorType(FLOAT32, (5000, 8)),
            TensorType(FLOAT32, (5000, 8)),
            TensorType(np.dtype(np.int64), (1, 2)),
        ]
    )
    assert gathered.read < 4 * 5000 * 8, "a table is not read as a whole"


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("shapes", "dtypes", "message"),
    [
        ([(2, 3)], ["float32"], "SwiGLU lacks its input B"),
        ([(2, 3), (2, 3)], ["float32", "float16"], "must have one real element type"),
        ([(2, 3), (2, 3)], ["float64", "float64"], "A of SwiGLU must be float32 or float16 or bfloat16, not float64"),
        ([(2, 3), (2, 4)], ["float32", "float32"], "do not broadcast"),
        ([(2,), (2,), (2,)], ["float32"] * 3, "takes 2 inputs, not 3"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(shapes: list[tuple[int, ...]], dtypes: list[str], message: str) -> None:
    inputs = [TensorType(np.dtype(d), s) for d, s in zip(dtypes, shapes, strict=True)]
    with pytest.raises(KernelError, match=message):
        kernel("SwiGLU").outputs(inputs)


def test_an_unknown_attribute_is_refused() -> None:
    with pytest.raises(KernelError, match="Gelu has no attribute alpha"):
        kernel("Gelu", alpha=1.0)


def test_an_attribute_that_is_left_out_is_missed_where_it_is_computed_with() -> None:
    with pytest.raises(KernelError, match="Greater lacks input 1"):
        kernel("HardSigmoidGrad", alpha=0.25, high=0.5).outputs([TensorType(np.dtype(np.float32), (2, 3))] * 2)


@pytest.mark.parametrize(
    ("op", "reason"), [("LayerNormalization", "ReduceMean"), ("Attention", "MatMul"), ("No", "No")]
)
def test_an_op_that_is_not_elementwise_is_refused(op: str, reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        pointwise.kernel(op, CATALOGUE)


# ------------------------------------------------------------------------------------------------------- a user's rule


def test_a_rule_of_the_user_has_a_kernel(tmp_path: Path) -> None:
    """Elementwise ops, an optional input and a view, none of them known to onnxfuse by that name."""
    (tmp_path / "warp.rule").write_text(
        "# The halves of a vector, one bent by the other.\n"
        "Warp(X, bias=0, *, alpha)\n\n"
        "match:\n"
        "    a = Slice(X, axis=-1, start=0, stop=6, step=1)\n"
        "    b = Slice(X, axis=-1, start=6, stop=12, step=1)\n"
        "    Y = Sin(a + bias) * Sigmoid(alpha * b) + Gelu(Transpose(b, perm=[0, 2, 1]))\n\n"
        "emit:   Y = Warp(X, bias, alpha=alpha)\n"
        "test:   X=[2,6,12]; bias=[6]; alpha=3.0\n"
    )
    catalogue = language.load([tmp_path])
    made = pointwise.kernel("Warp", catalogue)({"alpha": 3.0})
    rng = np.random.default_rng(0)
    for arrays in (
        [numbers(rng, (2, 6, 12), FLOAT32), numbers(rng, (6,), FLOAT32)],
        [numbers(rng, (2, 6, 12), FLOAT16)],
    ):
        (actual,) = run(made, arrays, CHECKED)
        (expected,) = reference("Warp", {"alpha": 3.0}, arrays, catalogue)
        assert not far(actual, expected, scale=4.0)


def test_a_kernel_is_found_by_name(tmp_path: Path) -> None:
    """The same class every time, and that of a user's rule."""
    assert kernels.find("SwiGLU") is kernels.find("SwiGLU")
    (tmp_path / "twice.rule").write_text("# Twice.\nTwice(X)\n\nmatch:  Y = Sin(Sin(X))\nemit:   Y = Twice(X)\n")
    with pytest.raises(KernelError, match="no rule defines Twice"):
        kernels.find("Twice")
    x = np.ones(3, np.float32)
    assert not far(run(kernels.find("Twice", [tmp_path])({}), [x], CHECKED)[0], np.sin(np.sin(x.astype(float))))


# ------------------------------------------------------------------------------------------------------------- mutants

MUTATED = [
    ("RotaryEmbedding", *rotary((24, 16, 0, True, True), FLOAT32)),
    ("RotaryEmbedding", *rotary((20, 0, 1, False, False), FLOAT32)),
    ("PRelu", {}, [-np.ones((3, 6, 8), np.float32), np.arange(48, dtype=np.float32).reshape(6, 8)]),
]


MUTATED[0][2][3][0, 0] = -1  # counted from the end of the table


@pytest.mark.parametrize(("op", "attributes", "arrays"), MUTATED, ids=["partial", "interleaved", "broadcast"])
@pytest.mark.parametrize("by", [1, -1])
def test_a_size_that_is_off_by_one_is_caught(
    op: str, attributes: dict[str, Any], arrays: list[Array | None], by: int
) -> None:
    """Every stride, bound and divisor of the source, one at a time: checks or numbers tell."""
    made = kernel(op, **attributes)
    assert isinstance(made, pointwise.Pointwise)
    (loop,) = made._plan(tuple(types(arrays)), (True,), True)[1]
    (expected,) = reference(op, attributes, arrays, CATALOGUE)

    def right(parameters: Sequence[np.generic]) -> bool:
        y = np.empty(expected.shape, np.float32)
        given = [a for k in loop.inputs if (a := arrays[k]) is not None]
        try:
            with CHECKED.fresh(y):
                CHECKED.launch(Launch(loop.source, loop.entry, (1,), (64,)), [*given, y, *parameters])
        except KernelError:
            return False
        return not far(y, expected, scale=1.0)

    assert right(loop.parameters)
    names = _parameters(loop.source.text)
    assert len(names) == len(loop.parameters) >= 4
    survivors = []
    for k, name in enumerate(names):
        changed = list(loop.parameters)
        number = int(changed[k]) + by
        if name.endswith("_number"):
            changed[k : k + 3] = source.division(number)
        elif name.endswith(("_multiplier", "_shift")):
            continue
        else:
            changed[k] = np.int32(number)
        if right(changed):
            survivors.append(name)
    assert not survivors


def _parameters(text: str) -> list[str]:
    """The names of the scalar parameters of the kernel, in order."""
    head = text[text.index("__global__") : text.index(") {", text.index("__global__"))]
    return re.findall(r"(?:Index|int|unsigned) (\w+)", head.split("out0,")[1])
