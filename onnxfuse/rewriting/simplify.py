"""Values that their normal form computes with fewer nodes than the exporter did.

The search works on terms, in which views have cancelled, shape arithmetic is done and duplicates are one.  What no
fusion touched keeps its node, even if that node is the last of a chain that its term no longer has.  `simpler` finds
those values: for each it plans (`realize`) what its term would be computed by, and compares the nodes of that plan with
those that would be superfluous.

    guarantees   a value is named only if computing it anew takes fewer nodes than become superfluous, where an Einsum
                 counts as the product and the view that it is; it is computed from values that exist before it; no
                 large constant is read or made, but that one which nothing else reads is stored in another shape, and
                 what a value repeats is stored if the file may grow by it; no rounding through a narrower float type
                 is left out or comes in, and no sum but of constants is reordered; terms are not changed, so that no
                 fusion is lost
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from onnx import NodeProto

from onnxfuse.lifting.view import View
from onnxfuse.matching.on_integers import on_integers
from onnxfuse.matching.search import Found
from onnxfuse.model.graph import Graph, read_by
from onnxfuse.model.op_traits import CASTS, CHEAP, CONTINUOUS, RESHAPES, ROUNDING
from onnxfuse.model.standard import STANDARD
from onnxfuse.terms.term import REAL, SMALL, Term, static

from .duplicates import is_signed_step
from .plan import Draft, NewNode, Plan, UnrealisableError
from .realize import realize
from .stored import Room, known, size

LEAVES = frozenset({"Input", "Output", "Repeat"})
"""What no node that is written anew computes."""
VIEW, WORK = 2, 3
"""What a node costs that only sees its input in another shape, and any other: fewer nodes win, then cheaper ones."""
DEARER = {"Einsum": VIEW + 1, "SequenceAt": 1}
"""What some ops cost besides.  An Einsum costs more than the product that it is, for which every runtime has a kernel,
with one operand or the result in another shape, and not more than that with a Transpose; what is taken out of a
sequence costs more than a part of a tensor."""
LIMIT = 8 * WORK
"""The cost beyond which a value is not worth computing anew."""


_Key: TypeAlias = Hashable
"""What a new node computes: its op, what it computes it from, and its attributes."""


@dataclass
class _Live:
    """The nodes that are left of a scope, as values are taken out of it one by one."""

    view: View
    nodes: set[int]
    """Nodes that are needed and stay as they are, so far."""
    fused: frozenset[int]
    """Nodes whose values fused ops compute."""
    uses: Counter[str]
    """How often a value is read by them, by a fused op or as an output."""
    made: set[_Key] = field(default_factory=set)
    """New nodes that are planned already; what is written twice becomes one."""

    def place(self, name: str) -> int:
        return self.view.graph.producer.get(name, -1)

    def replace(self, gone: Collection[int], made: Iterable[_Key], sources: Iterable[str]) -> None:
        """New nodes take the place of others, and read these sources."""
        self.made.update(made)
        self.nodes.difference_update(gone)
        for index in gone:
            self.uses.subtract(read_by(self.view.graph.nodes[index]))
        self.uses.update(sources)

    def there(self, name: str) -> bool:
        """Is the value an input, a constant, computed by a node that stays as it is, or by a fused op?"""
        place = self.place(name)
        return place < 0 or place in self.nodes or place in self.fused


def simpler(
    draft: Draft,
    nodes: Iterable[int],
    fused: Iterable[int],
    reads: Iterable[str],
    pinned: Collection[str],
    room: Room,
) -> set[str]:
    """The values of the scope of a draft worth computing anew.

    `nodes` are positions of the nodes that stay as they are, `fused` of those that do not, `reads` what others need:
    outputs, and what the terms of fused ops are computed from; `pinned` values keep their name.  `room` is for the
    constants that they repeat."""
    view, found = draft.view, draft.found
    graph = view.graph
    live = _Live(view, set(nodes), frozenset(fused), Counter(reads))
    rest = Draft(view, found, draft.names, draft.functions, live.there)
    place = graph.producer.get
    for name in sorted(found.current, key=lambda name: place(name, -1)):
        if name not in found.stale:
            rest.register(found.current[name], place(name, -1), name, view.dtypes[name])
    for index in live.nodes:
        live.uses.update(read_by(graph.nodes[index]))
    cut, integer = _cut(view), on_integers(view, found.current)
    renewed: set[str] = set()
    spared: dict[str, list[int]] = {}
    for index in _last_first(live.nodes, found, graph):
        node = graph.nodes[index]
        if index not in live.nodes or node.op_type == "Constant" or not _renewable(view, index):
            continue
        name = node.output[0]
        if index in view.integer or is_signed_step(view, node) or _as_it_is(rest, index):
            continue
        allowed = _Allowed(found, integer)
        try:
            plan = realize(rest, found.current[name], view.dtypes[name], index, name, builds=allowed)
        except UnrealisableError:
            continue
        made = {key: node.op for key, node in _keys(plan) if key not in live.made}
        cost = sum(map(weight, made.values())) or (VIEW if name in pinned else 0)  # an Identity
        if cost > LIMIT or _rounds(plan):
            continue
        sources = plan.sources
        gone = _superfluous(live, index, sources)
        growth = _growth(live, found, gone, plan, found.current[name])
        if growth is None:
            continue
        if node.op_type != "QuantizeLinear" and any(is_signed_step(view, graph.nodes[i]) for i in gone):
            continue  # the same steps taken again are none
        ops = [graph.nodes[i].op_type for i in gone]
        work = sum(map(_work, made.values()))
        fewer = cost < sum(map(weight, ops)) and work <= sum(map(_work, ops))
        if fewer and not (work and index in cut) and allowed.sums >= sum(_is_sum(draft, graph.nodes[i]) for i in gone):
            if growth and not room.takes(name, growth):
                continue
            renewed.add(name)
            live.replace(gone, made, sources)
        elif (target := _spared(graph, index, plan)) is not None:
            spared.setdefault(target, []).append(index)
    for target, readers in spared.items():
        if live.uses[target] == sum(index in live.nodes for index in readers) and live.place(target) in live.nodes:
            renewed.update(graph.nodes[index].output[0] for index in readers if index in live.nodes)
    return renewed


def _last_first(nodes: Collection[int], found: Found, graph: Graph) -> list[int]:
    """Nodes from the last on, those of tables before all: what computes a table of real numbers is not saved by who
    reads it.  What computes a shape is, with the views that are told it, and what computes a number, which ops have."""

    def order(index: int) -> tuple[bool, int]:
        terms = [found.current[name] for name in graph.nodes[index].output if name in found.current]
        return any(term.constant and term.scalar is None and term.dtype in REAL for term in terms), index

    return sorted(nodes, key=order, reverse=True)


def _spared(graph: Graph, index: int, plan: Plan) -> str | None:
    """The target that a Reshape no longer has to be told if it is planned so; None for any other node.

    One that several share goes where none of them reads it, and not with any of them alone."""
    node = graph.nodes[index]
    if node.op_type != "Reshape" or [made.op for made in plan.nodes] != ["Reshape"] or node.input[1] in plan.sources:
        return None
    return node.input[1] if node.input[0] in plan.sources else None


def _as_it_is(rest: Draft, index: int) -> bool:
    """Would a node be planned just as it is: its term's op on the values that it reads?  Most are, and need no plan."""
    node = rest.graph.nodes[index]
    term = rest.found.current[node.output[0]]
    if node.op_type != term.op or len(node.input) != len(term.args) or term.op in RESHAPES:
        return False
    for name, arg in zip(node.input, term.args, strict=True):
        known = rest.available.find(arg, rest.view.dtypes.get(name, 0), index)
        if known is None or known[0] != name:
            return False
    return True


