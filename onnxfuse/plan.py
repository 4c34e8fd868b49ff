"""The best non-overlapping matches of one round: by launches saved, then by cover."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .cost import HEAVY, launches
from .match import Match
from .terms import Term


@dataclass(frozen=True, eq=False)
class Candidate:
    """A match with what it would save."""

    match: Match
    launches: int
    survivors: tuple[Term, ...]
    """Covered terms that something outside needs, and that are therefore computed all the same."""
    dying: frozenset[int]
    """Ids of the covered terms that nobody needs any more."""


def weigh(
    match: Match, users: Mapping[int, Sequence[Term]], needed: Collection[int], built: dict[int, int]
) -> Candidate:
    """What a match saves, given the users of each term and the ids of terms that are outputs of the scope.

    `built` are the terms that matches of this round make, with the root that is the first to ask for each: what several
    share, such as the angles of a rotation, is counted once."""
    cover = {t.id: t for t in match.cover}
    exposed = {t.id for t in match.exposed}
    kept: set[int] = set()
    for i in sorted(cover, reverse=True):
        term = cover[i]
        if term is match.root or i in exposed:
            continue
        outside = i in needed or any(u.id not in cover for u in users.get(i, ()))
        if outside or any(u.id in kept for u in users.get(i, ()) if u.id in cover):
            kept.add(i)
    dead = [t for i, t in cover.items() if i not in kept]
    made = sum(
        launches(t)
        for t in match.made(users)
        if t.op != "Transpose" and built.setdefault(t.id, match.root.id) == match.root.id
    )
    saved = sum(launches(t) for t in dead) - made
    if any(cover[i].op in HEAVY for i in kept):
        saved = -1
    dying = frozenset(t.id for t in dead if t is not match.root and t.id not in exposed)
    return Candidate(match, saved, tuple(cover[i] for i in kept), dying)


def choose(candidates: Sequence[Candidate], order: Mapping[int, int]) -> list[Candidate]:
    """Greedy by saving; two matches exclude each other if one's root lies inside the other.

    `order` ranks rules (by id) so that ties are broken the same way on every run."""
    ranked = sorted(
        candidates,
        key=lambda c: (-c.launches, -len(c.match.cover), order[id(c.match.rule)], c.match.root.id),
    )
    chosen: list[Candidate] = []
    roots: set[int] = set()
    covered: set[int] = set()
    for candidate in ranked:
        match = candidate.match
        own = {t.id for t in match.cover} | {t.id for t in match.exposed}
        if match.root.id in covered or own & roots:
            continue
        chosen.append(candidate)
        roots.add(match.root.id)
        roots.update(t.id for t in match.exposed)
        covered |= own
    return chosen
