"""A model as nested scopes with an index; the protos themselves stay what they are and are edited in place.

A `Graph` is one scope: the main graph, the body of an If, Loop or Scan, or the body of a local function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)
from onnx import helper as onnx_helper

from .dims import Dim, Shape, declared_name, symbol
from .onnxruntime_ops import pass_on
from .standard import STANDARD
from .types import element_types, parameter_types
from .walk import BODIES, attribute_graphs, has_bodies, nodes

DOMAIN = "onnxfuse"
"""Of fused nodes and of their functions; what is used there in several ways has an op for each."""
REGION = "Region"
"""The family of fused nodes that no rule names: what each computes, its function alone says."""
RULE_KEY = "onnxfuse.rule"
"""Metadata of a fused node, also of one that became an op of another domain: the rule that made it."""
LAUNCHES_KEY = "onnxfuse.launches"
"""Metadata of a region that takes more than one launch: how many."""


def opset_of(proto: ModelProto | FunctionProto, domain: str = "") -> int:
    """Version of a domain's operator set that the model imports; 0 if it does not."""
    wanted = STANDARD if domain in STANDARD else (domain,)
    return max((entry.version for entry in proto.opset_import if entry.domain in wanted), default=0)


def family(op_type: str) -> str:
    """The fused op that an op of domain onnxfuse is a use of: Attention of `Attention_attn_mask_1f2e3d4c`."""
    return op_type.partition("_")[0]


NUMBER = "number_"
"""What an input of a fused op's function is called that takes a number of its equations, the number behind it: before
opset 15, which has no CastLike, a body has no other way to a number in the element type of its inputs."""


def number_of(parameter: str) -> float | None:
    """The number that an input of a fused op's function takes; None for an input of the op."""
    return float(parameter.removeprefix(NUMBER)) if parameter.startswith(NUMBER) else None


def family_of(node: NodeProto) -> str:
    """What a node is a use of: the family of a fused op, else its op type."""
    return family(node.op_type) if node.domain == DOMAIN else str(node.op_type)


def count_nodes(model: ModelProto) -> int:
    """Nodes of all scopes; a Constant is no node to run."""
    return sum(node.op_type != "Constant" for node in nodes_of_scopes(model))


def nodes_of_scopes(model: ModelProto) -> Iterator[NodeProto]:
    """The nodes of all scopes; the functions that are bodies of onnxfuse's own ops are none."""
    return nodes(model.graph, *(function for function in model.functions if function.domain != DOMAIN))


