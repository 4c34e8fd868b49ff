"""Evaluates `let`, `where` and `emit` of a rule over the bindings of a match: expressions to terms, numbers and truths.

The only functions a rule can call are those defined here and ops; see `FUNCTIONS` for the former.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto

from . import causal, symbolic
from .canonical import defaults
from .infer import infer, normal_axis
from .language import Catalogue
from .lengths import lengths_of, window_of
from .normal import expand, make, repeat, reshape, slice_axis, transpose
from .padding import lengthened
from .parse import standard_ops
from .parts import along, part
from .pattern import BINARY
from .rule import Rule, literal, op_name
from .symbolic import Dim, Shape, Sym, broadcast, exact, product
from .terms import HALF, Term, Terms, is_number, same_shape, value_of

Value: TypeAlias = Any
"""What a name in a rule may stand for: Term, int, float, Sym, str, bool, tuple of these, or None (not given)."""

Bindings: TypeAlias = dict[str, Value]


class UndecidedError(Exception):
    """A condition that depends on something unknown, or a step that does not apply; says which."""


class Scope:
    """Evaluates expressions of one rule under the bindings of one match."""

    def __init__(self, terms: Terms, rule: Rule, bindings: Bindings, like: Term, opset: int, ops: Catalogue) -> None:
        self.terms, self.rule, self.bindings = terms, rule, bindings
        self.like, self.opset, self.ops = like, opset, ops

    # ------------------------------------------------------------------------------------- values and truths

    def value(self, node: ast.expr) -> Value:
        """Any expression.  Raises UndecidedError."""
        evaluate = _EXPRESSIONS.get(type(node))
        if evaluate is None:
            raise UndecidedError(f"{ast.unparse(node)} has no value")
        return evaluate(self, node)

    def unary(self, node: ast.UnaryOp) -> Value:
        operand = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return not self.truth(operand, node.operand)
        return make(self.terms, "Neg", [operand], {}) if isinstance(operand, Term) else -operand

    def either(self, node: ast.BoolOp) -> bool:
        conjunction = isinstance(node.op, ast.And)
        for operand in node.values:
            if self.truth(self.value(operand), operand) != conjunction:
                return not conjunction
        return conjunction

    def name(self, name: str) -> Value:
        if name in self.bindings:
            return self.bindings[name]
        raise UndecidedError(f"{name} is not bound")

    def truth(self, value: Value, node: ast.expr) -> bool:
        if isinstance(value, bool | np.bool_):
            return bool(value)
        if value is None:
            return False
        if isinstance(value, Term | Sym):
            raise UndecidedError(f"{ast.unparse(node)} is not decided")
        return bool(value)

    def number(self, value: Value) -> Value:
        """A constant of one element as a number; everything else as it is."""
        return value.scalar if isinstance(value, Term) and value.scalar is not None else value

    def compare(self, node: ast.Compare) -> bool:
        left = self.number(self.value(node.left))
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.number(self.value(right_node))
            if not _COMPARE[type(op)](left, right):
                return False
            left = right
        return True

    def subscript(self, node: ast.Subscript) -> Value:
        base = self.value(node.value)
        if not isinstance(base, tuple):
            raise UndecidedError(f"{ast.unparse(node.value)} is no list")
        if isinstance(node.slice, ast.Slice):
            low = self.value(node.slice.lower) if node.slice.lower else None
            high = self.value(node.slice.upper) if node.slice.upper else None
            return base[low:high]
        index = self.value(node.slice)
        if not isinstance(index, int) or not -len(base) <= index < len(base):
            raise UndecidedError(f"{ast.unparse(node)} is outside the list")
        return base[index]

    def binary(self, node: ast.BinOp) -> Value:
        if type(node.op) not in BINARY and not isinstance(node.op, ast.FloorDiv | ast.BitOr):
            raise UndecidedError(f"{ast.unparse(node)} has no value")
        if isinstance(node.op, ast.BitOr):
            return self.value(node.left)
        a, b = self.value(node.left), self.value(node.right)
        if isinstance(a, Term) or isinstance(b, Term):
            op = BINARY[type(node.op)]
            return make(self.terms, op, [self.term(a), self.term(b)], {})
        if a is None or b is None:
            raise UndecidedError(f"{ast.unparse(node)} has an absent operand")
        if isinstance(node.op, ast.Div | ast.FloorDiv) and not isinstance(a, float) and not isinstance(b, float):
            quotient = exact(a, b)
            if quotient is None and isinstance(node.op, ast.Div) and isinstance(a, int) and isinstance(b, int) and b:
                return a / b
            if quotient is None:
                raise UndecidedError(f"{a} is not a multiple of {b}")
            return quotient
        return _ARITHMETIC[type(node.op)](a, b)

    # ------------------------------------------------------------------------------------- terms

    def term(self, value: Value) -> Term:
        """A value as a term: a number becomes a constant of the result's dtype."""
        if isinstance(value, Term):
            return value
        if value is None:
            return self.terms.absent
        if isinstance(value, bool | int | float):
            return self.terms.number(float(value), self.like.dtype)
        raise UndecidedError(f"{value} is no tensor")

    def call(self, node: ast.Call) -> Value:
        op = op_name(node)
        op = self.bindings.get(op, op) if self.rule.parameter(op) else op
        if op in FUNCTIONS:
            return FUNCTIONS[op](self, *[self.value(a) for a in node.args])
        args = [self.value(a) for a in node.args]
        attrs: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                assert isinstance(keyword.value, ast.Name)
                attrs.update(self.bindings.get(keyword.value.id) or ())
            else:
                value = self.number(self.value(keyword.value))
                if value is not None:
                    attrs[keyword.arg] = value
        # A parameter that the match left out is an absent input of an op, not its neutral number.
        for i, argument in enumerate(node.args):
            left_out = isinstance(argument, ast.Name) and argument.id in self.bindings.get("", ())
            if left_out and (op in self.ops.definitions or i in _optional_inputs(op)):
                args[i] = None
        return self.apply(op, args, attrs)

    def apply(self, op: str, args: list[Value], attrs: dict[str, Any]) -> Term:
        """The term of an op; views and algebra in normal form, everything else as it is."""
        operands = [self.term(a) for a in args]
        while operands and operands[-1].op == "Absent":
            operands.pop()
        x = operands[0] if operands else self.terms.absent
        if op == "Reshape" and len(operands) == 1:
            if x.shape is None or product(x.shape) != product(attrs["shape"]):
                raise UndecidedError(f"{x!r} does not have {product(attrs['shape'])!r} elements")
            return reshape(self.terms, x, tuple(attrs["shape"]))
        if op in ("Unsqueeze", "Squeeze"):
            return make(self.terms, op, [x], attrs)
        if op == "Transpose":
            return transpose(self.terms, x, attrs["perm"])
        if op == "Repeat":
            return repeat(self.terms, x, attrs["axis"], attrs["n"])
        if op == "Expand" and "shape" in attrs:
            return expand(self.terms, x, tuple(attrs["shape"]))
        if op == "Slice" and x.shape is not None:
            axis = normal_axis(attrs["axis"], len(x.shape))
            return slice_axis(self.terms, x, axis, attrs["start"], attrs["stop"], attrs.get("step", 1))
        reals = _real_attributes(op)
        attrs = {k: float(v) if k in reals and isinstance(v, int) else v for k, v in attrs.items()}
        standard = attribute_defaults(op, self.ops)
        attrs = {k: v for k, v in attrs.items() if k not in standard or standard[k] != v}
        if op in standard_ops() and op not in self.ops.definitions:
            return make(self.terms, op, operands, attrs)
        return make(self.terms, op, operands, attrs, *self.shape_of(op, operands, attrs))

    def shape_of(self, op: str, args: list[Term], attrs: Mapping[str, Any]) -> tuple[Shape | None, int]:
        """Shape and dtype of a fused op: by inference where there is a rule for it, else as what it replaces."""
        shape, dtype = infer(self.terms, op, args, attrs)[0]
        if shape is None or not dtype:
            return self.like.shape, self.like.dtype
        return shape, dtype


