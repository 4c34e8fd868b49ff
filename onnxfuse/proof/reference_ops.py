"""Operators for the ONNX reference evaluator: those that it lacks, and com.microsoft's, in whatever precision it runs.

onnxruntime runs com.microsoft's in float32 only; where it has a body for them in float64, that may be another equation
(FastGelu's has constants of six digits, which its kernels have not).  Definitions: onnxruntime,
docs/ContribOperators.md and the kernels of its CPU provider.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_attention import Attention_23

from onnxfuse.terms.erf import erf

from .reference_conv import Conv, ConvTranspose

Array: TypeAlias = np.ndarray[Any, Any]

_ROOT = math.sqrt(2 / math.pi)


def _gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(_ROOT * (x + 0.044715 * x**3))), x.dtype)
    return np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2))), x.dtype)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _normalized(x: Array, scale: Array, bias: Array | None, epsilon: float, centred: bool) -> tuple[Array, ...]:
    """Rows normalized, their means, and what they were multiplied by."""
    mean = x.mean(-1, keepdims=True)
    rest = x - mean if centred else x
    factor = 1 / np.sqrt((rest**2).mean(-1, keepdims=True) + epsilon)
    return rest * factor * scale + (0 if bias is None else bias), mean, factor


def _activated(x: Array, activation: str, parameters: list[float] | None = None) -> Array:
    if activation in ("", "Relu"):
        return np.maximum(x, 0) if activation else x
    if activation == "LeakyRelu":
        return np.asarray(np.where(x < 0, x * (parameters or [0.01])[0], x))
    raise NotImplementedError(activation)


class GatherElements(OpRun):
    """In place of the evaluator's own, which refuses indices that are fewer than the data in another dim."""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        place: list[Array] = list(np.indices(indices.shape, sparse=True))
        place[axis] = indices
        return (data[tuple(place)],)


class BatchNormalization(OpRun):
    """In place of the evaluator's own (onnx 1.23), which before opset 14 normalizes by the batch in part."""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array,
        mean: Array,
        var: Array,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        training_mode: int = 0,
        spatial: int = 1,
    ) -> tuple[Array]:
        if training_mode or not spatial:
            raise NotImplementedError("BatchNormalization in training")
        scale, bias, mean, var = (v.reshape(-1, *(1,) * (x.ndim - 2)) for v in (scale, bias, mean, var))
        return (scale * (x - mean) / np.sqrt(var + epsilon) + bias,)


class Erf(OpRun):
    """In place of the evaluator's own, which rounds to float32."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(erf(x), x.dtype),)


class Gelu(OpRun):
    """A function that depends on its context, which the evaluator does not expand inside of another function."""

    def _run(self, x: Array, approximate: str = "none") -> tuple[Array]:
        return (_gelu(x, approximate),)


class HardSwish(OpRun):
    """In place of the evaluator's function, in which 1/6 is rounded to float32."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(x * np.clip(x / 6 + 0.5, 0, 1), x.dtype),)


class Mean(OpRun):
    """In place of the evaluator's own (onnx 1.23), whose first operand has to be as large as the result."""

    def _run(self, *operands: Array) -> tuple[Array]:
        return (np.asarray(sum(operands) / np.asarray(len(operands), operands[0].dtype)),)


class Softsign(OpRun):
    """In place of the evaluator's own (onnx 1.23), which takes no scalars."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(x / (1 + np.abs(x)), x.dtype),)


class StandardAttention(Attention_23):
    """In place of the evaluator's own, which takes the root of a scale that is given in float32."""

    def _run(self, *args: Any, scale: float | None = None, **attributes: Any) -> Any:
        attributes["scale"] = None if scale is None else float(scale)
        return super()._run(*args, **attributes)


class ContribGelu(OpRun):
    op_domain = "com.microsoft"

    # The evaluator adds the attributes of the op of ai.onnx that has the same name.
    def _run(self, x: Array, **_: Any) -> tuple[Array]:
        return (_gelu(x),)


class BiasGelu(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array) -> tuple[Array]:
        return (_gelu(x + bias),)


class FastGelu(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array | None = None) -> tuple[Array]:
        return (_gelu(x if bias is None else x + bias, "tanh"),)


class QuickGelu(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x: Array, alpha: float = 1.702) -> tuple[Array]:
        return (x * _sigmoid(alpha * x),)


class SkipLayerNormalization(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self,
        x: Array,
        skip: Array,
        gamma: Array,
        beta: Array | None = None,
        bias: Array | None = None,
        epsilon: float = 1e-12,
    ) -> tuple[Array, ...]:
        total = x + skip + (0 if bias is None else bias)
        return (*_normalized(total, gamma, beta, epsilon, True), total)[: len(self.onnx_node.output)]


class SkipSimplifiedLayerNormalization(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self, x: Array, skip: Array, gamma: Array, bias: Array | None = None, epsilon: float = 1e-12
    ) -> tuple[Array, ...]:
        total = x + skip + (0 if bias is None else bias)
        return (*_normalized(total, gamma, None, epsilon, False), total)[: len(self.onnx_node.output)]


class EmbedLayerNormalization(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self,
        ids: Array,
        sections: Array | None,
        words: Array,
        positions: Array,
        section_rows: Array | None,
        gamma: Array,
        beta: Array,
        mask: Array | None = None,
        places: Array | None = None,
        epsilon: float = 1e-12,
        mask_index_type: int = 0,
    ) -> tuple[Array, ...]:
        if mask is not None:
            raise NotImplementedError("EmbedLayerNormalization with a mask")
        total = words[ids] + (positions[: ids.shape[1]] if places is None else positions[places])
        if sections is not None and section_rows is not None:
            total = total + section_rows[sections]
        result = _normalized(total, gamma, beta, epsilon, True)[0]
        return (result, np.zeros(len(ids), np.int32), total)[: len(self.onnx_node.output)]