class Graph:
    """One scope of a model.

    `nodes` are in topological order, as ONNX demands.  `uses` counts the consumers of a value: node inputs, captures by
    inner scopes, and graph outputs.
    """

    def __init__(
        self,
        proto: GraphProto | FunctionProto,
        model: ModelProto,
        opset: int,
        parent: Graph | None = None,
        path: str = "",
    ) -> None:
        self.proto, self.model, self.opset, self.parent, self.path = proto, model, opset, parent, path
        self.is_function = isinstance(proto, FunctionProto)
        self.nodes: list[NodeProto] = list(proto.node)
        self.initializers: dict[str, TensorProto] = {}
        self.types: dict[str, TypeProto] = {}
        if isinstance(proto, GraphProto):
            self.initializers = {t.name: t for t in proto.initializer}
            self.inputs = [i.name for i in proto.input]
            self.outputs = [o.name for o in proto.output]
            for info in (*proto.value_info, *proto.output, *proto.input):
                self.types[info.name] = info.type
        else:
            self.inputs, self.outputs = list(proto.input), list(proto.output)
            for info in proto.value_info:
                self.types[info.name] = info.type
        self.producer: dict[str, int] = {}
        self.uses: dict[str, int] = {}
        self.captures: dict[int, set[str]] = {}
        for index, node in enumerate(self.nodes):
            for name in node.output:
                self.producer[name] = index
            for name in node.input:
                self.uses[name] = self.uses.get(name, 0) + 1
            for attribute in node.attribute:
                if attribute.type in BODIES:
                    captured = captured_names(node)
                    self.captures[index] = captured
                    for name in captured:
                        self.uses[name] = self.uses.get(name, 0) + 1
                    break
        for name in self.outputs:
            self.uses[name] = self.uses.get(name, 0) + 1
        self._inferred: dict[str, dict[str, TypeProto]] | None = None
        self._implied: dict[str, int] | None = None

    @property
    def root(self) -> Graph:
        """The main graph or function that this scope lies in."""
        return self if self.parent is None else self.parent.root

    def constant_tensor(self, name: str) -> TensorProto | None:
        """The initializer of a name, here or in an enclosing scope."""
        graph: Graph | None = self
        while graph is not None:
            if name in graph.initializers:
                return graph.initializers[name]
            if name in graph.producer or name in graph.inputs:
                return None
            graph = graph.parent
        return None

    def type_of(self, name: str) -> tuple[int, Shape | None]:
        """(element type, shape) as declared, as onnx infers it, or as operators imply; (0, None) where nothing does."""
        found = self.known_type(name)
        if found is not None and found.HasField("tensor_type"):
            return declared(found, name)
        if self._implied is None:
            self._implied = element_types(self)
        return self._implied.get(name, 0), None

    def known_type(self, name: str) -> TypeProto | None:
        """The type that is declared or that onnx infers."""
        found = self.types.get(name)
        if found is None and not self.is_function:
            root = self.root
            if root._inferred is None:
                root._inferred = {} if root.is_function else _infer(root.model)
            found = root._inferred.get(self.path, {}).get(name)
        return found

    def named_elsewhere(self) -> set[str]:
        """Initializers that an annotation or a training graph names, and perhaps no node."""
        if isinstance(self.proto, FunctionProto):
            return set()
        annotations = self.proto.quantization_annotation
        named = {entry.value for note in annotations for entry in note.quant_parameter_tensor_names}
        for info in self.model.training_info if self.parent is None else ():
            named |= {entry.key for entry in (*info.initialization_binding, *info.update_binding)}
            named |= {
                name for body in (info.initialization, info.algorithm) for node in body.node for name in node.input
            }
        return named

    def scopes(self) -> Iterator[Graph]:
        """This scope and all inside it, outermost first."""
        stack = [self]
        while stack:
            graph = stack.pop()
            yield graph
            inner = [Graph(body, graph.model, graph.opset, graph, path) for path, body in graph.bodies()]
            stack.extend(reversed(inner))

    def bodies(self) -> Iterator[tuple[str, GraphProto]]:
        """The bodies of this scope's nodes, each with its path."""
        for index in self.captures:
            node = self.nodes[index]
            for name, body in attribute_graphs(node):
                yield f"{self.path}/{label(node)}.{name}", body

    def of_copy(self, proto: GraphProto | FunctionProto, model: ModelProto, parent: Graph | None) -> Graph:
        """The same scope of a copy of the model: all that is known of this one, and the copy's protos to edit."""
        other = copy(self)
        other.proto, other.model, other.parent, other.nodes = proto, model, parent, list(proto.node)
        if isinstance(proto, GraphProto):
            other.initializers = {t.name: t for t in proto.initializer}
        return other


def scopes_of_copy(scopes: Sequence[Graph], model: ModelProto) -> list[Graph]:
    """The scopes of a copy of a model, given the model's, all of them, outermost first; nothing is looked up again."""
    tops = iter((model.graph, *(function for function in model.functions if function.domain != DOMAIN)))
    made: dict[int, Graph] = {}
    bodies: dict[int, Iterator[tuple[str, GraphProto]]] = {}
    for scope in scopes:
        outer = None if scope.parent is None else id(scope.parent)
        proto = next(tops) if outer is None else next(bodies[outer])[1]
        made[id(scope)] = own = scope.of_copy(proto, model, None if outer is None else made[outer])
        bodies[id(scope)] = own.bodies()
    return list(made.values())


def label(node: NodeProto) -> str:
    """What a control-flow node is called in the paths of its bodies: its name, else its op and its first output, which
    stay while other nodes come and go."""
    return node.name.strip("/") or f"{node.op_type}_{next(filter(None, node.output), '')}"


def function_path(function: FunctionProto) -> str:
    """The path of the scope that the body of a local function is."""
    name = f"{function.name}:{function.overload}" if function.overload else function.name
    return f"/{function.domain}.{name}" if function.domain else f"/{name}"


def roots(model: ModelProto) -> Iterator[Graph]:
    """The main graph and the body of every local function that is not onnxfuse's own."""
    main = Graph(model.graph, model, opset_of(model))
    yield main
    callers = list(main.scopes()) if model.functions else []
    for function in model.functions:
        if function.domain != DOMAIN:
            graph = Graph(function, model, opset_of(function), None, function_path(function))
            graph.types.update(parameter_types(graph, callers))
            yield graph


def declared(kind: TypeProto, name: str) -> tuple[int, Shape | None]:
    """(element type, shape) of a tensor type; a dimension without a name is a symbol of its own."""
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    dims: list[Dim] = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        else:
            dims.append(symbol(declared_name(dim.dim_param) or f"{name}.{axis}"))
    return tensor.elem_type, tuple(dims)


def captured_names(node: NodeProto) -> set[str]:
    """Values of outer scopes that the bodies of a control-flow node use, without recursion."""
    return captured_in(*(body for _, body in attribute_graphs(node)))


def read_by(node: NodeProto) -> list[str]:
    """The values that a node and the bodies in it read."""
    return [*filter(None, node.input), *(captured_names(node) if has_bodies(node) else ())]


