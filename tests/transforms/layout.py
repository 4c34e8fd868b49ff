"""The same linear algebra and the same views, spelled in another way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from onnx import NodeProto

from tests.transforms.editing import Editor, attributes

Nodes = Sequence[NodeProto] | None


def unpacked_gemm(editor: Editor) -> int:
    """Transpose, MatMul and Add for Gemm."""

    def gemm(editor: Editor, node: NodeProto) -> Nodes:
        given = attributes(node)
        if given.get("alpha", 1) != 1 or given.get("beta", 1) != 1:
            return None
        nodes: list[NodeProto] = []
        operands = list(node.input[:2])
        for i, name in enumerate(("transA", "transB")):
            if given.get(name):
                nodes.append(editor.node("Transpose", [operands[i]], perm=[1, 0]))
                operands[i] = nodes[-1].output[0]
        if len(node.input) < 3 or not node.input[2]:
            return [*nodes, editor.node("MatMul", operands, node.output[0])]
        product = editor.node("MatMul", operands)
        return [*nodes, product, editor.node("Add", [product.output[0], node.input[2]], node.output[0])]

    return editor.rewrite([("Gemm", gemm)])


def packed_gemm(editor: Editor) -> int:
    """Gemm for MatMul and Add of matrices."""

    def addition(editor: Editor, node: NodeProto) -> Nodes:
        for product_name, bias in (node.input, reversed(node.input)):
            product = editor.producers.get(product_name)
            if product is None or product.op_type != "MatMul" or editor.read(bias) is None:
                continue
            ranks = [editor.dims(name) for name in product.input]
            width = editor.dims(bias)
            if all(dims is not None and len(dims) == 2 for dims in ranks) and width is not None and len(width) == 1:
                return [editor.node("Gemm", [*product.input, bias], node.output[0])]
        return None

    return editor.rewrite([("Add", addition)])


def transposed_product(editor: Editor) -> int:
    """(B^T @ A^T)^T for A @ B."""

    def product(editor: Editor, node: NodeProto) -> Nodes:
        perms = []
        for name in (*node.input, node.output[0]):
            dims = editor.dims(name)
            if dims is None or len(dims) < 2:
                return None
            rank = len(dims)
            perms.append([*range(rank - 2), rank - 1, rank - 2])
        a = editor.node("Transpose", [node.input[0]], perm=perms[0])
        b = editor.node("Transpose", [node.input[1]], perm=perms[1])
        transposed = editor.node("MatMul", [b.output[0], a.output[0]])
        return [a, b, transposed, editor.node("Transpose", [transposed.output[0]], node.output[0], perm=perms[2])]

    return editor.rewrite([("MatMul", product)])


def transposed_twice(editor: Editor) -> int:
    """Two Transposes for one."""

    def transpose(editor: Editor, node: NodeProto) -> Nodes:
        dims = editor.dims(node.input[0])
        if dims is None:
            return None
        perm = attributes(node).get("perm", list(range(len(dims)))[::-1])
        first = list(range(len(perm)))
        editor.rng.shuffle(first)
        # second[i] is the place in `first` of what has to come i-th.
        second = [first.index(axis) for axis in perm]
        inner = editor.node("Transpose", [node.input[0]], perm=first)
        return [inner, editor.node("Transpose", [inner.output[0]], node.output[0], perm=second)]

    return editor.rewrite([("Transpose", transpose)])


def reshaped(editor: Editor) -> int:
    """Reshape for Unsqueeze, Squeeze and Flatten, and two Reshapes for one, where at most one dim is not known."""

    def reshape(editor: Editor, node: NodeProto) -> Nodes:
        dims = editor.dims(node.output[0])
        if dims is None or 0 in dims or sum(not isinstance(dim, int) for dim in dims) > 1:
            return None
        target = editor.constant([dim if isinstance(dim, int) else -1 for dim in dims])
        if node.op_type != "Reshape":
            return [editor.node("Reshape", [node.input[0], target], node.output[0])]
        flat = editor.node("Reshape", [node.input[0], editor.constant([-1])])
        return [flat, editor.node("Reshape", [flat.output[0], target], node.output[0])]

    return editor.rewrite([(op, reshape) for op in ("Unsqueeze", "Squeeze", "Flatten", "Reshape")])


def sliced(editor: Editor) -> int:
    """Slices for Split."""

    def split(editor: Editor, node: NodeProto) -> Nodes:
        dims = editor.dims(node.input[0])
        given = attributes(node)
        axis = given.get("axis", 0)
        sizes = given.get("split")
        if len(node.input) > 1:
            read = editor.read(node.input[1])
            sizes = None if read is None else [int(size) for size in read]
        if sizes is None and dims is not None:
            length = dims[axis]
            if isinstance(length, int) and length % len(node.output) == 0:
                sizes = [length // len(node.output)] * len(node.output)
        if sizes is None or editor.opset < 10:
            return None
        stops = list(accumulate(sizes))
        return [
            editor.node("Slice", [node.input[0], *map(editor.constant, ([stop - size], [stop], [axis]))], output)
            for size, stop, output in zip(sizes, stops, node.output, strict=True)
            if output
        ]

    return editor.rewrite([("Split", split)])
