"""A scope between two substitutions: what lives, what uses what, and what rules may ask of it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onnxfuse.language.context import Context
from onnxfuse.lifting.view import View
from onnxfuse.terms.term import Term

from .match import whole_of

if TYPE_CHECKING:
    from .search import Found


@dataclass(frozen=True)
class State:
    """The terms of a scope between two substitutions: those that its outputs depend on, which of them must exist as
    values, the values that each is, and the terms that use it."""

    alive: list[Term]
    needed: set[int]
    names: dict[int, list[str]]
    users: dict[int, list[Term]]

    @staticmethod
    def of(view: View, found: Found) -> State:
        alive, needed = reachable(view, found.current)
        names: dict[int, list[str]] = {}
        for name, term in found.current.items():
            if name not in found.stale:
                names.setdefault(term.id, []).append(name)
        users: dict[int, list[Term]] = {}
        for term in alive:
            for arg in term.args:
                users.setdefault(arg.id, []).append(term)
        return State(alive, needed, names, users)

    def within(self, scope: Context, inside: Set[int] = frozenset()) -> Context:
        """What rules may ask about the scope in this state; `inside` are products that are part of a Gemm."""
        return replace(scope, inside_gemms=inside, named=self.names.keys(), **self._told)

    @cached_property
    def _told(self) -> Mapping[str, Any]:
        """What rules may ask, whatever the stratum."""
        several = (i for i, above in self.users.items() if len(above) > 1 and any(u is not above[0] for u in above))
        outputs: dict[int, dict[int, Term]] = {}
        for term in self.alive:
            if term.op == "Output":
                outputs.setdefault(term.args[0].id, {})[term.attr("index")] = term
        return {"reused": self.needed.union(several), "alive": {term.id for term in self.alive}, "outputs": outputs}

    @cached_property
    def _by_op(self) -> Mapping[str, Sequence[int]]:
        """Where terms of each op stand, as rules see it."""
        found: dict[str, list[int]] = {}
        for position, term in enumerate(self.alive):
            found.setdefault(whole_of(term).op, []).append(position)
        return found

    def has(self, ops: Container[str]) -> bool:
        """Is there a term of one of these ops?"""
        return any(op in ops for op in self._by_op)

    def roots(self, ops: Container[str]) -> list[Term]:
        """The terms of some ops, what is computed from others before these."""
        positions = sorted((at for op, found in self._by_op.items() if op in ops for at in found), reverse=True)
        return [self.alive[at] for at in positions]


def reachable(view: View, current: Mapping[str, Term]) -> tuple[list[Term], set[int]]:
    """The terms that the scope's outputs depend on, arguments first, and the ids of those that must exist as values:
    outputs, and what opaque nodes read."""
    seen: dict[int, Term] = {}
    stack = [current[name] for name in view.graph.outputs if name in current]
    needed = {term.id for term in stack}
    for index in view.lasting:
        node = view.graph.nodes[index]
        made = [current[name] for name in node.output if name]
        read = [current[name] for name in node.input if name] if not made else []
        needed |= {term.id for term in read}
        stack += made + read
    while stack:
        term = stack.pop()
        if term.id in seen:
            continue
        seen[term.id] = term
        stack.extend(term.args)
        for name in view.hidden.get(term.id, ()):
            needed.add(current[name].id)
            stack.append(current[name])
    return [seen[i] for i in sorted(seen)], needed
