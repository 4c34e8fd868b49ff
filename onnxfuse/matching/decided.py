"""Whether a search has used up the Ifs that it took for the branch that they take (`View.decides`)."""

from __future__ import annotations

from onnxfuse.lifting.view import View
from onnxfuse.model.graph import captured_names

from .search import Found


def undecided(view: View, found: Found) -> bool:
    """Does anything that the scope will compute still need such an If?"""
    if not view.decided:
        return False
    graph, first = view.graph, dict[int, str]()
    for name in sorted(found.current, key=lambda name: graph.producer.get(name, -1)):
        first.setdefault(found.current[name].id, name)
    stack = [*graph.outputs, *(name for index in view.lasting for name in graph.nodes[index].input)]
    seen = set[str]()
    while stack:
        name = stack.pop()
        index = graph.producer.get(name)
        if name in seen or index is None:
            continue
        seen.add(name)
        if name in found.touched:
            stack += _read_by_term(found, name, first)
        elif name in view.decided:
            return True
        else:
            node = graph.nodes[index]
            stack += [*node.input, *(captured_names(node) if index in graph.captures else ())]
    return False


def _read_by_term(found: Found, name: str, first: dict[int, str]) -> list[str]:
    """The values from which a value is computed anew."""
    stack, values, seen = list(found.current[name].args), list[str](), set[int]()
    while stack:
        term = stack.pop()
        if term.id in seen or term.constant:
            continue
        seen.add(term.id)
        if term.id in first:
            values.append(first[term.id])
        else:
            stack.extend(term.args)
    return values