@cache
def _schema_defaults(op: str) -> dict[str, Any]:
    from onnx import defs

    return defaults(op, "", defs.onnx_opset_version())


@cache
def _real_attributes(op: str) -> frozenset[str]:
    from onnx import defs

    if op not in standard_ops():
        return frozenset()
    attributes = defs.get_schema(op, defs.onnx_opset_version(), "").attributes
    return frozenset(name for name, a in attributes.items() if a.type == defs.OpSchema.AttrType.FLOAT)


@cache
def _optional_inputs(op: str) -> frozenset[int]:
    from onnx import defs

    if op not in standard_ops():
        return frozenset()
    inputs = defs.get_schema(op, defs.onnx_opset_version(), "").inputs
    return frozenset(i for i, p in enumerate(inputs) if p.option == defs.OpSchema.FormalParameterOption.Optional)


def attribute_defaults(op: str, ops: Catalogue) -> Mapping[str, Any]:
    """Defaults of an op's attributes: of the ONNX schema, or of the head that defines it."""
    found = dict(_schema_defaults(op))
    definition = ops.definitions.get(op)
    for p in definition.constants if definition is not None else ():
        if p.default is not None:
            found.setdefault(p.name, literal(p.default))
    return found


def undefined(op: str, attrs: Iterable[str], ops: Catalogue) -> list[str]:
    """The attributes that the rule which defines an op does not know: with one of them it is another op."""
    definition = ops.definitions.get(op)
    known = definition.attributes if definition is not None else None
    return [] if known is None else sorted(name for name in attrs if name not in known)


