"""What float64 is given: a model, and what it is fed; and what it gives where each result is a little wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, inliner, numpy_helper

from onnxfuse.proof import float64

from .feeds import Feed
from .noise import noisy, parity, shaken
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


def wide_runs(feed: Feed, model: onnx.ModelProto, runs: int) -> Iterator[list[Array]]:
    """What a model gives in float64 in some runs with noise; those of one noisy model share what evaluates it."""
    model, fed = bounded(model), dict[int, list[dict[str, Array]]]()
    for seed in range(runs):
        wide = {name: widened(array) for name, array in shaken(feed, seed).items()}
        fed.setdefault(parity(model, seed), []).append(wide)
    for odd, feeds in fed.items():
        try:
            yield from float64.evaluate(float64.to_float64(noisy(model, odd)), feeds)
        except Exception:  # the reference evaluator raises whatever its operators raise
            continue
