"""Which variants could match at a term: an index by op, and a look at the ops below, so that most are never tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from .normal import NEUTRAL
from .pattern import Pattern, Variant, variants
from .rule import Rule
from .terms import LEVELS, Term, Terms

OPENINGS = 3
"""How many shared sums or products inside a chain may be opened at once."""


@dataclass(eq=False)
class Group:
    """Variants that look alike from their root: one look at a term tells whether any of them may match."""

    below: int
    """Bits of ops that must occur below the root."""
    beside: int
    """Bits of ops that must be among the operands of the root's chain."""
    given: tuple[bool, ...] | None
    """Which inputs of the root are given; None for a chain."""
    root: Pattern
    variants: list[tuple[int, Variant]] = field(default_factory=list)


class Index:
    """The variants of a stratum's rules by the op of their root, in groups."""

    def __init__(self, terms: Terms, rules: Sequence[Rule]) -> None:
        self.by_op: dict[str, list[Group]] = {}
        groups: dict[tuple[object, ...], Group] = {}
        number = 0
        for rule in rules:
            for variant in compiled(rule):
                root, number = variant.root, number + 1
                chain = root.op in NEUTRAL
                below = _bits(terms, variant.ops)
                look = frozenset((part.op, part.heads) for part in root.parts) if chain else None
                given = None if chain else tuple(a.kind != "absent" for a in root.args)
                group = groups.get(
                    key := (root.op, below, look, chain and operand_count(root), bool(chain and root.rest), given)
                )
                if group is None:
                    group = groups[key] = Group(below, _bits(terms, root.heads) if chain else 0, given, root)
                    self.by_op.setdefault(root.op, []).append(group)
                group.variants.append((number, variant))

    def candidates(self, term: Term, plausible: Callable[[Pattern, Term], bool]) -> list[Variant]:
        """The variants whose ops all occur below the term, the operands of a chain near its root, in their order."""
        groups = self.by_op.get(term.op)
        if not groups:
            return []
        absent = ~term.ops_within(LEVELS - 1)
        nested = term.op in NEUTRAL and any(a.op == term.op for a in term.args)
        far = ~term.ops_within(1 + OPENINGS if nested else 1)
        given = tuple(a.op != "Absent" for a in term.args)
        found: list[tuple[int, Variant]] = []
        for group in groups:
            if group.given is not None and group.given != given and not _alike(group.given, given):
                continue
            if not group.below & absent and not group.beside & far and plausible(group.root, term):
                found += group.variants
        found.sort(key=lambda entry: entry[0])
        return [variant for _, variant in found]


def _alike(wanted: tuple[bool, ...], given: tuple[bool, ...]) -> bool:
    """Are the same inputs given, but for trailing ones that are not?"""
    longer, shorter = (wanted, given) if len(wanted) > len(given) else (given, wanted)
    return longer[: len(shorter)] == shorter and not any(longer[len(shorter) :])


def _bits(terms: Terms, ops: Iterable[str]) -> int:
    bits = 0
    for op in ops:
        bits |= terms.bit(op)
    return bits


def operand_count(p: Pattern) -> int:
    """How many operands a sum or product has, its numbers as one."""
    return len(p.parts) + len(p.variables) + (p.number is not None)


_COMPILED: dict[Rule, list[Variant]] = {}


def compiled(rule: Rule) -> list[Variant]:
    """The rule's variants, built once, those that cover most first."""
    if rule not in _COMPILED:
        _COMPILED[rule] = sorted(variants(rule), key=lambda v: -v.size)
    return _COMPILED[rule]
