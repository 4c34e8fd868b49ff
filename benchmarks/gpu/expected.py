"""What the ops of the kernels compute, in float64 on the CPU; the tests of the kernels compare with the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfuse import kernels
from onnxfuse.kernels.device.kernel import Kernel
from onnxfuse.kernels.gemm.autotune import OF_ONE_CARD, TILED
from onnxfuse.language import catalogue
from tests import attention_cases, attention_grad_cases, kernel_runs, row_cases
from tests.row_cases import Wanted

from . import regions

Values = NDArray[Any]
CATALOGUE = catalogue.load()
ELEMENTWISE = sorted(op for op, rule in CATALOGUE.definitions.items() if rule.kernel == "pointwise")
TERMS = {"RotaryEmbedding": 1.0, "HardSigmoid": 0.5, "HardSwish": 1.5}
"""The size of the terms of elementwise ops where they cancel: a rotation, a line near its zero."""


def kernel(op: str, attributes: Mapping[str, Any]) -> Kernel:
    """The kernel of a node.  Raises KernelError where there is none."""
    return regions.kernel(op, **attributes) if op in regions.REGIONS else kernels.find(op)(attributes)


def expected(
    op: str, attributes: Mapping[str, Any], inputs: Sequence[Values | None], product: str = ""
) -> list[Wanted]:
    """All outputs of a node, in float64, on the values that the kernel is given; `product` is the form of a product."""
    if op in ("EmbedLayerNormalization", "EmbedSimplifiedLayerNormalization"):
        return _embedding(op, inputs)
    if op in regions.REGIONS:
        vendors = product not in ("", TILED, *OF_ONE_CARD) and regions.REGIONS[op].product
        return regions.expected(op, inputs, ROUNDING[attributes["dtype"]] / 1e-5 if vendors else 0.0)
    given = [None if a is None else kernel_runs.wide(a) for a in inputs]
    given += [None] * 5
    x = given[0]
    assert x is not None
    if op in ("Softmax", "LogSoftmax", "SafeSoftmax"):
        assert inputs[0] is not None
        return [row_cases.softmax(inputs[0], attributes.get("axis", -1), op)]
    if op in ("LayerNormalization", "RMSNormalization"):
        axes = tuple(range(attributes.get("axis", -1) % x.ndim, x.ndim))
        return _normalization(x, axes, op == "LayerNormalization", given[1], given[2])
    if op == "SkipLayerNormalization":
        return _skip(x, given[1], given[4], True, given[2], given[3])
    if op == "SkipSimplifiedLayerNormalization":
        return _skip(x, given[1], given[3], False, given[2], None)
    if op in ("GroupNormalization", "InstanceNormalization"):
        groups = attributes.get("num_groups", x.shape[1])
        normal, _, _ = row_cases.normalized(x.reshape(x.shape[0], groups, -1), (-1,))
        along = (-1, *(1 for _ in x.shape[2:]))
        scale, bias = given[1], given[2]
        assert scale is not None
        assert bias is not None
        return [row_cases.affine(normal.reshape(x.shape), scale.reshape(along), bias.reshape(along))]
    if op == "Attention":
        left_out = [None] * (len(attention_cases.INPUTS) - len(inputs))
        return list(attention_cases.expected(attributes, [*inputs, *left_out]))
    if op == "AttentionGrad":
        return attention_grad_cases.expected(attributes, inputs)
    if op == "EmbeddingGrad":
        dy, indices = (np.asarray(a) for a in inputs)
        padding = attributes.get("padding_idx", -1)
        return [row_cases.embedding_gradient(dy, indices, attributes["num_embeddings"], padding)]
    if op == "GroupNormalizationGrad":
        dy, x, scale = (np.asarray(a) for a in inputs)
        return row_cases.group_norm_gradient(dy, x, scale, attributes["num_groups"])
    if op == "FusedMatMul":
        return [_product(attributes, inputs, product not in ("", TILED, *OF_ONE_CARD))]
    results = kernel_runs.reference(op, attributes, inputs, CATALOGUE)
    return [Wanted(value, TERMS.get(op, 0.0)) for value in results]


ROUNDING = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""How far a number is from what it is rounded to, as a share of it; of float32 that is part of every tolerance."""
SLOPE = 1.2
"""Activations are no steeper."""


