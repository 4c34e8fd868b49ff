"""Batch normalization by statistics that are known, as the loop over elements that it is:

    Y = (X - mean) * (scale / Sqrt(var + epsilon)) + B      each of the four along the second axis

In training steps alone: elsewhere it is part of a convolution's weight, or a kernel that every runtime has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from onnxfuse.language.functions import CAST_LIKE
from onnxfuse.training.recompute import by_known_statistics

from .scope import Scope


def written_out(scope: Scope, node: NodeProto, at: str) -> Sequence[NodeProto]:
    """The node in ops of elements; nothing where it is none of these, or not in float32.  Inner values have
    names that begin with `at`."""
    if not scope.forward or not by_known_statistics(node) or scope.view.graph.opset < CAST_LIKE:
        return ()
    shape = scope.term(node.input[0]).shape
    if shape is None or len(shape) < 2 or any(scope.kind(name) != "float32" for name in node.input):
        return ()
    epsilon = next((attribute.f for attribute in node.attribute if attribute.name == "epsilon"), 1e-5)
    return tuple(_steps(node, at, len(shape), epsilon))


def _steps(node: NodeProto, at: str, rank: int, epsilon: float) -> Iterator[NodeProto]:
    x, scale, shift, mean, variance = node.input
    above, deviation, factor = f"{at}/above", f"{at}/deviation", f"{at}/factor"
    # In the type of the variance, whatever that becomes: of another operand, the result would rest on that as well.
    number = numpy_helper.from_array(np.array(epsilon, np.float64))
    yield helper.make_node("Constant", [], [f"{at}/number"], value=number)
    yield helper.make_node("CastLike", [f"{at}/number", variance], [f"{at}/epsilon"])
    yield helper.make_node("Add", [variance, f"{at}/epsilon"], [above])
    yield helper.make_node("Sqrt", [above], [deviation])
    yield helper.make_node("Div", [scale, deviation], [factor])
    wide = {name: name if rank == 2 else f"{at}/wide{i}" for i, name in enumerate((mean, factor, shift))}
    if rank > 2:
        axes = numpy_helper.from_array(np.arange(1, rank - 1))
        yield helper.make_node("Constant", [], [f"{at}/axes"], value=axes)
        for name, given in wide.items():
            yield helper.make_node("Unsqueeze", [name, f"{at}/axes"], [given])
    yield helper.make_node("Sub", [x, wide[mean]], [f"{at}/centered"])
    yield helper.make_node("Mul", [f"{at}/centered", wide[factor]], [f"{at}/scaled"])
    yield helper.make_node("Add", [f"{at}/scaled", wide[shift]], list(node.output))