# ------------------------------------------------------------------------------------------------ functions of rules


def _shape(scope: Scope, x: Value) -> Shape:
    if x is None:
        return ()
    if isinstance(x, int | float):
        return ()
    if not isinstance(x, Term) or x.shape is None:
        raise UndecidedError(f"the shape of {x!r} is unknown")
    return x.shape


def _rank(scope: Scope, x: Value) -> int:
    if x is None or isinstance(x, int | float):
        return 0
    if not isinstance(x, Term) or x.shape is None:
        raise UndecidedError(f"the rank of {x!r} is unknown")
    return len(x.shape)


def _dim(scope: Scope, x: Value, axis: int) -> Dim:
    shape = _shape(scope, x)
    return shape[axis] if -len(shape) <= axis < len(shape) else 1


def _size(scope: Scope, x: Value, axes: Value = None) -> Dim:
    shape = _shape(scope, x)
    return product(shape if axes is None else [shape[a] for a in axes])


def _free(scope: Scope, x: Value) -> bool:
    """Is no data moved on top of x (no Transpose, Expand or Repeat left after views cancelled)?"""
    while isinstance(x, Term) and x.op in ("Reshape", "Slice"):
        x = x.args[0]
    return isinstance(x, Term) and x.op not in ("Transpose", "Expand", "Repeat")


def _trailing(scope: Scope, axis: Value) -> tuple[int, ...]:
    """The axes from `axis` (negative) to the last."""
    if not isinstance(axis, int) or axis >= 0:
        raise UndecidedError(f"axis {axis} does not count from the end")
    return tuple(range(axis, 0))


def _filled(scope: Scope, value: Value, x: Value, axes: Value) -> Value:
    """`value` if it is a tensor, else a constant of x's dims along `axes`: for ops whose input is not optional."""
    if isinstance(value, Term) and value.op != "Absent" and not (is_number(value) and not value.rank):
        return value
    number = value.scalar if isinstance(value, Term) else value
    dims = [_dim(scope, x, a) for a in axes]
    if number is None or any(isinstance(d, Sym) for d in dims):
        raise UndecidedError(f"the size of {x!r} along {axes} is unknown")
    return scope.terms.constant(np.full([int(d) for d in dims if isinstance(d, int)], float(number)), scope.like.dtype)


