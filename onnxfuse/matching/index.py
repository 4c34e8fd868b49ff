"""Which variants could match at a term: an index by op, and a look at the ops below, so that most are never tried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from onnxfuse.language.outline import Outline
from onnxfuse.language.rule import Rule
from onnxfuse.language.variants import Variant, variants_of
from onnxfuse.model.op_traits import NEUTRAL
from onnxfuse.terms.term import LEVELS, Term, Terms

from .prefilter import OPENINGS, Glance


@dataclass(eq=False)
class Group:
    """Variants of one outline, whose ops are bits of a table of terms."""

    outline: Outline
    below: int
    """Bits of ops that must occur below the root."""
    beside: int
    """Bits of ops that must be among the operands of the root's chain."""
    variants: list[tuple[int, Variant]] = field(default_factory=list)

    def fits(self, term: Term) -> bool:
        """Are the inputs given that must be, and what they must be?"""
        for head, arg in zip(self.outline.heads, term.args, strict=False):
            if head and head != arg.op:
                return False
        return self.outline.given is None or _alike(self.outline.given, term.args)


class Index:
    """The variants of a stratum's rules by the op of their root, in groups."""

    def __init__(self, terms: Terms, rules: Sequence[Rule]) -> None:
        self.by_op: dict[str, list[Group]] = {}
        groups: dict[Outline, Group] = {}
        number = 0
        for rule in rules:
            for variant in variants_of(rule):
                outline, number = variant.outline, number + 1
                group = groups.get(outline)
                if group is None:
                    group = groups[outline] = Group(outline, _bits(terms, outline.below), _bits(terms, outline.beside))
                    self.by_op.setdefault(outline.op, []).append(group)
                group.variants.append((number, variant))

    def candidates(self, term: Term, glance: Glance) -> list[Variant]:
        """The variants whose ops all occur below the term, the operands of a chain near its root, in their order."""
        groups = self.by_op.get(term.op)
        if not groups:
            return []
        absent = ~term.ops_within(LEVELS - 1)
        nested = term.op in NEUTRAL and any(a.op == term.op for a in term.args)
        far = ~term.ops_within(1 + OPENINGS if nested else 1)
        found: list[tuple[int, Variant]] = []
        for group in groups:
            if group.below & absent or group.beside & far or not group.fits(term):
                continue
            # Only of a chain there is more to see, and only then the pattern itself has to be read.
            if group.outline.operands is None or glance.near(group.variants[0][1].root, term):
                found += group.variants
        found.sort(key=lambda entry: entry[0])
        return [variant for _, variant in found]


def _alike(wanted: Sequence[bool | None], args: Sequence[Term]) -> bool:
    """Are the same inputs given, but for trailing ones that are not?"""
    given = (arg.op != "Absent" for arg in args)
    return all(a is None or a == b for a, b in zip_longest(wanted, given, fillvalue=False))


def _bits(terms: Terms, ops: Iterable[str]) -> int:
    bits = 0
    for op in ops:
        bits |= terms.bit(op)
    return bits
