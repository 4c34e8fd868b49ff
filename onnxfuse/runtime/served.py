"""Which fused ops of a model kernels can compute: all nodes of an op, or none.

onnxruntime runs a registered op's kernel and has no way back to the function body: a node whose element type or
attributes the kernel does not take would make the model invalid.  Since each use of a fused op is an op of its own, one
that no kernel takes leaves the others to theirs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
    numpy_helper,
)

from onnxfuse import kernels
from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.device.kernel import EITHER, Kernel, Parameter, Signature
from onnxfuse.model.dims import Dim, Shape
from onnxfuse.model.graph import DOMAIN, REGION, Graph, family, family_of, number_of, opset_of, roots
from onnxfuse.model.schema import attribute_value
from onnxfuse.model.standard import STANDARD, parameters
from onnxfuse.model.types import numpy_name, stated, type_name
from onnxfuse.targets.contrib import DOMAIN as CONTRIB
from onnxfuse.terms.infer import infer
from onnxfuse.terms.term import Terms

from . import attributes
from .custom_op import Op


@dataclass(slots=True)
class Served:
    """What becomes of the fused ops of a model."""

    ops: list[Op] = field(default_factory=list)
    """Those to register, one for each element type."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Name of each other op → why it runs from its function body."""

    @property
    def names(self) -> list[str]:
        """The ops that kernels compute."""
        return sorted({op.name for op in self.ops})

    @property
    def sources(self) -> dict[str, str]:
        """Family → the names of the kernels of its ops, or of some: those of regions are several."""
        found: dict[str, set[str]] = {}
        for op in self.ops:
            found.setdefault(family(op.name), set()).add(op.kernel.name)
        return {name: ", ".join(sorted(kernels)) for name, kernels in found.items()}

    @property
    def bodies(self) -> dict[str, str]:
        """Family → why its ops, or some, run from their function bodies."""
        return {family(name): reason for name, reason in sorted(self.reasons.items(), reverse=True)}


Uses: TypeAlias = "dict[str, list[tuple[NodeProto, ElementTypes]]]"
"""Fused op → its nodes, each with the types of its scope."""


def examine(model: ModelProto, rules: Sequence[Path] = ()) -> Served:
    """Look at every fused node of a model: of its graph, of inner graphs, of its functions, and of the bodies of fused
    ops that have no kernel.

    `rules` are folders of a user's own rules, whose ops may have kernels too.
    """
    uses: Uses = {}
    for root in roots(model):
        scopes: dict[int, ElementTypes] = {}
        for graph in root.scopes():
            types = scopes[id(graph)] = ElementTypes(graph, scopes.get(id(graph.parent)), rules)
            _note(uses, graph, types)
    functions = {f.name: f for f in model.functions if f.domain == DOMAIN}
    result = Served()
    while names := sorted(uses.keys() - result.reasons.keys() - {op.name for op in result.ops}):
        for name in names:
            try:
                result.ops += _ops(name, functions.get(name), uses[name], rules)
            except KernelError as refusal:
                result.reasons[name] = str(refusal)
        for body in [f for f in functions.values() if f.name in result.reasons and f.name in names]:
            graph = Graph(body, model, opset_of(body), None, f"/{DOMAIN}.{body.name}")
            graph.types.update(_parameter_types(body, uses[body.name]))
            anew = _note(uses, graph, ElementTypes(graph, None, rules))
            result.ops = [op for op in result.ops if op.name not in anew]
    return result


def _note(uses: Uses, graph: Graph, types: ElementTypes) -> set[str]:
    """Add the fused nodes of a scope; returns their ops."""
    noted = set()
    for node in graph.nodes:
        if node.domain == DOMAIN:
            uses.setdefault(node.op_type, []).append((node, types))
            noted.add(node.op_type)
    return noted


def _parameter_types(body: FunctionProto, calls: list[tuple[NodeProto, ElementTypes]]) -> dict[str, TypeProto]:
    """The element types on which all calls of a function agree."""
    found: dict[str, TypeProto] = {}
    for (node, types), (index, name) in itertools.product(calls, enumerate(body.input)):
        if index < len(node.input) and node.input[index]:
            kind = helper.make_tensor_type_proto(types.of(node.input[index]), None)
            if found.setdefault(name, kind) != kind:
                found[name] = TypeProto()
    return found


def _ops(
    name: str, body: FunctionProto | None, nodes: list[tuple[NodeProto, ElementTypes]], rules: Sequence[Path]
) -> list[Op]:
    """What to register for all nodes of an op.  Raises KernelError if a kernel does not take one of them."""
    kernel = _kernel(name, body, nodes, rules)
    inputs, outputs = arguments(kernel.signature, body)
    types: dict[str, None] = {}
    asked: set[tuple[str, int]] = set()
    tried: set[str] = set()
    for node, known in nodes:
        types[_element_type(node, known, kernel.signature, inputs, outputs)] = None
        for attribute in node.attribute:
            if attribute.type not in attributes.READABLE:
                kind = AttributeProto.AttributeType.Name(attribute.type)
                raise KernelError(f"onnxruntime tells no kernel an attribute of type {kind}, as {attribute.name} is")
            asked.add((attribute.name, int(attribute.type)))
        key = str(sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute))
        # Attributes of a function's call are known only once onnxruntime has put its body in place.
        if key not in tried and not any(attribute.ref_attr_name for attribute in node.attribute):
            kernel(values(node))
            tried.add(key)
    attributes.expect(name, asked)
    return [Op(name, kernel, kind, inputs, outputs) for kind in types]


