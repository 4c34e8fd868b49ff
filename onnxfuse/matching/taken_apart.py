"""Nodes that stand for several steps (of other domains, read by what they mean), which a search took apart for nothing.

Such a node goes where a rule rewrites what it computes.  If what comes of it is the same op again, or more nodes than
those that are gone for it, it was better as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

from onnxfuse.lifting.view import View
from onnxfuse.model.op_traits import CHEAP, VIEWS
from onnxfuse.terms.term import Term, is_number

from .match import Match
from .search import Found
from .state import State

UNCOUNTED = VIEWS | CHEAP | {"Absent", "Input", "Integers", "Output", "Repeat"}
"""What does not count as a step."""


def taken_apart(view: View, found: Found) -> set[tuple[str, str]]:
    """(rule, value) of the matches that took such nodes apart for nothing: what to ban for the nodes to stay."""
    if not view.read:
        return set()
    state, nodes = State.of(view, found), view.graph.nodes
    alive = {term.id for term in state.alive}
    by_value: dict[str, list[Match]] = {}
    for match in found.rooted:
        for value in match.values:
            by_value.setdefault(value, []).append(match)
    bans: set[tuple[str, str]] = set()
    for index in sorted(view.read):
        outputs = {name for name in nodes[index].output if name} & found.touched - found.stale
        matches = [match for name in sorted(outputs) for match in by_value.get(name, ())]
        if not matches:
            continue
        made = {term.id: term for name in outputs if (term := _core(found.current[name])).id in alive}
        given = {_core(found.current[name]).id for name in nodes[index].input if name in found.current}
        same = all(
            _core(arg).id in given or arg.op == "Absent" or is_number(arg) for t in made.values() for arg in t.args
        )
        read = [*nodes[index].input, *(name for match in matches for name in found.covered[match])]
        gone = _gone(view, found, alive, read) - {index}
        again = not gone and {t.op for t in made.values()} == {f"{nodes[index].domain}.{nodes[index].op_type}"}
        if _steps(made.values(), state.names) > 1 + len(gone) or again or same:
            bans |= {(match.rule.name, name) for match in matches for name in match.values & outputs}
    return bans


def _steps(terms: Collection[Term], values: Collection[int]) -> int:
    """How many nodes compute these terms from values of the graph."""
    stack, seen, count = list(terms), {term.id for term in terms}, 0
    while stack:
        term = stack.pop()
        count += term.op not in UNCOUNTED
        for arg in term.args:
            if arg.id not in seen and arg.id not in values and not arg.constant:
                seen.add(arg.id)
                stack.append(arg)
    return count


def _gone(view: View, found: Found, alive: Container[int], values: Iterable[str]) -> set[int]:
    """The nodes behind some values that nothing needs any more, views aside."""
    stack, gone = list(values), set[int]()
    while stack:
        name = stack.pop()
        index = view.graph.producer.get(name)
        if index is not None and index not in gone and found.current[name].id not in alive:
            gone.add(index)
            stack += filter(None, view.graph.nodes[index].input)
    return {index for index in gone if view.graph.nodes[index].op_type not in UNCOUNTED}


def _core(term: Term) -> Term:
    """What a term shows, or an output is one of."""
    while term.op in VIEWS or term.op == "Output":
        term = term.args[0]
    return term