def _broadcasts(scope: Scope, x: Value, shape: Value) -> bool:
    """Does x broadcast to `shape` without widening it?"""
    return same_shape(broadcast(_shape(scope, x), tuple(shape)), tuple(shape))


def _same(scope: Scope, a: Value, b: Value) -> bool:
    """Are two dimensions equal for every input?  Where that depends on the input, the answer is no."""
    return bool(a == b)


def _at_most(scope: Scope, a: Value, b: Value) -> bool:
    """Is a dimension never above another?  Where that depends on the input, the answer is no."""
    return symbolic.at_least(b, a)


def _window(scope: Scope, mask: Value, queries: Value, keys: Value, offset: Value) -> tuple[int, int]:
    """How far a mask lets queries see before and behind their own positions."""
    find = window_of if isinstance(offset, Term) else causal.window
    found = find(mask, queries, keys, offset) if isinstance(mask, Term) else None
    if found is None:
        raise UndecidedError(f"{mask!r} is no window")
    return found


def _lengthened(scope: Scope, x: Value, number: Value) -> Term:
    """What a Pad lengthens by a number behind the last axis."""
    found = lengthened(x, number) if isinstance(x, Term) else None
    if found is None:
        raise UndecidedError(f"{x!r} is not padded by {number} behind its last axis")
    return found


def _apart(scope: Scope, mask: Value) -> tuple[Term, Term]:
    """A mask of booleans as a condition on positions and another on everything else."""
    found = causal.apart(scope.terms, mask) if isinstance(mask, Term) else None
    if found is None:
        raise UndecidedError(f"{mask!r} is no conjunction of positions and others")
    return found


def _lengths(scope: Scope, mask: Value, *sizes: Value) -> Term:
    """The lengths of sequences behind which a mask hides keys."""
    found = lengths_of(mask, *sizes) if isinstance(mask, Term) else None
    if found is None:
        raise UndecidedError(f"{mask!r} is no mask of lengths")
    return found


def _blended(scope: Scope, keep: Value, fill: Value) -> float:
    """What a mask of 0 and 1 has in place of a score."""
    low = causal.blended(keep, fill) if isinstance(keep, Term) and isinstance(fill, Term) else None
    if low is None:
        raise UndecidedError(f"{fill!r} is not 0 where {keep!r} is 1, and one number where it is 0")
    return low


def _every(scope: Scope, x: Value, number: Value) -> bool:
    """Is x a constant, all of whose elements are this number?"""
    if not isinstance(x, Term):
        return bool(x == number)
    return x.constant and bool(np.all(value_of(x) == number))


def _along(scope: Scope, x: Value, axis: int) -> Term:
    """The vector that x repeats along all axes but one."""
    vector = along(scope.terms, x, axis) if isinstance(x, Term) else None
    if vector is None:
        raise UndecidedError(f"{x!r} differs along an axis other than {axis}")
    return vector


def _part(scope: Scope, x: Value, start: Value, stop: Value, step: int = 1) -> Term:
    """x[..., start:stop:step], computed inside what computes x."""
    piece = part(scope.terms, x, start, stop, step) if isinstance(x, Term) and isinstance(stop, int) else None
    if piece is None:
        raise UndecidedError(f"the last dimension of {x!r} is no {stop}")
    return piece


