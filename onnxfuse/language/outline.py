"""What a term must look like from outside for a pattern to match it: the index of patterns asks for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onnxfuse.model.op_traits import COMMUTATIVE, NEUTRAL
from onnxfuse.terms.term import LEVELS

from .pattern import Pattern
from .rule import ANY


class Outline(NamedTuple):
    """Patterns of one outline are looked at as one: a single look at a term tells whether any of them may match."""

    op: str
    below: tuple[str, ...]
    """Ops that must occur below the root, and the root's own."""
    beside: tuple[str, ...]
    """Ops that must be among the operands of the root's chain."""
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    """The operands of the root's chain that are ops, and which ops must be among their own operands."""
    operands: int | None
    """How many operands the root's chain has; None where it is no chain."""
    rest: bool
    """Does the root's chain take what is left?"""
    given: tuple[bool | None, ...] | None
    """Which inputs of the root are given, None for one that may be; None for a chain, and for any number of inputs."""
    heads: tuple[str, ...]
    """Ops that the inputs of the root must be, where they must; an empty name where not."""

    @staticmethod
    def of(root: Pattern) -> Outline:
        below = tuple(sorted(set(_within(root, LEVELS))))
        if root.op in NEUTRAL:
            parts = {(part.op, tuple(sorted(part.heads))) for part in root.parts}
            beside = tuple(sorted(root.heads))
            return Outline(root.op, below, beside, tuple(sorted(parts)), root.operand_count, bool(root.rest), None, ())
        several = any(a.kind == "each" for a in root.args)
        given = tuple(None if a.op == ANY or a.lacking else a.kind != "absent" for a in root.args)
        heads = () if root.op in COMMUTATIVE or turns(root) else tuple(map(_head, root.args))
        return Outline(root.op, below, (), (), None, False, None if several else given, heads)


def turns(p: Pattern) -> bool:
    """May a Where be turned around, for its condition is whatever it is?"""
    return p.op == "Where" and len(p.args) == 3 and p.args[0].kind == "variable"


def _head(p: Pattern) -> str:
    """The op that a matching term must be, if it must be one."""
    return p.op if p.kind == "op" and not p.scalar else ""


def _within(p: Pattern, levels: int) -> Iterator[str]:
    """Ops of a pattern in so many levels: what stands deeper, a term does not know to be below it."""
    if p.kind == "each":
        yield from _within(p.args[0], levels)
    elif p.kind == "op" and not p.scalar and levels:
        yield p.op
        for arg in p.args:
            yield from _within(arg, levels - 1)
