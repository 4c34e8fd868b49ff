"""The table of what is known of the shape and the type of an op's results: each op enters its own rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from onnx import TensorProto

from onnxfuse.model.dims import Shape

from .term import Attributes, Term, Terms

Inferred: TypeAlias = list[tuple[Shape | None, int]]
"""(shape, dtype) per output; shape None where the rank, dtype 0 where the type is unknown."""
Inference: TypeAlias = Callable[[Terms, list[Term], Attributes, int], Inferred]
"""(terms, args, attrs, number of outputs) → what is known of the first outputs."""
BOOL, INT64, FLOAT = int(TensorProto.BOOL), int(TensorProto.INT64), int(TensorProto.FLOAT)

RULES: dict[str, Inference] = {}
"""Op → its rule; ops that are alike by their traits have none."""


def rule(*ops: str) -> Callable[[Inference], Inference]:
    def register(function: Inference) -> Inference:
        for op in ops:
            RULES[op] = function
        return function

    return register


def unknown_rank(terms: Terms, like: Term) -> Shape | None:
    return None if like.shape is None else terms.fresh_shape(len(like.shape))


def normal_axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis
