"""A Gemm as the product and the sum that it is, so that a region has it as it has a MatMul with a bias:

    Gemm(A, B, C, transB) = A B + C      B transposed first, if it is told to be

Alone it stays a Gemm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import NodeProto, helper

from onnxfuse.model.standard import STANDARD

from .scope import Scope

PLAIN = {"alpha": 1.0, "beta": 1.0, "transA": 0}
"""The attributes with which it is no more than that."""


def written_out(scope: Scope, node: NodeProto, at: str) -> Sequence[NodeProto]:
    """The node as a product with its sum; nothing where it is none, or has factors.  Inner values have names that begin
    with `at`."""
    if node.domain not in STANDARD or node.op_type != "Gemm" or scope.kind(node.input[0]) != "float32":
        return ()
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    turned = bool(given.pop("transB", 0))
    if not any(node.input[2:]):
        given.pop("beta", None)  # of nothing
    if any(PLAIN.get(name) != value for name, value in given.items()):
        return ()
    return tuple(_steps(node, at, turned))


def _steps(node: NodeProto, at: str, turned: bool) -> Iterator[NodeProto]:
    a, b, c = (*node.input, "")[:3]
    if turned:
        yield helper.make_node("Transpose", [b], [f"{at}/turned"], perm=[1, 0])
        b = f"{at}/turned"
    yield helper.make_node("MatMul", [a, b], [f"{at}/product" if c else node.output[0]])
    if c:
        yield helper.make_node("Add", [f"{at}/product", c], node.output)
