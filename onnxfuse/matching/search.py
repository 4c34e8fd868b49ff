"""Rules to a fixed point over the terms of one scope: match, plan, substitute, stratum after stratum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import partial

from onnxfuse.errors import RuleError
from onnxfuse.language.catalogue import Catalogue
from onnxfuse.language.rule import Rule
from onnxfuse.language.variants import Variant
from onnxfuse.lifting.defined import outputs_of
from onnxfuse.lifting.view import View
from onnxfuse.model.op_traits import ELEMENTWISE, VIEWS
from onnxfuse.terms.normal.normal import rebuild
from onnxfuse.terms.normal.views import is_reshape
from onnxfuse.terms.term import REAL, Term, is_number

from .binding import Failure
from .cost import nodes
from .index import Index
from .kept_products import inside_gemms, sums_product
from .match import Match, Matcher, whole_of
from .on_integers import kept_apart, on_integers
from .select import Candidate, choose, weigh
from .state import State

LAYOUT = "layout"
"""The cost of rules that pay only together: a stratum of them is kept if it leaves fewer nodes."""
FORCED = (LAYOUT, "lowering")
"""Costs of rules that are applied even if they save nothing."""
ROUNDS = 30
"""Rounds per stratum; a rule set that needs more does not end."""
GROWTH, ROOM = 4, 1000
"""A stratum may make so many times the terms that it finds, and so many more: one that makes more does not end."""


@dataclass
class Found:
    """What the search made of a scope.

    `current` is the term that each value computes now; a value in `touched` must be computed anew, every other keeps
    its node.  `stale` values are those that no output depended on, whose terms were not kept up to date.  `origins`
    gives the matches behind a term that a rule made; `rooted` and `covered` the values at the root of a match, and all
    that it covers, as they were called when it was chosen.
    """

    current: dict[str, Term]
    touched: set[str] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)
    origins: dict[int, tuple[Match, ...]] = field(default_factory=dict)
    rooted: dict[Match, tuple[str, ...]] = field(default_factory=dict)
    covered: dict[Match, tuple[str, ...]] = field(default_factory=dict)
    failures: Callable[[Container[int]], list[Failure]] = lambda roots: []
    """The furthest that each rule got at each of these terms (ids)."""
    unprofitable: list[Candidate] = field(default_factory=list)
    slower: dict[Match, int] = field(default_factory=dict)
    """Matches that would take a node from its kernel on integers, and the position of that node."""
    hiding: list[tuple[Match, str]] = field(default_factory=list)
    """Matches that were not made for a quantizer to find a product, and the op of that."""
    mistaken: dict[int, tuple[Match, str]] = field(default_factory=dict)
    """Root (id) → the match that was not made since an onnxruntime would compute its op wrong, and what is to say."""


def search(
    view: View,
    catalogue: Catalogue,
    strata: Sequence[Sequence[Rule]],
    banned: Collection[tuple[str, str]] = (),
    *,
    raising: bool = False,
) -> Found:
    """Apply the strata in order.  `banned` names (rule, value) pairs that must not be fused; `raising`: the model may
    still be converted to a higher opset."""
    found = Found(dict(view.terms_of))
    scope = replace(view.context, raisable=raising, written_out=partial(outputs_of, view))
    matcher, kept = Matcher(view.terms, catalogue, scope), catalogue.target.keeps_products
    state = State.of(view, found)
    movable = ELEMENTWISE & catalogue.definitions.keys()  # fused ops that laws take through Transposes
    for rules in strata:
        index = Index(view.terms, rules)
        if not state.has(index.by_op):
            continue
        layout = all(rule.cost == LAYOUT for rule in rules)
        before = (Found(**{f.name: copy(getattr(found, f.name)) for f in fields(found)}), state) if layout else None
        barren: set[int] = set()
        room = GROWTH * len(state.alive) + ROOM
        for _ in range(ROUNDS):
            matcher.context = state.within(scope, inside_gemms(view, found.current) if kept else frozenset())
            if not _round(view, found, state, matcher, index, catalogue.order, barren, banned):
                break
            state, last = State.of(view, found), state
            _inherit_moved(view, found, last.alive, state.alive, movable)
            if len(state.alive) > room:
                raise _endless(found.rooted)
        if before is not None and nodes(state.alive) >= nodes(before[1].alive):
            found, state = before
    matcher.context = state.within(scope)
    found.failures = matcher.explained
    return found


def _round(
    view: View,
    found: Found,
    state: State,
    matcher: Matcher,
    index: Index,
    order: Mapping[int, int],
    barren: set[int],
    banned: Collection[tuple[str, str]],
) -> bool:
    """One round: match everything that is new, choose, substitute.  Was anything chosen?

    What a match would make superfluous is not tried as a root: it is tried in the next round, should another win."""
    names, users, integer = state.names, state.users, on_integers(view, found.current)
    candidates = []
    doomed: set[int] = set()
    built: dict[int, int] = {}
    for term in state.roots(index.by_op):  # before what they cover
        if term.id in barren or term.id in doomed:
            continue
        if term.id in matcher.context.outputs:  # its outputs are tried
            continue
        matches = _matches(matcher, index, term)
        if banned:
            matches = [m for m in matches if not any((m.rule.name, v) in banned for v in _values(m, names, users))]
        if integer:
            matches = kept_apart(matches, integer, found.slower)
        for match, op in matcher.hiding:
            match.values = _values_above(match.root.id, names, users)
            found.hiding += [(match, op)] if all(m.rule is not match.rule for m in matches) else []
        matcher.hiding.clear()
        if not matches:
            barren.add(term.id)
        for match in matches:
            candidate = weigh(match, users, state.needed, built)
            if candidate.launches >= 0 or match.rule.cost in FORCED:
                candidates.append(candidate)
                doomed |= candidate.dying
            else:
                found.unprofitable.append(candidate)
    chosen = choose(candidates, order, users, state.needed)
    if not chosen:
        return False
    _substitute(view, found, chosen, state)
    return True


def made(view: View, found: Found) -> list[tuple[Term, int]]:
    """The terms that rules made and that are still needed, each with the element type it will be computed in: that of
    the nearest value above it."""
    state = State.of(view, found)
    result = []
    for term in state.alive:
        if term.id in found.origins:
            names = sorted(_values_above(term.id, state.names, state.users))
            kinds = (view.dtypes[name] for name in names if view.dtypes[name] in REAL)
            result.append((term, next(kinds, term.dtype)))
    return result


def bans(found: Found, terms: Iterable[Term]) -> set[tuple[str, str]]:
    """(rule, value) of the last match behind each of these terms: what to ban to be rid of them."""
    last = [found.origins[term.id][-1] for term in terms]
    return {(match.rule.name, value) for match in last for value in match.values}


def _matches(matcher: Matcher, index: Index, term: Term) -> list[Match]:
    """The first match of each rule at a term; of a rule that exposes intermediates, of each of its blocks."""
    matches: list[Match] = []
    whole, passed = whole_of(term), list[Variant]()
    for variant in index.candidates(whole, matcher.glance):
        if not matcher.glance.far(variant.root, whole, root=True):
            passed.append(variant)
            continue
        if any(m.rule is variant.rule and (m.block == variant.block or not m.rule.labels) for m in matches):
            continue
        match = matcher.match(variant, term)
        if match is not None:
            matches.append(match)
    if passed:
        matcher.passed.append((term, passed))
    return matches


def _substitute(view: View, found: Found, chosen: Sequence[Candidate], state: State) -> None:
    """Replace the roots everywhere, and note which values can no longer keep their node.

    A value that no output depends on keeps the term it had, and its node, should an untouched node read it."""
    names, users = state.names, state.users
    alive = {term.id for term in state.alive}
    replacement: dict[int, Term] = {}
    for candidate in chosen:
        match = candidate.match
        replacement[match.root.id] = match.emitted
        for old, new in match.exposed.items():
            replacement[old.id] = new
        if not any(wanted(old, candidate, state) for old in match.exposed):
            # Nobody asks for a further output: the first is the op itself, and later rules see it as that.
            made = match.made(users)
            replacement |= {t.id: t.args[0] for t in made if t.op == "Output" and not t.attr("index")}
        rooted = _values_above(match.root.id, names, users)
        found.rooted[match] = tuple(sorted(rooted))
        match.values = rooted.union(*(_values_above(term.id, names, users) for term in match.exposed))
        found.touched |= match.values
        found.covered[match] = tuple(name for term in match.cover for name in names.get(term.id, ()))
        _trace(found, match, users)
    kept = view.catalogue is not None and view.catalogue.target.keeps_products
    done: dict[int, Term] = {}
    first = min(replacement)
    for name, term in found.current.items():
        if term.id in done:
            found.current[name] = done[term.id]
        elif name in found.stale or not (_current(term, alive, kept) or name in found.touched):
            found.stale.add(name)
        else:
            if term.id not in alive and _held(term).id in replacement:
                found.touched.add(name)  # its own node computes what is gone
            try:
                found.current[name] = _resolve(view, found, term, replacement, done, first)
            except _CircularError:
                raise _endless([candidate.match for candidate in chosen]) from None


class _CircularError(Exception):
    """What is computed from something, by way of others, is to replace it."""


def _endless(matches: Iterable[Match]) -> RuleError:
    """The complaint about the rule that matched most often."""
    rule, _ = Counter(match.rule for match in matches).most_common(1)[0]
    return rule.source.error(
        "rewriting does not end: it applies to what comes of it, again and again",
        rule.emit[0],
        "emit something that `match:` does not find again, or leave the rule out with --ignore",
    )


def wanted(old: Term, candidate: Candidate, state: State) -> bool:
    """Does anything that stays need a term that the match can expose?"""
    inside = candidate.dying | {candidate.match.root.id}
    return old.id in state.needed or any(user.id not in inside for user in state.users.get(old.id, ()))


def _current(term: Term, alive: Container[int], kept: bool) -> bool:
    """Is a term worth keeping up to date: do outputs depend on it, or on what it holds in another shape?  A scaled
    tensor is, whose factor and tensor are operands of a longer product: a rule may want it as a whole.  Where products
    are `kept`, what a Gemm gives is, too: in a longer sum its product is an operand."""
    whole = term.args[0] if is_reshape(term) else term
    if term.id in alive or whole.id in alive or (kept and sums_product(whole, alive)):
        return True
    return whole.op == "Mul" and all(arg.id in alive or is_number(arg) for arg in whole.args)


def _held(term: Term) -> Term:
    """What a value holds in another shape or scaled by a number, if it does: others have the number outside."""
    tensors = [a for a in term.args if not is_number(a)]
    return tensors[0] if is_reshape(term) or (term.op == "Mul" and len(tensors) == 1) else term


def _values_above(term: int, names: Mapping[int, list[str]], users: Mapping[int, list[Term]]) -> set[str]:
    """The nearest values whose terms contain this one: those that must be computed anew if it is replaced."""
    if term in names:
        return set(names[term])
    stack, seen, above = [term], set[int](), set[str]()
    while stack:
        i = stack.pop()
        if i in seen:
            continue
        seen.add(i)
        if i in names:
            above.update(names[i])
        else:
            stack.extend(user.id for user in users.get(i, ()))
    return above


def _values(match: Match, names: Mapping[int, list[str]], users: Mapping[int, list[Term]]) -> set[str]:
    """The values that must be computed anew if this match is made."""
    return set().union(*(_values_above(term.id, names, users) for term in (match.root, *match.exposed)))


def _trace(found: Found, match: Match, users: Container[int]) -> None:
    """Remember which matches made a term: its own, and those behind the terms it covers."""
    behind: list[Match] = []
    match.inner = tuple(found.origins[term.id][-1] for term in match.cover if term.id in found.origins)
    for term in match.cover:
        behind += [m for m in found.origins.get(term.id, ()) if m not in behind]
    op = match.bindings.get(match.rule.op, match.rule.op)
    made = [t for t in match.made(users) if t.op == op]
    for term in made or [match.emitted]:
        if term.op not in VIEWS:
            found.origins[term.id] = (*behind, match)


def _inherit_moved(
    view: View, found: Found, before: Sequence[Term], after: Sequence[Term], movable: Collection[str]
) -> None:
    """A fused op that a rule made is that one still where Transposes around it have cancelled."""
    old = {t.id for t in before}
    new = [t for t in after if t.op in movable and t.id not in old and t.id not in found.origins]
    ops = {t.op for t in new}
    behind = {(t.op, t.attrs): found.origins[t.id] for t in view.terms if t.op in ops and t.id in found.origins}
    for term in new:
        if (term.op, term.attrs) in behind:
            found.origins[term.id] = behind[term.op, term.attrs]


def _resolve(
    view: View, found: Found, root: Term, replacement: dict[int, Term], done: dict[int, Term], first: int
) -> Term:
    """The term with all replacements below it made; iterative, since models are deep.  Raises _CircularError.

    Arguments have smaller ids than their users: what is older than the `first` that is replaced stays."""
    stack, path = [root], set[int]()
    while stack:
        term = stack[-1]
        if term.id in done:
            stack.pop()
            continue
        if term.id < first:
            done[stack.pop().id] = term
            continue
        new = replacement.get(term.id)
        below = term.args if new is None else (new,)
        missing = [t for t in below if t.id not in done]
        if missing:
            path.add(term.id)
            if any(t.id in path for t in missing):
                raise _CircularError
            stack.extend(missing)
            continue
        stack.pop()
        path.discard(term.id)
        if new is not None:
            done[term.id] = done[new.id]
            continue
        result, args = term, [done[a.id] for a in below]
        if any(a is not b for a, b in zip(args, below, strict=True)):
            result = rebuild(view.terms, term, args)
            _inherit(found, term, result)
            if term.op in VIEWS:  # it may have moved into what it is of
                _inherit(found, args[0], result)
        done[term.id] = result
    return done[root.id]


def _inherit(found: Found, term: Term, result: Term) -> None:
    """What comes of a term that rules made is made by them, too."""
    while result.op != term.op and result.op in VIEWS:  # one that has moved out of it
        result = result.args[0]
    if term.id in found.origins and result.op == term.op and result.id not in found.origins:
        found.origins[result.id] = found.origins[term.id]
