"""The same nodes, held together in another way: names, order, constants, no-ops, functions, types, opsets."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, inliner, numpy_helper, shape_inference

from onnxfuse.model.walk import attribute_graphs, has_bodies
from tests.transforms.editing import Array, Editor, captured, replace_nodes


def identities(editor: Editor) -> int:
    """An Identity before inputs of nodes."""
    return _insert(editor, lambda name: [editor.node("Identity", [name])], floats_only=False)


def casts(editor: Editor) -> int:
    """A Cast to the type that the value has, or to float64 and back, before inputs of nodes."""

    def cast(name: str) -> list[NodeProto]:
        own = editor.values[name].dtype
        if editor.drawn() or not own:
            return [editor.node("Cast", [name], to=own)]
        wide = editor.node("Cast", [name], to=TensorProto.DOUBLE)
        return [wide, editor.node("Cast", [wide.output[0]], to=own)]

    return _insert(editor, cast, floats_only=True)


def _insert(editor: Editor, make: Callable[[str], list[NodeProto]], floats_only: bool) -> int:
    nodes: list[NodeProto] = []
    count = 0
    for node in editor.graph.node:
        # Scales and sizes of Resize must be constants.
        for i, name in enumerate(node.input if node.op_type != "Resize" else ()):
            known = editor.is_float(name) or (not floats_only and name in editor.producers and name in editor.values)
            if known and editor.rng.random() < editor.chance / 2:
                nodes += make(name)
                node.input[i] = nodes[-1].output[0]
                count += 1
        nodes.append(node)
    replace_nodes(editor.graph, nodes)
    return count


def renamed(editor: Editor) -> int:
    """Other names for nodes and for values but the graph's inputs and outputs."""
    graph = editor.graph
    kept = {value.name for value in (*graph.input, *graph.output)} | captured(editor.model)
    names = dict[str, str]()

    def other(name: str) -> str:
        return name if not name or name in kept else names.setdefault(name, f"v{len(names)}")

    for node in graph.node:
        node.name = f"n{editor.rng.randrange(1 << 40)}"
        node.input[:] = [other(name) for name in node.input]
        node.output[:] = [other(name) for name in node.output]
    for tensor in graph.initializer:
        tensor.name = other(tensor.name)
    for info in graph.value_info:
        info.name = other(info.name)
    return len(names)


def shuffled(editor: Editor) -> int:
    """Another topological order."""
    waiting = list(editor.graph.node)
    editor.rng.shuffle(waiting)
    produced = set(editor.producers)
    order: list[NodeProto] = []
    while waiting:
        later = []
        for node in waiting:
            needed = {*node.input, *_body_reads(node)} & produced
            if needed or editor.rng.random() < 0.1:
                later.append(node)
            else:
                order.append(node)
                produced -= set(node.output)
        waiting = later
    replace_nodes(editor.graph, order)
    return len(order)


def _body_reads(node: NodeProto) -> set[str]:
    reads = set[str]()
    for _, body in attribute_graphs(node):
        for inner in body.node:
            reads |= {*inner.input} | _body_reads(inner)
        reads |= {output.name for output in body.output}
    return reads


def constant_nodes(editor: Editor) -> int:
    """Constant nodes, by every attribute they may have, for initializers."""
    constants, kept = [], []
    signature = {value.name for value in editor.graph.input}
    for tensor in editor.graph.initializer:
        if tensor.name in signature or not editor.drawn():
            kept.append(tensor)
        else:
            constants.append(_constant_node(editor, tensor))
    del editor.graph.initializer[:]
    editor.graph.initializer.extend(kept)
    replace_nodes(editor.graph, [*constants, *editor.graph.node])
    return len(constants)


def _constant_node(editor: Editor, tensor: TensorProto) -> NodeProto:
    value: Array = numpy_helper.to_array(tensor)
    kinds = {TensorProto.FLOAT: "float", TensorProto.INT64: "int"}
    kind = kinds.get(tensor.data_type)
    given: dict[str, Any] = {"value": tensor}
    if editor.opset >= 12 and kind is not None and value.ndim < 2 and 0 < value.size < 64:
        given = {f"value_{kind}s" if value.ndim else f"value_{kind}": value.tolist()}
    return helper.make_node("Constant", [], [tensor.name], **given)


def initializers(editor: Editor) -> int:
    """Initializers for Constant nodes."""
    nodes, count = [], 0
    for node in editor.graph.node:
        value = editor.read(node.output[0]) if node.op_type == "Constant" else None
        if value is None or not editor.drawn():
            nodes.append(node)
            continue
        count += 1
        editor.graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
    replace_nodes(editor.graph, nodes)
    return count


