"""Expressions of rules, walked in one place for all that give them values.

A `Backend` says what tensors are: terms of a graph (`evaluate`), nodes of a function body (`bodies`) or patterns
(`variants`).  What needs no tensor is computed here: numbers, dimensions, lists and truths are the same for all.

An expression becomes a closure the first time it is met, since rules are evaluated at thousands of terms.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NoReturn, TypeAlias

import numpy as np

from onnxfuse.derivatives.operators import BINARY
from onnxfuse.model import dims as symbolic
from onnxfuse.model.dims import Sym, exact

from . import standard_bodies as standard_bodies  # whose functions belong to the table
from .builtins import BUILTINS, UndecidedError, Value
from .registry import Builtin
from .rule import alternatives, names_in, op_name
from .variadic import Each, one_by_one

_BITS = 4096
"""Of the largest integer that a rule may compute."""
_LENGTH = 1024
"""Of the longest list, string or polynomial that it may."""


class Backend(ABC):
    """What gives expressions their values.  A `label` is what the equation calls the value of its outermost step."""

    READS: ClassVar[frozenset[type[ast.expr]]]
    """The expressions that have a value here; any other is refused."""
    bindings: dict[str, Value]
    """What names stand for."""

    @abstractmethod
    def name(self, node: ast.Name) -> Value:
        """What a name stands for."""

    @abstractmethod
    def tensor(self, value: Value) -> bool:
        """Is it a tensor, so that operators on it are ops?"""

    @abstractmethod
    def operator(self, op: str, operands: Sequence[Value], node: ast.expr, label: str) -> Value:
        """``-x`` or ``x * y`` where an operand is a tensor."""

    @abstractmethod
    def call(self, call: Call, label: str) -> Value:
        """An op."""

    def function(self, builtin: Builtin, arguments: Sequence[Value], node: ast.Call) -> Value:
        return builtin.run(self, *arguments)

    def constant(self, node: ast.Constant) -> Value:
        return node.value

    def number(self, value: Value) -> Value:
        """A constant of one element as a number, to be compared; everything else as it is."""
        return value

    def truth(self, value: Value, node: ast.expr) -> bool:
        return bool(value)

    def absent(self, value: Value) -> bool:
        """Does a value stand for an input that was left out?"""
        return value is None

    def choose(self, count: int) -> int:
        """Which of the equal spellings of an expression is read; the first is its meaning."""
        return 0

    def each(self, value: Compiled, node: ast.expr) -> Value:
        """``*expression``: its value for each operand."""
        names, made = self.bindings, []
        try:
            for self.bindings in one_by_one(names, names_in(node)):
                made.append(value(self, ""))
        finally:
            self.bindings = names
        return Each(made)

    def refuse(self, node: ast.expr) -> NoReturn:
        raise UndecidedError(f"{ast.unparse(node)} has no value")


Compiled: TypeAlias = Callable[[Any, str], Value]
"""An expression, ready to be evaluated by a backend of the class it was compiled for, and with a label."""


@dataclass(frozen=True, eq=False)
class Call:
    """The call of an op."""

    node: ast.Call
    op: str
    arguments: tuple[Compiled, ...]
    names: tuple[str, ...]
    """The arguments that are names; empty for others."""
    keywords: tuple[tuple[str | None, Compiled, str], ...]
    """Attribute, its value, and its value's name if it is one; no attribute for ``**name``."""


@cache
def compiled(node: ast.expr, backend: type[Backend]) -> Compiled:
    """The closure of an expression; one that a backend does not read is refused when it is evaluated."""
    build = _BUILDERS.get(type(node)) if type(node) in backend.READS else None
    return build(node, backend) if build is not None else _refused(node)


def _refused(node: ast.expr) -> Compiled:
    def refused(backend: Backend, label: str) -> Value:
        backend.refuse(node)

    return refused


# ------------------------------------------------------------------------------------------------ numbers


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


def _quotient(kind: type[ast.operator], a: Value, b: Value) -> Value:
    """Of numbers and dimensions without a rest; for `/` of known ones also with one."""
    quotient = exact(a, b)
    if quotient is None and kind is ast.Div and isinstance(a, int) and isinstance(b, int) and b:
        return a / b
    if quotient is None:
        raise UndecidedError(f"{a} is not a multiple of {b}")
    return quotient


def _equal(a: Value, b: Value) -> bool:
    if isinstance(a, Sym) or isinstance(b, Sym):
        decided = symbolic.equal(a, b) if isinstance(a, int | Sym) and isinstance(b, int | Sym) else False
        if decided is None:
            raise UndecidedError(f"whether {a} equals {b} depends on the input")
        return decided
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)  # of tensors, the same one


def _order(compare: Callable[[Any, Any], bool]) -> Callable[[Backend, Value, Value], bool]:
    def ordered(backend: Backend, a: Value, b: Value) -> bool:
        if not all(isinstance(v, int | float | np.generic) for v in (a, b)):
            raise UndecidedError(f"{a} and {b} cannot be compared")
        return compare(a, b)

    return ordered


def _identical(backend: Backend, a: Value, b: Value) -> bool:
    return a is b or (b is None and backend.absent(a))


_COMPARE: dict[type[ast.cmpop], Callable[[Backend, Value, Value], bool]] = {
    ast.Eq: lambda backend, a, b: _equal(a, b),
    ast.NotEq: lambda backend, a, b: not _equal(a, b),
    ast.Is: _identical,
    ast.IsNot: lambda backend, a, b: not _identical(backend, a, b),
    ast.In: lambda backend, a, b: any(_equal(a, x) for x in b),
    ast.NotIn: lambda backend, a, b: not any(_equal(a, x) for x in b),
    ast.Lt: _order(lambda a, b: a < b),
    ast.LtE: _order(lambda a, b: a <= b),
    ast.Gt: _order(lambda a, b: a > b),
    ast.GtE: _order(lambda a, b: a >= b),
}

