"""Which variants could match at a term: an index by op, and a look at the ops below, so that most are never tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest

from onnxfuse.language.outline import Outline
from onnxfuse.language.rule import Rule
from onnxfuse.language.variants import Variant, variants_of
from onnxfuse.model.op_traits import NEUTRAL
from onnxfuse.terms.term import LEVELS, WIDTH, Term, Terms

from .prefilter import OPENINGS, Glance


@dataclass(eq=False)
class Group:
    """Variants of one outline."""

    outline: Outline
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
        self.by_op = _grouped(tuple(rules))
        self._terms = terms
        self._distinct = 0
        """Of how many ops the terms were when what follows was found."""
        self._bits: dict[str, list[tuple[int, Group]]] = {}
        self._possible: dict[tuple[str, bool, int], list[Group]] = {}

    def candidates(self, term: Term, glance: Glance) -> list[Variant]:
        """The variants whose ops all occur below the term, the operands of a chain near its root, in their order."""
        op = term.op
        if op not in self.by_op:
            return []
        if len(self._terms.seen) != self._distinct:
            self._distinct = len(self._terms.seen)
            self._bits.clear()
            self._possible.clear()
        nested = op in NEUTRAL and any(a.op == op for a in term.args)
        key = op, nested, term.below
        possible = self._possible.get(key)
        if possible is None:
            there = _both(term.ops_within(LEVELS - 1), term.ops_within(1 + OPENINGS if nested else 1))
            possible = self._possible[key] = [group for wanted, group in self._groups(op) if not wanted & ~there]
        found: list[tuple[int, Variant]] = []
        for group in possible:
            if not group.fits(term):
                continue
            # Only of a chain there is more to see, and only then the pattern itself has to be read.
            if group.outline.operands is None or glance.near(group.variants[0][1].root, term):
                found += group.variants
        if not found:
            return []
        found.sort(key=lambda entry: entry[0])
        return [variant for _, variant in found]

    def _groups(self, op: str) -> list[tuple[int, Group]]:
        """The groups of an op whose ops there are, each behind the bits of those below and beside the root."""
        found = self._bits.get(op)
        if found is None:
            found = self._bits[op] = []
            for group in self.by_op[op]:
                below = self._terms.bits(group.outline.below)
                beside = None if below is None else self._terms.bits(group.outline.beside)
                if below is not None and beside is not None:
                    found.append((_both(below, beside), group))
        return found


def _both(below: int, beside: int) -> int:
    """Two sets of bits as one number, so that one look tells whether something is missing in either."""
    return below << WIDTH | beside


@lru_cache(maxsize=64)
def _grouped(rules: tuple[Rule, ...]) -> Mapping[str, list[Group]]:
    """The groups of these rules' variants by the op of their root: the same for every model."""
    by_op: dict[str, list[Group]] = {}
    groups: dict[Outline, Group] = {}
    number = 0
    for rule in rules:
        for variant in variants_of(rule):
            outline, number = variant.outline, number + 1
            group = groups.get(outline)
            if group is None:
                group = groups[outline] = Group(outline)
                by_op.setdefault(outline.op, []).append(group)
            group.variants.append((number, variant))
    return by_op


def _alike(wanted: Sequence[bool | None], args: Sequence[Term]) -> bool:
    """Are the same inputs given, but for trailing ones that are not?"""
    given = (arg.op != "Absent" for arg in args)
    return all(a is None or a == b for a, b in zip_longest(wanted, given, fillvalue=False))
