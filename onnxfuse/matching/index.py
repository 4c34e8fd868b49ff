"""Which variants could match at a term: an index by op, and a look at the ops below, so that most are never tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from onnxfuse.language.pattern import Pattern
from onnxfuse.language.rule import ANY, Rule
from onnxfuse.language.variants import Variant, variants
from onnxfuse.model.op_traits import COMMUTATIVE, NEUTRAL
from onnxfuse.terms.term import LEVELS, Term, Terms

from .prefilter import OPENINGS, Glance, turns


@dataclass(eq=False)
class Group:
    """Variants that look alike from their root: one look at a term tells whether any of them may match."""

    below: int
    """Bits of ops that must occur below the root."""
    beside: int
    """Bits of ops that must be among the operands of the root's chain."""
    given: tuple[bool | None, ...] | None
    """Which inputs of the root are given, None for one that may be; None for a chain."""
    heads: tuple[str, ...]
    """Ops that the inputs of the root must be, where they must; an empty name where not."""
    root: Pattern
    variants: list[tuple[int, Variant]] = field(default_factory=list)

    def fits(self, term: Term) -> bool:
        """Are the inputs given that must be, and what they must be?"""
        for head, arg in zip(self.heads, term.args, strict=False):
            if head and head != arg.op:
                return False
        return self.given is None or _alike(self.given, term.args)


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
                below = _bits(terms, _within(root, LEVELS))
                look = frozenset((part.op, part.heads) for part in root.parts) if chain else None
                given = None if chain else tuple(None if a.op == ANY else a.kind != "absent" for a in root.args)
                heads = () if chain or root.op in COMMUTATIVE or turns(root) else tuple(map(_head, root.args))
                group = groups.get(
                    key := (
                        root.op,
                        below,
                        look,
                        chain and root.operand_count,
                        bool(chain and root.rest),
                        given,
                        heads,
                    )
                )
                if group is None:
                    group = groups[key] = Group(below, _bits(terms, root.heads) if chain else 0, given, heads, root)
                    self.by_op.setdefault(root.op, []).append(group)
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
            if glance.near(group.root, term):
                found += group.variants
        found.sort(key=lambda entry: entry[0])
        return [variant for _, variant in found]


def _head(p: Pattern) -> str:
    """The op that a matching term must be, if it must be one."""
    return p.op if p.kind == "op" and not p.scalar else ""


def _alike(wanted: Sequence[bool | None], args: Sequence[Term]) -> bool:
    """Are the same inputs given, but for trailing ones that are not?"""
    given = (arg.op != "Absent" for arg in args)
    return all(a is None or a == b for a, b in zip_longest(wanted, given, fillvalue=False))


def _within(p: Pattern, levels: int) -> Iterator[str]:
    """Ops of a pattern in so many levels: what stands deeper, a term does not know to be below it."""
    if p.kind == "op" and not p.scalar and levels:
        yield p.op
        for arg in p.args:
            yield from _within(arg, levels - 1)


def _bits(terms: Terms, ops: Iterable[str]) -> int:
    bits = 0
    for op in ops:
        bits |= terms.bit(op)
    return bits


_COMPILED: dict[Rule, list[Variant]] = {}


def compiled(rule: Rule) -> list[Variant]:
    """The rule's variants, built once, those that cover most first."""
    if rule not in _COMPILED:
        _COMPILED[rule] = sorted(variants(rule), key=lambda v: -v.size)
    return _COMPILED[rule]
