"""The values that new nodes of a scope can read: the term of each, where it is computed, and its element type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from onnxfuse.model.dims import Dim, Shape
from onnxfuse.terms.normal.views import is_reshape
from onnxfuse.terms.term import REAL, Term

from .shape_sources import Dimensions, Part


class Available:
    """Values of one scope, in the order in which they become known; those `under` come first.

    Positions are indices of the scope's nodes, -1 for inputs and constants; a value made for a node stands half a
    position before it.  A value that is not `usable` (any more) is passed over."""

    def __init__(self, usable: Callable[[str], bool], under: Available | None = None) -> None:
        self.usable, self.under = usable, under
        self._known: dict[int, list[tuple[float, str, int]]] = {}
        self._reshapes: dict[int, list[Term]] = {}
        self._dims: Dimensions = Dimensions(under._dims if under is not None else None)
        self._kinds: dict[str, int] = {}
        self._shapes: dict[str, Shape | None] = {}
        self._added: list[tuple[Term, float, str, int]] = []

    def over(self) -> Available:
        """What is available besides, which these do not have before `keep`."""
        return Available(self.usable, self)

    def keep(self) -> None:
        """Give those under these what was added."""
        assert self.under is not None
        for entry in self._added:
            self.under.add(*entry)
        self.under._kinds |= self._kinds

    def add(self, term: Term, position: float, name: str, dtype: int) -> None:
        """A value with this term is computed at this position."""
        if self.under is not None:
            self._added.append((term, position, name, dtype))
        self._known.setdefault(term.id, []).append((position, name, dtype))
        if is_reshape(term):
            self._reshapes.setdefault(term.args[0].id, []).append(term)
        self._dims.add(name, term.shape, position)
        self._kinds[name] = dtype
        self._shapes[name] = term.shape

    def typed(self, name: str, dtype: int) -> None:
        """A value that only the node made next reads has this element type."""
        self._kinds[name] = dtype

    def kind(self, name: str) -> int | None:
        """The element type of a value."""
        kind = self._kinds.get(name)
        return kind if kind is not None or self.under is None else self.under.kind(name)

    def shape(self, name: str) -> Shape | None:
        """The dims of a value; None where they are not known."""
        shape = self._shapes.get(name)
        return shape if shape is not None or self.under is None else self.under.shape(name)

    def find(self, term: Term, dtype: int, limit: float) -> tuple[str, int] | None:
        """(value, element type) of this term, computed before `limit`, of the wanted type if there is one."""
        other = None
        for position, name, kind in self._of(term):
            if position < limit and self.usable(name):
                if kind == dtype or dtype not in REAL:
                    return name, kind
                other = other or (name, kind)
        return other

    def _of(self, term: Term) -> Iterator[tuple[float, str, int]]:
        if self.under is not None:
            yield from self.under._of(term)
        yield from self._known.get(term.id, ())

    def reshapes(self, term: Term) -> Iterator[Term]:
        """The terms of values that hold this one in another shape."""
        if self.under is not None:
            yield from self.under.reshapes(term)
        yield from self._reshapes.get(term.id, ())

    def parts(self, dims: Sequence[Dim], limit: float) -> list[Part] | None:
        """What a vector of dimensions consists of before a position, see `Dimensions.parts`."""
        return self._dims.parts(dims, limit, self.usable)
