"""Models that draw random numbers, made to draw the same ones every time, so that there is something to compare.

Each node that draws calls a function that gives numbers of the same range, and knows nothing but their shape and what
the node's output is called.  Fusions leave such a node as it is, so that original and fused model draw alike.  The
numbers are those of a congruential generator over positions, squared (integers, so that onnxruntime's optimizer and
its threads change no digit); what is meant to be normal is uniform, of the same mean and deviation.

The file that is written draws as before.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onnx import ModelProto, NodeProto, OperatorSetIdProto, TensorProto, helper, parser

from onnxfuse.lifting.effects import draws
from onnxfuse.model import ir_version
from onnxfuse.model.graph import Graph, opset_of

from .claim import Claim

ALIKE = "random numbers were drawn alike"
"""What there is to say of such a proof."""
DOMAIN = "onnxfuse.noise"
OLDEST, CAST_LIKE = 12, 15
"""The first opset that has all ops of the functions, and that which has CastLike."""

_UNIFORM = """
    one = Constant <value_int = 1> ()  all = Constant <value_ints = [-1]> ()  first = Constant <value_int = 0> ()
    factor = Constant <value_int = 1103515245> ()  prime = Constant <value_int = 2147483647> ()
    start = Constant <value_int = {start}> ()  steps = Constant <value_int = 65536> ()  width = Cast <to = 1> (steps)
    ones = Expand (one, shape)  row = Reshape (ones, all)  position = CumSum (row, first)
    scaled = Mul (position, factor)  moved = Add (scaled, start)  left = Mod (moved, prime)
    square = Mul (left, left)  mixed = Mod (square, prime)  step = Mod (mixed, steps)
    real = Cast <to = 1> (step)  share = Div (real, width)  u = Reshape {empty} (share, shape)
"""
"""float32 of the int64 `shape`, at least 0 and below 1."""
_LIKE = "shape = Shape (x)"
_FIXED = "shape = Constant <value_ints = [{shape}]> ()"
_NUMBERS = """
    factor_ = Constant <value_float = {factor}> ()  least = Constant <value_float = {least}> ()
    spread = Mul (u, factor_)  result = Add (spread, least)  y = {typed} (result{like})
"""
_CHOSEN = "probability = Cast <to = 1> (x)  is = Less (u, probability)  y = {typed} (is{like})"
_SAMPLED = """
    dims = Shape (x)  zero = Constant <value_ints = [0]> ()  last = Constant <value_ints = [1]> ()
    size = Constant <value_ints = [{size}]> ()  rows = Gather (dims, zero)  shape = Concat <axis = 0> (rows, size)
"""
_CLASSES = """
    classes = Gather (dims, last)  many = Cast <to = 1> (classes)  place = Mul (u, many)  y = {typed} (place{like})
"""
_HALF = "ratio = Constant <value_float = 0.5> ()"
_DROPPED = """
    r = Cast <to = 1> (ratio)  whole = Constant <value_float = 1.0> ()  none = Constant <value_float = 0.0> ()
    infers = Not (train)  stays = GreaterOrEqual (u, r)  mask = Or (infers, stays)
    rest = Sub (whole, r)  inverse = Div (whole, rest)  by = Where (infers, whole, inverse)
    wide = Cast <to = 1> (x)  more = Mul (wide, by)  kept = Where (mask, more, none)  y = {typed} (kept{like})
"""


def steady(model: ModelProto) -> ModelProto:
    """The model itself if it draws no random numbers, else a copy that draws the same ones every time.

    What draws at an opset before `OLDEST`, or a type that is not known, still draws others each time; so does what
    stands in a body or a local function: it may be written out, and has other names then."""
    if not any(map(draws, model.graph.node)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = Graph(copy.graph, copy, opset_of(copy))
    for node in filter(draws, graph.nodes):
        _steady(copy, node, graph)
    copy.opset_import.append(OperatorSetIdProto(domain=DOMAIN, version=1))
    ir_version.raise_to(copy, ir_version.FUNCTIONS)
    return copy


def alike(claim: Claim) -> Claim:
    """The claim of models that draw the same random numbers; itself if the original draws none."""
    original = steady(claim.original)
    if original is claim.original:
        return claim
    return replace(claim, original=original, runnable=lambda model: steady(claim.runnable(model)))


def _steady(model: ModelProto, node: NodeProto, graph: Graph) -> None:
    """Let a node call a function of its own, unless it cannot be said what it gives."""
    given: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    dtype = given.get("dtype", 0) or _default(node, graph)
    if graph.opset < (OLDEST if dtype else CAST_LIKE):
        return
    inputs = [name for name, value in zip(("x", "ratio", "train"), node.input, strict=False) if value]
    outputs = ("y", "mask")[: len(node.output)]
    name = f"{node.op_type}{len(model.functions)}"
    result = {"typed": f"Cast <to = {dtype}>", "like": ""} if dtype else {"typed": "CastLike", "like": ", x"}
    empty = "<allowzero = 1>" if graph.opset >= 14 else ""
    uniform = _UNIFORM.format(start=zlib.crc32(node.output[0].encode()), empty=empty)
    text = f"""<domain: "{DOMAIN}", opset_import: ["": {graph.opset}]>
        {name} ({", ".join(inputs)}) => ({", ".join(outputs)}) {{
            {_body(node, given, uniform, result)} }}"""
    model.functions.append(parser.parse_function(text))
    read = [name for name in node.input if name]
    node.op_type, node.domain = name, DOMAIN
    node.input[:] = read
    del node.attribute[:]


def _body(node: NodeProto, given: Mapping[str, Any], uniform: str, result: Mapping[str, str]) -> str:
    """The nodes of a function; `result` says how its result is cast."""
    match node.op_type:
        case "Dropout":
            return _LIKE + uniform + ("" if node.input[1] else _HALF) + _DROPPED.format(**result)
        case "Bernoulli":
            return _LIKE + uniform + _CHOSEN.format(**result)
        case "Multinomial":
            return _SAMPLED.format(size=given.get("sample_size", 1)) + uniform + _CLASSES.format(**result)
        case "RandomUniform" | "RandomUniformLike":
            least, factor = given.get("low", 0.0), given.get("high", 1.0) - given.get("low", 0.0)
        case _:
            factor = given.get("scale", 1.0) * 12**0.5
            least = given.get("mean", 0.0) - factor / 2
    shape = _LIKE if node.input else _FIXED.format(shape=", ".join(map(str, given["shape"])))
    return shape + uniform + _NUMBERS.format(factor=float(factor), least=float(least), **result)


def _default(node: NodeProto, graph: Graph) -> int:
    """The element type of the first output where no attribute says it; 0 where it is not known."""
    if node.op_type == "Multinomial":
        return TensorProto.INT32
    if not node.input:
        return TensorProto.FLOAT
    tensor = graph.constant_tensor(node.input[0])
    return tensor.data_type if tensor is not None else graph.type_of(node.input[0])[0]
