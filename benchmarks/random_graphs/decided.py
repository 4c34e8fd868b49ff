"""Where a condition is decided by numbers out of range: an If that takes one branch in the model's own type, and the
other in float64, says of neither that it is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, inliner

from onnxfuse.model.walk import attribute_graphs, nodes
from onnxfuse.proof import float64
from onnxfuse.runtime.quiet import Session


def undecided(model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]]) -> set[str]:
    """The results of the graph that depend on such a condition; none where it cannot be told."""
    plain = onnx.shape_inference.infer_shapes(inliner.inline_local_functions(model))
    made = {name for node in plain.graph.node for name in node.output}
    conditions = sorted({node.input[0] for node in plain.graph.node if node.op_type == "If"} & made)
    if not conditions:
        return set()
    del plain.graph.output[:]
    plain.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.BOOL, None) for name in conditions)
    try:
        own = Session(plain, optimize=False, threads=1).run(inputs)
        wide = {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in inputs.items()}
        exact = float64.evaluate(float64.to_float64(plain), [wide])[0]
    except Exception:  # the reference evaluator raises whatever its operators raise
        return set()
    differ = {name for name, a, b in zip(conditions, own, exact, strict=True) if not np.array_equal(a, b)}
    return _behind(plain, differ)


def _behind(model: onnx.ModelProto, conditions: set[str]) -> set[str]:
    """What an If with one of the conditions gives, and all that is computed of that."""
    found = set[str]()
    for node in model.graph.node:
        bodies = [body for _, body in attribute_graphs(node)]
        read = {*node.input, *(name for inner in nodes(*bodies) for name in inner.input)}
        read |= {output.name for body in bodies for output in body.output}
        if (node.op_type == "If" and node.input[0] in conditions) or read & found:
            found |= set(node.output)
    return found
