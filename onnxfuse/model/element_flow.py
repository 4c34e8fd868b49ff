"""Element types as they flow through a model: that of every value, and the coarsest that anything behind it had.

A file may compute in half precision and give float32: what its outputs are worth, the types of the outputs do not say.
The coarsest type behind a value is

    of an input, and of a constant                            none: they are what they are
    of what moves elements (a view, Gather, Concat, Where)    the coarsest behind those that are moved
    of a Cast to a coarser type                               that type, or a coarser one behind it
    of anything else                                          its own type, or the coarsest behind its inputs

Integers and booleans end a path: what rounding does to them is no rounding.  A Loop or Scan gives each of its results
the coarsest of all that it carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from .op_traits import CASTS, MOVEMENT
from .standard import STANDARD, schema_of
from .types import CONSTANTS, type_of
from .walk import attribute_graphs, called_by, has_bodies, key_of

_FINEST_FIRST = (TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_EIGHT_BITS = tuple(d for name, d in TensorProto.DataType.items() if name.startswith("FLOAT") and "E" in name)
"""And four: FLOAT8E4M3FN, FLOAT4E2M1."""
_RANK = {0: 0} | {int(dtype): rank for rank, dtype in enumerate((*_FINEST_FIRST, *_EIGHT_BITS), 1)}
"""Real element type → how coarse it is; 0 is none at all."""
HALF = frozenset({int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16), *map(int, _EIGHT_BITS)})
"""Types coarser than float32."""
_MOVES = MOVEMENT | {"Concat", "Where", "Constant", "ConstantOfShape"}
_TYPED = ("to", "dtype", "output_dtype", "stash_type")
"""Attributes that name the type of an output that no input shares."""
_FLOAT_UNSAID = ("ConstantOfShape", "RandomNormal", "RandomUniform", "SequenceEmpty")
_STATISTICS = ("LayerNormalization",)
"""Ops whose other outputs are float32 unless an attribute says something else."""


class Kind(NamedTuple):
    """What is known of a value; element types are those of TensorProto."""

    dtype: int = 0
    """0 where it is not known."""
    coarsest: int = 0
    """Of what was computed behind it; 0 where nothing was."""

    @property
    def precision(self) -> int:
        """What its numbers are worth: the coarser of its own type and the coarsest behind it; 0 if it is not real."""
        return coarser(self.dtype, self.coarsest) if self.dtype in _RANK else 0


UNKNOWN = Kind()


def coarser(*dtypes: int) -> int:
    """The coarsest of these types; those that are not real are none."""
    return max(dtypes, key=lambda dtype: _RANK.get(dtype, 0), default=0)


def mentions(model: ModelProto, dtypes: frozenset[int]) -> bool:
    """Does anything in the model have one of these element types, as far as inputs, constants and Casts tell?"""
    return any(_mentions(owner, dtypes) for owner in (model.graph, *model.functions))


def _mentions(owner: GraphProto | FunctionProto, dtypes: frozenset[int]) -> bool:
    if isinstance(owner, GraphProto):
        infos = (*owner.input, *owner.output)
        if any(tensor.data_type in dtypes for tensor in owner.initializer):
            return True
        if any(_declared(info.type) in dtypes for info in infos):
            return True
    for node in owner.node:
        for attribute in node.attribute:
            if (attribute.name in _TYPED and attribute.i in dtypes) or attribute.t.data_type in dtypes:
                return True
        if has_bodies(node) and any(_mentions(body, dtypes) for _, body in attribute_graphs(node)):
            return True
    return False


class Flow:
    """The kinds of a model's values, scope by scope; nodes are in topological order."""

    def __init__(self, model: ModelProto) -> None:
        self._functions = {key_of(f): f for f in model.functions}
        self._opsets = _opsets(model)
        self.main = self.of(model.graph)
        """Value of the main graph → its kind."""

    def of(
        self, graph: GraphProto, outer: Mapping[str, Kind] | None = None, given: Sequence[Kind] = ()
    ) -> dict[str, Kind]:
        """The kinds of a graph's values, and of those around it; of a body's inputs as `given`, or declared."""
        known = dict(outer or {})
        known |= {tensor.name: Kind(tensor.data_type) for tensor in graph.initializer}
        known |= {tensor.values.name: Kind(tensor.values.data_type) for tensor in graph.sparse_initializer}
        for number, info in enumerate(graph.input):
            own = given[number] if number < len(given) else UNKNOWN
            known[info.name] = own._replace(dtype=_declared(info.type) or own.dtype)
        said = {info.name: _declared(info.type) for info in (*graph.value_info, *graph.output)}
        self._nodes(graph.node, known, said, self._opsets)
        return known

    def inside(self, function: FunctionProto, given: Sequence[Kind]) -> dict[str, Kind]:
        """The kinds of a function's values, where it is called with such arguments."""
        known = dict(zip(function.input, given, strict=False))
        said = {info.name: _declared(info.type) for info in function.value_info}
        self._nodes(function.node, known, said, _opsets(function))
        return known

    def bodies(self, node: NodeProto, known: Mapping[str, Kind]) -> Iterator[tuple[GraphProto, dict[str, Kind]]]:
        """The bodies of a node, each with the kinds of all values that are known in it."""
        arguments = [known.get(name, UNKNOWN) for name in node.input]
        for _, body in attribute_graphs(node):
            given = [] if node.op_type == "If" else _carried(node, body, arguments)
            inside = self.of(body, known, given)
            if given:
                through = coarser(*(inside.get(output.name, UNKNOWN).coarsest for output in body.output))
                inside = self.of(body, known, [k._replace(coarsest=coarser(k.coarsest, through)) for k in given])
            yield body, inside

    def _nodes(
        self, nodes: Iterable[NodeProto], known: dict[str, Kind], said: Mapping[str, int], opsets: Mapping[str, int]
    ) -> None:
        for node in nodes:
            made = self._results(node, known, said, opsets)
            known |= {name: kind for name, kind in zip(node.output, made, strict=False) if name}

    def _results(
        self, node: NodeProto, known: Mapping[str, Kind], said: Mapping[str, int], opsets: Mapping[str, int]
    ) -> list[Kind]:
        arguments = [known.get(name, UNKNOWN) for name in node.input]
        if function := self._functions.get(called_by(node)):
            inside = self.inside(function, arguments)
            return [inside.get(name, UNKNOWN) for name in function.output]
        if has_bodies(node):
            return self._of_bodies(node, known)
        behind = coarser(*(kind.coarsest for kind in arguments if kind.dtype in _RANK))
        results = []
        for number, name in enumerate(node.output):
            dtype = _result(node, number, [kind.dtype for kind in arguments], said.get(name, 0), opsets)
            rounds = node.op_type not in _MOVES
            if node.op_type in CASTS and arguments:
                given = arguments[0].dtype
                rounds = given not in _RANK or _RANK.get(dtype, 0) > _RANK[given]
            coarsest = coarser(behind, dtype) if rounds else behind
            results.append(Kind(dtype, coarsest) if dtype in _RANK else Kind(dtype))
        return results

    def _of_bodies(self, node: NodeProto, known: Mapping[str, Kind]) -> list[Kind]:
        """What comes out of the bodies of a control-flow node: of the branches of an If, the coarser one."""
        results = [UNKNOWN] * len(node.output)
        for body, inside in self.bodies(node, known):
            skipped = node.op_type == "Loop"  # the condition
            for number, output in enumerate(body.output[skipped:][: len(results)]):
                kind, other = inside.get(output.name, UNKNOWN), results[number]
                dtype = kind.dtype or _declared(output.type) or other.dtype
                results[number] = Kind(dtype, coarser(kind.coarsest, other.coarsest))
        if node.op_type != "If":
            through = coarser(*(kind.coarsest for kind in results))
            results = [Kind(k.dtype, through) if k.dtype in _RANK else k for k in results]
        return results


