"""Types that nobody declares but the model implies: by the operators' signatures, and by the calls of a function.

An operator of an unknown domain hides the type of its results, and a local function declares none for its parameters.
Nothing is assumed: a type is given only where everything that says something about it agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from onnx import NodeProto, TensorProto, TypeProto, helper

from .dims import Dim, Shape
from .op_traits import SHAPE_QUERIES
from .standard import STANDARD, schema_of
from .walk import called_by, key_of, nodes

if TYPE_CHECKING:
    from .graph import Graph

CONSTANTS = {
    "value_float": int(TensorProto.FLOAT),
    "value_floats": int(TensorProto.FLOAT),
    "value_int": int(TensorProto.INT64),
    "value_ints": int(TensorProto.INT64),
}
"""Element types of Constant's attributes, besides that of `value`."""


def type_name(dtype: int) -> str:
    """What schemas and onnxruntime call an element type: `float16`; empty where it is unknown."""
    return TensorProto.DataType.Name(dtype).lower() if dtype else ""


@cache
def numpy_name(dtype: int) -> str:
    """What NumPy calls an element type: `float16`, `bool`; empty where it is unknown."""
    return helper.tensor_dtype_to_np_dtype(dtype).name if dtype else ""


def type_of(name: str) -> int:
    """The element type of a name that `type_name` gives."""
    return int(TensorProto.DataType.Value(name.upper()))


def element_types(graph: Graph) -> dict[str, int]:
    """Element types of a scope's values as far as operator signatures tell: what shares a type variable shares a type.

    See the ONNX operator specification: each formal parameter names a tensor type or a type variable.
    """
    groups = _Groups()
    for node in graph.nodes:
        variables: dict[str, str] = {}
        for name, variable in _typed(node, graph.opset):
            groups.join(variables.setdefault(variable, name), name)
    said: dict[str, set[int]] = {}
    for name in groups.parent:
        dtype = _declared(graph, name)
        if dtype:
            said.setdefault(groups.root(name), set()).add(dtype)
    found = {name: said.get(groups.root(name), set()) for name in groups.parent}
    return {name: min(dtypes) for name, dtypes in found.items() if len(dtypes) == 1}


def parameter_types(function: Graph, callers: Sequence[Graph]) -> dict[str, TypeProto]:
    """Types of a function's inputs on which all its calls agree.

    A dimension that differs from call to call, or is not known, has a name; two that are equal in every call have one.
    `callers` are the scopes of the main graph; of a function that another function calls nothing is known.
    """
    proto, model = function.proto, function.model
    key = key_of(proto)
    if any(called_by(node) == key for node in nodes(*model.functions)):
        return {}
    calls = [(graph, node) for graph in callers for node in graph.nodes if called_by(node) == key]
    found = {}
    symbols: dict[tuple[Dim, ...], str] = {}
    for position, name in enumerate(function.inputs):
        types = [_argument(graph, node, position) for graph, node in calls]
        dtypes, ranks = {dtype for dtype, _ in types}, {None if s is None else len(s) for _, s in types}
        if len(dtypes) != 1 or 0 in dtypes:
            continue
        dims: list[int | str] | None = None
        if len(ranks) == 1 and None not in ranks:
            dims = []
            for sizes in zip(*(shape for _, shape in types if shape is not None), strict=True):
                same = sizes[0] if len(set(sizes)) == 1 else None
                symbol = symbols.setdefault(sizes, f"{proto.domain}.{proto.name}.{len(symbols)}")
                dims.append(same if isinstance(same, int) else symbol)
        found[name] = helper.make_tensor_type_proto(dtypes.pop(), dims)
    return found


class _Groups:
    """Disjoint sets of names (Tarjan 1975, without ranks: chains are short)."""

    def __init__(self) -> None:
        self.parent: dict[str, str] = {}

    def root(self, name: str) -> str:
        while (parent := self.parent.setdefault(name, name)) != name:
            self.parent[name] = name = self.parent[parent]
        return name

    def join(self, a: str, b: str) -> None:
        self.parent[self.root(b)] = self.root(a)


def _typed(node: NodeProto, opset: int) -> Iterator[tuple[str, str]]:
    """(value, type variable) of a standard node's inputs and outputs; values of a fixed type are left out."""
    schema = schema_of(node.op_type, opset) if node.domain in STANDARD else None
    if schema is None:
        return
    variables = {constraint.type_param_str for constraint in schema.type_constraints}
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for i, name in enumerate(names):
            formal = formals[min(i, len(formals) - 1)]
            if name and formal.type_str in variables and formal.is_homogeneous:
                yield name, formal.type_str


def _declared(graph: Graph, name: str) -> int:
    """The element type of a value for which something states it; 0 if nothing does."""
    known = graph.known_type(name)
    if known is not None and known.HasField("tensor_type"):
        return known.tensor_type.elem_type
    tensor = graph.constant_tensor(name)
    if tensor is not None:
        return tensor.data_type
    return stated(graph.nodes[graph.producer[name]]) if name in graph.producer else 0


def stated(node: NodeProto) -> int:
    """The element type of a standard node's output whatever it reads, such as that of a Constant; 0 for others."""
    if node.op_type in SHAPE_QUERIES:
        return TensorProto.INT64
    for attribute in node.attribute:
        if node.op_type == "Constant":
            return int(CONSTANTS.get(attribute.name, attribute.t.data_type))
        if node.op_type == "Cast" and attribute.name == "to":
            return int(attribute.i)
    return 0


def _argument(caller: Graph, node: NodeProto, position: int) -> tuple[int, Shape | None]:
    """(element type, shape) of what a call gives for a parameter, or (0, None)."""
    name = node.input[position] if len(node.input) > position else ""
    tensor = caller.constant_tensor(name) if name else None
    if tensor is not None:
        return tensor.data_type, tuple(tensor.dims)
    return caller.type_of(name) if name else (0, None)
