"""Layers of constants alone are computed as onnxruntime computes them, and go."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from onnxfuse.terms.fold import value_of
from onnxfuse.terms.fold_layers import LAYERS
from onnxfuse.terms.term import Term, Terms, UnknownValueError

FLOAT, INT64 = int(TensorProto.FLOAT), int(TensorProto.INT64)
RNG = np.random.default_rng(0)


def normal(*shape: int) -> NDArray[Any]:
    return RNG.standard_normal(shape).astype(np.float32)


ROW, PICTURE = normal(2, 3, 5), normal(1, 2, 5, 7)
KERNEL, CHANNELS = normal(4, 1, 3, 2), abs(normal(2)) + 1


def size(*dims: int) -> NDArray[Any]:
    return np.array((1, 2, *dims), np.int64)


def scales(*factors: float) -> NDArray[Any]:
    return np.array((1, 1, *factors), np.float32)


def resize(mode: str, how: str, to: NDArray[Any], **attrs: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    operands = (PICTURE, None, None, to) if to.dtype == np.int64 else (PICTURE, None, to)
    return "Resize", operands, {"mode": mode, "coordinate_transformation_mode": how, **attrs}


CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Softmax", (ROW * 100,), {}),
    ("Softmax", (ROW,), {"axis": -2}),
    ("LayerNormalization", (ROW, normal(5)), {}),
    ("LayerNormalization", (ROW, normal(3, 5), normal(3, 5)), {"axis": -2, "epsilon": 0.1}),
    ("BatchNormalization", (PICTURE, *normal(3, 2), CHANNELS), {"epsilon": 0.1}),
    ("BatchNormalization", (PICTURE, *normal(3, 2), CHANNELS), {"training_mode": 1}),
    ("Conv", (PICTURE, KERNEL, normal(4)), {"group": 2, "pads": (1, 0, 2, 1), "strides": (2, 1), "dilations": (1, 3)}),
    ("Conv", (PICTURE[0], normal(2, 5, 1)), {}),
    ("Conv", (PICTURE, normal(3, 2, 1, 1)), {}),
    *(
        resize(mode, how, to)
        for mode in ("nearest", "linear", "cubic")
        for how in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
        for to in (size(10, 4), size(1, 9), scales(1, 2.5))
        if not (mode == "nearest" and to[2] == 1 and how == "asymmetric")
    ),
    *(
        resize("nearest", "half_pixel", size(15, 3), nearest_mode=mode)
        for mode in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    ),
    resize("cubic", "half_pixel", size(9, 9), cubic_coeff_a=-0.5),
    resize("cubic", "half_pixel", size(9, 3), exclude_outside=1),
]


def runtime(op: str, operands: tuple[Any, ...], attrs: dict[str, Any]) -> NDArray[Any]:
    """What onnxruntime computes of inputs."""
    given = {f"i{i}": x for i, x in enumerate(operands) if x is not None}
    infos = [helper.make_tensor_value_info(n, FLOAT if x.dtype == "f4" else INT64, x.shape) for n, x in given.items()]
    outputs = ["y", "m", "v"] if attrs.get("training_mode") else ["y"]
    node = helper.make_node(op, [f"i{i}" if x is not None else "" for i, x in enumerate(operands)], outputs, **attrs)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return np.asarray(onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)[0])


def term_of(terms: Terms, op: str, operands: tuple[Any, ...], attrs: dict[str, Any], shape: tuple[int, ...]) -> Term:
    args = [
        terms.absent if x is None else terms.constant(x, FLOAT if x.dtype == "f4" else INT64, key=i)
        for i, x in enumerate(operands)
    ]
    return terms.raw(op, args, tuple(sorted(attrs.items())), shape=shape, dtype=FLOAT)


@pytest.mark.parametrize(("op", "operands", "attrs"), CASES)
def test_values_are_those_of_onnxruntime(op: str, operands: tuple[Any, ...], attrs: dict[str, Any]) -> None:
    wanted = runtime(op, operands, attrs)
    found = value_of(term_of(Terms(), op, operands, attrs, wanted.shape))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_every_layer_is_computed_here() -> None:
    assert {op for op, _, _ in CASES} == LAYERS.keys()


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "shape"),
    [
        ("Conv", (PICTURE, KERNEL), {"group": 2, "auto_pad": "SAME_UPPER"}, (1, 4, 5, 7)),
        (*resize("linear", "half_pixel", size(3, 3), antialias=1), (1, 2, 3, 3)),
        (*resize("linear", "tf_crop_and_resize", size(3, 3)), (1, 2, 3, 3)),
        ("Resize", (PICTURE * np.float32("inf"), None, None, size(3, 3)), {"mode": "linear"}, (1, 2, 3, 3)),
        ("Resize", (normal(1, 1, 0, 4), None, None, np.array((1, 1, 2, 2))), {}, (1, 1, 2, 2)),
        # Seven tenths, of which float32 has no exact number, is a step: either element may be the nearest.
        ("Resize", (normal(1, 10), None, np.array((1, 10 / 7), "f4")), {"nearest_mode": "floor"}, (1, 14)),
    ],
)
def test_what_only_a_runtime_can_say_has_no_value(
    op: str, operands: tuple[Any, ...], attrs: dict[str, Any], shape: tuple[int, ...]
) -> None:
    if op == "Resize" and len(operands) == 3:
        attrs = {**attrs, "coordinate_transformation_mode": "asymmetric"}
    with pytest.raises(UnknownValueError, match="cannot be computed"):
        value_of(term_of(Terms(), op, operands, attrs, shape))
