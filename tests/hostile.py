"""Models that an attacker, a broken disk or a careless exporter would write: mutants of models/, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper

NUMBERS = (0, -1, 1, 2, 7, -7, 99, 1 << 31, -(1 << 31), (1 << 62), -(1 << 63), (1 << 63) - 1)
NAMES = ("", "x", "\n", "\0", "../x", "/etc/passwd", "a" * 5000, "é", "\x1b[31m", "onnxfuse", "😀", " ")
OPS = ("Add", "MatMul", "Reshape", "Concat", "Slice", "Softmax", "Attention", "Nothing", "If", "Loop", "Constant", "")
Mutation = Callable[[onnx.ModelProto, random.Random], None]


def mutants(folder: Path, count: int, seed: int = 0) -> list[tuple[str, bytes]]:
    """(what was done to which model, its bytes) of `count` mutants of the models in `folder`."""
    rng = random.Random(seed)
    sources = [
        (path.name, path.read_bytes()) for path in sorted(folder.glob("*.onnx")) if path.stat().st_size < 200_000
    ]
    result = []
    while len(result) < count:
        name, data = rng.choice(sources)
        if rng.random() < 0.2:
            result.append((f"bytes of {name}", _flipped(data, rng)))
            continue
        model = onnx.ModelProto.FromString(data)
        chosen = [rng.choice(MUTATIONS) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
        try:
            for mutation in chosen:
                mutation(model, rng)
            data = model.SerializeToString()
        except (IndexError, ValueError):  # nothing to change, or nothing that protobuf lets through
            continue
        result.append((f"{' '.join(m.__name__ for m in chosen)} of {name}", data))
    return result


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        # What is not weights stands at the beginning and at the end of most files.
        at = rng.choice((rng.randrange(len(changed)), rng.randrange(min(4000, len(changed)))))
        changed[at] = rng.randrange(256)
    if rng.random() < 0.2:
        del changed[rng.randrange(len(changed)) :]
    return bytes(changed)


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found, todo = [], [model.graph]
    while todo:
        graph = todo.pop()
        found.append(graph)
        todo += [a.g for node in graph.node for a in node.attribute if a.type == AttributeProto.GRAPH]
    return found


def _node(model: onnx.ModelProto, rng: random.Random) -> NodeProto:
    return rng.choice([node for graph in _graphs(model) for node in graph.node])


def _attribute(model: onnx.ModelProto, rng: random.Random) -> AttributeProto:
    return rng.choice([a for graph in _graphs(model) for node in graph.node for a in node.attribute])


def _tensor(model: onnx.ModelProto, rng: random.Random) -> TensorProto:
    held = [a.t for graph in _graphs(model) for node in graph.node for a in node.attribute if a.HasField("t")]
    return rng.choice([*held, *(tensor for graph in _graphs(model) for tensor in graph.initializer)])


def _set(values: Any, rng: random.Random) -> None:
    values[rng.randrange(len(values))] = rng.choice(NUMBERS)


def number_of_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = rng.choice(
        [a for g in _graphs(model) for n in g.node for a in n.attribute if a.type in (AttributeProto.INT, 7)]
    )
    if attribute.type == AttributeProto.INT:
        attribute.i = rng.choice(NUMBERS)
    elif rng.random() < 0.3:
        attribute.ints.append(rng.choice(NUMBERS))
    elif rng.random() < 0.3:
        del attribute.ints[:]
    else:
        _set(attribute.ints, rng)


def type_of_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = _attribute(model, rng)
    changed = helper.make_attribute(attribute.name, rng.choice((3, 0.5, "text", [1, 2], [0.5], ["a"])))
    attribute.CopyFrom(changed)


def name_of_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    _attribute(model, rng).name = rng.choice((*NAMES, "axis", "perm", "epsilon"))


def no_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice([n for g in _graphs(model) for n in g.node if n.attribute])
    del node.attribute[rng.randrange(len(node.attribute))]


def dims_of_tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensor(model, rng)
    if tensor.dims and rng.random() < 0.7:
        _set(tensor.dims, rng)
    else:
        tensor.dims.append(rng.choice(NUMBERS))


def data_of_tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensor(model, rng)
    tensor.raw_data = rng.choice((b"", tensor.raw_data[:-1], tensor.raw_data + b"\0", bytes(4), b"\xff" * 8))


def numbers_of_tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    """Shapes, axes and bounds: what a graph computes with before it runs."""
    tensors = [a.t for g in _graphs(model) for n in g.node for a in n.attribute if a.HasField("t")]
    tensors += [t for g in _graphs(model) for t in g.initializer]
    tensor = rng.choice([t for t in tensors if t.data_type == TensorProto.INT64 and t.HasField("raw_data")])
    count = len(tensor.raw_data) // 8
    values = [int.from_bytes(tensor.raw_data[8 * i : 8 * i + 8], "little", signed=True) for i in range(count)]
    _set(values, rng)
    tensor.raw_data = b"".join(value.to_bytes(8, "little", signed=True) for value in values)


def type_of_tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    _tensor(model, rng).data_type = rng.choice((0, 1, 6, 7, 8, 9, 10, 16, 17, 99))


def place_of_tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensor(model, rng)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, choices in (("location", NAMES), ("offset", ("0", "-5", "x", "9" * 30)), ("length", ("0", "-1", ""))):
        if rng.random() < 0.8:
            tensor.external_data.add(key=key, value=rng.choice(choices))


def type_of_input(model: onnx.ModelProto, rng: random.Random) -> None:
    info = rng.choice([*model.graph.input, *model.graph.output, *model.graph.value_info])
    kind = info.type.tensor_type
    what = rng.randrange(5)
    if what == 0:
        kind.elem_type = rng.choice((0, 1, 6, 7, 8, 9, 10, 16, 99))
    elif what == 1:
        info.type.Clear()
    elif what == 2:
        kind.shape.dim.add(dim_value=rng.choice(NUMBERS))
    elif kind.shape.dim:
        dim = rng.choice(kind.shape.dim)
        if what == 3:
            dim.dim_value = rng.choice(NUMBERS)
        else:
            dim.dim_param = rng.choice((*NAMES, "n - 9", "n * n", "9 ** 9 ** 9", "n // 0", "-n", "(" * 500))


def operand(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    values = [name for n in model.graph.node for name in n.output]
    node.input[rng.randrange(len(node.input))] = rng.choice([*values, *NAMES])


def operands(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if rng.random() < 0.5:
        del node.input[rng.randrange(len(node.input)) :]
    else:
        node.input.append(rng.choice([name for n in model.graph.node for name in n.output]))


def output(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if rng.random() < 0.5:
        node.output[rng.randrange(len(node.output))] = rng.choice(NAMES)
    elif rng.random() < 0.5:
        del node.output[:]
    else:
        node.output.append("another")


def op(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    node.op_type = rng.choice((*OPS, _node(model, rng).op_type))


def domain(model: onnx.ModelProto, rng: random.Random) -> None:
    _node(model, rng).domain = rng.choice((*NAMES, "ai.onnx", "com.microsoft", "ai.onnx.ml", "onnxfuse"))


def name(model: onnx.ModelProto, rng: random.Random) -> None:
    _node(model, rng).name = rng.choice((*NAMES, _node(model, rng).name))


def no_node(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = rng.choice(_graphs(model))
    del graph.node[rng.randrange(len(graph.node))]


def node_twice(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = rng.choice(_graphs(model))
    graph.node.add().CopyFrom(rng.choice(graph.node))


def order(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def opset(model: onnx.ModelProto, rng: random.Random) -> None:
    rng.choice(model.opset_import).version = rng.choice((0, -1, 1, 6, 9, 12, 17, 21, 24))
    if rng.random() < 0.3:
        model.ir_version = rng.choice((0, 1, 3, 4, 9))


def function(model: onnx.ModelProto, rng: random.Random) -> None:
    """A function by the name of an op in use, perhaps one that calls itself."""
    called = _node(model, rng)
    called.domain = "d"
    inner = helper.make_node(rng.choice(("Relu", called.op_type)), ["a"], ["b"], domain=rng.choice(("", "d")))
    model.functions.append(
        helper.make_function("d", called.op_type, ["a"], ["b"], [inner], [helper.make_opsetid("", 17)])
    )
    model.opset_import.add(domain="d", version=1)


def body(model: onnx.ModelProto, rng: random.Random) -> None:
    """The model's own graph, or one without a node, as the body of an If or a Loop in it."""
    graph = onnx.GraphProto(name="body")
    if rng.random() < 0.5:
        graph.CopyFrom(model.graph)
    node = rng.choice([helper.make_node("If", ["c"], ["d"]), helper.make_node("Loop", ["", "c"], ["d"])])
    for key in ("then_branch", "else_branch") if node.op_type == "If" else ("body",):
        node.attribute.append(helper.make_attribute(key, graph))
    node.input[-1] = rng.choice([n for made in model.graph.node for n in made.output])
    model.graph.node.append(node)


MUTATIONS: tuple[Mutation, ...] = (
    number_of_attribute,
    number_of_attribute,
    type_of_attribute,
    name_of_attribute,
    no_attribute,
    dims_of_tensor,
    data_of_tensor,
    numbers_of_tensor,
    numbers_of_tensor,
    type_of_tensor,
    place_of_tensor,
    type_of_input,
    type_of_input,
    operand,
    operands,
    output,
    op,
    domain,
    name,
    no_node,
    node_twice,
    order,
    opset,
    function,
    body,
)
