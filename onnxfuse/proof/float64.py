"""The same model in float64: what the original was meant to compute, before its dtype rounded it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from onnxfuse.model.external_data import is_external
from onnxfuse.model.graph import skeleton
from onnxfuse.model.op_traits import RANDOM, SHAPE_QUERIES
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.tensors import tensors
from onnxfuse.model.walk import attribute_graphs, called_by, has_bodies, key_of, nodes
from onnxfuse.runtime.quiet import THREADS, Session, SessionError

from . import numerics
from .dataflow import inferred

NARROW = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_TYPED = {"Cast": "to", "EyeLike": "dtype", "SequenceEmpty": "dtype", "Bernoulli": "dtype"}
"""Operators with an attribute that names a dtype."""
_STAYS_FLOAT = {"Resize": 2, "Upsample": 1}
"""Operators with an input that the standard wants in float32 whatever the others are: their scales."""
_UNKNOWN = onnx.TensorShapeProto.Dimension()
STASHES = 21
"""The first opset at which GroupNormalization says in which type it computes (ai.onnx GroupNormalization-21)."""
_SINGLE = frozenset(
    """Atan Attention AveragePool Celu Conv ConvTranspose Elu Erf Gelu GlobalAveragePool GlobalMaxPool HardSigmoid
    HardSwish LRN InstanceNormalization LeakyRelu Mean Mish PRelu Resize RotaryEmbedding Selu Softplus Softsign Tan
    Sigmoid ThresholdedRelu""".split()
) | {"LayerNormalization with statistics"}
"""Operators that onnxruntime's CPU provider (1.31) is known not to run in float64: it need not be asked.  Its Sigmoid
does, as 1 - 1 / (1 + exp(x)) below 0, which keeps no digits of small values; its Attention does, with a root of the
scale that was rounded to float32; its LayerNormalization does, but that the mean and the deviation are float32."""
_CONTRIB = frozenset(
    f"com.microsoft.{op}"
    for op in """Attention BiasGelu EmbedLayerNormalization FastGelu FusedConv FusedMatMul Gelu MultiHeadAttention
    QuickGelu RotaryEmbedding SkipLayerNormalization SkipSimplifiedLayerNormalization""".split()
)
"""Those of com.microsoft's that `reference_ops` has."""

NARROWED = "/in its own precision"
"""What the name of a large weight ends with in the float64 model."""
_LARGE = 1 << 18
"""Elements."""

