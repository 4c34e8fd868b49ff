"""Values that their normal form computes with fewer nodes than the exporter did.

The search works on terms, in which views have cancelled, shape arithmetic is done and duplicates are one.  What no
fusion touched keeps its node, even if that node is the last of a chain that its term no longer has.  `simpler` finds
those values: for each it compares the nodes that would be superfluous with those its term would be spelled with.

    guarantees   a value is named only if computing it anew takes fewer nodes than become superfluous; it is computed
                 from values that exist before it; no large constant is read or made; no rounding through a narrower
                 float type is left out and no sum is reordered; terms are not changed, so that no fusion is lost
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto

from onnxfuse.lifting.lift import View
from onnxfuse.matching.search import Found
from onnxfuse.model.dims import Dim, Sym, exact, product
from onnxfuse.model.graph import captured_names
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import has_bodies
from onnxfuse.terms.normal.views import is_reshape
from onnxfuse.terms.term import REAL, SMALL, Term, static

from .shape_sources import Dimensions, Polynomial, Run, without_ones

RESHAPING = frozenset("Identity Reshape Squeeze Unsqueeze Flatten".split())
"""Ops that move nothing."""
MOVING = RESHAPING | frozenset(
    "Constant Shape Transpose Expand Slice Concat Gather GatherND Split Cast Where And Not".split()
)
"""Ops that compute nothing worth saving."""
LEAVES = frozenset({"Input", "Output", "Repeat"})
"""What no node that is written anew computes."""
VIEW, WORK = 2, 3
"""What a node costs that only sees its input in another shape, and any other: fewer nodes win, then cheaper ones."""
LIMIT = 8 * WORK
"""The cost beyond which a value is not worth spelling."""


@dataclass
class _Live:
    """The nodes that are left of a scope, as values are taken out of it one by one."""

    view: View
    found: Found
    nodes: set[int]
    """Nodes that are needed and stay as they are, so far."""
    fused: frozenset[int]
    """Nodes whose values fused ops compute."""
    uses: Counter[str]
    """How often a value is read by them, by a fused op or as an output."""
    values: dict[int, list[str]] = field(default_factory=dict)
    """Terms → the values that are there, in order."""
    reshapes: dict[int, list[Term]] = field(default_factory=dict)
    """Terms → the Reshapes of them that are values."""
    dims: Dimensions = field(default_factory=Dimensions)
    made: set[tuple[object, ...]] = field(default_factory=set)
    """Parts of shapes that are written anew; each is written once."""

    def place(self, name: str) -> int:
        return self.view.graph.producer.get(name, -1)

    def existing(self, term: Term, dtype: int, before: int) -> str | None:
        """A value with this term and element type that is computed before a position."""
        for name in self.values.get(term.id, ()):
            place = self.place(name)
            if place >= before:
                break
            if self.there(name) and (term.dtype not in REAL or self.view.dtypes[name] == dtype):
                return name
        return None

    def reshaped(self, term: Term, dtype: int, before: int) -> str | None:
        """A value that holds the term in another shape."""
        inner = term.args[0] if is_reshape(term) else term
        if self.existing(inner, dtype, before) is not None:
            return None
        values = (self.existing(outer, dtype, before) for outer in self.reshapes.get(inner.id, ()))
        return next((value for value in values if value is not None), None)

    def there(self, name: str) -> bool:
        """Is the value an input, a constant, computed by a node that stays as it is, or by a fused op?"""
        place = self.place(name)
        return place < 0 or place in self.nodes or place in self.fused


def simpler(
    view: View,
    found: Found,
    nodes: Iterable[int],
    fused: Iterable[int],
    reads: Iterable[str],
    pinned: Collection[str],
) -> set[str]:
    """The values of a scope worth computing anew.

    `nodes` are positions of the nodes that stay as they are, `fused` of those that do not, `reads` what others need:
    outputs, and what the terms of fused ops are computed from; `pinned` values keep their name."""
    graph = view.graph
    live = _Live(view, found, set(nodes), frozenset(fused), Counter(reads))
    for name in sorted(found.current, key=lambda name: (live.place(name), name)):
        if name not in found.stale:
            term = found.current[name]
            live.values.setdefault(term.id, []).append(name)
            if is_reshape(term):
                live.reshapes.setdefault(term.args[0].id, []).append(term)
            live.dims.add(name, term.shape, live.place(name))
    for index in live.nodes:
        live.uses.update(_inputs(graph.nodes[index]))
    renewed: set[str] = set()
    for index in sorted(live.nodes, reverse=True):
        node = graph.nodes[index]
        if index not in live.nodes or node.op_type == "Constant" or not _renewable(view, index):
            continue
        name = node.output[0]
        plan = _Spelling(live, index)
        if not plan.add(found.current[name], view.dtypes[name]):
            continue
        if not plan.cost and name in pinned:
            plan.cost = VIEW  # an Identity
        gone = _superfluous(live, index, plan.sources)
        ops = [graph.nodes[i].op_type for i in gone]
        fewer = plan.cost < sum(map(weight, ops)) and plan.work <= sum(map(_work, ops))
        if fewer and plan.sums >= sum(_is_sum(view, graph.nodes[i]) for i in gone):
            renewed.add(name)
            live.made |= plan.made
            live.nodes -= gone
            for i in gone:
                live.uses.subtract(_inputs(graph.nodes[i]))
            live.uses.update(plan.sources)
    return renewed


def weight(op: str) -> int:
    """What a node of this op costs, as far as nodes are counted."""
    return 0 if op == "Constant" else VIEW if op in RESHAPING else WORK


def _work(op: str) -> int:
    """How many ops that compute something a node stands for; Gemm is a product and a sum."""
    return 0 if op in MOVING else 2 if op == "Gemm" else 1


def _is_sum(view: View, node: NodeProto) -> bool:
    """Is it a sum of real numbers?  With fewer of them something has cancelled, which its rounding may be there for."""
    return node.op_type in ("Add", "Sub", "Sum") and view.dtypes[node.output[0]] in REAL


def _inputs(node: NodeProto) -> list[str]:
    names = [name for name in node.input if name]
    return [*names, *captured_names(node)] if has_bodies(node) else names


def _renewable(view: View, index: int) -> bool:
    """May this node go, if nothing is read from it or its one output is computed otherwise?"""
    node = view.graph.nodes[index]
    if node.domain not in STANDARD or view.effects[index] or has_bodies(node) or len(node.output) != 1:
        return False
    if node.op_type in ("Constant", "Dropout"):
        return node.op_type == "Constant"
    if node.op_type == "Cast":
        before, after = view.dtypes.get(node.input[0], 0), view.dtypes[node.output[0]]
        return before == after or before not in REAL or after not in REAL  # others round
    return True


def _superfluous(live: _Live, index: int, kept: Collection[str]) -> set[int]:
    """The nodes that nothing needs any more if this one goes and `kept` stay."""
    graph = live.view.graph
    gone = {index}
    lost: Counter[str] = Counter()
    stack = [index]
    while stack:
        for name in graph.nodes[stack.pop()].input:
            lost[name] += 1
            source = live.place(name)
            if source < 0 or source not in live.nodes or name in kept or source in gone:
                continue
            if lost[name] == live.uses[name] and _renewable(live.view, source):
                gone.add(source)
                stack.append(source)
    return gone


@dataclass
class _Spelling:
    """What it takes to compute a value from its term before a position: the cost of new nodes, the values they read."""

    live: _Live
    before: int
    cost: int = 0
    work: int = 0
    sums: int = 0
    sources: set[str] = field(default_factory=set)
    made: set[tuple[object, ...]] = field(default_factory=set)

    def add(self, root: Term, dtype: int) -> bool:
        """Account for a term; False if it cannot, or need not, be spelled."""
        stack = [root]
        while stack and self.cost <= LIMIT:
            term = stack.pop()
            kind = dtype if term.dtype in REAL else term.dtype
            name = self.live.existing(term, kind, self.before)
            other = self.live.reshaped(term, kind, self.before) if name is None else None
            if name is not None:
                self.sources.add(name)
            elif other is not None:
                self.sources.add(other)
                self.cost += VIEW
            elif term.constant:
                if not _small(term):
                    return False
            elif term.op in LEAVES or term.id in self.live.found.origins or not self._own(term):
                return False
            else:
                stack.extend(a for a in term.args if a.op != "Absent")
        return self.cost <= LIMIT

    def _own(self, term: Term) -> bool:
        """The nodes of one term alone."""
        if term.op in ("Add", "Mul") and term.dtype in REAL:
            self.cost += (len(term.args) - 1) * WORK
            self.work += len(term.args) - 1
            self.sums += (len(term.args) - 1) * (term.op == "Add")
            # Another order of a sum may cancel what the exporter's did not: (x + e) - x.
            return len(term.args) == 2 or (term.op == "Mul" and all(a.op != "Reciprocal" for a in term.args))
        if term.op == "Integers":
            assert term.data is not None
            self.cost += (term.data.ndim == 0) * VIEW
            return self._vector(list(term.data.ravel()))
        self.cost += weight(term.op)
        self.work += _work(term.op)
        if term.op == "Reshape" and len(term.args) == 1:
            return _says(term) or self._vector(term.attr("shape"))
        if term.op == "Expand" and len(term.args) == 1:
            return self._vector(term.attr("shape"))
        if term.op == "Slice" and len(term.args) == 1:
            return self._vector([term.attr("start")]) and self._vector([term.attr("stop") or 0])
        return True

    def _vector(self, dims: Sequence[Dim]) -> bool:
        """A vector of dimensions, each of whose parts is written once."""
        if not any(isinstance(d, Sym) for d in dims) or self._made(("vector", *dims)):
            return True
        parts = self.live.dims.parts(dims, self.before, self.live.there)
        if parts is None:
            return False
        self.cost += (len(parts) > 1) * WORK
        for part in parts:
            runs = [part] if isinstance(part, Run) else []
            if isinstance(part, Polynomial):
                runs = [run for factors, _ in part.terms for run in factors]
                operations = sum(len(factors) + (coefficient != 1) for factors, coefficient in part.terms) - 1
                self.cost += operations * WORK
            for run in runs:
                self.sources.add(run.value)
                if not self._made(("run", run)):
                    self.cost += WORK if run.whole or self.live.view.graph.opset >= 15 else 2 * WORK
        return True

    def _made(self, key: tuple[object, ...]) -> bool:
        known = key in self.live.made or key in self.made
        self.made.add(key)
        return known


def _says(term: Term) -> bool:
    """Can the target of a Reshape be a constant, by 0 or -1?  Beside what is 0 in a run, -1 is undecided."""
    target, source = term.attr("shape"), term.args[0].shape or ()
    open_dims = [i for i, d in enumerate(target) if isinstance(d, Sym) and not (i < len(source) and d == source[i])]
    if not open_dims or without_ones(target) == without_ones(source):
        return True
    rest = product(d for j, d in enumerate(target) if j != open_dims[0])
    return not isinstance(rest, Sym) and exact(product(source), rest) == target[open_dims[0]]


def _small(term: Term) -> bool:
    """Is a constant stored, or small enough to be computed and stored anew?"""
    if term.op == "Constant":
        return True
    dims = static(term.shape)
    return dims is not None and int(np.prod(dims, dtype=np.int64)) <= SMALL
