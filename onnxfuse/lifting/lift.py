"""Graph → terms: each value of a scope gets the term it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations, zip_longest
from pathlib import Path

from onnxfuse.language.catalogue import Catalogue
from onnxfuse.model import ir_version
from onnxfuse.model.broadcast import broadcast_dim, broadcast_of
from onnxfuse.model.dims import Bounded, Derived, Dim, Shape, Sym, product, symbol
from onnxfuse.model.graph import Graph
from onnxfuse.model.op_traits import BROADCAST
from onnxfuse.model.symbols import (
    Apart,
    fitting,
    label,
    last,
    limit,
    multiples,
    needed,
    plain,
    present,
    renamed,
    same_if,
    same_in_view,
    single,
)
from onnxfuse.targets.integer_kernels import PROVIDERS, integer_nodes
from onnxfuse.terms.blockwise import Families
from onnxfuse.terms.term import Term, Terms

from .carried import Given, given, lasting, met
from .constants import constant_term, known_term
from .effects import Effects
from .node import lift_node
from .operand_dims import spanned, together
from .rewind import STEP, Rewind
from .sharing import alike, shared_values
from .view import View


def lift(
    graph: Graph,
    base_dir: Path | None,
    parent: View | None = None,
    effects: Effects | None = None,
    catalogue: Catalogue | None = None,
    *,
    families: Families | None = None,
    before: View | None = None,
) -> View:
    """The terms of every value of a scope; `effects` are those of its model, if they are known already.  With a
    catalogue, nodes of other domains are read as what it says that they mean; `families` see View.  What another
    reading (`before`) has found of initializers that are the same is not found once more.

    Names of dimensions lie: exporters give the same to a sequence and to its cache.  Where two inputs share one they
    are taken for different, until an op needs them to be equal.  What an op needs to be short, is."""
    known, effects, steps = _Known(), effects or Effects.of(graph.model), given(parent, graph)
    unread = set[str]() if parent is None else parent.unread
    of_nodes = [effects(node, graph.opset) for node in graph.nodes]
    # Files of other targets run wherever they are opened.
    providers = PROVIDERS if catalogue is None or catalogue.target.name != "ort" else (catalogue.target.provider,)
    shared, integer = shared_values(graph, of_nodes), integer_nodes(graph, *providers)
    view = View(graph, Terms(families), base_dir, parent, shared=shared, effects=of_nodes, unread=unread)
    view.catalogue, view.integer, view.families = catalogue, integer, families
    _lift_initializers(view, before)
    start = Rewind(view)
    start.mark()
    while True:
        view.learned = {} if parent is None else known.learned
        _lift(view, known, steps)
        if (lasts := lasting(view, steps)) != steps:
            steps = lasts
        else:
            found = _known(view, _symbols(view))
            if known.includes(found):
                return view
            known = known.joined(found)
            view.shared |= known.closed
        start.to(0)
        start.mark()


@dataclass(frozen=True)
class _Known:
    """What the terms of a scope tell that must be known to make them."""

    equal: frozenset[str] = frozenset()
    """Those told apart that are what their labels say after all."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Symbols → the largest that they can be."""
    single: frozenset[str] = frozenset()
    """Symbols that are 1: an exporter declared a dynamic axis, and wrote the size that it saw into a view."""
    present: frozenset[str] = frozenset()
    """Symbols that are not 0: their last position is viewed as one."""
    least: Mapping[str, int] = field(default_factory=dict)
    """Symbols → the smallest that they can be: a convolution of fewer positions than its kernel has fails."""
    same: Mapping[str, str] = field(default_factory=dict)
    """Symbols → one of an earlier input that is the same: both were multiplied before they met."""
    whole: Mapping[str, Dim] = field(default_factory=dict)
    """Symbols → the dimension that they are, or 1."""
    closed: frozenset[str] = frozenset()
    """Values that are the same sum or product as one that several nodes use."""

    def includes(self, other: _Known) -> bool:
        """Does the other tell nothing new?"""
        return self.joined(other) == self

    def joined(self, other: _Known) -> _Known:
        """What both tell; where they tell different things of a symbol, what was told first."""
        return _Known(
            equal=self.equal | other.equal,
            limits={**other.limits, **self.limits},
            single=self.single | other.single,
            present=self.present | other.present,
            least={
                name: max(most.get(name, 0) for most in (self.least, other.least))
                for name in {**self.least, **other.least}
            },
            same={**other.same, **self.same},
            whole={**other.whole, **self.whole},
            closed=self.closed | other.closed,
        )

    @property
    def learned(self) -> dict[str, Dim]:
        """Symbols of which something is known → what that is."""
        told = {*self.equal, *self.single, *self.present, *self.limits, *self.least, *self.same, *self.whole}
        return {name: self.of(name) for name in told}

    def of(self, name: str) -> Dim:
        """The dimension that a symbol is."""
        if isinstance(name, Apart) and name not in self.equal:
            own: Bounded = Apart.labelled(name.label, name.partition("@")[2])
        else:
            text = label(name)
            own = Bounded.of(text, 0, self.limits.get(text))
        whole = self.whole.get(own)
        own.whole = None if whole is None else renamed(whole, {name: self._earliest(name) for name in self.same})
        own.least = max(own in self.present, self.least.get(own, 0))
        return 1 if own in self.single else symbol(self._earliest(own))

    def _earliest(self, name: str) -> str:
        """The symbol of the earliest input that is known to be the same as this one."""
        while name in self.same:
            name = self.same[name]
        return name


