"""A scope that is being lifted, taken back to earlier nodes where later ones tell what was to be known there.

    s = a + b        not closed: one node alone uses it
    v = Reshape(s)   closed: several use it, and with it the sum that it holds in another shape

When v is lifted, s has to be closed, too (`sharing.alike`): what was lifted since s is forgotten, and lifted again.
That is a few nodes; to lift the whole scope again, as other knowledge asks for, would be all of them.

guarantees   what is lifted after a rewinding is what would be lifted had it been known from the start
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from onnxfuse.model.op_traits import NEUTRAL
from onnxfuse.terms.term import Mark, Term

from .sharing import VIEWED, seen
from .view import View

STEP = 8
"""Nodes that are lifted, looked at and forgotten together."""
_Chain: TypeAlias = tuple[str, tuple[Term, ...]]
"""The op of a sum or product, and what it is of."""


@dataclass
class Rewind:
    """What there was before each step over the nodes of a view, and the sums and products that its values are."""

    view: View
    _marks: list[tuple[Mark, int, int]] = field(default_factory=list)
    _open: dict[_Chain, list[tuple[int, str]]] = field(default_factory=dict)
    """Those that are not closed: in which step which values are that, or a view of it."""
    _closed: dict[_Chain, int] = field(default_factory=dict)
    """Those that are, and the step that closed them."""
    _again: int = 0
    """How many steps were taken again."""

    def mark(self) -> None:
        """Here begins the next step, or the first."""
        self._marks.append((self.view.terms.mark(), len(self.view.terms_of), len(self.view.hidden)))

    def after(self, index: int) -> int:
        """The node to go on with, now that all before this one are lifted: an earlier one, if values are to be closed
        there.  No more is lifted again than there is: beyond that, to lift the whole once more is quicker."""
        values, step = self.view.terms_of, len(self._marks) - 1
        found: list[tuple[int, str]] = []
        for name, value in [*islice(reversed(values.items()), len(values) - self._marks[-1][1])][::-1]:
            term = seen(value) if value.op in VIEWED else value
            if term.op not in NEUTRAL:
                continue
            chain = (term.op, term.args)
            if term.closed:
                self._closed.setdefault(chain, step)
                found += self._open.get(chain, ())
            else:
                self._open.setdefault(chain, []).append((step, name))
                if chain in self._closed:
                    found.append((step, name))
        if not found or self._again * STEP > len(self.view.graph.nodes):
            return index
        first = min(found)[0]
        self._again += len(self._marks) - first
        self.view.shared.update(name for _, name in found)
        self.to(first)
        return first * STEP

    def to(self, step: int) -> None:
        """Forget this step over the nodes, and those after it."""
        view, (mark, values, hidden) = self.view, self._marks[step]
        del self._marks[step:]
        view.terms.rewind(mark)
        while len(view.terms_of) > values:
            name, term = view.terms_of.popitem()
            del view.dtypes[name]
            view.counted.pop(name, None)
            self._forget(seen(term), step)
        while len(view.hidden) > hidden:
            view.hidden.popitem()
        view.read -= {index for index in view.read if index >= step * STEP}
        for index in [index for index in view.endless if index >= step * STEP]:
            del view.endless[index]
        while view.looked_into and view.looked_into[-1][0] >= len(view.terms):
            view.looked_into.pop()

    def _forget(self, term: Term, step: int) -> None:
        chain = (term.op, term.args)
        if term.closed and self._closed.get(chain, -1) >= step:
            del self._closed[chain]
        elif not term.closed and chain in self._open:
            self._open[chain] = [place for place in self._open[chain] if place[0] < step]
