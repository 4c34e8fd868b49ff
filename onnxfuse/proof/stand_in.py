"""A model that the proof can run on a CPU: ops that onnxruntime has on a GPU alone call a function with their meaning.

The file that is written has the ops.  Each has a definition among the rules that lead to it, in the same equations that
define a fused op, and the proof runs those in its place.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, helper

from onnxfuse.language.bodies import Use, real_dtype
from onnxfuse.language.catalogue import Catalogue
from onnxfuse.language.functions import Functions
from onnxfuse.model.graph import DOMAIN as OURS
from onnxfuse.model.graph import Graph, roots
from onnxfuse.model.walk import nodes_of
from onnxfuse.rewriting.assemble import import_domains
from onnxfuse.targets.contrib import DOMAIN, ON_GPU_ALONE


def runnable(model: ModelProto, catalogue: Catalogue) -> ModelProto:
    """The model itself if a CPU has all its ops, else a copy in which functions stand for those that it has not."""
    if not any(_alone(node) for node in nodes_of(model)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    functions = Functions(catalogue, {f.name: f for f in copy.functions if f.domain == OURS}, generic=False)
    used = set()
    for root in roots(copy):
        for graph in root.scopes():
            for node in graph.nodes:
                if _alone(node):
                    used.add(_replace(node, graph, functions))
                    if root.is_function:
                        import_domains(root.proto, [node])
    functions.attach(copy, used)
    return copy


def _alone(node: NodeProto) -> bool:
    return node.domain == DOMAIN and node.op_type in ON_GPU_ALONE


def _replace(node: NodeProto, graph: Graph, functions: Functions) -> str:
    """Let a node call the function of its op's definition; the function's name."""
    types = [_known(graph, name) if name else (0, None) for name in node.input]
    use = Use(
        node.op_type,
        tuple(bool(name) for name in node.input),
        tuple(sorted((a.name, helper.get_attribute_value(a)) for a in node.attribute)),
        tuple(bool(name) for name in node.output),
        real_dtype([types[0][0]]),
        tuple(shape for _, shape in types),
        tuple(False for _ in types),
    )
    function = functions.of(use, graph.opset)
    node.op_type, node.domain = function.name, OURS
    node.input[:] = [name for name in node.input if name]
    node.output[:] = [name for name in node.output if name]
    return node.op_type


def _known(graph: Graph, name: str) -> tuple[int, tuple[int | str, ...] | None]:
    """The element type and the shape of a value, unknown sizes by name."""
    tensor = graph.constant_tensor(name)
    if tensor is not None:
        return tensor.data_type, tuple(tensor.dims)
    dtype, shape = graph.type_of(name)
    return dtype, None if shape is None else tuple(d if isinstance(d, int) else str(d) for d in shape)