def _kernel(
    name: str, body: FunctionProto | None, nodes: list[tuple[NodeProto, ElementTypes]], rules: Sequence[Path]
) -> type[Kernel]:
    """The kernel of an op, that of a region by its function.  Raises KernelError."""
    if body is None:
        return kernels.find(family(name), rules)
    node, known = nodes[0]
    inputs, outputs = ([numpy_name(known.of(value)) for value in side] for side in (node.input, node.output))
    if family(name) == REGION:
        untyped = [value for value in (*node.input, *node.output) if value and not known.of(value)]
        if untyped:
            raise KernelError(f"the element type of {untyped[0]} is unknown before the model runs")
        return kernels.of_region(body, inputs, outputs)
    operands = (_operands(node, types) for node, types in nodes)
    return kernels.of_use(family(name), body, inputs, outputs, rules, operands)


def _operands(node: NodeProto, types: ElementTypes) -> list[TensorType]:
    """The types of what a node reads, some number for each size that is not known.  Raises KernelError where nothing
    tells how many these are."""
    sizes: dict[Dim, int] = {}
    found: list[TensorType] = []
    for name in node.input:
        number, shape = types.of(name), types.shape(name)
        if not number or shape is None:
            raise KernelError(f"the rank of {name} is unknown before the model runs")
        known = tuple(size if isinstance(size, int) else sizes.setdefault(size, 4 + len(sizes)) for size in shape)
        found.append(TensorType(helper.tensor_dtype_to_np_dtype(number), known))
    return found


Numbers: TypeAlias = tuple[int | None, ...]
"""What of a kernel's inputs the nodes of an op give, in their order; None for a number of the op's equations."""


def arguments(signature: Signature, body: FunctionProto | None) -> tuple[Numbers, tuple[int, ...]]:
    """Which of a kernel's inputs and outputs the nodes of an op give, in their order: those by whose names its function
    calls its own; all, if it has none.  Raises KernelError for a name that the kernel does not know."""
    inputs, outputs = [p.name for p in signature.inputs], [p.name for p in signature.outputs]
    if body is None:
        return tuple(range(len(inputs))), tuple(range(len(outputs)))
    given = {name for name in body.input if number_of(name) is None}
    if surplus := sorted({*given, *body.output} - {*inputs, *outputs}):
        raise KernelError(f"the kernel of {signature.op} knows no {surplus[0]}")
    taken, made = ({name: at for at, name in enumerate(names)} for names in (inputs, outputs))
    return tuple(taken[name] if name in given else None for name in body.input), tuple(made[n] for n in body.output)


def _element_type(
    node: NodeProto, types: ElementTypes, signature: Signature, inputs: Numbers, outputs: tuple[int, ...]
) -> str:
    """The element type of a node's op.  Raises KernelError if it has another signature than the kernel."""
    if len(node.input) > len(inputs) or len(node.output) > len(outputs):
        raise KernelError(f"{signature.op} has more inputs or outputs at {node.name} than its kernel")
    found: str | None = None
    given_inputs = _given(signature.inputs, node.input, inputs)
    for parameter, given in [*given_inputs, *_given(signature.outputs, node.output, outputs)]:
        if not given:
            if not parameter.optional:
                raise KernelError(
                    f"{family(node.op_type)} has no {parameter.name} at {node.name}, which its kernel wants"
                )
            continue
        kind = types.of(given)
        if kind == TensorProto.UNDEFINED:
            raise KernelError(f"the element type of {given} is unknown before the model runs")
        dtype = numpy_name(kind)
        if parameter.type == EITHER and dtype in _MASKS:
            continue
        real = parameter.type in ("T", EITHER)
        wanted = found or dtype if real else parameter.type
        if dtype != wanted:
            raise KernelError(
                f"{parameter.name} of {signature.op} is {dtype} at {node.name}, its kernel wants {wanted}"
            )
        found = dtype if real else found
    if not any(parameter.type in ("T", EITHER) for parameter in (*signature.inputs, *signature.outputs)):
        return signature.types[0]
    if found is None or found not in signature.types:
        raise KernelError(f"the kernel of {signature.op} has no {found}: it has {', '.join(signature.types)}")
    return found


