"""Evaluates `let`, `where` and `emit` of a rule over the bindings of a match: expressions to terms, numbers and truths.

An expression becomes a closure the first time it is met, since rules are evaluated at thousands of terms.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto

from onnxfuse.model import dims as symbolic
from onnxfuse.model.dims import Shape, Sym, exact, product
from onnxfuse.model.schema import defaults
from onnxfuse.model.standard import newest
from onnxfuse.terms.infer import infer
from onnxfuse.terms.infer_table import normal_axis
from onnxfuse.terms.normal.normal import expand, make, repeat, reshape, slice_axis, transpose
from onnxfuse.terms.term import Term, Terms, UnknownValueError

from .builtins import BUILTINS, UndecidedError, Value
from .catalogue import Catalogue
from .context import Context
from .parse import standard_ops
from .rule import Rule, literal, op_name
from .variants import BINARY

Bindings: TypeAlias = dict[str, Value]
FAULTS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What an expression raises that makes no sense of its values, such as the length of a number."""


class Scope:
    """Evaluates expressions of one rule under the bindings of one match."""

    def __init__(
        self, terms: Terms, rule: Rule, bindings: Bindings, like: Term, context: Context, ops: Catalogue
    ) -> None:
        self.terms, self.rule, self.bindings = terms, rule, bindings
        self.like, self.context, self.ops = like, context, ops

    # ------------------------------------------------------------------------------------- values and truths

    def value(self, node: ast.expr) -> Value:
        """Any expression.  Raises UndecidedError, also where there is a mistake in it that only its values show."""
        try:
            return compiled(node)(self)
        except UndecidedError:
            raise
        except UnknownValueError as error:
            raise UndecidedError(str(error)) from error
        except FAULTS as error:
            raise UndecidedError(f"{ast.unparse(node)} cannot be computed: {error}") from error

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

    # ------------------------------------------------------------------------------------- facts

    def shape(self, x: Value) -> Shape:
        if x is None or isinstance(x, int | float):
            return ()
        if not isinstance(x, Term) or x.shape is None:
            raise UndecidedError(f"the shape of {x!r} is unknown")
        return x.shape

    def given(self, x: Value) -> bool:
        return isinstance(x, Term) and x.op != "Absent"

    def boolean(self, x: Value) -> bool:
        return isinstance(x, Term) and x.dtype == TensorProto.BOOL

    # ------------------------------------------------------------------------------------- terms

    def term(self, value: Value) -> Term:
        """A value as a term: a number becomes a constant of the result's dtype, dimensions a vector of int64."""
        if isinstance(value, Term):
            return value
        if value is None:
            return self.terms.absent
        if isinstance(value, bool | int | float):
            return self.terms.number(float(value), self.like.dtype)
        if isinstance(value, Sym):
            return self.terms.integers(np.array(value, object))
        if isinstance(value, tuple) and value and all(isinstance(d, int | Sym) for d in value):
            dims = np.empty(len(value), object)
            dims[:] = value
            return self.terms.integers(dims)
        raise UndecidedError(f"{value} is no tensor")

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

    schema = newest(op)
    attributes = schema.attributes if schema is not None else {}
    return frozenset(name for name, a in attributes.items() if a.type == defs.OpSchema.AttrType.FLOAT)


@cache
def _optional_inputs(op: str) -> frozenset[int]:
    from onnx import defs

    schema = newest(op)
    inputs = schema.inputs if schema is not None else []
    return frozenset(i for i, p in enumerate(inputs) if p.option == defs.OpSchema.FormalParameterOption.Optional)


def attribute_defaults(op: str, ops: Catalogue) -> Mapping[str, Any]:
    """Defaults of an op's attributes: of the ONNX schema, or of the head that defines it."""
    return _attribute_defaults(op, ops.definitions.get(op))


@cache
def _attribute_defaults(op: str, definition: Rule | None) -> Mapping[str, Any]:
    stated = {p.name: literal(p.default) for p in (definition.constants if definition else ()) if p.default is not None}
    return stated | _schema_defaults(op)


def undefined(op: str, attrs: Iterable[str], ops: Catalogue) -> list[str]:
    """The attributes that the rule which defines an op does not know: with one of them it is another op."""
    definition = ops.definitions.get(op)
    known = definition.attributes if definition is not None else None
    return [] if known is None else sorted(name for name in attrs if name not in known)


_BITS = 4096
"""Of the largest integer that a rule may compute."""
_LENGTH = 1024
"""Of the longest list, string or polynomial that it may."""


def _bounded(value: Value) -> Value:
    length = len(value.terms) if isinstance(value, Sym) else len(value) if isinstance(value, tuple | str) else 0
    if length > _LENGTH or (isinstance(value, int) and value.bit_length() > _BITS):
        raise OverflowError("it is too large")
    return value


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, Sym) or (isinstance(a, int) and isinstance(b, int) and a.bit_length() * abs(b) > _BITS):
        raise OverflowError("it is too large")
    return a**b


def _times(a: Any, b: Any) -> Any:
    for whole, times in ((a, b), (b, a)):
        if isinstance(whole, tuple | str) and len(whole) * times > _LENGTH:
            raise OverflowError("it is too large")
    return a * b


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: _times,
    ast.Div: lambda a, b: a / b,
    ast.Pow: _power,
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


# ------------------------------------------------------------------------------------------------ expressions

Compiled: TypeAlias = Callable[[Scope], Value]
"""An expression, ready to be evaluated in a scope."""


@cache
def compiled(node: ast.expr) -> Compiled:
    """The closure of an expression; one that has no value raises UndecidedError when it is evaluated."""
    build = _BUILDERS.get(type(node))
    return build(node) if build is not None else _undecided(f"{ast.unparse(node)} has no value")