def _attribute(scope: Scope, captured: Value, name: str, default: Value) -> Value:
    """An attribute among those that `**name` captured; `default` where the node does not give it."""
    return dict(captured).get(name, default)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "rank": _rank,
    "dim": _dim,
    "shape": _shape,
    "size": _size,
    "isconst": lambda scope, x: not isinstance(x, Term) or x.constant,
    "isnumber": lambda scope, x: not isinstance(x, Term) or x.scalar is not None,
    "isint": lambda scope, x: isinstance(x, int),
    "isinput": lambda scope, x: isinstance(x, Term) and x.op == "Input",
    "given": lambda scope, x: isinstance(x, Term) and x.op != "Absent",
    "free": _free,
    "causal": lambda scope, x, *sizes: isinstance(x, Term) and causal.is_causal(x, *sizes),
    "window": _window,
    "apart": _apart,
    "lengthened": _lengthened,
    "atmost": _at_most,
    "isbool": lambda scope, x: isinstance(x, Term) and x.dtype == TensorProto.BOOL,
    "target": lambda scope: scope.ops.target,
    "hides": lambda scope, x: isinstance(x, Term) and causal.hides(x),
    "lengths": _lengths,
    "blended": _blended,
    "half": lambda scope, x: isinstance(x, Term) and x.dtype in HALF,
    "reused": lambda scope, x: isinstance(x, Term) and x.id in scope.terms.reused,
    "lowest": lambda scope, x: isinstance(scope.number(x), int | float) and scope.number(x) <= -1e4,
    "len": lambda scope, x: len(x),
    "abs": lambda scope, x: abs(scope.number(x)),
    "min": lambda scope, *x: min(*x),
    "max": lambda scope, *x: max(*x),
    "trailing": _trailing,
    "filled": _filled,
    "opset": lambda scope: scope.opset,
    "broadcasts": _broadcasts,
    "same": _same,
    "attribute": _attribute,
    "part": _part,
    "along": _along,
    "every": _every,
}

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
}


def _equal(a: Value, b: Value) -> bool:
    if isinstance(a, Sym) or isinstance(b, Sym):
        decided = symbolic.equal(a, b) if isinstance(a, int | Sym) and isinstance(b, int | Sym) else False
        if decided is None:
            raise UndecidedError(f"whether {a} equals {b} depends on the input")
        return decided
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Term) or isinstance(b, Term):
        return a is b
    return bool(a == b)


def _order(compare: Callable[[Any, Any], bool]) -> Callable[[Value, Value], bool]:
    def ordered(a: Value, b: Value) -> bool:
        if any(v is None or isinstance(v, Term | Sym | tuple | str) for v in (a, b)):
            raise UndecidedError(f"{a} and {b} cannot be compared")
        return compare(a, b)

    return ordered


_COMPARE: dict[type[ast.cmpop], Callable[[Value, Value], bool]] = {
    ast.Eq: _equal,
    ast.NotEq: lambda a, b: not _equal(a, b),
    ast.Is: lambda a, b: a is b or (b is None and isinstance(a, Term) and a.op == "Absent"),
    ast.IsNot: lambda a, b: not (a is b or (b is None and isinstance(a, Term) and a.op == "Absent")),
    ast.In: lambda a, b: any(_equal(a, x) for x in b),
    ast.NotIn: lambda a, b: not any(_equal(a, x) for x in b),
    ast.Lt: _order(lambda a, b: a < b),
    ast.LtE: _order(lambda a, b: a <= b),
    ast.Gt: _order(lambda a, b: a > b),
    ast.GtE: _order(lambda a, b: a >= b),
}

_EXPRESSIONS: dict[type[ast.expr], Callable[[Scope, Any], Value]] = {
    ast.Constant: lambda scope, node: node.value,
    ast.Name: lambda scope, node: scope.name(node.id),
    ast.List: lambda scope, node: tuple(map(scope.value, node.elts)),
    ast.Tuple: lambda scope, node: tuple(map(scope.value, node.elts)),
    ast.Set: lambda scope, node: tuple(map(scope.value, node.elts)),
    ast.UnaryOp: Scope.unary,
    ast.BinOp: Scope.binary,
    ast.Compare: Scope.compare,
    ast.BoolOp: Scope.either,
    ast.IfExp: lambda scope, node: scope.value(
        node.body if scope.truth(scope.value(node.test), node.test) else node.orelse
    ),
    ast.Subscript: Scope.subscript,
    ast.Call: Scope.call,
}
"""What may stand in an expression; anything else has no value."""
