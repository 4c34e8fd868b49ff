"""From which onnxruntime on a file runs on a CPU, as the file itself tells: its opset, IR version, ops, element types.

Element types are followed from inputs and initializers through each node by the type variables of its schema, into the
local functions that nodes call.  What is not known demands nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto

from onnxfuse.errors import UsageError
from onnxfuse.model.dims import Shape
from onnxfuse.model.graph import Graph, opset_of
from onnxfuse.model.op_traits import CONTROL_FLOW
from onnxfuse.model.schema import attribute_value, attributes_of, standard_attributes
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.types import CONSTANTS, type_name
from onnxfuse.model.walk import attribute_graphs

from . import runtimes
from .runtimes import Runtime

Shapes: TypeAlias = Callable[[str], Shape]
"""The shape of a value, () if it is not known."""


@dataclass(frozen=True)
class Compatibility:
    """What runs a file."""

    runtime: Runtime | None
    """The first onnxruntime that does; None if none that is known does."""
    reason: str = ""
    """What asks for that version, where older ones that are known do not run it."""
    functions: bool = False
    """Whether it has local functions."""
    domains: tuple[str, ...] = ()
    """Domains of ops that have to be registered, since they are neither onnxruntime's nor the file's."""
    precise: Runtime | None = None
    """The first onnxruntime that keeps the digits of all normalizations; None if that is all that run it."""


@dataclass
class _Needs:
    """What was found on the way: (version, what asks for it), the highest first seen."""

    model: ModelProto
    needed: Runtime | None
    reason: str = ""
    domains: set[str] = field(default_factory=set)
    functions: Mapping[tuple[str, str], FunctionProto] = field(default_factory=dict)
    done: set[tuple[object, ...]] = field(default_factory=set)
    results: dict[tuple[object, ...], dict[str, str]] = field(default_factory=dict)
    """Function and types of its inputs → types of its values."""

    precise: Runtime | None = None
    bodies: list[tuple[GraphProto, Mapping[str, str], Mapping[str, int]]] = field(default_factory=list)
    """Bodies of control flow that are still to be looked at, with the types around them and the opsets."""

    @cached_property
    def graph(self) -> Graph:
        return Graph(self.model.graph, self.model, opset_of(self.model))

    def shape(self, name: str) -> Shape:
        """The shape of a value of the main graph as far as it is known, else ()."""
        return self.graph.type_of(name)[1] or () if name in self.graph.producer or name in self.graph.types else ()

    def ask(self, runtime: Runtime | None, reason: str) -> None:
        """`runtime` is None where no version known will do."""
        if self.needed is not None and (runtime is None or runtime > self.needed):
            self.needed, self.reason = runtime, reason


def compatibility(model: ModelProto, wanted: Runtime | None = None) -> Compatibility:
    """What runs this model.  Raises UsageError if that is not the `wanted` onnxruntime, where one is named."""
    needs = _Needs(model, runtimes.known()[0], functions={(f.domain, f.name): f for f in model.functions})
    opsets = _opsets(model)
    needs.ask(_lowest(lambda runtime: runtime.opset >= opsets.get("", 1)), f"opset {opsets.get('', 1)}")
    needs.ask(_lowest(lambda runtime: runtime.ir_version >= model.ir_version), f"IR version {model.ir_version}")
    if any(function.overload for function in model.functions):
        needs.ask(runtimes.overloads(), "overloads of functions")
    _graph(needs, model.graph, {}, opsets, needs.shape)
    while needs.bodies:
        _graph(needs, *needs.bodies.pop(), lambda name: ())
    if wanted is not None and (needs.needed is None or needs.needed > wanted):
        since = f"onnxruntime {needs.needed} and later have it" if needs.needed else "no version that is known has it"
        raise UsageError(f"onnxruntime {wanted} does not run {needs.reason}, and no fusion takes it away: {since}")
    late = needs.precise if needs.needed and needs.precise and needs.needed < needs.precise else None
    return Compatibility(needs.needed, needs.reason, bool(model.functions), tuple(sorted(needs.domains)), late)


def runs(model: ModelProto) -> bool:
    """Does an onnxruntime that is known run this model?"""
    return compatibility(model).runtime is not None


def _lowest(enough: Callable[[Runtime], bool]) -> Runtime | None:
    return next((runtime for runtime in runtimes.known() if enough(runtime)), None)


def _opsets(proto: ModelProto | FunctionProto) -> dict[str, int]:
    return {"" if entry.domain in STANDARD else entry.domain: entry.version for entry in proto.opset_import}


def _graph(
    needs: _Needs, graph: GraphProto, outer: Mapping[str, str], opsets: Mapping[str, int], shape: Shapes
) -> None:
    """A graph's nodes; `outer` are the types of values around it."""
    types = dict(outer)
    types |= {tensor.name: type_name(tensor.data_type) for tensor in graph.initializer}
    types |= {info.name: _type(info.type) for info in (*graph.value_info, *graph.output, *graph.input)}
    _nodes(needs, graph.node, types, opsets, shape)