def weight(op: str) -> int:
    """What a node of this op costs, as far as nodes are counted."""
    return 0 if op == "Constant" else VIEW if op in RESHAPES else WORK + DEARER.get(op, 0)


def _work(op: str) -> int:
    """How many ops that compute something a node stands for; Gemm is a product and a sum."""
    return 0 if op in CHEAP else 2 if op == "Gemm" else 1


def _is_sum(draft: Draft, node: NodeProto) -> bool:
    """Is it a sum of real numbers?  With fewer of them something has cancelled, which its rounding may be there for;
    nothing has where parts lie between zeros, side by side, where it is a choice of two, one of which is 0 wherever the
    other is not, or where it is a constant, however often repeated."""
    if node.op_type not in ("Add", "Sub", "Sum") or draft.view.dtypes[node.output[0]] not in REAL:
        return False
    term = draft.found.current[node.output[0]]
    while term.op in ("Reshape", "Transpose", "Expand"):
        term = term.args[0]
    return term.op not in ("Concat", "Pad", "Where") and not term.constant


def _cut(view: View) -> set[int]:
    """The nodes that compute real numbers which are cut to integers, and those that cut them."""
    nodes, producer, dtypes = view.graph.nodes, view.graph.producer, view.dtypes

    def cuts(node: NodeProto) -> bool:
        casts = node.op_type == "Cast" and dtypes.get(node.output[0]) not in REAL
        return node.op_type in ROUNDING or (casts and dtypes.get(node.input[0]) in REAL)

    found: set[int] = set()
    stack = [i for i, node in enumerate(nodes) if node.domain in STANDARD and cuts(node)]
    while stack:
        index = stack.pop()
        if index not in found:
            found.add(index)
            sources = [producer[name] for name in nodes[index].input if name in producer and dtypes.get(name) in REAL]
            stack += [i for i in sources if nodes[i].op_type in CONTINUOUS and nodes[i].domain in STANDARD]
    return found


