"""The same arithmetic, spelled in another way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto

from tests.transforms.editing import Editor, attributes, replace_nodes

Nodes = Sequence[NodeProto] | None
COMMUTATIVE = ("Add", "Mul", "Max", "Min", "And", "Or", "Equal")


def commuted(editor: Editor) -> int:
    """b + a for a + b, and so on."""

    def swap(editor: Editor, node: NodeProto) -> Nodes:
        node.input[:] = list(node.input)[::-1]
        return [node]

    return editor.rewrite([(op, swap) for op in COMMUTATIVE])


def reassociated(editor: Editor) -> int:
    """a + (b + c) for (a + b) + c, and products the same."""
    count = 0
    for node in editor.graph.node:
        if node.op_type not in ("Add", "Mul") or not editor.is_float(node.output[0]) or not editor.drawn():
            continue
        inner = editor.producers.get(node.input[0])
        if inner is None or inner.op_type != node.op_type or editor.uses[node.input[0]] > 1:
            continue
        later = editor.producers.get(node.input[1])
        if later is not None and editor.read(node.input[1]) is None:
            continue  # c may be computed only after a + b
        a, b, c = *inner.input, node.input[1]
        if later is not None:
            c = editor.constant(editor.read(c), None)
        inner.input[:] = [b, c]
        node.input[:] = [a, inner.output[0]]
        count += 1
    return count


def subtracted(editor: Editor) -> int:
    """a + Neg(b) or a + (-1) * b for a - b, and (-1) * x for Neg(x)."""

    def subtraction(editor: Editor, node: NodeProto) -> Nodes:
        if not editor.is_float(node.output[0]):
            return None
        if editor.drawn():
            negative = editor.node("Neg", [node.input[1]])
        else:
            negative = editor.node("Mul", [node.input[1], editor.number(-1, node.output[0])])
        operands = [node.input[0], negative.output[0]]
        editor.rng.shuffle(operands)
        return [negative, editor.node("Add", operands, node.output[0])]

    def negation(editor: Editor, node: NodeProto) -> Nodes:
        if not editor.is_float(node.output[0]):
            return None
        return [editor.node("Mul", [node.input[0], editor.number(-1, node.output[0])], node.output[0])]

    return editor.rewrite([("Sub", subtraction), ("Neg", negation)])


def divided(editor: Editor) -> int:
    """x * (1 / c) for x / c, x * Reciprocal(y) for x / y, and x / (1 / c) for x * c."""

    def division(editor: Editor, node: NodeProto) -> Nodes:
        if not editor.is_float(node.output[0]):
            return None
        divisor = editor.read(node.input[1])
        if divisor is not None:
            inverse = editor.constant((1 / divisor.astype(np.float64)).astype(divisor.dtype), None)
            return [editor.node("Mul", [node.input[0], inverse], node.output[0])]
        reciprocal = editor.node("Reciprocal", [node.input[1]])
        return [reciprocal, editor.node("Mul", [node.input[0], reciprocal.output[0]], node.output[0])]

    def product(editor: Editor, node: NodeProto) -> Nodes:
        factor = editor.read(node.input[1])
        if factor is None or not editor.is_float(node.output[0]) or factor.size > 1 or not factor.all():
            return None
        inverse = editor.constant((1 / factor.astype(np.float64)).astype(factor.dtype), None)
        return [editor.node("Div", [node.input[0], inverse], node.output[0])]

    return editor.rewrite([("Div", division), ("Mul", product)])


def squared(editor: Editor) -> int:
    """x * x for Pow(x, 2) and the reverse; x * x * x for Pow(x, 3)."""

    def power(editor: Editor, node: NodeProto) -> Nodes:
        exponent = editor.read(node.input[1])
        if exponent is None or exponent.size > 1 or exponent.ndim or exponent.item() not in (2, 3):
            return None
        x, y = node.input[0], node.output[0]
        if exponent.item() == 2:
            return [editor.node("Mul", [x, x], y)]
        square = editor.node("Mul", [x, x])
        return [square, editor.node("Mul", [square.output[0], x], y)]

    def product(editor: Editor, node: NodeProto) -> Nodes:
        if node.input[0] != node.input[1] or not editor.is_float(node.output[0]):
            return None
        return [editor.node("Pow", [node.input[0], editor.number(2, node.output[0])], node.output[0])]

    return editor.rewrite([("Pow", power), ("Mul", product)])


def rooted(editor: Editor) -> int:
    """Pow(x, 0.5) for Sqrt(x) and the reverse."""

    def root(editor: Editor, node: NodeProto) -> Nodes:
        if not editor.is_float(node.input[0]):
            return None
        return [editor.node("Pow", [node.input[0], editor.number(0.5, node.input[0])], node.output[0])]

    def power(editor: Editor, node: NodeProto) -> Nodes:
        exponent = editor.read(node.input[1])
        if exponent is None or exponent.ndim or exponent.item() != 0.5:
            return None
        return [editor.node("Sqrt", [node.input[0]], node.output[0])]

    return editor.rewrite([("Sqrt", root), ("Pow", power)])


def averaged(editor: Editor) -> int:
    """ReduceSum / n for ReduceMean over dims that are known; keepdims by Unsqueeze."""

    def mean(editor: Editor, node: NodeProto) -> Nodes:
        given = attributes(node)
        axes = given.get("axes")
        if axes is None and len(node.input) > 1:
            read = editor.read(node.input[1])
            axes = None if read is None else [int(axis) for axis in read]
        dims = editor.dims(node.input[0])
        if not axes or dims is None or not editor.is_float(node.input[0]):
            return None
        sizes = [dims[axis] for axis in axes]
        if not all(isinstance(size, int) for size in sizes):
            return None
        count = int(np.prod([size for size in sizes if isinstance(size, int)]))
        total = _reduce_sum(editor, node.input[0], axes, given.get("keepdims", 1))
        divisor = editor.number(count, node.input[0])
        return [*total, editor.node("Div", [total[-1].output[0], divisor], node.output[0])]

    return editor.rewrite([("ReduceMean", mean)])


def _reduce_sum(editor: Editor, x: str, axes: list[int], keepdims: int) -> list[NodeProto]:
    if editor.opset < 13:
        return [editor.node("ReduceSum", [x], axes=axes, keepdims=keepdims)]
    if not keepdims or editor.drawn():
        return [editor.node("ReduceSum", [x, editor.constant(axes)], keepdims=keepdims)]
    total = editor.node("ReduceSum", [x, editor.constant(axes)], keepdims=0)
    return [total, editor.node("Unsqueeze", [total.output[0], editor.constant(axes)])]


def exponentiated(editor: Editor) -> int:
    """exp(x - max) / sum for Softmax: without the largest subtracted it would overflow where Softmax does not."""

    def softmax(editor: Editor, node: NodeProto) -> Nodes:
        x, axis = node.input[0], attributes(node).get("axis", -1)
        if editor.opset < 13 or not editor.is_float(x):
            return None
        axes: dict[str, list[int]] = {"axes": [axis]} if editor.opset < 18 else {}
        largest = editor.node("ReduceMax", [x] if axes else [x, editor.constant([axis])], **axes)
        shifted = editor.node("Sub", [x, largest.output[0]])
        power = editor.node("Exp", [shifted.output[0]])
        total = editor.node("ReduceSum", [power.output[0], editor.constant([axis])])
        result = editor.node("Div", [power.output[0], total.output[0]], node.output[0])
        return [largest, shifted, power, total, result]

    return editor.rewrite([("Softmax", softmax)])


def padded(editor: Editor) -> int:
    """x + 0, x * 1 and x - 0 for x."""
    nodes: list[NodeProto] = []
    count = 0
    for node in editor.graph.node:
        for i, name in enumerate(node.input):
            if not editor.is_float(name) or editor.read(name) is not None or editor.rng.random() > editor.chance / 5:
                continue
            op, neutral = editor.rng.choice([("Add", 0), ("Mul", 1), ("Sub", 0), ("Div", 1)])
            nodes.append(editor.node(op, [name, editor.number(neutral, name)]))
            node.input[i] = nodes[-1].output[0]
            count += 1
        nodes.append(node)
    replace_nodes(editor.graph, nodes)
    return count
