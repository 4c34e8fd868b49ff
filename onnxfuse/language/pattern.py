"""What a rule looks for, as a tree in the same normal form that terms have: patterns and their algebra."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from onnxfuse.model.op_traits import NEUTRAL

from .rule import read_in

SCALAR_OPS = frozenset({"Add", "Mul", "Reciprocal", "Sqrt"})

SUMS = {
    "ReduceSumSquare": ("Pow", ""),
    "ReduceL2": ("Pow", "Sqrt"),
    "ReduceLogSum": ("", "Log"),
    "ReduceLogSumExp": ("Exp", "Log"),
}
"""Reductions that are a ReduceSum: of what is computed of each element, and below what."""


@dataclass(eq=False)
class Pattern:
    """A node to find.  `kind` is one of

    op         a term with this op, these attributes and matching arguments
    variable   any term; the same one wherever the name stands again
    constant   a number, bound to the name
    number     this number
    absent     an optional input that is not given
    each       one or more inputs, each of which the pattern in it matches
    """

    kind: str
    op: str = ""
    args: tuple[Pattern, ...] = ()
    attrs: Mapping[str, ast.expr] = field(default_factory=dict)
    star: str = ""
    name: str = ""
    value: float = 0.0
    label: str = ""
    line: int = 0
    lacking: bool = False
    """Whether a variable may stand for an input that is not given."""
    weight: int = field(init=False, default=1)
    """Number of nodes, one that stands in several places counted in each."""
    depth: int = field(init=False, default=1)
    """Nodes one below the other."""

    def __post_init__(self) -> None:
        for arg in self.args:
            self.weight += arg.weight
            if arg.depth >= self.depth:
                self.depth = arg.depth + 1

    @cached_property
    def scalar(self) -> bool:
        """Does it stand for one number?"""
        if self.kind == "op":
            return self.op in SCALAR_OPS and all(a.scalar for a in self.args)
        return self.kind in ("number", "constant")

    @cached_property
    def number(self) -> Pattern | None:
        """All scalars of a sum or product as one."""
        scalars = tuple(a for a in self.args if a.scalar)
        return scalars[0] if len(scalars) == 1 else Pattern("op", self.op, scalars, line=self.line) if scalars else None

    @cached_property
    def parts(self) -> tuple[Pattern, ...]:
        """The operands of a sum or product that are ops, the largest first, since they match least often."""
        return tuple(sorted((a for a in self.args if a.kind == "op" and not a.scalar), key=lambda a: -a.weight))

    @cached_property
    def variables(self) -> tuple[Pattern, ...]:
        """The other operands of a sum or product, without the one that takes the rest."""
        return tuple(a for a in self.args if a.kind != "op" and not a.scalar and a.op != "sum")

    @cached_property
    def rest(self) -> tuple[Pattern, ...]:
        """Operands of kind `sum`: each takes what is left."""
        return tuple(a for a in self.args if a.kind == "variable" and a.op == "sum")

    @cached_property
    def operand_count(self) -> int:
        """How many operands a sum or product has, its numbers as one."""
        return len(self.parts) + len(self.variables) + (self.number is not None)

    @cached_property
    def heads(self) -> frozenset[str]:
        """Ops that must be among the operands of a matching sum or product."""
        return frozenset(a.op for a in self.parts)

    @cached_property
    def bound(self) -> tuple[str, ...]:
        """The names that a match binds."""
        found = {name for p in self.walk() for name in (p.name, p.label, p.star)}
        found.update(name for p in self.walk() for value in p.attrs.values() for name in read_in(value))
        return tuple(sorted(found - {"", "_"}))

    def walk(self) -> Iterator[Pattern]:
        yield self
        for arg in self.args:
            yield from arg.walk()

    @cached_property
    def key(self) -> str:
        """Equal keys, equal patterns."""
        return repr(self.value) if self.kind == "number" else self._key([a.key for a in self.args])

    @cached_property
    def skeleton(self) -> str:
        """The key of a pattern in which all scalars look alike."""
        return "#" if self.scalar else self._key([a.skeleton for a in self.args])

    def _key(self, args: list[str]) -> str:
        if self.kind == "each":
            return f"*{args[0]}"
        if self.kind != "op":
            return f"{self.kind} {self.name}"
        attrs = ",".join(f"{k}={ast.unparse(v)}" for k, v in sorted(self.attrs.items()))
        if self.op in NEUTRAL:
            args.sort()
        return f"{self.op}({','.join(args)};{attrs};{self.star})"


def number(value: float) -> Pattern:
    return Pattern("number", value=float(value))


def normal(
    op: str, args: tuple[Pattern, ...], line: int, attrs: Mapping[str, ast.expr] | None = None, star: str = ""
) -> Pattern:
    """The algebra of terms.normal, for patterns: shapes are unknown here, so views stay as they are written."""

    def again(name: str, *operands: Pattern) -> Pattern:
        return normal(name, operands, line)

    first = args[0] if args else number(0)
    if op == "Neg":
        return again("Mul", first, number(-1))
    if op == "Sub":
        return again("Add", first, again("Mul", args[1], number(-1)))
    if op == "Div":
        return again("Mul", first, again("Reciprocal", args[1]))
    if op == "Less":
        return again("Greater", args[1], first)
    if op == "LessOrEqual":
        return again("GreaterOrEqual", args[1], first)
    if op == "Max" and len(args) == 2 and args[1].kind == "number" and args[1].value == 0:
        return again("Relu", first)
    if op == "Where" and first.op == "Not":
        return again("Where", first.args[0], args[2], args[1])
    if op in ("Identity", "Dropout") or (op == "Not" and first.op == "Not"):
        return first if op != "Not" else first.args[0]
    if op in SUMS:
        inner, last = SUMS[op]
        operand = again("Pow", first, number(2)) if inner == "Pow" else again(inner, first) if inner else first
        total = normal("ReduceSum", (operand, *args[1:]), line, attrs, star)
        return again(last, total) if last else total
    if op in ("Reciprocal", "Sqrt", "Pow"):
        made = _power(op, args, line)
        if made is not None:
            return made
    if op in NEUTRAL:
        return _chain(op, args, line)
    if op in ("MatMul", "Transpose", "Reshape", "Slice", "Expand"):
        scalars = []
        plain = []
        for arg in args:
            own = [a for a in arg.args if a.scalar] if arg.op == "Mul" else []
            rest = [a for a in arg.args if not a.scalar] if arg.op == "Mul" else []
            scalars += own if own and len(rest) == 1 else []
            plain.append(rest[0] if own and len(rest) == 1 else arg)
        if scalars:
            return again("Mul", Pattern("op", op, tuple(plain), attrs or {}, star, line=line), *scalars)
    return Pattern("op", op, args, attrs or {}, star, line=line)


def _power(op: str, args: tuple[Pattern, ...], line: int) -> Pattern | None:
    """A Reciprocal, a Sqrt or a Pow as another op, or None if it stays."""

    def again(name: str, *operands: Pattern) -> Pattern:
        return normal(name, operands, line)

    first = args[0]
    if op == "Reciprocal":
        if first.kind == "number" and first.value:
            return number(1 / first.value)
        if first.op == "Reciprocal":
            return first.args[0]
        scalars = [a for a in first.args if a.scalar] if first.op == "Mul" else []
        rest = [a for a in first.args if not a.scalar]
        if scalars and len(rest) == 1:
            return again("Mul", again("Reciprocal", rest[0]), again("Reciprocal", again("Mul", *scalars)))
    elif op == "Sqrt":
        if first.kind == "number":
            return number(math.sqrt(first.value))
        if first.op == "Reciprocal":
            return again("Reciprocal", again("Sqrt", first.args[0]))
    elif args[1].kind == "number":
        power = args[1].value
        if power in (2, 3, 4):
            if first.kind == "op" and first.op == "Mul":
                first = replace(first, label=first.label or f"square of line {line}")
                return Pattern("op", "Mul", (first,) * int(power), line=line)
            return again("Mul", *[first] * int(power))
        if power in (1, 0.5):
            return first if power == 1 else again("Sqrt", first)
        if power in (-0.5, -1, -2):
            return again("Reciprocal", again("Pow", first, number(-power)))
    return None


def _chain(op: str, args: Sequence[Pattern], line: int) -> Pattern:
    """A flat sum or product with its numbers collected."""
    value, operands = NEUTRAL[op], list[Pattern]()
    for arg in args:
        for operand in arg.args if arg.op == op and arg.kind == "op" else (arg,):
            if operand.kind == "number":
                value = value + operand.value if op == "Add" else value * operand.value
            elif operand.kind != "absent":
                operands.append(operand)
    if value != NEUTRAL[op] or not operands:
        operands.append(number(value))
    if len(operands) == 1:
        return operands[0]
    return Pattern("op", op, tuple(operands), line=line)
