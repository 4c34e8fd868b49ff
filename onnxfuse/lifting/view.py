"""What the values of one scope compute: the result of reading a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from onnxfuse.language.catalogue import Catalogue
from onnxfuse.language.context import Context
from onnxfuse.model.dims import Dim, Shape
from onnxfuse.model.graph import Graph
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.symbols import renamed
from onnxfuse.terms.blockwise import Families
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.normal.normal import closed
from onnxfuse.terms.term import Term, Terms

from .effects import Effect


@dataclass
class View:
    """What each value of one scope computes.

    `terms_of` maps names to terms, `dtypes` to element types; `hidden` gives the values that an opaque leaf is computed
    from, which its term does not show; `shared` are the values that more than one computation uses; `effects` are those
    of the nodes.
    """

    graph: Graph
    terms: Terms
    base_dir: Path | None
    parent: View | None = None
    terms_of: dict[str, Term] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)
    hidden: dict[int, list[str]] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    effects: Sequence[Effect] = ()
    counted: dict[str, str] = field(default_factory=dict)
    """Values of loops that are ranges, computed anew without the loop, and what else the loop gives, unread."""
    unread: set[str] = field(default_factory=set)
    """Tensors, of the scopes around this one too, whose values were wanted and are not there."""
    endless: dict[int, str] = field(default_factory=dict)
    """Nodes of which nothing is known since laws of the normal form turn in a circle there, and the equation of one."""
    catalogue: Catalogue | None = None
    """What ops of other domains mean; None where their nodes are taken as they are."""
    read: set[int] = field(default_factory=set)
    """The nodes of other domains whose terms are what they mean."""
    integer: Mapping[int, str] = field(default_factory=dict)
    """The nodes that onnxruntime runs on integers, and by which kernel (`targets.integer_kernels`)."""
    learned: Mapping[str, Dim] = field(default_factory=dict)
    """Symbols of the scopes around this one → what they are wherever this one runs."""

    families: Families | None = None
    """The constants of which each block has its own, where a few blocks stand for all."""

    within: bool = False
    """Is it a body that is looked into from outside (`bodies`)?"""
    steps: int = 0
    """How many Scans the scope lies in that are looked into from outside (`bodies`)."""
    looked_into: list[tuple[int, int]] = field(default_factory=list)
    """The ids of terms that were made when the bodies of a node were looked into: from, to."""

    def of_copy(self, graph: Graph, parent: View | None) -> View:
        """The view of the same scope (`graph`) of a copy of the model; what is made there, this one does not know."""
        return replace(
            self,
            graph=graph,
            parent=parent,
            terms=self.terms.fork(),
            terms_of=dict(self.terms_of),
            dtypes=dict(self.dtypes),
            hidden=dict(self.hidden),
        )

    def define(self, name: str, term: Term, dtype: int) -> None:
        """Say what a value computes."""
        self.terms_of[name] = closed(self.terms, term) if name in self.shared else term
        self.dtypes[name] = dtype or term.dtype

    @property
    def context(self) -> Context:
        """What rules may ask about the scope before it is searched."""
        return Context(self.graph.opset, self.held, in_function=self.graph.is_function)

    @property
    def held(self) -> frozenset[str]:
        """The standard ops that the graph has."""
        return frozenset(node.op_type for node in self.graph.nodes if node.domain in STANDARD)

    @property
    def lasting(self) -> list[int]:
        """The nodes that stay though nothing reads them, in order."""
        return [index for index, effect in enumerate(self.effects) if effect is Effect.UNKNOWN]

    def term(self, name: str) -> Term:
        """The term of a value of this scope or of one around it."""
        if not name:
            return self.terms.absent
        term = self.terms_of.get(name)
        if term is None:
            term, dtype = self._outer(name)
            self.terms_of[name], self.dtypes[name] = term, dtype
        return term

    def _seen(self, shape: Shape | None) -> Shape | None:
        """The shape of a value of a scope around this one, as far as this one knows it."""
        return None if shape is None else tuple(renamed(dim, self.learned) for dim in shape)

    def _outer(self, name: str) -> tuple[Term, int]:
        """The term of a value of a scope around this one, and its own element type, which terms do not tell."""
        view = self.parent
        while view is not None:
            if name in view.terms_of:
                outer = view.terms_of[name]
                dtype, shape = view.dtypes.get(name, outer.dtype), self._seen(outer.shape)
                if outer.op == "Constant" and outer.load is not None:
                    if outer.scalar is not None or outer.data is not None:
                        return self.terms.constant(value_of(outer), dtype), dtype
                    return self.terms.stored(name, outer.shape or (), dtype, outer.load), dtype
                if outer.data is not None:
                    sizes = [renamed(size, self.learned) for size in outer.data.ravel()]
                    return self.terms.integers(np.array(sizes, object).reshape(outer.data.shape), dtype), dtype
                return self.terms.input(name, shape, dtype), dtype
            view = view.parent
        dtype, shape = self.graph.type_of(name)
        return self.terms.input(name, shape, dtype), dtype
