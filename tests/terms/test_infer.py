"""Shapes and types of ops: as onnx infers them where all sizes are known, and no less true of symbols."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference

from onnxfuse.model.dims import Dim, Sym, symbol
from onnxfuse.model.symbols import evaluate
from onnxfuse.terms.infer import infer
from onnxfuse.terms.infer_table import RULES
from onnxfuse.terms.term import Term, Terms

FLOAT, INT64, BOOL = int(TensorProto.FLOAT), int(TensorProto.INT64), int(TensorProto.BOOL)


@dataclass(frozen=True)
class Case:
    """An op over tensors of these shapes; a list instead of a shape holds integers that are known."""

    op: str
    inputs: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 12
    """The last one in which axes and splits are attributes, as those of terms are."""
    dtype: int = FLOAT

    def __str__(self) -> str:
        return f"{self.op} {self.inputs} {self.attrs or ''}"


def case(op: str, *inputs: Any, outputs: int = 1, opset: int = 12, dtype: int = FLOAT, **attrs: Any) -> Case:
    return Case(op, inputs, attrs, outputs, opset, dtype)


CASES = [
    case("Add", (2, 1, 4), (3, 1)),
    case("Equal", (2, 1), (3,)),
    case("Not", (2, 3), dtype=BOOL),
    case("Cast", (2, 3), to=INT64),
    case("Dropout", (2, 3), outputs=2),
    case("ReduceSum", (2, 3, 4), axes=[-1, 0], keepdims=0),
    case("ReduceMax", (2, 3, 4), axes=[1]),
    case("ReduceMean", (2, 3, 4), keepdims=0),
    case("Transpose", (2, 3, 4), perm=[2, 0, 1]),
    case("Transpose", (2, 3, 4)),
    case("Shape", (2, 3, 4)),
    case("Shape", (2, 3, 4), start=1, end=-1, opset=15),
    case("Size", (2, 3)),
    case("Concat", (2, 3), (2, 5), axis=-1),
    case("Gather", (2, 3, 4), [[0, 1], [1, 0]], axis=1),
    case("Gather", (2, 3, 4), [0, 1, 1]),
    case("GatherElements", (2, 3), [[0], [1]], axis=1),
    case("GatherND", (2, 3, 4), [[0, 1], [1, 0], [1, 1]]),
    case("GatherND", (2, 3, 4), [[0], [1]], batch_dims=1),
    case("Squeeze", (2, 1, 4, 1), axes=[-1]),
    case("Squeeze", (2, 1, 4, 1)),
    case("Unsqueeze", (2, 3), axes=[0, -1]),
    case("Flatten", (2, 3, 4), axis=-1),
    case("Flatten", (2, 3, 4), axis=0),
    case("Reshape", (2, 3, 4), [0, -1]),
    case("Reshape", (0, 3), [3, 0], allowzero=1, opset=14),
    case("Reshape", (2, 3, 4), [6, 4]),
    case("Expand", (3, 1), [2, 1, 4]),
    case("ConstantOfShape", [2, 3]),
    case("ConstantOfShape", [2, 3], value=numpy_helper.from_array(np.zeros(1, np.int32))),
    case("Range", 2, 7, 1),
    case("Range", 0, 7, 2),
    case("Range", 7, 0, -3),
    case("Range", 7, 0, 1),
    case("Slice", (5, 6), [1], [4], [1]),
    case("Slice", (5, 6), [0, -1], [10**12, -7], [0, 1], [2, -1]),
    case("Slice", (5, 6), [-3], [-1]),
    case("Split", (7, 6), outputs=3, axis=1),
    case("Split", (7, 6), outputs=2, split=[3, 4]),
    case("Split", (7,), outputs=3, num_outputs=3, opset=18),
    case("Tile", (2, 3), [2, 5]),
    case("Pad", (2, 3), [1, 0, 0, 4]),
    case("Pad", (2, 3), [1, 2], None, [-1], opset=18),
    case("TopK", (2, 7), [3], outputs=2),
    case("TopK", (5, 7), [3], outputs=2, axis=0),
    case("ArgMax", (2, 3, 4), axis=-1, keepdims=0),
    case("ArgMin", (2, 3, 4)),
    case("NonZero", (2, 3)),
    case("OneHot", [0, 1], 5, (2,)),
    case("EyeLike", (2, 3)),
    case("EyeLike", (2, 3), dtype=INT64),
    case("RandomNormalLike", (2, 3)),
]  # fmt: skip


def dtype_of(given: Any, case: Case) -> int:
    return case.dtype if isinstance(given, tuple) else INT64


def wanted(case: Case) -> list[tuple[tuple[int | None, ...] | None, int]]:
    """(shape, element type) of each result as onnx infers them."""
    names = ["" if given is None else f"i{i}" for i, given in enumerate(case.inputs)]
    values, constants = [], []
    for name, given in zip(names, case.inputs, strict=True):
        if isinstance(given, tuple):
            values.append(helper.make_tensor_value_info(name, case.dtype, given))
        elif given is not None:
            constants.append(numpy_helper.from_array(np.array(given, np.int64), name))
    results = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, results, **case.attrs)
    graph = helper.make_graph([node], "g", values, [onnx.ValueInfoProto(name=name) for name in results], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)])
    inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    found = []
    for output in inferred.graph.output:
        tensor = output.type.tensor_type
        dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
        found.append((dims if tensor.HasField("shape") else None, tensor.elem_type))
    return found


def attributes(case: Case) -> dict[str, Any]:
    """The attributes as terms have them: lists frozen, tensors as bytes."""
    return {
        name: ("tensor", value.SerializeToString()) if isinstance(value, TensorProto)
        else tuple(value) if isinstance(value, list) else value
        for name, value in case.attrs.items()
    }  # fmt: skip


def inferred(case: Case, *, symbolic: bool = False) -> tuple[list[Any], dict[str, int]]:
    """What we infer, and the sizes of the symbols that stand for the sizes of the inputs."""
    terms, sizes, args = Terms(), dict[str, int](), list[Term]()

    def dim(size: int) -> Dim:
        if not symbolic or size < 2:
            return size
        sizes[f"n{size}"] = size
        return symbol(f"n{size}")

    for i, given in enumerate(case.inputs):
        if given is None:
            args.append(terms.absent)
        elif isinstance(given, tuple):
            args.append(terms.input(f"i{i}", tuple(map(dim, given)), case.dtype))
        else:
            args.append(terms.constant(np.array(given, np.int64), INT64))
    return infer(terms, case.op, args, attributes(case), case.outputs), sizes


def check_against_onnx(case: Case) -> None:
    found, _ = inferred(case)
    for (shape, dtype), (theirs, kind) in zip(found, wanted(case), strict=True):
        assert dtype == kind
        if shape is not None and theirs is not None:
            assert len(shape) == len(theirs)
            assert all(a == b or isinstance(a, Sym) or b is None for a, b in zip(shape, theirs, strict=True))
            # What is left open is what onnx leaves open, or what depends on the last window.
            assert case.attrs.get("ceil_mode") or sum(isinstance(a, Sym) for a in shape) <= theirs.count(None)


def check_symbols(case: Case) -> None:
    known, _ = inferred(case)
    found, sizes = inferred(case, symbolic=True)
    for (shape, dtype), (numbers, kind) in zip(found, known, strict=True):
        assert dtype == kind
        for dim, number in zip(shape or (), numbers or (), strict=shape is not None):
            assert evaluate(dim, sizes) in (number, None)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shapes_and_types_are_those_of_onnx(case: Case) -> None:
    check_against_onnx(case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_said_of_symbols_holds_for_their_sizes(case: Case) -> None:
    check_symbols(case)


@pytest.mark.parametrize("op", sorted(RULES))
def test_an_unknown_rank_stops_nothing(op: str) -> None:
    terms = Terms()
    args = [terms.input(name, None, FLOAT) for name in "abcdefghi"]
    count = len(args) if re.search("QLinear|QGemm|QAttention", op) else 3  # each with a scale and a zero point
    attrs = {"axis": 1, "perm": (1, 0), "axes": (0,), "N": 8, "equation": "ij,jk->ik", "kernel_shape": (3,)}
    for shape, dtype in infer(terms, op, args[:count], attrs, 2):
        assert shape is None or all(isinstance(dim, Sym | int) for dim in shape)
        assert dtype in (0, *TensorProto.DataType.values())


def test_a_rank_is_known_where_no_dimension_is() -> None:
    terms = Terms()
    x = terms.input("x", None, FLOAT)
    shape = terms.input("shape", (3,), INT64)

    def rank(op: str, *args: Term, **attrs: Any) -> int | None:
        found = infer(terms, op, list(args), attrs)[0][0]
        return None if found is None else len(found)

    assert rank("Transpose", x, perm=(1, 0)) == 2
    assert rank("Reshape", x, shape) == rank("ConstantOfShape", shape) == 3
    assert rank("Expand", terms.input("y", (2,), FLOAT), shape) == 3
    assert rank("Expand", x, shape) is None, "of four dimensions or more, by what x is"
    assert rank("Flatten", x) == 2
    assert rank("Concat", x, terms.input("w", (2, 3), FLOAT), axis=0) == 2
    assert rank("Squeeze", terms.input("z", (symbol("n"), 1), FLOAT)) is None, "n may be 1"