class FusedMatMul(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self,
        a: Array,
        b: Array,
        alpha: float = 1.0,
        transA: int = 0,  # noqa: N803  (the attribute's name)
        transB: int = 0,  # noqa: N803
        transBatchA: int = 0,  # noqa: N803
        transBatchB: int = 0,  # noqa: N803
    ) -> tuple[Array]:
        if transBatchA or transBatchB:
            raise NotImplementedError("FusedMatMul with batches transposed")
        return (alpha * np.matmul(np.swapaxes(a, -1, -2) if transA else a, np.swapaxes(b, -1, -2) if transB else b),)


class FusedConv(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        z: Array | None = None,
        activation: str = "",
        activation_params: list[float] | None = None,
        **conv: Any,
    ) -> tuple[Array]:
        (y,) = Conv._run(self, x, w, b, **conv)  # type: ignore[arg-type]
        return (_activated(y if z is None else y + z, activation, activation_params),)


class RotaryEmbedding(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self,
        x: Array,
        places: Array,
        cos: Array,
        sin: Array,
        interleaved: int = 0,
        num_heads: int = 0,
        rotary_embedding_dim: int = 0,
        scale: float = 1.0,
        is_packed_batching: int = 0,
    ) -> tuple[Array]:
        heads = x if x.ndim == 4 else _heads(x, num_heads or x.shape[-1] // (2 * cos.shape[-1]))
        if places.size == 1:
            places = places.reshape(1, 1) + np.arange(heads.shape[2])
        turned = rotary_embedding_dim or heads.shape[-1]
        c, s = cos[places][:, None], sin[places][:, None]
        if interleaved:
            first, second = heads[..., :turned:2], heads[..., 1:turned:2]
        else:
            first, second = heads[..., : turned // 2], heads[..., turned // 2 : turned]
        pair = first * c - second * s, first * s + second * c
        made = np.stack(pair, -1).reshape(*pair[0].shape[:-1], -1) if interleaved else np.concatenate(pair, -1)
        result = np.concatenate([made, heads[..., turned:]], -1)
        return (result if x.ndim == 4 else _joined(result),)


def _heads(x: Array, count: int) -> Array:
    """(batch, rows, heads · size) → (batch, heads, rows, size)."""
    return x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)


def _joined(x: Array) -> Array:
    moved = x.transpose(0, 2, 1, 3)
    return moved.reshape(*moved.shape[:2], -1)


def _attention(q: Array, k: Array, v: Array, bias: Array | None, scale: float, causal: int) -> tuple[Array, Array]:
    """Attention of heads, and its scores."""
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * (scale or 1 / math.sqrt(q.shape[-1]))
    if bias is not None:
        scores = scores + bias
    if causal:
        rows, columns = scores.shape[-2:]
        scores = np.where(np.tri(rows, columns, columns - rows, dtype=bool), scores, -np.inf)
    return np.matmul(_softmax(scores), v), scores


class MultiHeadAttention(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        padding: Array | None = None,
        scores_bias: Array | None = None,
        past_key: Array | None = None,
        past_value: Array | None = None,
        num_heads: int = 1,
        scale: float = 0.0,
        unidirectional: int = 0,
        mask_filter_value: float = -10000.0,
    ) -> tuple[Array, ...]:
        if padding is not None or key is None or query.ndim != 3:
            raise NotImplementedError("MultiHeadAttention with packed inputs or a padding mask")
        if bias is not None:
            sizes = np.cumsum([query.shape[-1], query.shape[-1]])
            query, key, value = (x + b for x, b in zip((query, key, value), np.split(bias, sizes), strict=True))
        q, k, v = (x if x.ndim == 4 else _heads(x, num_heads) for x in (query, key, value))
        if past_key is not None and past_value is not None:
            k, v = np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)
        output, scores = _attention(q, k, v, scores_bias, scale, unidirectional)
        return (_joined(output), k, v, scores)[: len(self.onnx_node.output)]


class Attention(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self,
        x: Array,
        weights: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        past: Array | None = None,
        scores_bias: Array | None = None,
        num_heads: int = 1,
        qkv_hidden_sizes: list[int] | None = None,
        scale: float = 0.0,
        unidirectional: int = 0,
        mask_filter_value: float = -10000.0,
        **_: Any,
    ) -> tuple[Array]:
        if mask is not None or past is not None:
            raise NotImplementedError("Attention with a mask of keys or a cache")
        sizes = qkv_hidden_sizes or [weights.shape[-1] // 3] * 3
        packed = np.matmul(x, weights) + (0 if bias is None else bias)
        q, k, v = (_heads(part, num_heads) for part in np.split(packed, np.cumsum(sizes)[:2], -1))
        return (_joined(_attention(q, k, v, scores_bias, scale, unidirectional)[0]),)


ContribGelu.__name__ = "Gelu"  # the evaluator goes by the class's name
StandardAttention.__name__ = "Attention"
OPS: tuple[type[OpRun], ...] = (
    Conv,
    ConvTranspose,
    GatherElements,
    BatchNormalization,
    Erf,
    Gelu,
    HardSwish,
    Mean,
    Softsign,
    StandardAttention,
    ContribGelu,
    BiasGelu,
    FastGelu,
    QuickGelu,
    SkipLayerNormalization,
    SkipSimplifiedLayerNormalization,
    EmbedLayerNormalization,
    FusedMatMul,
    FusedConv,
    RotaryEmbedding,
    MultiHeadAttention,
    Attention,
)
