"""The gradients among what is checked, and batch normalization in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from tests import attention_cases, attention_grad_cases

from . import regions
from .attended import ATTENTION_GRADIENTS
from .case import DTYPES, Case, Inputs, Maker, draw, drawn, text


def losses() -> Iterator[Case]:
    """The gradient of cross-entropy over labels, some of which are ignored."""
    for dtype in DTYPES:
        for shape in ((30, 7), (65, 1000), (64, 50257)):
            make, label = partial(labelled, dtype, shape), f"{dtype} {text(shape)}"
            for op in ("SoftmaxCrossEntropyLossGrad", "SoftmaxCrossEntropyGrad"):
                yield Case(op, label, make, {"ignore_index": -100}, size=int(np.prod(shape)))


def labelled(dtype: np.dtype[Any], shape: tuple[int, int], rng: np.random.Generator) -> Inputs:
    """A number, rows of logarithms and their labels."""
    label = rng.integers(0, shape[1], shape[0])
    label[1::3] = -100
    return [draw(rng, (1,), dtype), draw(rng, shape, dtype, mean=-3.0), label]


def group_norms() -> Iterator[Case]:
    """The gradients of group normalization: few channels and many, of few positions and of many."""
    for dtype in DTYPES:
        for shape, groups in (((2, 6, 20), 3), ((3, 4, 5, 7), 1), ((2, 320, 32, 32), 32), ((1, 8, 9001), 8)):
            make, size = drawn(dtype, shape, shape, shape[1:2]), int(np.prod(shape))
            label = f"{dtype} {text(shape)} of {groups}"
            yield Case("GroupNormalizationGrad", label, make, {"num_groups": groups}, size=size)


def embedding_gradients() -> Iterator[Case]:
    """The gradient of an embedding of few rows and of many, some of whose indices are padding or of none."""
    for dtype in DTYPES:
        for tokens, columns, rows in ((30, 7, 5), (300, 64, 40), (1500, 33, 700), (4096, 768, 50257), (3000, 2304, 3)):
            make, size = partial(tokens_of, dtype, tokens, columns, rows), tokens * columns
            attributes = {"num_embeddings": rows, "padding_idx": 1}
            yield Case("EmbeddingGrad", f"{dtype} {tokens}x{columns} of {rows}", make, attributes, size=size)


def tokens_of(dtype: np.dtype[Any], tokens: int, columns: int, rows: int, rng: np.random.Generator) -> Inputs:
    """Gradients of rows, and which rows these were."""
    indices = rng.integers(0, rows, tokens)
    indices[3::17], indices[5::23] = -4, rows
    return [draw(rng, (tokens, columns), dtype), indices]


def attention_gradients() -> Iterator[Case]:
    """The gradients of attention in its forms, in each element type."""
    for dtype in DTYPES:
        for name, case in ATTENTION_GRADIENTS.items():
            size = case.batches * max(case.heads * case.queries, case.kv_heads * case.keys) * case.head
            make = partial(differentiated, case, dtype)
            yield Case("AttentionGrad", f"{dtype} {name}", make, attention_grad_cases.node(case), size=size)


def differentiated(case: attention_cases.Case, dtype: np.dtype[Any], rng: np.random.Generator) -> Inputs:
    """The inputs of a call of attention's gradients, which draws its own."""
    return attention_grad_cases.inputs(case, dtype)


def batch_norms() -> Iterator[Case]:
    """Forwards and backwards: channels that a warp has, that a block has, and longer ones."""
    for dtype in DTYPES:
        kind = {"dtype": dtype.name}
        for shape in ((3, 10, 5, 7), (4, 64, 6, 8), (2, 300, 33, 31), (5, 3, 120, 121), (32, 64, 56, 56)):
            each, label, size = (shape[1], 1, 1), f"{dtype} {text(shape)}", int(np.prod(shape))
            yield Case(regions.OF_BATCH, label, drawn(dtype, shape, each, each), kind, size=size)
            make = gradients(dtype, (shape, shape, each, each))
            yield Case(regions.BATCH_GRADIENTS, label, make, kind, size=size)


def gradients(dtype: np.dtype[Any], shapes: Sequence[Sequence[int]]) -> Maker:
    """What the gradients of a norm are of: inverse deviations are positive."""

    def make(rng: np.random.Generator) -> Inputs:
        drawn = [draw(rng, shape, dtype) for shape in shapes]
        return [*drawn, (0.5 + np.abs(draw(rng, shapes[-1], np.dtype(np.float32)))).astype(dtype)]

    return make
