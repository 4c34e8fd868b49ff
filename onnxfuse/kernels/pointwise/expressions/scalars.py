"""Elements as expressions: hash-consed, so that what is equal is computed once.

Real numbers of any width are `float` here, as the kernels compute; they are rounded where they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxfuse.errors import KernelError

from .elementwise import BETTER, FORMULAS, ONE_PLUS, SMOOTH, Formula
from .index import LANE, Bound, Guard, Index, Valid, free, number, total

FLOAT, BOOL, INT, LONG = "float", "bool", "int", "long long"
"""The C++ types that expressions compute in."""

COMPUTED = {
    **dict.fromkeys(("float32", "float16", "bfloat16"), FLOAT),
    **dict.fromkeys(("int32", "int16", "int8", "uint8", "uint16"), INT),
    "int64": LONG,
    "bool": BOOL,
}
"""Element type → the type its elements are computed in; others are not served."""


@dataclass(eq=False, slots=True)
class Scalar:
    """One element, of C++ type `type`.  `kind` says what `payload` is:

    literal: the value; argument: a name; load: (input, offset, guard, size of the input); table: (values, offset,
    guard); position: an Index; call: (op, its formula); select: the condition.
    """

    kind: str
    type: str
    payload: Any
    args: tuple[Scalar, ...] = ()
    depends: int = 0
    flops: int = 0

    @property
    def value(self) -> Any:
        """The number of a literal, else None."""
        return self.payload if self.kind == "literal" else None


@dataclass
class Scalars:
    """The expressions of one kernel."""

    known: dict[Any, Scalar] = field(default_factory=dict)
    loads: list[Scalar] = field(default_factory=list)

    def _one(self, key: Any, make: Callable[[], Scalar]) -> Scalar:
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = make()
            if found.kind == "load":
                self.loads.append(found)
        return found

    def literal(self, value: float, type: str) -> Scalar:
        if type == FLOAT:
            with np.errstate(over="ignore"):
                value = float(np.float32(value))
        key = ("literal", type, value if value == value else "nan", math.copysign(1, value))
        return self._one(key, lambda: Scalar("literal", type, value))

    def argument(self, name: str, type: str, depends: int = 0) -> Scalar:
        return self._one(("argument", name), lambda: Scalar("argument", type, name, depends=depends))

    def load(self, source: int, type: str, offset: Index, size: int, guard: Guard) -> Scalar:
        """An element of an input of `size` elements."""
        offset, guard, depends = _placed(offset, size, guard)
        payload = (source, offset, guard, size)
        return self._one(("load", *payload), lambda: Scalar("load", type, payload, depends=depends))

    def table(self, values: tuple[int | float | bool, ...], type: str, offset: Index, guard: Guard) -> Scalar:
        """An element of a constant."""
        offset, guard, depends = _placed(offset, len(values), guard)
        payload = (values, offset, guard)
        return self._one(("table", type, *payload), lambda: Scalar("table", type, payload, depends=depends))

    def position(self, index: Index) -> Scalar:
        index = free(index)
        return self._one(("position", index), lambda: Scalar("position", LONG, index, depends=index.depends))

    def select(self, condition: Bound | Valid | bool, yes: Scalar, no: Scalar) -> Scalar:
        if isinstance(condition, bool):
            return yes if condition else no
        if yes is no:
            return yes
        depends = condition.depends | yes.depends | no.depends
        return self._one(
            ("select", condition, yes, no), lambda: Scalar("select", yes.type, condition, (yes, no), depends)
        )

    def call(
        self,
        op: str,
        formula: Formula,
        args: Sequence[Scalar],
        result: str = "",
        coarse: bool = False,
        **attributes: float | str,
    ) -> Scalar:
        """An op on elements, `coarse` if its result has 16 bits; the form that does not cancel is taken where there is
        one."""
        known = self._affine(op, args)
        if known is not None:
            return known
        args = [self._product(a) if op in SMOOTH else a for a in args]
        for wanted, better in BETTER.get(op, ()):
            operands = _matched(wanted, args)
            if operands is not None:
                return self.call(better.name, better, operands, coarse=coarse)
        type = result or formula.result or args[0].type
        form = (coarse and formula.coarse) or formula.text
        try:
            text = form.format(*(f"{{{i}}}" for i in range(len(args))), **attributes)
        except IndexError:
            raise KernelError(f"{op} lacks input {len(args)}") from None
        return self._called((op, text), type, args, formula.flops)

    def again(self, call: Scalar, args: Sequence[Scalar]) -> Scalar:
        """The op of a call on other elements."""
        return self._called(call.payload, call.type, args, call.flops)

    def _called(self, payload: tuple[str, str], type: str, args: Sequence[Scalar], flops: int) -> Scalar:
        depends = 0
        for a in args:
            depends |= a.depends
        key = ("call", payload[1], type, *args)
        return self._one(key, lambda: Scalar("call", type, payload, tuple(args), depends, flops))

    def _product(self, x: Scalar) -> Scalar:
        """A quotient by a number as a product, which is several times as fast."""
        if x.kind != "call" or x.payload[0] != "Div" or not x.args[1].value or x.type != FLOAT:
            return x
        return self.call("Mul", FORMULAS["Mul"], (x.args[0], self.literal(1 / x.args[1].value, FLOAT)))

    def _affine(self, op: str, args: Sequence[Scalar]) -> Scalar | None:
        """Sums and multiples of positions are positions."""
        if op not in ("Add", "Sub", "Mul") or all(a.kind != "position" for a in args) or len(args) != 2:
            return None
        x, y = (self.index(a) for a in args)
        if x is None or y is None:
            return None
        if op != "Mul":
            return self.position(total([(x, 1), (y, 1 if op == "Add" else -1)]))
        x, y = (y, x) if y.value is None else (x, y)
        return self.position(x * y.value) if y.value is not None else None

    def index(self, scalar: Scalar) -> Index | None:
        """An integer element as a function of the coordinates, if it is one."""
        if scalar.kind == "position":
            index: Index = scalar.payload
            return index
        return number(int(scalar.value)) if scalar.kind == "literal" and scalar.type in (INT, LONG) else None


def _placed(offset: Index, size: int, guard: Guard) -> tuple[Index, Guard, int]:
    """An offset, the guard that its access needs, and what both depend on.

    Where every offset lies inside the array the guard may only spare traffic, and one that differs between the lanes
    of a vector would not: it is left out.  Raises KernelError where there is nothing to access.
    """
    if not size:
        raise KernelError("it reads an element of an empty tensor")
    assert 0 <= offset.low <= offset.high < size, "an index map leads outside its tensor"
    offset = free(offset)
    if offset.low >= 0 and offset.high < size and not offset.clamped():
        guard = tuple(c for c in guard if not c.depends & LANE or not isinstance(c, Bound))
    depends = offset.depends
    for condition in guard:
        depends |= condition.depends
    return offset, guard, depends


def _matched(wanted: tuple[float | str, ...], args: Sequence[Scalar]) -> tuple[Scalar, ...] | None:
    """The operands that a pattern of `BETTER` leaves over, or None where it does not fit."""
    for given in (args, args[::-1]) if wanted[0] == "+" else (args,):
        found: list[Scalar] = []
        for w, a in zip(wanted[1:], given, strict=True):
            if w == ONE_PLUS and a.kind == "call" and a.payload[0] == "Add" and any(b.value == 1 for b in a.args):
                found.append(a.args[0] if a.args[1].value == 1 else a.args[1])
            elif isinstance(w, str) and a.kind == "call" and a.payload[0] == w:
                found += a.args
            elif isinstance(w, str) or a.value != w:
                break
        else:
            return tuple(found)
    return None
