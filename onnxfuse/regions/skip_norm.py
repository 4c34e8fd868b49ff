"""com.microsoft SkipLayerNormalization and SkipSimplifiedLayerNormalization as what they compute of rows, so that a
kernel takes in the product before them: onnxruntime's optimizers write them.  Where no kernel does, the node stays.

    sum = input + skip + bias
    Y   = LayerNormalization(sum, gamma, beta)    or    sum / Sqrt(mean(sum²) + epsilon) * gamma

What is in half precision is normalized in float32, and rounded at the end alone, as by onnxruntime.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxfuse.targets.contrib import DOMAIN as CONTRIB
from onnxfuse.terms.term import HALF

from .group_norm import AXES_INPUT
from .scope import Scope

LAYER, ROOT = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"
ONE_OP = 17
"""The opset from which on ai.onnx has LayerNormalization."""
_EPSILON = 1e-12
"""Where the node says none (onnxruntime, docs/ContribOperators.md)."""


def written_out(scope: Scope, node: NodeProto, at: str) -> Sequence[NodeProto]:
    """The node in sums and a norm of rows; nothing where it is neither of these, or its statistics are asked for.
    Inner values have names that begin with `at`."""
    opset = scope.view.graph.opset
    if node.domain != CONTRIB or node.op_type not in (LAYER, ROOT) or opset < ONE_OP:
        return ()
    kind = scope.dtype(node.input[0])
    if kind not in (TensorProto.FLOAT, *HALF) or any(scope.view.graph.uses.get(name) for name in node.output[1:3]):
        return ()
    given = [*node.input, "", ""]
    x, skip, gamma = given[:3]
    beta, bias = (given[3], given[4]) if node.op_type == LAYER else ("", given[3])
    shown = node.output[3] if len(node.output) > 3 else ""
    total = shown or f"{at}/sum"
    first = f"{at}/skipped" if bias else total
    steps = [helper.make_node("Add", [x, skip], [first])]
    steps += [helper.make_node("Add", [first, bias], [total])] if bias else []
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), _EPSILON)
    if node.op_type == LAYER:
        scales = [gamma, beta] if beta else [gamma]
        norm = helper.make_node("LayerNormalization", [total, *scales], [node.output[0]], epsilon=epsilon)
        return (*steps, norm)
    return (*steps, *_by_root(total, gamma, node.output[0], at, opset, kind, epsilon))


def _by_root(
    total: str, gamma: str, output: str, at: str, opset: int, kind: int, epsilon: float
) -> Iterator[NodeProto]:
    def constant(name: str, value: object, dtype: type[np.generic]) -> NodeProto:
        return helper.make_node("Constant", [], [f"{at}/{name}"], value=numpy_helper.from_array(np.array(value, dtype)))

    def step(op: str, inputs: Sequence[str], name: str, **attributes: Any) -> NodeProto:
        return helper.make_node(op, inputs, [f"{at}/{name}"], **attributes)

    result = output
    if kind in HALF:
        yield step("Cast", [total], "real", to=TensorProto.FLOAT)
        yield step("Cast", [gamma], "scale", to=TensorProto.FLOAT)
        total, gamma, result = f"{at}/real", f"{at}/scale", f"{at}/result"
    yield step("Mul", [total, total], "squares")
    if opset < AXES_INPUT:
        yield step("ReduceMean", [f"{at}/squares"], "mean", axes=[-1])
    else:
        yield constant("last", [-1], np.int64)
        yield step("ReduceMean", [f"{at}/squares", f"{at}/last"], "mean")
    yield constant("epsilon", epsilon, np.float32)
    yield step("Add", [f"{at}/mean", f"{at}/epsilon"], "above")
    yield step("Sqrt", [f"{at}/above"], "root")
    yield step("Div", [total, f"{at}/root"], "rows")
    yield helper.make_node("Mul", [f"{at}/rows", gamma], [result])
    if kind in HALF:
        yield helper.make_node("Cast", [result], [output], to=kind)