def copied_constants(editor: Editor) -> int:
    """An initializer of its own for each use."""
    tensors = {tensor.name: tensor for tensor in editor.graph.initializer}
    count = 0
    for node in editor.graph.node:
        for i, name in enumerate(node.input):
            if name in tensors and editor.drawn():
                copy = editor.graph.initializer.add()
                copy.CopyFrom(tensors[name])
                copy.name = node.input[i] = editor.fresh(name)
                count += 1
    return count


def repeated(editor: Editor) -> int:
    """A node of its own for each use of a value."""
    nodes: list[NodeProto] = []
    count = 0
    made = set[str]()
    for node in editor.graph.node:
        for i, name in enumerate(node.input):
            producer = editor.producers.get(name)
            if producer is None or name in made or editor.uses[name] < 2 or editor.rng.random() > editor.chance / 2:
                continue
            if producer.op_type in ("Dropout", "Constant") or len(producer.output) > 1 or has_bodies(producer):
                continue
            again = NodeProto()
            again.CopyFrom(producer)
            again.name = ""
            again.output[0] = node.input[i] = editor.fresh(name)
            made.add(again.output[0])
            nodes.append(again)
            count += 1
        nodes.append(node)
    replace_nodes(editor.graph, nodes)
    return count


def old_signature(editor: Editor) -> int:
    """Every initializer is an input too, as IR version 3 demands."""
    if editor.opset > 8:  # IR version 3 ends there, but runtimes do not mind
        editor.model.ir_version = 3
    known = {value.name for value in editor.graph.input}
    missing = [tensor for tensor in editor.graph.initializer if tensor.name not in known]
    for tensor in missing:
        editor.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return len(missing)


def outlined(editor: Editor) -> int:
    """A run of nodes as a local function."""
    nodes = list(editor.graph.node)
    length = max(2, int(len(nodes) * editor.rng.uniform(0.1, 0.6)))
    start = editor.rng.randrange(max(1, len(nodes) - length))
    body = nodes[start : start + length]
    read = {name for node in body for name in node.input}
    inside = {n.output[0] for n in nodes[:start] if n.op_type == "Constant"} & read
    body = [node for node in nodes[:start] if node.output[0] in inside] + body
    small = [tensor for tensor in editor.graph.initializer if tensor.name in read and np.prod(tensor.dims) <= 16]
    body = [*(helper.make_node("Constant", [], [t.name], value=t) for t in small), *body]
    if any(has_bodies(node) for node in body):
        return 0
    constants = inside | {tensor.name for tensor in small}
    made = {name for node in body for name in node.output}
    inputs = sorted({name for node in body for name in node.input if name} - made)
    rest = [*nodes[:start], *nodes[start + length :]]
    used = {name for node in rest for name in (*node.input, *_body_reads(node))}
    used |= {output.name for output in editor.graph.output}
    outputs = sorted((made - constants) & used)
    if not outputs:
        return 0
    function = helper.make_function("local", "part", inputs, outputs, body, editor.model.opset_import)
    editor.model.functions.append(function)
    editor.model.opset_import.append(helper.make_opsetid("local", 1))
    call = helper.make_node("part", inputs, outputs, domain="local")
    replace_nodes(editor.graph, [*nodes[:start], call, *nodes[start + length :]])
    kept = [info for info in editor.graph.value_info if info.name not in made - constants]
    del editor.graph.value_info[:]
    editor.graph.value_info.extend(kept)
    editor.model.ir_version = max(editor.model.ir_version, 8)
    return length


def expanded(editor: Editor) -> int:
    """The bodies that the ONNX standard gives for its ops, in place of those ops."""
    wanted = [(node.domain, node.op_type) for node in editor.graph.node if _has_body(node, editor.opset)]
    if not wanted:
        return 0
    typed = shape_inference.infer_shapes(editor.model)
    for tensor in typed.graph.initializer:
        typed.graph.value_info.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    editor.model.CopyFrom(inliner.inline_selected_functions(typed, wanted, inline_schema_functions=True))
    return len(wanted)


FUSABLE = frozenset("LayerNormalization RMSNormalization Gelu Softmax LogSoftmax HardSwish Mish Swish".split())


def _has_body(node: NodeProto, opset: int) -> bool:
    return node.op_type in FUSABLE and node.domain == ""


def untyped(editor: Editor) -> int:
    """No types of intermediates."""
    count = len(editor.graph.value_info)
    del editor.graph.value_info[:]
    return count


def symbolic(editor: Editor) -> int:
    """Inputs and outputs with nameless dims, and no types of intermediates."""
    for value in (*editor.graph.input, *editor.graph.output):
        if value.type.WhichOneof("value") == "tensor_type":
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
    return 1 + untyped(editor)


def unranked(editor: Editor) -> int:
    """Inputs and outputs of unknown rank, and no types of intermediates."""
    for value in (*editor.graph.input, *editor.graph.output):
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")
    return 1 + untyped(editor)


def seeded(seed: int) -> random.Random:
    return random.Random(seed)
