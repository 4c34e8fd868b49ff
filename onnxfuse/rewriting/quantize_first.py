"""What one scale is for is quantized before its rows are merged.

    DynamicQuantizeLinear(merge(x)) = merge(q), s, z    with q, s, z = DynamicQuantizeLinear(x)

The law is one of an op with several outputs, which the normal form has none of; it knows the rest: a product of bytes
takes the merge behind itself, where another view undoes it.  Other views would only stand between a quantizer and the
product that it is for, which onnxruntime has one kernel for (DynamicQuantizeMatMul).
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.lifting.view import View
from onnxfuse.model.graph import Graph, Names
from onnxfuse.model.op_traits import RESHAPES
from onnxfuse.model.standard import STANDARD
from onnxfuse.terms.normal.axes import merged_rows


def quantize_first(lifted: Lifted) -> ModelProto:
    """The model with each view that merges rows behind its quantizer; the model itself where there is none.

    A view that something else reads as well stays where it is."""
    places = [_places(view) for view in lifted.views]
    if not any(places):
        return lifted.model
    model, views = lifted.copy()
    graphs = [view.graph for view in views]
    names = Names.of(graphs)
    for graph, found in zip(graphs, places, strict=True):
        for place, index in found:
            _exchange(graph, place, index, names)
    return model


def _places(view: View) -> list[tuple[int, int]]:
    """The positions of views and of the quantizers that alone read them."""
    graph, found = view.graph, []
    for index, node in enumerate(graph.nodes):
        if node.op_type != "DynamicQuantizeLinear" or node.domain not in STANDARD:
            continue
        place = graph.producer.get(node.input[0], -1)
        if place < 0 or graph.uses.get(node.input[0]) != 1 or not _is_view(graph.nodes[place]):
            continue
        before, after = (view.term(graph.nodes[i].input[0]).shape for i in (place, index))
        if before and after and merged_rows(before, after):
            found.append((place, index))
    return found


def _is_view(node: NodeProto) -> bool:
    return node.op_type in RESHAPES and node.domain in STANDARD


def _exchange(graph: Graph, place: int, index: int, names: Names) -> None:
    """Write the quantizer where the view stands, and the view where the quantizer stood."""
    view, quantizer = _copy(graph.nodes[place]), _copy(graph.nodes[index])
    seen, whole = view.output[0], view.input[0]
    view.output[0], quantizer.input[0] = quantizer.output[0], whole
    quantizer.output[0] = view.input[0] = names.unique(f"{whole}_quantized")
    graph.nodes[place].CopyFrom(quantizer)
    graph.nodes[index].CopyFrom(view)
    declared = graph.proto.value_info
    for position in reversed(range(len(declared))):
        if declared[position].name == seen:
            del declared[position]


def _copy(node: NodeProto) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    return made
