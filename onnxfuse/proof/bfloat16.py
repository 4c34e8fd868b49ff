"""bfloat16 where no kernel has it: computed in float32, each result rounded to bfloat16.

onnxruntime's CPU provider has next to no kernels for bfloat16, so that a file in it could not be run, let alone proved.
Its Cast knows the type.  With f a node of bfloat16 tensors, for

    y = f(x)        stands        y = Cast(f(Cast(x, float32)), bfloat16)

which is what kernels on a GPU compute, too: they add in float32 and round what they store.  Values keep their names and
types, so that inputs, outputs and cuts of such a model are those of the original.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, inliner, numpy_helper

from onnxfuse.model.element_flow import UNKNOWN, Flow, Kind, mentions
from onnxfuse.model.walk import has_bodies

_BFLOAT16 = int(TensorProto.BFLOAT16)
_WIDE, _RAW = "/as float32", "/not rounded"


def emulated(model: ModelProto) -> ModelProto:
    """A copy that computes in float32 what the model does in bfloat16; the model itself where it has none of that.

    Functions are written out where they are called, and a model of which onnx cannot do that is itself, too.  External
    data stays outside."""
    if not mentions(model, frozenset({_BFLOAT16})):
        return model
    made = ModelProto()
    try:
        made.CopyFrom(inliner.inline_local_functions(model) if model.functions else model)
    except Exception:  # onnx raises its own C++ errors, and ValueError above 2 GiB
        return model
    flow = Flow(made)
    _graph(made.graph, flow, flow.main)
    return made


def _graph(graph: GraphProto, flow: Flow, known: Mapping[str, Kind]) -> None:
    """Every bfloat16 value of a graph gets a copy in float32, which its nodes read; `known` are the kinds of all."""
    given = [*(info.name for info in graph.input), *(tensor.name for tensor in graph.initializer)]
    nodes = list(_widening(dict.fromkeys(given), known))
    for node in graph.node:
        bodies = list(flow.bodies(node, known)) if has_bodies(node) else []
        for body, inside in bodies:
            _graph(body, flow, inside)
        copy = NodeProto()
        copy.CopyFrom(node)
        nodes.append(copy)
        # What bodies are given and give stays bfloat16.
        if not bodies:
            nodes += _narrow(copy, known)
        nodes += _widening(node.output, known)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)


def _narrow(node: NodeProto, known: Mapping[str, Kind]) -> list[NodeProto]:
    """Let a node compute in float32; the nodes that round what it gives."""
    node.input[:] = [name + _WIDE if _is_bfloat16(name, known) else name for name in node.input]
    for attribute in node.attribute:
        _attribute(attribute)
    rounding = []
    for number, name in enumerate(node.output):
        if _is_bfloat16(name, known):
            node.output[number] = name + _RAW
            rounding.append(helper.make_node("Cast", [name + _RAW], [name], to=_BFLOAT16))
    return rounding


def _attribute(attribute: AttributeProto) -> None:
    if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == _BFLOAT16:
        wide = numpy_helper.to_array(attribute.t).astype(np.float32)
        attribute.t.CopyFrom(numpy_helper.from_array(wide, attribute.t.name))
    elif attribute.name in ("to", "dtype", "output_dtype", "stash_type", "softmax_precision"):
        attribute.i = TensorProto.FLOAT if attribute.i == _BFLOAT16 else attribute.i


def _widening(names: Iterable[str], known: Mapping[str, Kind]) -> list[NodeProto]:
    return [
        helper.make_node("Cast", [name], [name + _WIDE], to=TensorProto.FLOAT)
        for name in names
        if _is_bfloat16(name, known)
    ]


def _is_bfloat16(name: str, known: Mapping[str, Kind]) -> bool:
    return known.get(name, UNKNOWN).dtype == _BFLOAT16
