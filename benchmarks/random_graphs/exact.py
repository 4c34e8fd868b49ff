"""What float64 is given: a model, and what it is fed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, inliner, numpy_helper

from .readings import LARGEST

Array = NDArray[Any]


def bounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the bounds that Clip has where none are given: of infinity it makes the largest number."""
    plain = onnx.shape_inference.infer_shapes(inliner.inline_local_functions(model))
    infos = (*plain.graph.input, *plain.graph.value_info, *plain.graph.output)
    kinds = {info.name: info.type.tensor_type.elem_type for info in infos}
    for node in plain.graph.node:
        if node.op_type == "Clip" and not node.attribute and kinds.get(node.input[0]) in LARGEST:
            kind, given = kinds[node.input[0]], [*node.input[1:], "", ""]
            for place, sign in enumerate((-1, 1)):
                if not given[place]:
                    given[place] = f"{node.output[0]}/bound_{place}"
                    bound = np.array(sign * LARGEST[kind], helper.tensor_dtype_to_np_dtype(kind))
                    plain.graph.initializer.append(numpy_helper.from_array(bound, given[place]))
            node.input[1:] = given[:2]
    return plain


def widened(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
