"""Could a pattern match at a term?  A look at ops and operands that rules most variants out before any is tried."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from onnxfuse.language.outline import turns
from onnxfuse.language.pattern import Pattern
from onnxfuse.language.rule import ANY
from onnxfuse.model.op_traits import COMMUTATIVE, NEUTRAL
from onnxfuse.terms.term import REAL, Term, is_number

from .compare import kind_fits

OPENINGS = 3
"""How many shared sums or products inside a chain may be opened at once."""


def may_lack(p: Pattern) -> bool:
    """May the input be absent?"""
    return p.kind == "absent" or (p.kind == "variable" and (p.lacking or p.op == ANY))


class Glance:
    """Looks at the terms of one scope.  What it refuses does not match; what it lets through may or may not."""

    def __init__(self) -> None:
        self._heads: dict[int, frozenset[str]] = {}

    def heads(self, t: Term) -> frozenset[str]:
        """Ops of the operands of a chain, and of shared chains inside it that may be opened."""
        heads = self._heads.get(t.id)
        if heads is None:
            heads = self._heads[t.id] = frozenset(_heads(t))
        return heads

    def near(self, p: Pattern, t: Term) -> bool:
        """Could the operands of a chain match, by their ops and those of their own operands?"""
        if p.op not in NEUTRAL or self._covers(p, t.args):
            return True
        inner = [a for a in t.args if a.op == t.op]
        return may_open(p, t.args, inner) and (
            self._covers(p, [*t.args, *(o for a in inner for o in a.args)])
            or any(o.op == t.op for a in inner for o in a.args)
        )

    def far(self, p: Pattern, t: Term, *, root: bool = False) -> bool:
        """Could all below match, as far as no chain has to be opened?  A `root` may be part of a longer chain."""
        if p.kind == "variable":
            return p.op == ANY or (p.lacking if t.op == "Absent" else kind_fits(p.op, t))
        if p.scalar:
            return t.scalar is not None and t.dtype != TensorProto.BOOL
        if p.kind == "absent":
            return t.op == "Absent"
        if p.op != t.op:
            return False
        if p.op in NEUTRAL and t.dtype in REAL:
            return self._chain(p, t, root=root)
        wanted = p.args
        if wanted and wanted[-1].kind == "each":
            further = len(t.args) - len(wanted) + 1
            return further > 0 and all(map(self.far, (*wanted[:-1], *wanted[-1].args * further), t.args))
        while len(wanted) > len(t.args) and may_lack(wanted[-1]):
            wanted = wanted[:-1]
        if len(wanted) != len(t.args):
            return False
        if all(map(self.far, wanted, t.args)):
            return True
        if turns(p):
            return all(map(self.far, wanted, (t.args[0], t.args[2], t.args[1])))
        return p.op in COMMUTATIVE and len(wanted) == 2 and all(map(self.far, wanted, t.args[::-1]))

    def _chain(self, p: Pattern, t: Term, *, root: bool) -> bool:
        for a in t.args:
            if a.op == p.op:
                return self.near(p, t)
        if not root and not p.rest and len(t.args) != p.operand_count:
            return False
        for part in p.parts:
            for o in t.args:
                if o.op == part.op and self.far(part, o):
                    break
            else:
                return False
        return all(any(kind_fits(v.op, o) for o in t.args) for v in p.variables if v.op)

    def _covers(self, p: Pattern, operands: Sequence[Term]) -> bool:
        return all(
            any(o.op == part.op and (part.op not in NEUTRAL or part.heads <= self.heads(o)) for o in operands)
            for part in p.parts
        )


def may_open(p: Pattern, operands: Sequence[Term], inner: Sequence[Term]) -> bool:
    """Is the chain with a shared inner one opened still short enough?  All its operands must then be matched, but its
    numbers are one: 0.2 * (0.5 * x) has two."""
    return bool(inner) and (bool(p.rest) or min(_opened(operands, a) for a in inner) <= p.operand_count)


def _opened(operands: Sequence[Term], inner: Term) -> int:
    """How many operands a chain has with an inner one opened."""
    numbers = sum(map(is_number, (*operands, *inner.args)))
    return len(operands) - 1 + len(inner.args) - max(numbers - 1, 0)


def _heads(t: Term, depth: int = OPENINGS) -> set[str]:
    heads = {a.op for a in t.args}
    if depth and t.op in heads:
        for inner in t.args:
            if inner.op == t.op:
                heads |= _heads(inner, depth - 1)
    return heads