def _renewable(view: View, index: int) -> bool:
    """May this node go, if nothing is read from it or its one output is computed otherwise?"""
    node = view.graph.nodes[index]
    if node.domain not in STANDARD or view.effects[index] or index in view.graph.captures or len(node.output) != 1:
        return False
    if node.op_type in ("Constant", "Dropout"):
        return node.op_type == "Constant"
    if node.op_type == "Gemm" and view.catalogue is not None and view.catalogue.target.keeps_products:
        return False  # it would become a MatMul and a sum
    if node.op_type in CASTS:
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
class _Allowed:
    """Says which terms may be computed anew for one value, and how many sums there are among them."""

    found: Found
    integer: Mapping[int, int]
    """What runs on integers stays the node that it is."""
    terms: int = 0
    sums: int = 0

    def __call__(self, term: Term) -> bool:
        self.terms += 1
        if term.op in LEAVES or term.id in self.found.origins or term.id in self.integer or self.terms > LIMIT // VIEW:
            return False
        if term.op not in ("Add", "Mul") or term.dtype not in REAL:
            return True
        self.sums += (len(term.args) - 1) * (term.op == "Add")
        # Another order of a sum may cancel what the exporter's did not: (x + e) - x.
        return len(term.args) == 2 or (term.op == "Mul" and all(a.op != "Reciprocal" for a in term.args))


def _keys(plan: Plan) -> Iterator[tuple[_Key, NewNode]]:
    """The nodes of a plan with what each computes, which is the same in every plan."""
    known: dict[str, _Key] = {name: (term.id, dtype) for name, (term, dtype) in plan.constants.items()}
    for node in plan.nodes:
        inputs = tuple(known.get(name, name) for name in node.inputs)
        key = (node.op, node.domain, inputs, tuple(sorted(node.attrs.items())))
        known |= {name: (key, i) for i, name in enumerate(node.outputs) if name}
        yield key, node


def _rounds(plan: Plan) -> bool:
    """Is a value read in another float type than it has?"""
    kinds = ((plan.available.kind(n.inputs[0]), n.attrs["to"]) for n in plan.nodes if n.op == "Cast")
    return any(before in REAL and after in REAL for before, after in kinds)


def _small(term: Term) -> bool:
    """Is a constant stored, or small enough to be computed and stored anew?"""
    if term.op == "Constant":
        return True
    dims = static(term.shape)
    return dims is not None and math.prod(dims) <= SMALL


def _growth(live: _Live, found: Found, gone: Collection[int], plan: Plan, made: Term) -> int | None:
    """By how many bytes a plan enlarges the file; None where it reads or makes a large constant that is no table which
    the value repeats."""
    repeated = made.args[0] if made.op == "Expand" else None
    read = plan.constants.values()
    large = [(term, dtype) for term, dtype in read if not (_small(term) or _moves(live, found, gone, term))]
    if any(term is not repeated or not known(term) for term, _ in large):
        return None
    return sum(size(term, dtype) for term, dtype in large)


def _moves(live: _Live, found: Found, gone: Collection[int], term: Term) -> bool:
    """Is it a stored constant in another shape, and is that constant read by nodes alone that are superfluous?"""
    if term.op != "Reshape" or len(term.args) != 1 or term.args[0].op != "Constant":
        return False
    graph = live.view.graph
    read = Counter(name for i in gone for name in read_by(graph.nodes[i]) if name in graph.initializers)
    return any(live.uses[name] == read[name] for name in read if found.current.get(name) is term.args[0])
