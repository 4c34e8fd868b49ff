"""A model read once, however often it is then searched and written.

What reading it found (`View`: terms, element types, effects) is the same for every try.  What a try adds (further
terms, which values have changed, the protos that it edits) is its own.

guarantees   a try gives the same file, byte for byte, whichever tries were made before it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from onnx import ModelProto

from onnxfuse.language.catalogue import Catalogue
from onnxfuse.model import inside
from onnxfuse.model.graph import roots, scopes_of_copy
from onnxfuse.terms.blockwise import Families
from onnxfuse.terms.term import Term

from .effects import Effects
from .lift import lift
from .view import View


@dataclass(frozen=True)
class Lifted:
    """A model and the views of its scopes, outermost first.  Neither is edited: see `copy`."""

    model: ModelProto
    base_dir: Path | None
    """Where its external data lies."""
    views: Sequence[View]
    unfolded: Sequence[Term]
    """Constant terms whose elements nobody has asked for: some may turn out to have none."""

    @cached_property
    def bytes(self) -> int:
        """What its tensors take up in the file itself."""
        return inside.total(self.model)

    @staticmethod
    def of(
        model: ModelProto,
        base_dir: Path | None = None,
        catalogue: Catalogue | None = None,
        families: Families | None = None,
        before: Mapping[str, View] = MappingProxyType({}),
    ) -> Lifted:
        """Lift every scope of a model (`lift`); `families` are the constants of which each block has its own, `before`
        the scopes of another reading by their paths."""
        effects = Effects.of(model)
        views: dict[int, View] = {}
        for graph in (graph for root in roots(model) for graph in root.scopes()):
            parent = views[id(graph.parent)] if graph.parent is not None else None
            known = before.get(graph.path)
            views[id(graph)] = lift(graph, base_dir, parent, effects, catalogue, families=families, before=known)
        unfolded = [term for view in views.values() for term in view.terms if term.constant and term.load is None]
        return Lifted(model, base_dir, tuple(views.values()), unfolded)

    def again(self, model: ModelProto) -> Lifted:
        """Another model, read in the same way."""
        main = self.views[0]
        return Lifted.of(
            model, self.base_dir, main.catalogue, main.families, {view.graph.path: view for view in self.views}
        )

    def copy(self) -> tuple[ModelProto, list[View]]:
        """A copy of the model, and views of its scopes, to be searched and written.

        Only `View.unread` is common to all copies: tensors whose values any of them has wanted."""
        for term in self.unfolded:
            term.constant = True  # a former copy may have found that it has no value, and later than it was matched
        model = ModelProto()
        model.CopyFrom(self.model)
        views: dict[int, View] = {}
        graphs = scopes_of_copy([view.graph for view in self.views], model)
        for view, graph in zip(self.views, graphs, strict=True):
            views[id(view)] = view.of_copy(graph, None if view.parent is None else views[id(view.parent)])
        return model, list(views.values())
