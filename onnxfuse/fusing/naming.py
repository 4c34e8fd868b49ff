"""The names that fusing gives, and the order of what it adds beside nodes: a function of what is written alone.

While a model is searched and written names are handed out as they are needed, some for nodes that go again, and a later
pass fills the gaps of an earlier one.  What is left of them at the end of a pass is named anew, in the order of the
file, so that nothing of how it came about is seen in it: a model of which a part was never worked on
(`onnxfuse.fusing.repeats`) gets the names that it would have got.

guarantees   what the original had keeps its name and its order; new names are none that the original has anywhere
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from onnx import GraphProto, ModelProto, NodeProto

from onnxfuse.model.graph import DOMAIN, Names, family_of
from onnxfuse.model.walk import Owner, name_of, owners

from .fused import Fused

_QUANTIZERS = frozenset({"DequantizeLinear", "QuantizeLinear", "ReduceMax", "ReduceMin"})
"""Ops that onnxruntime's quantizers call by what they read, as we do, and do not ask whether there is such a name
(onnxruntime/python/tools/quantization/calibrate.py, quant_utils.py)."""


@dataclass(frozen=True)
class Naming:
    """The names of a model that is to be fused."""

    taken: set[str]
    """Those of all its values and nodes."""
    makers: Mapping[str, str]
    """Values → the name of the node that computes each."""
    initializers: Mapping[str, int]
    """Initializers of the main graph → where each stands."""
    declared: Mapping[str, int]
    """Values that the main graph declares → where."""
    given: dict[str, tuple[str, str]] = field(default_factory=dict)
    """New values, of all passes so far → the value of the original that they are called after, and what is added."""

    @staticmethod
    def of(model: ModelProto) -> Naming:
        """The names of a model."""
        taken, makers = set[str](), dict[str, str]()
        for owner in _scopes(model):
            for node in owner.node:
                name = node.name
                taken.add(name)
                taken.update(node.input)
                for value in node.output:
                    makers[value] = name
            if isinstance(owner, GraphProto):
                taken.update(each.name for kind in (owner.input, owner.output, owner.initializer) for each in kind)
            else:
                taken.update(owner.input, owner.output)
        makers.pop("", None)
        graph = model.graph
        first, second = (
            {each.name: at for at, each in enumerate(kind)} for kind in (graph.initializer, graph.value_info)
        )
        return Naming(taken | makers.keys(), makers, first, second)

    def new(self, node: NodeProto) -> bool:
        """Was a node written by us?  One without a name holds a constant in a function, unless the original had it."""
        return bool(name := name_of(node)) and name not in self.taken


def named(fused: Fused, naming: Naming) -> Fused:
    """The same, with names and an order that tell nothing of the way; sites follow the nodes of the file, near misses
    each other.

    The model is changed in place."""
    model = fused.model
    found = list(_scopes(model))
    sites = [(site, site.node.name) for site in fused.sites]  # a site may have the very node that is renamed
    new = {was: now for was, now in _names(found, naming).items() if was != now}
    if new:
        _rename(found, new)
    _sort(model.graph, naming)
    misses = [replace(miss, node=new[miss.node]) if miss.node in new else miss for miss in fused.near_misses]
    misses.sort(key=lambda miss: miss.order)
    if not fused.sites:
        return replace(fused, near_misses=misses)
    places = {node.name: (at, node) for at, node in enumerate(node for owner in found for node in owner.node)}
    # One in a body may be gone with it: nobody reads what the If gives.
    stand = [(places[now], site) for site, name in sites if (now := new.get(name, name)) in places]
    told = sorted(((at, node, site) for (at, node), site in stand), key=lambda entry: entry[0])
    renamed = [replace(site, node=node, value=new.get(site.value, site.value)) for _, node, site in told]
    return replace(fused, sites=renamed, near_misses=misses)


def _scopes(model: ModelProto) -> Iterator[Owner]:
    """The graphs and functions that are fused, the main graph first."""
    return owners(*(f for f in model.functions if f.domain != DOMAIN), model.graph)


def _names(found: Sequence[Owner], naming: Naming) -> dict[str, str]:
    """The names that were given → those that are to be."""
    names, new = Names(set(), under=Names(naming.taken)), dict[str, str]()
    stored = {tensor.name for owner in found if isinstance(owner, GraphProto) for tensor in owner.initializer}
    stored -= naming.taken
    for owner in found:
        led_to = _led_to(owner, naming)
        for node in owner.node:
            for name in node.input if stored else ():
                if name in stored and name not in new:
                    new[name] = names.unique("onnxfuse/constant")
            if naming.new(node):
                new |= _of_node(node, naming, names, led_to)
    return new


def _led_to(owner: Owner, naming: Naming) -> dict[str, str]:
    """New values → the nearest of the original's that is computed from each, by way of its first reader.

    What is called after it has a name that tells where it is, and that stays when other parts of the model change."""
    led_to: dict[str, str] = {}
    for node in reversed(owner.node):
        if any(name and name not in naming.taken for name in node.input):
            told = next((name for name in node.output if name in naming.makers), None)
            told = told or next((led_to[name] for name in node.output if name in led_to), "onnxfuse/")
            led_to |= {name: told for name in node.input if name and name not in naming.taken}
    return led_to


def _of_node(node: NodeProto, naming: Naming, names: Names, led_to: Mapping[str, str]) -> dict[str, str]:
    """The names of a node that we have written, and of its values that are new."""
    kind, found = family_of(node), dict[str, str]()
    own = naming.makers.get(next(filter(None, node.output), ""))
    if node.name:  # the module of what it stands for, and the op
        scoped = f"{own.rpartition('/')[0]}/{kind}" if own and "/" in own else f"{own}_{kind}" if own else kind
        found[node.name] = names.unique(f"onnxfuse/{kind}" if own is None else scoped)
    for name in node.output:
        if name and name not in naming.taken:
            told = led_to.get(name, "onnxfuse/")
            link = "" if told == "onnxfuse/" else "/" if kind in _QUANTIZERS else "_"
            found[name] = made = names.unique(f"{told}{link}{kind}")
            naming.given[made] = told, made.removeprefix(told)
    return found


def _rename(found: Sequence[Owner], new: Mapping[str, str]) -> None:
    for owner in found:
        for node in owner.node:
            if node.name in new:
                node.name = new[node.name]
            for names in (node.input, node.output):
                if any(name in new for name in names):
                    names[:] = [new.get(name, name) for name in names]
        for each in (*(owner.initializer if isinstance(owner, GraphProto) else ()), *owner.value_info):
            if each.name in new:
                each.name = new[each.name]


def _sort(graph: GraphProto, naming: Naming) -> None:
    """Initializers and declarations that are new follow the others, in the order in which nodes read and make them."""
    fresh: AbstractSet[str] = {t.name for t in graph.initializer} - naming.initializers.keys()
    fresh |= {info.name for info in graph.value_info} - naming.declared.keys()
    last = len(naming.initializers) + len(naming.declared)
    met: dict[str, int] = {}
    for node in graph.node if fresh else ():
        for name in (*node.input, *node.output):
            if name in fresh:
                met.setdefault(name, last + len(met))
    graph.initializer.sort(key=lambda t: naming.initializers.get(t.name, met.get(t.name, last)))
    graph.value_info.sort(key=lambda info: naming.declared.get(info.name, met.get(info.name, last)))
