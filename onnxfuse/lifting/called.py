"""What the outputs of a region are, which no rule defines: the types that its function's body gives them."""

from __future__ import annotations

from onnx import GraphProto, NodeProto, helper

from onnxfuse.model.dims import Shape

from .bodies import LiftNode, results
from .view import View


def types_of(view: View, node: NodeProto, lift_node: LiftNode) -> list[tuple[int, Shape | None]] | None:
    """The element type and the shape of each output of a call, as its body has them of what it is given; None if there
    is no body, or something in it that no term shows."""
    functions = view.graph.model.functions
    function = next((f for f in functions if (f.domain, f.name) == (node.domain, node.op_type)), None)
    if function is None or len(function.input) != len(node.input):
        return None
    inputs = [helper.make_empty_tensor_value_info(name) for name in function.input]
    outputs = [helper.make_empty_tensor_value_info(name) for name in function.output]
    body: GraphProto = helper.make_graph(list(function.node), function.name, inputs, outputs)
    given = {own: (view.term(name), view.dtypes[name]) for own, name in zip(function.input, node.input, strict=True)}
    found = results(view, body, given, lift_node)
    return None if found is None else [(dtype, term.shape) for term, dtype in found]
