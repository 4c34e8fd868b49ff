"""What the numbers of an output are worth: the precision of the coarsest computation on a path to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from onnxfuse.model.element_flow import HALF, UNKNOWN, Flow, mentions


def precisions(model: ModelProto, names: Sequence[str]) -> list[int]:
    """The coarsest element type behind each of these values of the main graph, that of the value itself included.

    0, which is as good as the value's own, where that is not real or not known, and where no type of the model is
    coarser than float32."""
    if not mentions(model, HALF):
        return [0] * len(names)
    kinds = Flow(model).main
    return [kinds.get(name, UNKNOWN).precision for name in names]


def dtype_of(precision: int) -> np.dtype[Any] | None:
    """The NumPy dtype of an element type; None for 0."""
    return helper.tensor_dtype_to_np_dtype(precision) if precision else None