class ElementTypes:
    """Element types of a scope's values, as TensorProto has them: also of those that fused nodes hide.

    Nodes are in topological order, so that each passes on what those before it were found to have.
    """

    def __init__(self, graph: Graph, outer: ElementTypes | None, rules: Sequence[Path] = ()) -> None:
        self._graph, self._outer, self._rules = graph, outer, rules
        self._functions = {f.name: f for f in graph.model.functions if f.domain == DOMAIN}
        self._found: dict[str, int] = {}
        for node in graph.nodes:
            for name, kind in self._passed_on(node):
                self._found[name] = kind

    def of(self, name: str) -> int:
        """The element type of a value; TensorProto.UNDEFINED where nothing tells."""
        tensor = self._graph.constant_tensor(name)
        if tensor is not None:
            return tensor.data_type
        known = self._found.get(name) or self._graph.type_of(name)[0]
        return known or (self._outer.of(name) if self._outer is not None else TensorProto.UNDEFINED)

    def shape(self, name: str) -> Shape | None:
        """The shape of a value; None where nothing tells its rank."""
        tensor = self._graph.constant_tensor(name)
        if tensor is not None:
            return tuple(tensor.dims)
        known = self._graph.type_of(name)[1]
        return known if known is not None or self._outer is None else self._outer.shape(name)

    def _declared(self, name: str) -> bool:
        kind = self._graph.types.get(name)
        return kind is not None and kind.tensor_type.elem_type != TensorProto.UNDEFINED

    def _passed_on(self, node: NodeProto) -> Iterator[tuple[str, int]]:
        """The types of a node's values that nothing declares: those of its operands, as far as its signature tells, or
        what it says itself, else what onnx infers, which looks at the whole graph."""
        hidden = [(i, name) for i, name in enumerate(node.output) if name and not self._declared(name)]
        if not hidden:
            return
        if family_of(node) == REGION and node.op_type in self._functions:
            known = self._of_region(node)
            yield from ((name, known[i]) for i, name in hidden)
            return
        if node.domain == CONTRIB:
            said = self._of_contrib(node)
            yield from ((name, said[i]) for i, name in hidden)
            return
        inputs, outputs = self._variables(node)
        bound: dict[str, int] = {}
        for variable, name in zip(inputs, node.input, strict=False):
            if name and variable not in bound and (kind := self.of(name)):
                bound[variable] = kind
        own = stated(node) if node.domain in STANDARD else TensorProto.UNDEFINED
        for i, name in hidden:
            variable = outputs[i] if i < len(outputs) else ""
            yield name, bound.get(variable) or _FIXED.get(variable) or own or self._graph.type_of(name)[0]

    def _of_region(self, node: NodeProto) -> list[int]:
        """The types of a region's outputs, as its body implies them."""
        body = self._functions[node.op_type]
        graph = Graph(body, self._graph.model, opset_of(body), None, f"/{DOMAIN}.{body.name}")
        given = zip(body.input, node.input, strict=False)
        graph.types.update({own: helper.make_tensor_type_proto(self.of(name), None) for own, name in given})
        found = [graph.type_of(own)[0] for own in body.output]
        return [kind or self._graph.type_of(name)[0] for kind, name in zip(found, node.output, strict=False)]

    def _of_contrib(self, node: NodeProto) -> list[int]:
        """The types of a com.microsoft op's outputs, of which onnx knows nothing: those that its operands imply."""
        terms = Terms()
        given = [terms.input(name, None, self.of(name)) if name else terms.absent for name in node.input]
        attrs = {attribute.name: attribute_value(attribute) for attribute in node.attribute}
        found = infer(terms, f"{CONTRIB}.{node.op_type}", given, attrs, len(node.output))
        kinds = [kind for _, kind in found] + [TensorProto.UNDEFINED] * len(node.output)
        return [kind or self._graph.type_of(name)[0] for kind, name in zip(kinds, node.output, strict=False)]

    def _variables(self, node: NodeProto) -> tuple[Sequence[str], Sequence[str]]:
        """What a node's inputs and outputs have for a type: the same text is the same type."""
        if node.domain in STANDARD:
            return parameters(node.op_type, self._graph.opset)
        if node.domain != DOMAIN:
            return [], []
        try:
            signature = kernels.find(family(node.op_type), self._rules).signature
            inputs, outputs = arguments(signature, self._functions.get(node.op_type))
        except KernelError:
            return [], []
        return ["T" if i is None else signature.inputs[i].type for i in inputs], [
            signature.outputs[i].type for i in outputs
        ]


_MASKS = ("bool", "float32")
"""Element types of a mask, besides that of the op: a sum in float32 takes one in float32."""
_FIXED = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL} | {
    f"tensor({type_name(number)})": number for number in TensorProto.DataType.values() if number
}
"""Types that an op has whatever its operands are, as kernels and as schemas call them."""


def _given(parameters: tuple[Parameter, ...], names: Sequence[str], at: Numbers) -> Iterator[tuple[Parameter, str]]:
    """Each parameter and the value that a node gives it; "" where it leaves it out."""
    given = dict(zip(at, names, strict=False))
    for index, parameter in enumerate(parameters):
        yield parameter, given.get(index, "")


def values(node: NodeProto) -> Mapping[str, Any]:
    """The attributes of a node, as a kernel takes them."""
    return {attribute.name: _value(attribute) for attribute in node.attribute}


def _value(attribute: AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        return np.asarray(numpy_helper.to_array(value))
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, int | float) else tuple(value)
