"""Half precision where no kernel has it, or keeps more: computed in float32, each result rounded to the type it has.

onnxruntime's CPU provider has next to no kernels for bfloat16, so that a file in it could not be run, let alone proved.
Its Cast knows the type.  With f a node of bfloat16 tensors, for

    y = f(x)        stands        y = Cast(f(Cast(x, float32)), bfloat16)

which is what kernels on a GPU compute, too: they add in float32 and round what they store.  Values keep their names and
types, so that inputs, outputs and cuts of such a model are those of the original.

The same says what float16 is on a GPU, where the CPU provider keeps float32 between some nodes: a score of 3 beside a
fill of -65504 is gone there, and what a row weighs that is masked throughout is another mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, inliner, numpy_helper

from onnxfuse.model.element_flow import UNKNOWN, Flow, Kind, mentions
from onnxfuse.model.walk import has_bodies

_BFLOAT16 = int(TensorProto.BFLOAT16)
_WIDE, _RAW = "/as float32", "/not rounded"


def emulated(model: ModelProto, kind: int = _BFLOAT16) -> ModelProto:
    """A copy that computes in float32 what the model does in an element type, bfloat16 or float16, and rounds each
    result; the model itself where it has none of that type.

    Functions are written out where they are called, and a model of which onnx cannot do that is itself, too.  External
    data stays outside."""
    if not mentions(model, frozenset({kind})):
        return model
    made = ModelProto()
    try:
        made.CopyFrom(inliner.inline_local_functions(model) if model.functions else model)
    except Exception:  # onnx raises its own C++ errors, and ValueError above 2 GiB
        return model
    flow = Flow(made)
    _graph(made.graph, flow, flow.main, kind)
    return made


def _graph(graph: GraphProto, flow: Flow, known: Mapping[str, Kind], kind: int) -> None:
    """Every value of this type in a graph gets a copy in float32, which its nodes read; `known` are all kinds."""
    given = [*(info.name for info in graph.input), *(tensor.name for tensor in graph.initializer)]
    nodes = list(_widening(dict.fromkeys(given), known, kind))
    for node in graph.node:
        bodies = list(flow.bodies(node, known)) if has_bodies(node) else []
        for body, inside in bodies:
            _graph(body, flow, inside, kind)
        copy = NodeProto()
        copy.CopyFrom(node)
        nodes.append(copy)
        # What bodies are given and give keeps its type.
        if not bodies:
            nodes += _narrow(copy, known, kind)
        nodes += _widening(node.output, known, kind)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)


def _narrow(node: NodeProto, known: Mapping[str, Kind], kind: int) -> list[NodeProto]:
    """Let a node compute in float32; the nodes that round what it gives."""
    node.input[:] = [name + _WIDE if _is(kind, name, known) else name for name in node.input]
    for attribute in node.attribute:
        _attribute(attribute, kind)
    rounding = []
    for number, name in enumerate(node.output):
        if _is(kind, name, known):
            node.output[number] = name + _RAW
            rounding.append(helper.make_node("Cast", [name + _RAW], [name], to=kind))
    return rounding


def _attribute(attribute: AttributeProto, kind: int) -> None:
    if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == kind:
        wide = numpy_helper.to_array(attribute.t).astype(np.float32)
        attribute.t.CopyFrom(numpy_helper.from_array(wide, attribute.t.name))
    elif attribute.name in ("to", "dtype", "output_dtype", "stash_type", "softmax_precision"):
        attribute.i = TensorProto.FLOAT if attribute.i == kind else attribute.i


def _widening(names: Iterable[str], known: Mapping[str, Kind], kind: int) -> list[NodeProto]:
    return [
        helper.make_node("Cast", [name], [name + _WIDE], to=TensorProto.FLOAT)
        for name in names
        if _is(kind, name, known)
    ]


def _is(kind: int, name: str, known: Mapping[str, Kind]) -> bool:
    return known.get(name, UNKNOWN).dtype == kind