def _nodes(
    needs: _Needs,
    nodes: Iterable[NodeProto],
    types: dict[str, str],
    opsets: Mapping[str, int],
    shape: Shapes = lambda name: (),
) -> None:
    for node in nodes:
        domain = "" if node.domain in STANDARD else node.domain
        function = needs.functions.get((node.domain, node.op_type))
        if function is not None:
            _call(needs, node, function, types)
        elif domain not in opsets or (domain and not runtimes.is_known(domain)):
            needs.domains.add(domain)
        else:
            op = f"{domain}.{node.op_type}".strip(".")
            _kernel(needs, node, op, opsets[domain], types, shape)
        for _, body in attribute_graphs(node):
            needs.bodies.append((body, types, opsets))


def _kernel(needs: _Needs, node: NodeProto, op: str, opset: int, types: dict[str, str], shape: Shapes) -> None:
    """One node of an op that onnxruntime may have, and the types of what it gives."""
    inputs, outputs = runtimes.parameters(op, opset)
    bound: dict[str, str] = {}
    for names, formals in ((node.input, inputs), (node.output, outputs)):
        for name, formal in _paired(names, formals):
            if types.get(name):
                bound.setdefault(formal, types[name])
    for name, kind in _stated(node).items():
        types.setdefault(name, kind)
    if op not in CONTROL_FLOW:  # whose outputs have the types that their bodies give: no variable to follow
        for name, formal in _paired(node.output, outputs):
            known = bound.get(formal) or (formal[7:-1] if formal.startswith("tensor(") else "")
            if known and not types.get(name):
                types[name] = known
            bound.setdefault(formal, types.get(name, ""))
    variables = frozenset((formal, kind) for formal, kind in bound.items() if kind)
    given = [shape(name) if name else None for name in node.input] if op in runtimes.judged() else []
    use = (op, opset, variables, tuple(given), tuple(a.name for a in node.attribute), _said(node, opset))
    if use in needs.done:
        return
    needs.done.add(use)
    where = f"{op} of opset {opset}" if "." not in op else op
    runtime = runtimes.first(op, opset, variables)
    if runtime != runtimes.first(op, opset):
        where = f"{where} in {', '.join(sorted({kind for _, kind in variables}))}"
    needs.ask(runtime, where)
    allowed = standard_attributes(op, runtimes.since(op, opset) or opset)
    if "." not in op and allowed is not None:
        for attribute in node.attribute:
            if attribute.name not in allowed:
                needs.ask(None, f"{where} with {attribute.name}")
    if (precise := runtimes.precise_from(op)) is not None:
        needs.precise = max(needs.precise or precise, precise)
    kind = types.get(node.input[0], "") if node.input else ""
    named = {attribute.name: attribute_value(attribute) for attribute in node.attribute}
    wrong = runtimes.features(op, named, given, kind, len(node.output))
    needs.ask(runtimes.right_from(op, wrong) or needs.needed, f"{where} with {', '.join(sorted(wrong))}")


def _said(node: NodeProto, opset: int) -> str:
    """The attributes that say how Attention is computed."""
    return repr(sorted(attributes_of(node, opset).items())) if node.op_type in runtimes.judged() else ""


def _paired(names: Iterable[str], formals: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(value, type in the schema); the last formal may stand for several."""
    for i, name in enumerate(names):
        if name and formals:
            yield name, formals[min(i, len(formals) - 1)]


def _stated(node: NodeProto) -> dict[str, str]:
    """Types that attributes say."""
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype") and node.op_type != "SequenceEmpty":
            return {node.output[0]: type_name(attribute.i)}
        if node.op_type in ("Constant", "ConstantOfShape") and attribute.name == "value":
            return {node.output[0]: type_name(attribute.t.data_type)}
        if node.op_type == "Constant" and attribute.name in CONSTANTS:
            return {node.output[0]: type_name(CONSTANTS[attribute.name])}
    return {node.output[0]: "float"} if node.op_type == "ConstantOfShape" else {}


def _call(needs: _Needs, node: NodeProto, function: FunctionProto, types: dict[str, str]) -> None:
    """A call of a local function, whose body has the types that are given; each combination is gone through once."""
    given = tuple(types.get(name, "") for name in node.input)
    key = (function.domain, function.name, given)
    inner = needs.results.get(key)
    if inner is None:
        inner = {formal: kind for formal, kind in zip(function.input, given, strict=False) if kind}
        needs.results[key] = inner
        _nodes(needs, function.node, inner, _opsets(function))
    for name, result in zip(node.output, function.output, strict=False):
        if inner.get(result):
            types.setdefault(name, inner[result])


def _type(kind: TypeProto) -> str:
    """`float` for a tensor of floats; empty for another kind of type, and where none is given."""
    return type_name(kind.tensor_type.elem_type) if kind.HasField("tensor_type") else ""
