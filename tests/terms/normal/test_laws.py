"""The laws of the normal form: both sides of each equation are equal, and one term, and so because of the law."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxfuse.terms.normal import table
from onnxfuse.terms.normal.sums import close
from onnxfuse.terms.normal.table import LAWS, Law, scaled
from onnxfuse.terms.term import Term, static
from tests.terms.normal.space import BOOL, FLOAT, INT64, Space

Array: TypeAlias = NDArray[Any]
Apply: TypeAlias = Callable[..., Any]
"""(op, *operands, **attributes) → the result, in one way of computing."""

SHAPES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys("xyab", (2, 3, 4, 4)),
    **dict.fromkeys("uv", (6, 4, 4)),
    "z": (4, 4),
    "row": (1, 4),
    "ones": (4,),
    "kernel": (5, 3, 3, 3),
}
NUMBERS = {"c": 4.0, "inf": float("inf"), "low": -float("inf")}
BINARY = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div", ast.Gt: "Greater", ast.Eq: "Equal"}
CASES = [(law, op) for law in LAWS for op in (law.ops if "f(" in law.equation else law.ops[:1])]
NAMES = [f"{op}: {law.equation}" for law, op in CASES]

# ------------------------------------------------------------------------------------------------ both sides


def sides(law: Law, op: str) -> tuple[ast.expr, ast.expr, bool]:
    """Left and right with f one of the ops, and whether x must be positive."""
    text, _, condition = law.equation.partition(" if ")
    assert condition in ("", "x > 0"), condition
    left, right = (ast.parse(side.replace("f(", f"{op}("), mode="eval").body for side in text.split(" = "))
    return left, right, bool(condition)


def evaluate(node: ast.expr, known: dict[str, Any], apply: Apply) -> Any:
    """A side of an equation: numbers and tuples as they are, everything else as `apply` makes it."""
    match node:
        case ast.Name(id=name):
            return None if name == "absent" else NUMBERS[name] if name in NUMBERS else known[name]
        case ast.Call(func=ast.Name(id=op), args=args, keywords=keywords):
            operands = [evaluate(arg, known, apply) for arg in args]
            return apply(op, *operands, **{k.arg: ast.literal_eval(k.value) for k in keywords if k.arg})
        case ast.BinOp(left=left, op=kind, right=right) | ast.Compare(left=left, ops=[kind], comparators=[right]):
            a, b = evaluate(left, known, apply), evaluate(right, known, apply)
            plain = isinstance(a, int | float) and isinstance(b, int | float)
            return {"Div": a / b}[BINARY[type(kind)]] if plain else apply(BINARY[type(kind)], a, b)
        case _:
            return ast.literal_eval(node)


# ------------------------------------------------------------------------------------------------ as numbers


def array(value: Any) -> Array:
    """An operand: indices and sizes are integers, numbers float32."""
    if isinstance(value, tuple):
        return np.array(value, bool if isinstance(value[0], bool) else np.int64)
    return value if isinstance(value, np.ndarray) else np.array(value, np.float32)


def compute(op: str, *operands: Any, **attrs: Any) -> Array:
    """One op as the reference of onnx computes it."""
    inputs = [array(x) for x in operands if x is not None] if op != "arange" else []
    match op:
        case "arange":
            return np.arange(*operands)
        case "T":
            return inputs[0].swapaxes(-1, -2)
        case "merge":
            return inputs[0].reshape(-1, *inputs[0].shape[2:])
        case "unmerge":
            return inputs[0].reshape(2, 3, *inputs[0].shape[1:])
        case "squeeze":
            return inputs[0].reshape(inputs[0].shape[:-1])
        case "SequenceConstruct":
            return np.stack(inputs)  # a sequence of tensors alike, as one array
        case "SequenceInsert":
            return np.concatenate([inputs[0], inputs[1][None]])
        case "SplitToSequence":
            return np.stack(np.split(inputs[0], len(inputs[1]), **attrs))
        case "SequenceAt":
            return np.asarray(inputs[0][int(operands[1])])
        case "SequenceLength":
            return np.array(len(inputs[0]))
        case "ConcatFromSequence":
            return np.concatenate(list(inputs[0]), **attrs)
        case "QuickGelu":
            return inputs[0] / (1 + np.exp(-1.702 * inputs[0]))
        case "FastGelu":
            op, attrs = "Gelu", {"approximate": "tanh"}
        case "Cast" | "Bool":
            op, attrs = "Cast", {"to": TensorProto.BOOL if op == "Bool" else TensorProto.FLOAT}
        case _ if op.startswith("Reduce"):
            inputs += [np.array(attrs.pop("axes"), np.int64)]
        case "CumSum":
            inputs[1] = inputs[1].astype(np.int64)
        case "Add" | "Greater" if inputs[0].dtype == np.int64:
            inputs[1] = inputs[1].astype(np.int64)
    names = [f"i{i}" for i in range(len(inputs))]
    read = list(names)
    for i in (i for i, x in enumerate(operands) if x is None):
        read.insert(i, "")
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs, strict=True)
    ]
    result = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    graph = helper.make_graph([helper.make_node(op, read, ["y"], **attrs)], "g", infos, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    return np.asarray(ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))[0])


@pytest.mark.parametrize(("law", "op"), CASES, ids=NAMES)
def test_both_sides_are_equal(law: Law, op: str) -> None:
    rng = np.random.default_rng(3)
    left, right, positive = sides(law, op)
    known: dict[str, Any] = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    known |= {"true": np.ones(1, bool), "zero": np.zeros((1, 1), np.float32), "w": known["x"]}
    known["doubled"] = 2 * known["a"]
    known["q"] = rng.integers(0, 256, SHAPES["x"], np.uint8)
    known["p"] = rng.integers(0, 256, SHAPES["z"], np.uint8)
    if positive:
        known["x"] = np.exp(known["x"])
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted, found = (array(evaluate(side, known, compute)) for side in (left, right))
    assert wanted.shape == found.shape
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------ as terms


def as_term(t: Space, value: Any) -> Term:
    if value is None:
        return t.terms.absent
    if isinstance(value, Term):
        return value
    if isinstance(value, tuple):
        data = array(value)
        return t.terms.constant(data, BOOL if data.dtype == bool else INT64)
    return t.number(float(value))


def terms_of(law: Law, op: str) -> tuple[Term, Term]:
    """Both sides of the equation in normal form."""
    t = Space()

    def make(op: str, *operands: Any, **attrs: Any) -> Term:
        if op == "arange":
            return t.op("Range", *(t.terms.constant(np.array(n), INT64) for n in (0, *operands, 1)))
        x = [as_term(t, operand) for operand in operands]
        shape = x[0].shape or ()
        sizes = static(shape) or ()
        match op:
            case "T":
                return t.op("Transpose", x[0], perm=(*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
            case "merge":
                return t.op("Reshape", x[0], t.ints(6, *sizes[2:]))
            case "unmerge":
                return t.op("Reshape", x[0], t.ints(2, 3, *sizes[1:]))
            case "squeeze":
                return t.op("Squeeze", x[0], axes=(-1,))
            case "Cast" | "Bool":
                return t.op("Cast", x[0], to=BOOL if op == "Bool" else FLOAT)
            case "CumSum" | "Add" if op == "CumSum" or x[0].dtype == INT64:
                x[1] = t.terms.constant(np.array(int(x[1].scalar or 0)), INT64)
        return t.op(op, *x, **attrs)

    left, right, positive = sides(law, op)
    known: dict[str, Any] = {name: t.input(name, *shape) for name, shape in SHAPES.items()}
    known |= {"true": t.terms.constant(np.ones(1, bool), BOOL), "zero": t.number(0, 2), "w": t.unknown("w")}
    known["doubled"] = close(t.terms, scaled(t.terms, known["a"], 2))  # which others read
    known["q"] = t.input("q", *SHAPES["x"], dtype=TensorProto.UINT8)
    known["p"] = t.input("p", *SHAPES["z"], dtype=TensorProto.UINT8)
    if positive:
        known["x"] = t.op("Exp", known["x"])
    first, second = (as_term(t, evaluate(side, known, make)) for side in (left, right))
    return first, second


@pytest.mark.parametrize(("law", "op"), CASES, ids=NAMES)
def test_both_sides_are_one_term(law: Law, op: str) -> None:
    left, right = terms_of(law, op)
    assert left is right


FOLDED = {"Reciprocal(4) = 0.25"}
"""What a constant is in any case: the law sees to it that the number is in range."""
DERIVED = {"ReduceSumSquare", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"}
"""Reductions that other laws write as sums, for real numbers."""
NEEDED = [
    (law, op) for law, op in CASES if law.equation not in FOLDED and not (op in DERIVED and "keepdims" in law.equation)
]


@pytest.mark.parametrize(("law", "op"), NEEDED, ids=[f"{op}: {law.equation}" for law, op in NEEDED])
def test_they_are_so_because_of_the_law(law: Law, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in law.ops:
        rest = [rewrite for rewrite in table._OF_OP[name] if rewrite is not law.rewrite]
        monkeypatch.setitem(table._OF_OP, name, rest)
    left, right = terms_of(law, op)
    assert left is not right


def test_every_law_stands_once() -> None:
    assert len({(law.ops, law.equation) for law in LAWS}) == len(LAWS)