def _product(attributes: Mapping[str, Any], inputs: Sequence[Values | None], rounded: bool) -> Wanted:
    """A product with bias and activation; where its terms cancel, a millionth of their sum counts.  One that is
    `rounded` before its bias may be off by that as well, and by its last rounding."""
    (value,) = kernel_runs.reference("FusedMatMul", attributes, inputs, CATALOGUE)
    x, y, *_ = (x.astype(np.float64) for x in inputs if x is not None)
    y = y.swapaxes(-1, -2) if attributes.get("transB") else y
    scale = abs(attributes.get("alpha", 1.0))
    size = 0.1 * scale * (np.abs(x) @ np.abs(y)) + 0.1
    if rounded and inputs[0] is not None:
        size = size + ROUNDING[inputs[0].dtype.name] / 1e-5 * (SLOPE * scale * np.abs(x @ y) + np.abs(value))
    return Wanted(value, size)


def _embedding(op: str, inputs: Sequence[Values | None]) -> list[Wanted]:
    """Rows of tables, added and normalised: output, mask_index (nobody asks for it) and the sum."""
    ids, *rest = (np.asarray(a) for a in inputs if a is not None)
    if op == "EmbedSimplifiedLayerNormalization":
        word, gamma = rest
        total = _rows(word, ids)
        normal, _, _ = row_cases.normalized(total, (-1,), center=False)
        return [row_cases.affine(normal, gamma), Wanted(total)]
    segments, word, positions, kinds, gamma, beta = rest
    total = _rows(word, ids) + _rows(positions, np.arange(ids.shape[-1])) + _rows(kinds, segments)
    normal, _, _ = row_cases.normalized(total, (-1,))
    return [row_cases.affine(normal, gamma, beta), Wanted(ids), Wanted(total, 3.0)]


def _rows(table: Values, ids: Values) -> Values:
    """Rows of a table in float64; an id counts from the end if it is negative, and without a row gives zeros."""
    known = (ids >= -len(table)) & (ids < len(table))
    return np.where(known[..., None], table[np.where(known, ids, 0)].astype(np.float64), 0.0)


def _normalization(
    x: Values, axes: tuple[int, ...], center: bool, scale: Values | None, bias: Values | None
) -> list[Wanted]:
    normal, mean, inverse = row_cases.normalized(x, axes, center)
    assert scale is not None
    # A mean is as wrong as the largest of what it is the mean of.
    return [
        row_cases.affine(normal, scale, bias),
        Wanted(mean, np.maximum(np.abs(x).max(initial=0), 1)),
        Wanted(inverse),
    ]


def _skip(
    x: Values, skip: Values | None, bias: Values | None, center: bool, scale: Values | None, beta: Values | None
) -> list[Wanted]:
    assert skip is not None
    total = x + skip + (0.0 if bias is None else bias)
    return [*_normalization(total, (-1,), center, scale, beta), Wanted(total, 3.0)]


def difference(actual: Values, wanted: Wanted) -> tuple[str, float]:
    """Why an output is wrong, empty if it is right; and ‖actual − wanted‖ / ‖wanted‖ over what is finite.

    Right is, for float32, 1e-5 of float64; for half precision, 2 ulp of float64 rounded once.
    """
    value = np.broadcast_to(wanted.value, actual.shape)
    with np.errstate(all="ignore"):
        real = actual.astype(np.float64)
        finite = np.isfinite(value) & np.isfinite(real)
        norm = float(np.linalg.norm(value[finite]))
        error = float(np.linalg.norm(real[finite] - value[finite])) / norm if norm else 0.0
    if actual.dtype.kind not in "fV":
        return kernel_runs.far(actual, value), error
    reason = kernel_runs.far(actual, value, wanted.size)
    if reason and actual.dtype.itemsize == 2 and np.any(wanted.size):
        try:  # sums that cancel
            row_cases.assert_close(actual, wanted)
        except AssertionError:
            return reason, error
        return "", error
    return reason, error
