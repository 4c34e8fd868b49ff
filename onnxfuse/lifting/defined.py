"""What an op of ai.onnx computes by the function body that the standard gives it (onnx.defs), as terms.

The body is read as a model is, by the laws that a model is read by.  So a rule may ask whether what stands in a graph
is the body of an op, whatever is in it: branches, scans, constants.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from onnx import FunctionProto, GraphProto, NodeProto, TypeProto, helper, inliner

from onnxfuse.model.dims import Shape
from onnxfuse.model.graph import DOMAIN
from onnxfuse.model.schema import make_attribute
from onnxfuse.model.standard import schema_of
from onnxfuse.terms.term import Term

from .bodies import results
from .node import lift_node
from .view import View


def outputs_of(view: View, term: Term) -> tuple[Term, ...] | None:
    """The outputs of a term's op, computed by its body at the scope's opset; None if it has none for these inputs."""
    op, opset = term.op.removeprefix("ai.onnx."), view.graph.opset
    schema = schema_of(op, opset)
    if schema is None:
        return None
    given = {f"x{i}": (arg, arg.dtype) for i, arg in enumerate(term.args) if arg.op != "Absent"}
    node = NodeProto(op_type=op, output=[f"y{i}" for i in range(len(schema.outputs))])
    node.input.extend(f"x{i}" if arg.op != "Absent" else "" for i, arg in enumerate(term.args))
    node.attribute.extend(make_attribute(name, value) for name, value in term.attrs)
    types = {name: _type(arg.shape, dtype).SerializeToString() for name, (arg, dtype) in given.items()}
    body = _body(node.SerializeToString(), opset, tuple(types.get(name, b"") for name in node.input))
    found = None if body is None else results(view, body, given, lift_node)
    return None if found is None else tuple(result for result, _ in found)


def _type(shape: Shape | None, dtype: int) -> TypeProto:
    dims = None if shape is None else [dim if isinstance(dim, int) else repr(dim) for dim in shape]
    return helper.make_tensor_type_proto(dtype, dims)


@cache
def _body(text: bytes, opset: int, types: tuple[bytes, ...]) -> GraphProto | None:
    """The body of a node whose inputs have these types, as a graph of its inputs and outputs."""
    node, function = NodeProto.FromString(text), FunctionProto()
    schema: Any = schema_of(node.op_type, opset)  # what its bodies are called is missing from onnx's stubs
    plain = schema.function_opset_versions if schema.has_function else []
    dependent = schema.context_dependent_function_opset_versions if schema.has_context_dependent_function else []
    version = max((v for v in (*plain, *dependent) if v <= opset), default=0)
    if not version:
        return None
    try:
        if version in plain:
            function.ParseFromString(schema.get_function_with_opset_version(version))
        else:
            made = schema.get_context_dependent_function_with_opset_version(version, text, list(types))
            function.ParseFromString(made)
    except Exception:  # onnx raises its own errors where a rank or a type is missing
        return None
    return _called(node, function, opset) if function.node else None


def _called(node: NodeProto, function: FunctionProto, opset: int) -> GraphProto:
    """A graph of a node alone, with what a function does in its place."""
    given = {attribute.name for attribute in node.attribute}
    schema = schema_of(node.op_type, opset)
    assert schema is not None
    standard = (a.default_value for name, a in schema.attributes.items() if name not in given)
    node.attribute.extend(value for value in standard if value.name)
    node.domain = function.domain = DOMAIN
    function.name = node.op_type
    for entry in function.opset_import:  # that of its body, of which the graph's is a later edition
        entry.version = opset
    inputs = [helper.make_empty_tensor_value_info(name) for name in node.input if name]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], node.op_type, inputs, outputs)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=imports)
    return inliner.inline_local_functions(model).graph