def _carried(node: NodeProto, body: GraphProto, arguments: Sequence[Kind]) -> list[Kind]:
    """What a Loop or Scan gives to its body at first; each of the coarsest of all that it carries."""
    states = list(arguments[2:]) if node.op_type == "Loop" else list(arguments[len(arguments) - len(body.input) :])
    coarsest = coarser(*(kind.coarsest for kind in states))
    ahead = [Kind(TensorProto.INT64), Kind(TensorProto.BOOL)] if node.op_type == "Loop" else []
    return [*ahead, *(kind._replace(coarsest=coarsest) for kind in states)]


def _result(node: NodeProto, number: int, given: Sequence[int], said: int, opsets: Mapping[str, int]) -> int:
    """The element type of a node's output: by its signature, by its attributes, as declared, or as most ops have it."""
    schema = schema_of(node.op_type, opsets.get(node.domain, 0), node.domain)
    if schema is not None and schema.outputs:
        formal = schema.outputs[min(number, len(schema.outputs) - 1)]
        if len(formal.types) == 1:
            (only,) = formal.types
            return type_of(only[len("tensor(") : -1]) if only.startswith("tensor(") else 0
        for position, dtype in enumerate(given):
            if dtype and schema.inputs[min(position, len(schema.inputs) - 1)].type_str == formal.type_str:
                return dtype
    for attribute in node.attribute:
        if attribute.name in _TYPED and attribute.i:
            return int(attribute.i)
        if attribute.name == "value" and attribute.t.data_type:
            return int(attribute.t.data_type)
        if node.op_type == "Constant" and attribute.name in CONSTANTS:
            return CONSTANTS[attribute.name]
    if said:
        return said
    if node.op_type in _FLOAT_UNSAID or (number and node.op_type in _STATISTICS):
        return int(TensorProto.FLOAT)
    return next((dtype for dtype in given if _RANK.get(dtype)), given[0] if given else 0)


def _declared(kind: TypeProto) -> int:
    """The element type of a tensor, or of what a sequence holds; 0 where nothing says."""
    wrapper = kind.WhichOneof("value")
    if wrapper in ("sequence_type", "optional_type"):
        return _declared(getattr(kind, wrapper).elem_type)
    return int(kind.tensor_type.elem_type) if wrapper == "tensor_type" else 0


def _opsets(proto: ModelProto | FunctionProto) -> dict[str, int]:
    found = {entry.domain: entry.version for entry in proto.opset_import}
    standard = max((found.get(domain, 0) for domain in STANDARD), default=0)
    return found | dict.fromkeys(STANDARD, standard)