def _undecided(text: str) -> Compiled:
    def undecided(scope: Scope) -> Value:
        raise UndecidedError(text)

    return undecided


def _constant(node: ast.Constant) -> Compiled:
    value = node.value
    return lambda scope: value


def _name(node: ast.Name) -> Compiled:
    name = node.id

    def lookup(scope: Scope) -> Value:
        try:
            return scope.bindings[name]
        except KeyError:
            raise UndecidedError(f"{name} is not bound") from None

    return lookup


def _sequence(node: ast.List | ast.Tuple | ast.Set) -> Compiled:
    items = [compiled(item) for item in node.elts]
    return lambda scope: tuple([item(scope) for item in items])


def _unary(node: ast.UnaryOp) -> Compiled:
    inner, operand = compiled(node.operand), node.operand
    if isinstance(node.op, ast.Not):
        return lambda scope: not scope.truth(inner(scope), operand)

    def negative(scope: Scope) -> Value:
        value = inner(scope)
        return make(scope.terms, "Neg", [value], {}) if isinstance(value, Term) else -value

    return negative


def _either(node: ast.BoolOp) -> Compiled:
    conjunction = isinstance(node.op, ast.And)
    operands = [(compiled(operand), operand) for operand in node.values]

    def either(scope: Scope) -> bool:
        for value, operand in operands:
            if scope.truth(value(scope), operand) != conjunction:
                return not conjunction
        return conjunction

    return either


def _choice(node: ast.IfExp) -> Compiled:
    test, body, other = compiled(node.test), compiled(node.body), compiled(node.orelse)
    return lambda scope: body(scope) if scope.truth(test(scope), node.test) else other(scope)


def _comparison(node: ast.Compare) -> Compiled:
    first = compiled(node.left)
    rest = [(_COMPARE[type(op)], compiled(right)) for op, right in zip(node.ops, node.comparators, strict=True)]

    def compare(scope: Scope) -> bool:
        left = scope.number(first(scope))
        for holds, right_of in rest:
            right = scope.number(right_of(scope))
            if not holds(left, right):
                return False
            left = right
        return True

    return compare


def _subscript(node: ast.Subscript) -> Compiled:
    whole = compiled(node.value)
    if isinstance(node.slice, ast.Slice):
        low = compiled(node.slice.lower) if node.slice.lower else None
        high = compiled(node.slice.upper) if node.slice.upper else None

        def select(scope: Scope, base: tuple[Value, ...]) -> Value:
            return base[low(scope) if low else None : high(scope) if high else None]
    else:
        position = compiled(node.slice)

        def select(scope: Scope, base: tuple[Value, ...]) -> Value:
            index = position(scope)
            if not isinstance(index, int) or not -len(base) <= index < len(base):
                raise UndecidedError(f"{ast.unparse(node)} is outside the list")
            return base[index]

    def subscript(scope: Scope) -> Value:
        base = whole(scope)
        if not isinstance(base, tuple):
            raise UndecidedError(f"{ast.unparse(node.value)} is no list")
        return select(scope, base)

    return subscript


def _binary(node: ast.BinOp) -> Compiled:
    kind, left, right = type(node.op), compiled(node.left), compiled(node.right)
    if kind is ast.BitOr:
        return left
    if kind not in BINARY and kind is not ast.FloorDiv:
        return _undecided(f"{ast.unparse(node)} has no value")
    divides = kind in (ast.Div, ast.FloorDiv)

    def binary(scope: Scope) -> Value:
        a, b = left(scope), right(scope)
        if isinstance(a, Term) or isinstance(b, Term):
            return make(scope.terms, BINARY[kind], [scope.term(a), scope.term(b)], {})
        if a is None or b is None:
            raise UndecidedError(f"{ast.unparse(node)} has an absent operand")
        if divides and not isinstance(a, float) and not isinstance(b, float):
            quotient = exact(a, b)
            if quotient is None and kind is ast.Div and isinstance(a, int) and isinstance(b, int) and b:
                return a / b
            if quotient is None:
                raise UndecidedError(f"{a} is not a multiple of {b}")
            return quotient
        return _bounded(_ARITHMETIC[kind](a, b))

    return binary


def _call(node: ast.Call) -> Compiled:
    called, arguments = op_name(node), [compiled(a) for a in node.args]
    builtin = BUILTINS.get(called)
    if builtin is not None:
        function = builtin.run
        return lambda scope: function(scope, *[argument(scope) for argument in arguments])
    names = [a.id if isinstance(a, ast.Name) else "" for a in node.args]
    keywords = [(k.arg, compiled(k.value), k.value.id if isinstance(k.value, ast.Name) else "") for k in node.keywords]

    def call(scope: Scope) -> Value:
        op = scope.bindings.get(called, called) if scope.rule.parameter(called) else called
        args = [argument(scope) for argument in arguments]
        attrs: dict[str, Any] = {}
        for key, value_of, name in keywords:
            if key is None:
                attrs.update(scope.bindings.get(name) or ())
            else:
                value = scope.number(value_of(scope))
                if value is not None:
                    attrs[key] = value
        # A parameter that the match left out is an absent input of an op, not its neutral number.
        left_out = scope.bindings.get("", ())
        for i, name in enumerate(names):
            if name in left_out and ("." in op or op in scope.ops.definitions or i in _optional_inputs(op)):
                args[i] = None
        return scope.apply(op, args, attrs)

    return call


_BUILDERS: dict[type[ast.expr], Callable[[Any], Compiled]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Compare: _comparison,
    ast.BoolOp: _either,
    ast.IfExp: _choice,
    ast.Subscript: _subscript,
    ast.Call: _call,
}
"""What may stand in an expression; anything else has no value."""
