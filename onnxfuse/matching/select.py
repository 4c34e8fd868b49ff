"""The best non-overlapping matches of one round: by launches saved, then by cover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from onnxfuse.model.dims import product
from onnxfuse.model.op_traits import KERNELS, PRODUCTS, VIEWS
from onnxfuse.terms.term import Term

from .cost import launches
from .match import Match


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
    exposed = {t.id for t in match.exposed}
    cover = {t.id: t for t in (*match.cover, *_with_exposed(match, users, needed))}
    kept: set[int] = set()
    for i in sorted(cover, reverse=True):
        term = cover[i]
        if term is match.root or i in exposed:
            continue
        outside = i in needed or any(u.id not in cover for u in users.get(i, ()))
        if outside or any(u.id in kept for u in users.get(i, ()) if u.id in cover):
            kept.add(i)
    dead = [t for i, t in cover.items() if i not in kept]
    new = match.made(users)
    there = {product(a.shape or ()) for t in cover.values() for a in t.args if _repeats(a)}
    made = sum(
        launches(t)
        for t in new
        if t.op != "Transpose" and built.setdefault(t.id, match.root.id) == match.root.id
        if not (_repeats(t) and product(t.shape or ()) in there)  # what a batch shares lies otherwise in each of it
    )
    instead = _made_instead(dead, new, users, needed) if any(_moves(t) for t in new) else Counter[_Made]()
    made -= instead.total()
    saved = sum(launches(t) for t in dead) - made
    if any(cover[i].op in PRODUCTS for i in kept):
        saved = -1
    if saved == 0 and any(cover[i].op in KERNELS for i in kept):
        saved = -1  # a pass over rows is not made twice instead of once
    if saved == 0 and any(_multiplied(t, users) and _what(t) not in instead for t in new):
        saved = -1  # nor is a linear layer computed twice
    if saved == 0 and any(t.id in match.matched for t in new):
        saved = -1  # what is summed in another order rounds in another way: for a gain alone
    dying = frozenset(t.id for t in dead if t is not match.root and t.id not in exposed)
    return Candidate(match, saved, tuple(t for t in match.cover if t.id in kept), dying)


def _with_exposed(match: Match, users: Mapping[int, Sequence[Term]], needed: Collection[int]) -> list[Term]:
    """What a match replaces besides its root, though its pattern did not find it (the gradients of a scale and a shift
    beside that of what was normalised), and what is computed for nothing else."""
    found = {t.id for t in match.cover}
    used = match.matched.union(a.id for t in match.made(users) for a in t.args)
    above = dict[int, Term]()
    stack = [t for t in match.exposed if t.id not in found and (t.id in users or t.id in needed)]
    while stack:
        term = stack.pop()
        if term.id not in found and term.id not in above:
            above[term.id] = term
            inside = above.keys() | found
            stack += [a for a in term.args if a.id not in used and all(u.id in inside for u in users.get(a.id, ()))]
    return [above[i] for i in sorted(above)]


_Made: TypeAlias = tuple[str, tuple[int, ...]]
"""An op and the ids of its constants."""


def _repeats(term: Term) -> bool:
    """Does it repeat a constant, as queries are that a model has learned?"""
    return term.op == "Expand" and term.args[0].constant


def _moves(term: Term) -> bool:
    """May it take the place of another, made of the same in another order: a part, or rows of a linear layer?"""
    return term.op == "Slice" or (term.op in ("MatMul", "Add") and any(a.constant for a in term.args))


def _what(term: Term) -> _Made:
    return term.op, () if term.op == "Slice" else tuple(a.id for a in term.args if a.constant)


def _multiplied(term: Term, users: Mapping[int, Sequence[Term]]) -> bool:
    """Is it a product with a weight that something is multiplied with already?"""
    weights = [a for a in term.args if a.constant] if term.op == "MatMul" else []
    return any(user.op == "MatMul" for weight in weights for user in users.get(weight.id, ()))


def _made_instead(
    dead: Sequence[Term], new: Sequence[Term], users: Mapping[int, Sequence[Term]], needed: Collection[int]
) -> Counter[_Made]:
    """What a match makes in the place of others, a launch each: the Slices, and the linear layers of the same weights,
    which go with what only views and such lie between."""
    wanted = Counter(_what(t) for t in new if _moves(t))
    gone, stays = {t.id for t in dead}, {a.id for t in new for a in t.args}
    stack, found = [a for t in dead for a in t.args], Counter[_Made]()
    while stack:
        term = stack.pop()
        counts = _moves(term) and _what(term) in wanted
        if term.id in gone | stays or term.id in needed or not (counts or term.op in VIEWS):
            continue
        if all(u.id in gone for u in users.get(term.id, ())):
            gone.add(term.id)
            stack += term.args
            found[_what(term)] += counts
    return found & wanted


def choose(
    candidates: Sequence[Candidate],
    order: Mapping[int, int],
    users: Mapping[int, Sequence[Term]],
    needed: Collection[int],
) -> list[Candidate]:
    """Greedy by saving; two matches exclude each other if one's root lies inside the other.

    So do two that would expose the same terms, such as the mean of what two normalizations share, unless nothing but
    these two needs them and each may compute its own for less.  `order` ranks rules (by id) so that ties are broken the
    same way on every run."""
    ranked = sorted(
        candidates,
        key=lambda c: (-c.launches, -len(c.match.cover), order[id(c.match.rule)], c.match.root.id),
    )
    chosen: list[Candidate] = []
    roots: set[int] = set()
    covered: set[int] = set()
    exposing: dict[int, list[int]] = {}
    for candidate in ranked:
        match = candidate.match
        exposed = {t.id for t in match.exposed}
        own = {t.id for t in match.cover} | exposed
        if match.root.id in covered or own & roots or not own & exposing.keys() <= exposed:
            continue
        rivals = sorted({rival for i in own & exposing.keys() for rival in exposing[i]})
        if rivals:
            group = [chosen[i] for i in rivals] + [candidate]
            inside = _inside(group, users, needed)
            if not all(t.id in inside for member in group for t in member.match.exposed):
                continue
            if _saving(group, inside, users) <= sum(chosen[i].launches for i in rivals):
                continue
            for i in rivals:
                chosen[i] = replace(chosen[i], dying=chosen[i].dying | inside)
            candidate = replace(candidate, dying=candidate.dying | inside)
        for i in exposed:
            exposing.setdefault(i, []).append(len(chosen))
        chosen.append(candidate)
        roots.add(match.root.id)
        covered |= own
    return chosen


def _inside(group: Sequence[Candidate], users: Mapping[int, Sequence[Term]], needed: Collection[int]) -> frozenset[int]:
    """The roots of these matches, and what they cover that nobody else needs."""
    inside = {c.match.root.id for c in group}
    for i in sorted({t.id for c in group for t in (*c.match.cover, *c.match.exposed)} - inside, reverse=True):
        if i not in needed and all(u.id in inside for u in users.get(i, ())):
            inside.add(i)
    return frozenset(inside)


def _saving(group: Sequence[Candidate], inside: frozenset[int], users: Mapping[int, Sequence[Term]]) -> int:
    """The launches that these matches save together if none of them exposes anything."""
    gone = {t.id: t for c in group for t in (c.match.root, *c.match.cover) if t.id in inside}
    made = {t.id: t for c in group for t in c.match.made(users) if t.op != "Transpose"}
    return sum(map(launches, gone.values())) - sum(map(launches, made.values()))
