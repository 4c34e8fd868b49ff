"""Reductions of what is computed of each element, as that and a sum of rows, which a kernel takes in one pass:

    ReduceSumSquare(x) = ReduceSum(x x)      ReduceL2(x) = Sqrt(ReduceSum(x x))
    ReduceL1(x) = ReduceSum(Abs(x))          ReduceLogSum(x) = Log(ReduceSum(x))

In float32 alone: in half precision a runtime's own ops square and add up in float32, and a body would not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from onnxfuse.model.standard import STANDARD

from .scope import Scope

BEFORE = {"ReduceSumSquare": "Mul", "ReduceL2": "Mul", "ReduceL1": "Abs", "ReduceLogSum": ""}
"""What is computed of each element: of itself and itself, of itself, or nothing."""
BEHIND = {"ReduceL2": "Sqrt", "ReduceLogSum": "Log"}


def written_out(scope: Scope, node: NodeProto, at: str) -> Sequence[NodeProto]:
    """The node in ops of elements and one sum; nothing where it is none of these, or not in float32.  Inner values have
    names that begin with `at`."""
    if node.domain not in STANDARD or node.op_type not in BEFORE or scope.kind(node.input[0]) != "float32":
        return ()
    return tuple(_steps(node, at, scope.view.graph.opset))


def _steps(node: NodeProto, at: str, opset: int) -> Iterator[NodeProto]:
    (x, *axes), before, behind = node.input, BEFORE[node.op_type], BEHIND.get(node.op_type, "")
    attributes = list(node.attribute)
    if opset >= 13:  # a sum has axes as an input since then, the others since 18
        for attribute in [attribute for attribute in attributes if attribute.name == "axes"]:
            attributes.remove(attribute)
            axes = [f"{at}/axes"]
            yield helper.make_node("Constant", [], axes, value=numpy_helper.from_array(np.array(attribute.ints)))
    if before:
        yield helper.make_node(before, [x, x] if before == "Mul" else [x], [f"{at}/each"])
    total = NodeProto(op_type="ReduceSum", input=[f"{at}/each" if before else x, *axes], attribute=attributes)
    total.output.append(f"{at}/sum" if behind else node.output[0])
    yield total
    if behind:
        yield helper.make_node(behind, [f"{at}/sum"], node.output)