Widen: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""What float64 numbers the constants are, of those in their own precision."""


def widened(array: np.ndarray) -> np.ndarray:
    """The same numbers in float64."""
    return array.astype(np.float64)


def to_float64(model: onnx.ModelProto, base_dir: Path | None = None, widen: Widen = widened) -> onnx.ModelProto:
    """A copy of `model` in which every float32, float16 and bfloat16 is a float64.

    Casts among floats become casts to float64, and round as they did what is a number whatever the model is fed;
    integer arithmetic stays what it was.  Large weights stay what and where they are: a Cast makes them float64, which
    need not be there before somebody reads it.  Other external data is loaded from `base_dir`; raises what onnx raises
    where it cannot be read.  `widen` makes of each constant what it is to be, of an attribute such as float32 holds;
    with another than the usual one large ones are no exception.
    """
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    large = [_renamed(tensor) for tensor in large_weights(wide.graph)] if widen is widened else []
    for tensor in tensors(wide):
        if is_external(tensor) and tensor.name not in large:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(base_dir or Path.cwd()))
    _graph(wide.graph, widen, large, _rounded_numbers(model))
    for function in wide.functions:
        _nodes(function, widen)
        del function.value_info[:]
    for root, imports in ((wide.graph, wide.opset_import), *((f, f.opset_import) for f in wide.functions)):
        if any(imported.domain in STANDARD and imported.version >= STASHES for imported in imports):
            _stash(nodes(root))
    _cast_first(wide.graph, large)
    return wide


def large_weights(graph: onnx.GraphProto) -> list[TensorProto]:
    """The weights of which no float64 copy is to be held."""
    given = {info.name for info in graph.input}
    return [
        tensor
        for tensor in graph.initializer
        if tensor.data_type in NARROW and math.prod(tensor.dims) >= _LARGE and tensor.name not in given
    ]


def _renamed(tensor: TensorProto) -> str:
    tensor.name += NARROWED
    return tensor.name


def _cast_first(graph: onnx.GraphProto, names: Sequence[str]) -> None:
    """Nodes before all others, of which onnxruntime runs each when its result is wanted."""
    if not names:
        return
    casts = [helper.make_node("Cast", [name], [name.removesuffix(NARROWED)], to=TensorProto.DOUBLE) for name in names]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in (*casts, *graph.node)]
    del graph.node[:]
    graph.node.extend(copies)


def _stash(found: Iterable[onnx.NodeProto]) -> None:
    """Group normalizations have a type of their own in which they compute."""
    for node in found:
        if node.op_type == "GroupNormalization" and node.domain in STANDARD:
            kept = [a for a in node.attribute if a.name != "stash_type"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("stash_type", TensorProto.DOUBLE)])


def _graph(
    graph: onnx.GraphProto,
    widen: Widen,
    kept: Collection[str] = (),
    rounded: Mapping[str, int] = MappingProxyType({}),
) -> None:
    for tensor in graph.initializer:
        if tensor.name not in kept:
            _tensor(tensor, widen)
    for sparse in graph.sparse_initializer:
        _tensor(sparse.values, widen)
    for info in (*graph.input, *graph.output):
        _type(info.type)
    del graph.value_info[:]
    _nodes(graph, widen, rounded)


def _type(kind: onnx.TypeProto) -> None:
    wrapper = kind.WhichOneof("value")
    if wrapper in ("sequence_type", "optional_type"):
        _type(getattr(kind, wrapper).elem_type)
    elif wrapper == "tensor_type" and kind.tensor_type.elem_type in NARROW:
        kind.tensor_type.elem_type = TensorProto.DOUBLE


def _tensor(tensor: TensorProto, widen: Widen) -> None:
    if tensor.data_type in NARROW or tensor.data_type == TensorProto.DOUBLE:
        tensor.CopyFrom(numpy_helper.from_array(widen(numpy_helper.to_array(tensor)), tensor.name))


def _nodes(
    owner: onnx.GraphProto | onnx.FunctionProto, widen: Widen, rounded: Mapping[str, int] = MappingProxyType({})
) -> None:
    kept = []
    for node in owner.node:
        for attribute in node.attribute:
            _attribute(node, attribute, widen)
        if node.output and node.output[0] in rounded:
            name = f"{node.output[0]}/rounded"
            kept.append(helper.make_node("Cast", [node.input[0]], [name], to=rounded[node.output[0]]))
            node.input[0] = name
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
        position = _STAYS_FLOAT.get(node.op_type, len(node.input))
        if position < len(node.input) and node.input[position]:
            name = f"{node.input[position]}/float32/{node.output[0]}"
            kept.append(helper.make_node("Cast", [node.input[position]], [name], to=TensorProto.FLOAT))
            node.input[position] = name
        kept.append(node)
    if len(kept) > len(owner.node):
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del owner.node[:]
        owner.node.extend(copies)


def _rounded_numbers(model: onnx.ModelProto) -> dict[str, int]:
    """The numbers that Casts round which are made of numbers and shapes alone, such as the root of a size that scores
    are divided by, and the types to which they do: so they are in the model whatever it is fed."""
    graph, found = model.graph, dict[str, int]()
    if not any(node.op_type == "Cast" and _type_of(node) in HALF for node in graph.node):
        return found
    given = {info.name: info.type.tensor_type.elem_type for info in graph.input}
    known = {t.name for t in graph.initializer if math.prod(t.dims) == 1 and t.name not in given}
    known |= {name for name, kind in given.items() if kind == TensorProto.INT64}  # of a cut, which begins at a shape
    for node in graph.node:
        if node.op_type in RANDOM or has_bodies(node) or node.domain not in STANDARD:
            continue
        if node.op_type in SHAPE_QUERIES or (_is_number(node) if not node.input else known.issuperset(node.input)):
            known.update(node.output)
            if node.op_type == "Cast" and _type_of(node) in HALF:
                found[node.output[0]] = _type_of(node)
    shapes = {info.name: info.type.tensor_type.shape.dim for info in (inferred(skeleton(model)) if found else ())}
    return {name: to for name, to in found.items() if math.prod(d.dim_value for d in shapes.get(name, [_UNKNOWN])) == 1}


def _type_of(cast: onnx.NodeProto) -> int:
    return next((a.i for a in cast.attribute if a.name == "to"), 0)


def _is_number(node: onnx.NodeProto) -> bool:
    """Is it a constant of one element?"""
    dims = next((a.t.dims for a in node.attribute if a.name == "value"), ())
    return node.op_type == "Constant" and math.prod(dims) == 1


def _attribute(node: onnx.NodeProto, attribute: AttributeProto, widen: Widen) -> None:
    if attribute.type == AttributeProto.TENSOR:
        _tensor(attribute.t, widen)
    elif attribute.type == AttributeProto.GRAPH:
        _graph(attribute.g, widen)
    elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        wide = widen(np.asarray(value, np.float32))
        attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(wide)))
    elif attribute.type == AttributeProto.FLOAT and not attribute.ref_attr_name:
        attribute.f = float(widen(np.asarray(attribute.f, np.float32)))
    elif attribute.name == _TYPED.get(node.op_type) and attribute.i in NARROW:
        attribute.i = TensorProto.DOUBLE


class Evaluator:
    """Runs a float64 model (`to_float64`): onnxruntime where it has the kernels, else the ONNX reference evaluator.

    It is fed in any precision; large weights that stay in files are in `base_dir`.  Raises whatever the reference
    evaluator raises where neither has them."""

    def __init__(self, model: onnx.ModelProto, base_dir: Path | None = None, threads: int = THREADS) -> None:
        self.run: Callable[[Mapping[str, Any]], list[Any]]
        """The outputs for these inputs."""
        lacking = lacks_double(operators(model.graph.node, model.functions))
        try:
            if lacking:
                raise SessionError("no kernel")
            session = Session(model, base_dir, optimize=False, threads=threads)
            self.run = lambda feeds: session.run({name: numerics.widen(value) for name, value in feeds.items()})
        except SessionError:
            self.run = partial(_evaluated, _reference(model, base_dir))


def operators(nodes: Iterable[onnx.NodeProto], functions: Iterable[onnx.FunctionProto]) -> set[str]:
    """The ops that nodes come down to, with their domains if those are not ai.onnx; functions written out."""
    known = {key_of(f): f for f in functions}
    found: set[str] = set()
    seen: set[tuple[str, str, str]] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        key = called_by(node)
        if key in known:
            pending += [] if key in seen else known[key].node
            seen.add(key)
            continue
        found.add(f"{node.domain}.{node.op_type}" if node.domain not in STANDARD else node.op_type)
        if node.op_type == "LayerNormalization" and any(node.output[1:]):
            found.add("LayerNormalization with statistics")
        for _, body in attribute_graphs(node):
            pending += body.node
    return found


def lacks_double(ops: set[str]) -> set[str]:
    """Those that onnxruntime is known not to run in float64, or that it may run by another equation."""
    return ops & (_SINGLE | _CONTRIB)


def lacks_reference(ops: set[str]) -> set[str]:
    """Those that the reference evaluator does not know."""
    return {op for op in ops if "." in op} - _CONTRIB


def evaluate(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """The outputs of `model` for each of `feeds`, by the ONNX reference evaluator: slow, but it has every operator.

    Raises whatever the evaluator raises.
    """
    evaluator = _reference(model)
    return [_evaluated(evaluator, feed) for feed in feeds]


def _evaluated(evaluator: Any, feed: Mapping[str, Any]) -> list[Any]:
    with np.errstate(all="ignore"):
        return list(evaluator.run(None, dict(feed)))


def _reference(model: onnx.ModelProto, base_dir: Path | None = None) -> Any:
    from .reference import Evaluator

    return Evaluator(_readable(model), numerics.widen, base_dir=base_dir)


def _readable(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with overloads of a function as functions of their own, for readers that ignore overloads, and names
    for all outputs, for those that give what is not given the value of an output without a name."""
    owners = (model.graph, *model.functions)
    if not any(f.overload for f in model.functions) and all(all(n.output) for owner in owners for n in owner.node):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for owner in (made.graph, *made.functions):
        for number, node in enumerate(owner.node):
            node.op_type, node.overload = node.op_type + node.overload, ""
            node.output[:] = [name or f"unnamed/{number}/{i}" for i, name in enumerate(node.output)]
    for function in made.functions:
        function.name, function.overload = function.name + function.overload, ""
    return made
