"""Fusions that a target can only write as more than what they replace.

A rule saves launches as it is written; how a target writes its op is for the lowerings, which may put Transposes around
it, or prepare its mask.  In a model such steps are shared by its layers and cancel against those of neighbours; where
they do not, the whole may end in more nodes that launch no less and move no less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable

from onnxfuse.lifting.view import View
from onnxfuse.terms.term import Term

from .cost import launches, nodes, traffic
from .match import Match
from .search import Found
from .state import State, reachable


def costly(view: View, found: Found) -> set[Match]:
    """The fusions that end in more nodes than those that are gone for them, and that neither launch less nor write less
    between them: none, unless this is so of the scope as a whole, for steps that seem to cost may cancel.  Of unknown
    sizes it cannot be said, and of what several fusions share each is spared: they stay."""
    chains: dict[str, list[Match]] = {}
    for match, values in found.rooted.items():
        for value in values[:1]:
            chains.setdefault(value, []).append(match)
    chains = {value: chain for value, chain in chains.items() if len(chain) > 1 and not chain[0].rule.lowers}
    if not chains:
        return set()
    state = State.of(view, found)
    if not _more(state.alive, reachable(view, view.terms_of)[0]):
        return set()
    alive = {term.id for term in state.alive}
    made = {value: _made(found.current[value], state.names) for value in chains if value not in found.stale}
    shared = Counter(id for terms in made.values() for id in terms)
    result = set()
    for value, terms in made.items():
        own = [term for id, term in terms.items() if shared[id] == 1]
        if _more(own, _gone(view, found, chains[value], alive)):
            result.add(chains[value][0])
    return result


def _made(root: Term, values: Container[int]) -> dict[int, Term]:
    """The terms that compute a root from values of the graph."""
    stack, made = [root], dict[int, Term]()
    while stack:
        term = stack.pop()
        if term.id not in made and not term.constant:
            made[term.id] = term
            stack += (arg for arg in term.args if arg.id not in values)
    return made


def _gone(view: View, found: Found, chain: Iterable[Match], alive: Container[int]) -> list[Term]:
    """What these matches cover that nothing needs any more."""
    names = {name for match in chain for name in (*found.covered[match], *found.rooted[match])}
    terms = {view.term(name).id: view.term(name) for name in sorted(names) if name in view.graph.producer}
    return [term for id, term in terms.items() if id not in alive]


def _more(made: Collection[Term], gone: Collection[Term]) -> bool:
    if nodes(made) <= nodes(gone) or _launched(made) < _launched(gone):
        return False
    then, now = traffic(gone), traffic(made)
    return then is not None and now is not None and now >= then


def _launched(terms: Iterable[Term]) -> int:
    return sum(map(launches, terms))