def elements_read(node: NodeProto) -> Sequence[str]:
    """What a node reads the elements of: CastLike asks its second operand for its type alone."""
    return list(node.input[:1] if node.op_type == "CastLike" else node.input)


def captured_in(*bodies: GraphProto) -> set[str]:
    """Values of outer scopes that some bodies use."""
    captured: set[str] = set()
    stack: list[tuple[GraphProto, frozenset[str]]] = [(body, frozenset()) for body in bodies]
    while stack:
        graph, outer = stack.pop()
        local = set(outer) | {i.name for i in graph.input} | {t.name for t in graph.initializer}
        local |= {t.values.name for t in graph.sparse_initializer}
        for inner in graph.node:
            local.update(inner.output)
        frozen = frozenset(local)
        for inner in graph.node:
            captured.update(name for name in inner.input if name and name not in frozen)
            stack.extend((body, frozen) for _, body in attribute_graphs(inner))
        captured.update(o.name for o in graph.output if o.name not in frozen)
    return captured


def skeleton(model: ModelProto, keep: int = 1024) -> ModelProto:
    """The model without its large weights: each becomes an input of the same type.  Cheap to infer and to check."""
    bare = ModelProto()
    for descriptor, value in model.ListFields():
        if descriptor.name == "graph":
            continue
        _copy_field(bare, descriptor, value)
    _strip(model.graph, bare.graph, keep)
    return bare


def _copy_field(target: Any, descriptor: Any, value: Any) -> None:
    if isinstance(value, str | bytes | int | float):
        setattr(target, descriptor.name, value)
    else:
        getattr(target, descriptor.name).MergeFrom(value)


def _strip(source: GraphProto, target: GraphProto, keep: int) -> None:
    for descriptor, value in source.ListFields():
        if descriptor.name != "initializer":
            _copy_field(target, descriptor, value)
    given = {i.name for i in source.input}
    for tensor in source.initializer:
        size = 1
        for d in tensor.dims:
            size *= d
        if size <= keep and tensor.data_location != TensorProto.EXTERNAL:
            target.initializer.append(tensor)
        elif tensor.name not in given:
            info = ValueInfoProto(name=tensor.name)
            info.type.CopyFrom(onnx_helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)))
            target.input.append(info)


def _infer(model: ModelProto) -> dict[str, dict[str, TypeProto]]:
    """onnx's own shape inference over the main graph and its bodies, by path; nothing where it fails, since it is only
    a help."""
    from onnx import shape_inference

    try:
        bare = skeleton(model)
        pass_on(bare)
        inferred = shape_inference.infer_shapes(bare, data_prop=True)
    except Exception:  # onnx raises its own C++ errors, RuntimeError and ValueError for models that it cannot infer
        return {}
    found: dict[str, dict[str, TypeProto]] = {}
    pending = [("", inferred.graph)]
    while pending:
        path, graph = pending.pop()
        told = GraphProto(value_info=(*graph.value_info, *graph.output))  # copies, beside which all else goes
        found[path] = {info.name: info.type for info in told.value_info}
        for node in graph.node:
            pending += [(f"{path}/{label(node)}.{name}", body) for name, body in attribute_graphs(node)]
    return found


@dataclass
class Names:
    """Hands out names that nothing in the model has."""

    taken: set[str]
    last: dict[str, int] = field(default_factory=dict)
    under: Names | None = None
    """Those that these are tentative beside."""

    @staticmethod
    def of(scopes: Iterable[Graph]) -> Names:
        """The names of all values and nodes of a model, given all its scopes."""
        taken: set[str] = set()
        for graph in scopes:
            # Sparse weights are known by their uses alone.
            taken.update(graph.producer, graph.uses, graph.initializers, graph.inputs, [n.name for n in graph.nodes])
        return Names(taken)

    def unique(self, base: str) -> str:
        name, n = base, self._last(base)
        while self._has(name):
            n += 1
            name = f"{base}_{n}"
        self.last[base] = n
        self.taken.add(name)
        return name

    def tentative(self) -> Names:
        """Names beside these, which these do not have before `keep`."""
        return Names(set(), {}, self)

    def keep(self) -> None:
        """Take what was tentative."""
        assert self.under is not None
        self.under.taken |= self.taken
        self.under.last |= self.last

    def _has(self, name: str) -> bool:
        return name in self.taken or (self.under is not None and self.under._has(name))

    def _last(self, base: str) -> int:
        """A number behind which names are to be tried: all up to there are taken."""
        n = self.last.get(base)
        if n is None:
            n = 1 if self.under is None else self.under._last(base)
        if base in self.taken and f"{base}_{n + 1}" in self.taken:
            while f"{base}_{n + 1}" in self.taken:
                n += 1
            self.last[base] = n
        return n
