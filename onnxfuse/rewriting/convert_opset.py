"""A model at another opset: onnx's version converter, with everything put back that it drops.

The converter rewrites nodes.  It reads and writes a model through a form of its own, in which names of dimensions of
inputs, metadata, doc strings and the place of external data are lost, so weights are kept from it, and all that is not
a node is taken from the original.
"""

from __future__ import annotations

from onnx import GraphProto, ModelProto, TensorProto, helper

from onnxfuse.errors import UsageError
from onnxfuse.lifting.lift import lift
from onnxfuse.model import ir_version
from onnxfuse.model.graph import opset_of, roots
from onnxfuse.model.onnxruntime_ops import hide, unhide
from onnxfuse.model.op_traits import COERCED
from onnxfuse.model.walk import attribute_graphs, has_bodies
from onnxfuse.targets.runtimes import Runtime
from onnxfuse.terms.term import SMALL

from .inline_functions import inlinable, inlined

KEPT = ("input", "output", "value_info", "sparse_initializer", "quantization_annotation", "metadata_props")
"""Fields of a graph that a conversion leaves alone.  The converter infers shapes and names the dimensions it does not
know, and onnxruntime believes them: it would turn the shape of what was found, (unk__0, unk__1), into (0, -1)."""


def convert(model: ModelProto, opset: int | None) -> ModelProto:
    """The model at another opset, if one is given; the model given is not changed.

    Raises UsageError where onnx has no way there."""
    from onnx import version_converter

    if opset is None or opset_of(model) == opset:
        return model
    model = inlined(model)
    if model.functions:  # the converter drops them
        first = model.functions[0]
        raise UsageError(
            f"the model cannot be converted to opset {opset}: its local function {first.domain}:{first.name} is of an "
            "opset of its own: leave --opset out, or inline it with onnx.inliner"
        )
    try:
        converted: ModelProto = version_converter.convert_version(_prepared(model), opset)
        unhide(converted)
    except Exception as error:  # the converter raises RuntimeError and its own C++ errors
        line = str(error).strip().splitlines()[0]
        raise UsageError(f"the model cannot be converted to opset {opset}: {line}") from error
    _put_back(model, converted)
    return converted


def loadable(model: ModelProto, runtime: Runtime, opset: int | None) -> ModelProto:
    """The model at an opset that an onnxruntime loads, its own if it does; it will be converted to `opset`, if given.

    Raises UsageError where there is no way to one."""
    loads = f"onnxruntime {runtime} loads opset {runtime.opset} at most"
    if opset is not None and opset > runtime.opset:
        raise UsageError(f"--opset {opset}: {loads}")
    if opset is not None or opset_of(model) <= runtime.opset:
        return model
    reason = "the model's local functions, and bodies of control flow before opset 13, cannot be converted"
    if raisable(model):
        try:
            return convert(model, runtime.opset)
        except UsageError as error:
            reason = str(error)
    raise UsageError(f"{loads}, and {reason}: export it at that opset, or leave --runtime away")


def raisable(model: ModelProto) -> bool:
    """Can the opset be raised unasked?  Local functions have opsets of their own, which must be the model's; axes in
    bodies of control flow are not counted from the end before (`_count_from_the_end`)."""
    return inlinable(model) and (opset_of(model) >= 13 or not any(has_bodies(node) for node in model.graph.node))


def _prepared(model: ModelProto) -> ModelProto:
    """What the converter is given."""
    copy = _without_weights(model)
    hide(copy)
    if opset_of(model) < 13 and any(node.op_type in COERCED for node in copy.graph.node):
        _count_from_the_end(model, copy)
    return copy


def _count_from_the_end(model: ModelProto, copy: ModelProto) -> None:
    """Write the last axis as -1, where it is one: the converter knows no ranks and would put Reshapes around it."""
    view = lift(next(roots(model)), None)
    for node in copy.graph.node:
        if node.op_type not in COERCED:
            continue
        axis = next((a for a in node.attribute if a.name == "axis"), None)
        rank = view.term(node.input[0]).rank
        if rank is not None and (1 if axis is None else axis.i) == rank - 1:
            if axis is not None:
                node.attribute.remove(axis)
            node.attribute.append(helper.make_attribute("axis", -1))


def _without_weights(model: ModelProto) -> ModelProto:
    """A copy in which large and sparse initializers are inputs."""
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.initializer[:]
    declared = {info.name for info in copy.graph.input}
    for tensor in model.graph.initializer:
        if _is_large(tensor):
            if tensor.name not in declared:
                copy.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            copy.graph.initializer.append(tensor)
    for sparse in model.graph.sparse_initializer:  # the converter does not know them
        values = sparse.values
        copy.graph.input.append(helper.make_tensor_value_info(values.name, values.data_type, sparse.dims))
    del copy.graph.sparse_initializer[:]
    return copy


def _is_large(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL or tensor.ByteSize() > SMALL


def _put_back(model: ModelProto, converted: ModelProto) -> None:
    _put_back_graph(model.graph, converted.graph)
    for field in ("metadata_props", "training_info"):
        converted.ClearField(field)
        getattr(converted, field).extend(getattr(model, field))
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(converted, field, getattr(model, field))
    version, converted.ir_version = max(converted.ir_version, model.ir_version), model.ir_version
    ir_version.raise_to(converted, version)


def _put_back_graph(original: GraphProto, graph: GraphProto) -> None:
    by_output = {node.output[0]: node for node in original.node if node.output}
    named = {node.name for node in original.node}
    for node in graph.node:
        old = by_output.get(node.output[0]) if node.output else None
        if old is not None:
            del node.metadata_props[:]
            node.metadata_props.extend(old.metadata_props)
            node.name, node.doc_string = old.name, old.doc_string
            bodies = dict(attribute_graphs(node))
            for name, body in attribute_graphs(old):
                _put_back_graph(body, bodies[name])
        elif node.name in named:
            node.name = ""  # one of several in place of one
    for field in KEPT:
        graph.ClearField(field)
        getattr(graph, field).extend(getattr(original, field))
    own = {tensor.name for tensor in original.initializer}
    new = [tensor for tensor in graph.initializer if tensor.name not in own]
    del graph.initializer[:]
    graph.initializer.extend([*original.initializer, *new])
    graph.name, graph.doc_string = original.name, original.doc_string