# ------------------------------------------------------------------------------------------------ steps


def _constant(node: ast.Constant, kind: type[Backend]) -> Compiled:
    return lambda backend, label: backend.constant(node)


def _name(node: ast.Name, kind: type[Backend]) -> Compiled:
    return lambda backend, label: backend.name(node)


def _sequence(node: ast.List | ast.Tuple | ast.Set, kind: type[Backend]) -> Compiled:
    items = [compiled(item, kind) for item in node.elts]
    return lambda backend, label: tuple([item(backend, "") for item in items])


def _starred(node: ast.Starred, kind: type[Backend]) -> Compiled:
    inner, expression = compiled(node.value, kind), node.value
    return lambda backend, label: backend.each(inner, expression)


def _unary(node: ast.UnaryOp, kind: type[Backend]) -> Compiled:
    inner, operand = compiled(node.operand, kind), node.operand
    if isinstance(node.op, ast.Not):
        return lambda backend, label: not backend.truth(inner(backend, ""), operand)
    if not isinstance(node.op, ast.USub):
        return _refused(node)

    def negative(backend: Backend, label: str) -> Value:
        value = inner(backend, "")
        return backend.operator("Neg", [value], node, label) if backend.tensor(value) else -value

    return negative


def _binary(node: ast.BinOp, kind: type[Backend]) -> Compiled:
    if isinstance(node.op, ast.BitOr):
        choices = [compiled(choice, kind) for choice in alternatives(node)]
        return lambda backend, label: choices[backend.choose(len(choices))](backend, label)
    operation, left, right = type(node.op), compiled(node.left, kind), compiled(node.right, kind)
    if operation not in BINARY and operation is not ast.FloorDiv:
        return _refused(node)
    divides = operation in (ast.Div, ast.FloorDiv)

    def binary(backend: Backend, label: str) -> Value:
        a, b = left(backend, ""), right(backend, "")
        if backend.tensor(a) or backend.tensor(b):
            if operation not in BINARY:
                backend.refuse(node)
            return backend.operator(BINARY[operation], [a, b], node, label)
        if a is None or b is None:
            raise UndecidedError(f"{ast.unparse(node)} has an absent operand")
        if divides and not isinstance(a, float) and not isinstance(b, float):
            return _quotient(operation, a, b)
        if operation not in _ARITHMETIC:
            raise UndecidedError(f"{a} and {b} are no whole numbers")
        return _bounded(_ARITHMETIC[operation](a, b))

    return binary


def _either(node: ast.BoolOp, kind: type[Backend]) -> Compiled:
    conjunction = isinstance(node.op, ast.And)
    operands = [(compiled(operand, kind), operand) for operand in node.values]

    def either(backend: Backend, label: str) -> bool:
        for value, operand in operands:
            if backend.truth(value(backend, ""), operand) != conjunction:
                return not conjunction
        return conjunction

    return either


def _choice(node: ast.IfExp, kind: type[Backend]) -> Compiled:
    test, body, other = (compiled(part, kind) for part in (node.test, node.body, node.orelse))

    def choice(backend: Backend, label: str) -> Value:
        return (body if backend.truth(test(backend, ""), node.test) else other)(backend, label)

    return choice


def _comparison(node: ast.Compare, kind: type[Backend]) -> Compiled:
    first = compiled(node.left, kind)
    rest = [(_COMPARE[type(op)], compiled(right, kind)) for op, right in zip(node.ops, node.comparators, strict=True)]

    def compare(backend: Backend, label: str) -> bool:
        left = backend.number(first(backend, ""))
        for holds, right_of in rest:
            right = backend.number(right_of(backend, ""))
            if not holds(backend, left, right):
                return False
            left = right
        return True

    return compare


def _subscript(node: ast.Subscript, kind: type[Backend]) -> Compiled:
    whole = compiled(node.value, kind)
    if isinstance(node.slice, ast.Slice):
        low = compiled(node.slice.lower, kind) if node.slice.lower else None
        high = compiled(node.slice.upper, kind) if node.slice.upper else None

        def select(backend: Backend, base: tuple[Value, ...]) -> Value:
            return base[low(backend, "") if low else None : high(backend, "") if high else None]
    else:
        position = compiled(node.slice, kind)

        def select(backend: Backend, base: tuple[Value, ...]) -> Value:
            index = position(backend, "")
            if not isinstance(index, int) or not -len(base) <= index < len(base):
                raise UndecidedError(f"{ast.unparse(node)} is outside the list")
            return base[index]

    def subscript(backend: Backend, label: str) -> Value:
        base = whole(backend, "")
        if not isinstance(base, tuple | list):
            raise UndecidedError(f"{ast.unparse(node.value)} is no list")
        return select(backend, tuple(base))

    return subscript


def _call(node: ast.Call, kind: type[Backend]) -> Compiled:
    called, arguments = op_name(node), tuple(compiled(a, kind) for a in node.args)
    builtin = BUILTINS.get(called)
    if builtin is not None:
        function = builtin
        return lambda backend, label: backend.function(function, [a(backend, "") for a in arguments], node)
    keywords = tuple((k.arg, compiled(k.value, kind), _named(k.value)) for k in node.keywords)
    call = Call(node, called, arguments, tuple(map(_named, node.args)), keywords)
    return lambda backend, label: backend.call(call, label)


def _named(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


_BUILDERS: dict[type[ast.expr], Callable[[Any, type[Backend]], Compiled]] = {
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
    ast.Starred: _starred,
}
EVERYTHING = frozenset(_BUILDERS)
"""All that may stand in an expression."""