def _symbols(view: View) -> tuple[str, ...]:
    """The names of dimensions of inputs, in their order, or of what a body reads of the scopes around it."""
    own = view.graph
    read = (name for name in view.terms_of if name not in own.producer and name not in own.initializers)
    shapes = [view.terms_of[name].shape or () for name in (own.inputs if own.parent is None else read)]
    return tuple(name for shape in shapes for dim in shape if isinstance(dim, Sym) for name in dim.symbols)


def _own(view: View) -> list[Term]:
    """The terms of what a scope computes in any case: what only its bodies compute may not be computed at all."""
    inside = {i for first, last in view.looked_into for i in range(first, last)}
    return [term for term in view.terms if term.id not in inside]


def _known(view: View, inputs: tuple[str, ...]) -> _Known:
    """What the terms of a scope tell; `inputs` are symbols of which views may tell too, since they are computed in any
    case."""
    own = _own(view)
    pairs = [pair for term in own for pair in together(term, view.graph.opset)]
    fitted = [broadcast_dim(a, b) for a, b in pairs]
    own_dims = {dim for term in own for dim in term.shape or () if isinstance(dim, Sym)}
    names = set[str]().union(
        *(dim.symbols for dim in own_dims), *(dim.symbols for dim in fitted if isinstance(dim, Sym))
    )
    derived = [symbol for symbol in names if isinstance(symbol, Derived)]
    limits: dict[str, int] = {}
    if any(symbol.startswith("min(") for symbol in derived):
        for term in own:
            operands = [a.shape[::-1] for a in term.args if a.shape is not None] if term.op in BROADCAST else []
            for dims in zip_longest(*operands, fillvalue=1):
                limits.update(found for a, b in combinations(dims, 2) if (found := limit(a, b)))
    views = [term for term in own if term.op == "Reshape" and len(term.args) == 1]
    shapes = [(v.args[0].shape, v.shape) for v in views if v.args[0].shape is not None and v.shape is not None]
    shapes = [(before, after) for before, after in shapes if product(before) != product(after)]  # others tell nothing
    ones = {single(before, after) for before, after in shapes} | {last(a, b) for a, b in pairs}
    sizes = [((a,), (b,)) for a, b in pairs if any(isinstance(d, int) and d > 1 for d in (a, b))]
    there = {present(before, after) for before, after in (*shapes, *sizes)}
    equal = {name for symbol in derived for name in same_if(symbol)}
    equal.update(name for before, after in shapes for name in same_in_view(before, after))
    same, whole = _met(pairs, inputs)
    free = frozenset(inputs)
    spans = [found for term in own for dim, span in spanned(term) if (found := needed(dim, span)) is not None]
    least = {name: number for name, number in sorted(spans) if name in free}  # the largest comes last
    closed = alike(view.terms, view.terms_of)
    return _Known(frozenset(equal), limits, free & ones, free & there, least, same, whole, closed)


def _met(pairs: list[tuple[Dim, Dim]], inputs: tuple[str, ...]) -> tuple[dict[str, str], dict[str, Dim]]:
    """Symbols of inputs → the earlier one that they are, and → the dimension that they are, or 1: what dimensions that
    are broadcast together show where neither can be 1."""
    same: dict[str, str] = {}
    whole: dict[str, Dim] = {}
    for a, b in filter(None, (multiples(*pair) for pair in pairs)):
        names = plain(a), plain(b)
        if names[0] in inputs and names[1] in inputs:
            first, later = sorted((name for name in names if name), key=inputs.index)
            same.setdefault(later, first)
        else:
            own = {name: dim for name, dim in fitting(a, b).items() if name in inputs}
            whole.update((name, dim) for name, dim in own.items() if all(plain(d) in inputs for d in broadcast_of(dim)))
    return same, whole


def _tell(name: str, shape: Shape | None, taken: set[str], known: _Known) -> Shape | None:
    """An input's shape, in which what is named like another input's dimension is told apart from it."""
    dims: list[Dim] = []
    for axis, dim in enumerate(shape or ()):
        if isinstance(dim, Sym):
            (text,) = dim.symbols
            dim = known.of(Apart.labelled(text, f"{name}.{axis}") if text in taken else text)
            taken.add(text)
        dims.append(dim)
    return None if shape is None else tuple(dims)


def _lift_initializers(view: View, before: View | None) -> None:
    """The terms of initializers, whatever else is known."""
    graph = view.graph
    overridable = set(graph.inputs) if graph.model.ir_version >= ir_version.DEFAULTS else set()
    for name, tensor in graph.initializers.items():
        if name not in overridable:
            known = known_term(view, name, tensor, before) if before is not None else None
            own = view.families.of(name, tensor.doc_string) if view.families is not None else None
            view.define(name, known or constant_term(view, name, tensor, own), tensor.data_type)


def _lift(view: View, known: _Known, steps: Mapping[str, Given]) -> None:
    """The terms of all other values of a scope, in one pass over its nodes; of a body, `steps` are what it is given."""
    graph = view.graph
    taken: set[str] = set()
    for name in graph.inputs:
        if name not in view.terms_of:
            dtype, shape = graph.type_of(name)
            shape = met(view, name, _tell(name, shape, taken, known), steps.get(name))
            view.define(name, view.terms.input(name, shape, dtype), dtype)
    rewind, index = Rewind(view), 0
    while index < len(graph.nodes):
        rewind.mark()
        stop = min(index + STEP, len(graph.nodes))
        for place, node in enumerate(graph.nodes[index:stop], index):
            for name, (term, dtype) in zip(node.output, lift_node(view, place, node), strict=False):
                if name:
                    view.define(name, term, dtype)
        index = rewind.after(stop)
