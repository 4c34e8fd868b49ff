"""BatchNormalization around linear operators, and linear operators with a bias and an activation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.spellings.build import Array, Case, Choices, Graph, Spelling, Style, everything

LINEAR = ("Conv", "Conv grouped", "Conv depthwise", "Conv 1-D", "ConvTranspose", "Gemm", "MatMul", "MatMul rank 3")

PRODUCTS = ("Gemm", "MatMul", "MatMul rank 3")

FOLDS: Choices = {
    "linear": LINEAR,
    "bias": ("none", "bias", "Add"),
    "place": ("after", "before"),
    "norm": ("BatchNormalization", "mul+add", "(x-m)/s*g+b"),
    "constant": ("initializer", "node"),
}

EPILOGUES: Choices = {
    "linear": tuple(linear for linear in LINEAR if linear != "ConvTranspose"),
    "bias": ("bias", "Add", "Add left"),
    "activation": ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Clip", "HardSigmoid"),
}
"""The activations are those that com.microsoft FusedConv knows."""

FOLDED = {
    "Conv": {"Conv": 1},
    "ConvTranspose": {"ConvTranspose": 1},
    "Gemm": {"FusedMatMul": 1},
    "MatMul": {"FusedMatMul": 1},
}
"""All that is left of an operator with an affine map before or after it: a product takes its bias."""

FUSED = {"Conv": "FusedConv", "Gemm": "FusedMatMul", "MatMul": "FusedMatMul"}
"""What an operator with its bias and activation is called; the names are com.microsoft's, which has no third."""

C, M = 4, 8
"""Channels in and out."""
EPSILON = 1e-5

ACTIVATIONS: dict[str, tuple[Callable[[Graph, str], str], Callable[[Array], Array]]] = {
    "Relu": (lambda g, x: g.Relu(x), lambda x: np.maximum(x, 0)),
    "LeakyRelu": (lambda g, x: g.LeakyRelu(x, alpha=0.1), lambda x: np.where(x < 0, 0.1 * x, x)),
    "Sigmoid": (lambda g, x: g.Sigmoid(x), lambda x: 1 / (1 + np.exp(-x))),
    "Tanh": (lambda g, x: g.Tanh(x), np.tanh),
    "Clip": (
        lambda g, x: g.Clip(x, np.array(0, np.float32), np.array(6, np.float32)),
        lambda x: np.clip(x, 0, 6),
    ),
    "HardSigmoid": (lambda g, x: g.HardSigmoid(x, alpha=0.2, beta=0.5), lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
}


@dataclass(frozen=True, slots=True)
class _Linear:
    """A linear operator: how it is written, and its float64 definition, without bias."""

    op_type: str
    shape: tuple[int, ...]
    weight: tuple[int, ...]
    attributes: dict[str, int | list[int]]
    apply: Callable[[Array, Array], Array]

    @property
    def channels_first(self) -> bool:
        return self.op_type.startswith("Conv")

    def per_channel(self, value: Array) -> Array:
        """A per-channel vector in the shape that broadcasts against this operator's input or output."""
        return value.reshape(-1, *[1] * (len(self.shape) - 2)) if self.channels_first else value


def convolve(x: Array, weight: Array, groups: int, pad: int) -> Array:
    """Cross-correlation with stride 1: x [N,C,*P], weight [M,C/groups,*K] (ai.onnx Conv-11)."""
    spatial = weight.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *[(pad, pad)] * spatial])
    axes = tuple(range(2, 2 + spatial))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=axes)
    kernel = tuple(range(-spatial, 0))
    parts = [
        np.moveaxis(np.tensordot(w, k, axes=((1, *(w.ndim + i for i in kernel)), (1, *axes))), -1, 1)
        for w, k in zip(np.split(windows, groups, 1), np.split(weight, groups, 0), strict=True)
    ]
    return np.concatenate(parts, axis=1)


def upsample(x: Array, weight: Array) -> Array:
    """ConvTranspose whose stride is its kernel size: x [N,C,P,Q], weight [C,M,K,K] gives [N,M,P*K,Q*K]."""
    blocks: Array = np.einsum("ncpq,cmij->nmpiqj", x, weight)
    n, m, p, i, q, j = blocks.shape
    return blocks.reshape(n, m, p * i, q * j)


def _linear(kind: str, pad: int) -> _Linear:
    image = (2, C, 6, 6)
    match kind:
        case "Conv":
            return _Linear("Conv", image, (M, C, 3, 3), {"pads": [pad] * 4}, lambda x, w: convolve(x, w, 1, pad))
        case "Conv grouped":
            attributes: dict[str, int | list[int]] = {"pads": [pad] * 4, "group": 2}
            return _Linear("Conv", image, (M, C // 2, 3, 3), attributes, lambda x, w: convolve(x, w, 2, pad))
        case "Conv depthwise":
            attributes = {"pads": [pad] * 4, "group": C}
            return _Linear("Conv", image, (M, 1, 3, 3), attributes, lambda x, w: convolve(x, w, C, pad))
        case "Conv 1-D":
            return _Linear("Conv", (2, C, 9), (M, C, 3), {"pads": [pad] * 2}, lambda x, w: convolve(x, w, 1, pad))
        case "ConvTranspose":
            return _Linear("ConvTranspose", (2, C, 3, 3), (C, M, 2, 2), {"strides": [2, 2]}, upsample)
        case "Gemm":
            return _Linear("Gemm", (5, C), (M, C), {"transB": 1}, lambda x, w: x @ w.T)
        case "MatMul":
            return _Linear("MatMul", (5, C), (C, M), {}, lambda x, w: x @ w)
        case _:
            return _Linear("MatMul", (2, 5, C), (C, M), {}, lambda x, w: x @ w)


def spellings(opset: int = 17) -> Iterator[Spelling]:
    """Every linear operator with a per-channel affine map before or after it, which folds into its weights."""
    for name, case in everything(FOLDS, _valid_fold):
        yield _fold(name, case, opset)


def epilogue_spellings(opset: int = 17) -> Iterator[Spelling]:
    """Every linear operator with a bias and an activation behind it."""
    for name, case in everything(
        EPILOGUES, lambda case: not (case.bias == "bias" and case.linear.startswith("MatMul"))
    ):
        yield _epilogue(name, case, opset)


def _valid_fold(case: Case) -> bool:
    refused = (
        case.linear.startswith("MatMul") and case.bias == "bias",
        # BatchNormalization's channel axis is 1, which is not MatMul's for rank 3.
        case.linear == "MatMul rank 3" and case.norm == "BatchNormalization",
        # Constants as nodes once, not times everything.
        case.constant == "node" and (case.bias != "none" or case.place != "after"),
        # A shift before a transposed convolution differs from one output position to the next.
        case.linear == "ConvTranspose" and case.place == "before",
        # Written out, only what follows MatMul is folded: before it the same nodes are the end of a normalization.
        case.linear in PRODUCTS and case.place == "before" and case.norm != "BatchNormalization",
        case.linear in PRODUCTS and case.bias != "none" and case.norm == "(x-m)/s*g+b",
    )
    return not any(refused)


def _fold(name: str, case: Case, opset: int) -> Spelling:
    g = Graph(opset, Style(constant=case.constant))
    # Behind an affine map zero padding would pad with something else than zeros of the map's input.
    linear = _linear(case.linear, pad=1 if case.place == "after" else 0)
    rng = np.random.default_rng(0)
    value = rng.standard_normal(linear.shape).astype(np.float32)
    weight = rng.standard_normal(linear.weight).astype(np.float32)
    bias = rng.standard_normal(M).astype(np.float32)
    channels = M if case.place == "after" else C
    gamma, beta, mean = rng.standard_normal((3, channels)).astype(np.float32)
    variance = (rng.random(channels) + 0.5).astype(np.float32)

    def norm(x: str) -> str:
        if case.norm == "BatchNormalization":
            return g.BatchNormalization(x, gamma, beta, mean, variance, epsilon=EPSILON)
        std = np.sqrt(variance + np.float32(EPSILON))
        if case.norm == "mul+add":
            factor, term = gamma / std, beta - mean * gamma / std
            return g.Add(g.Mul(x, linear.per_channel(factor)), linear.per_channel(term))
        m, s, scale, shift = (linear.per_channel(vector) for vector in (mean, std, gamma, beta))
        return g.Add(g.Mul(g.Div(g.Sub(x, m), s), scale), shift)

    def truth_norm(x: Array) -> Array:
        std = np.sqrt(variance.astype(np.float64) + EPSILON)
        factor = gamma / std
        return x * linear.per_channel(factor) + linear.per_channel(beta - mean * factor)

    x = g.input("x", value)
    y = norm(x) if case.place == "before" else x
    truth = truth_norm(value) if case.place == "before" else value.astype(np.float64)
    y, truth = _apply(g, linear, y, truth, weight, bias, case.bias)
    if case.place == "after":
        y, truth = norm(y), truth_norm(truth)
    g.output(y, truth)
    return g.spelling(name, {"FusedMatMul": 1} if case.linear == "MatMul rank 3" else FOLDED[linear.op_type])


def _epilogue(name: str, case: Case, opset: int) -> Spelling:
    g = Graph(opset)
    linear = _linear(case.linear, pad=1)
    rng = np.random.default_rng(0)
    value = rng.standard_normal(linear.shape).astype(np.float32)
    weight = rng.standard_normal(linear.weight).astype(np.float32)
    bias = rng.standard_normal(M).astype(np.float32)
    y, truth = _apply(g, linear, g.input("x", value), value.astype(np.float64), weight, bias, case.bias)
    write, definition = ACTIVATIONS[case.activation]
    g.output(write(g, y), definition(truth))
    return g.spelling(name, {FUSED[linear.op_type]: 1})


def _apply(g: Graph, linear: _Linear, x: str, truth: Array, weight: Array, bias: Array, how: str) -> tuple[str, Array]:
    """The linear operator on `x` and on its float64 value `truth`, with its bias as `how` says."""
    operands: list[str | Array] = [x, weight, bias] if how == "bias" else [x, weight]
    y = g.node(linear.op_type, *operands, **linear.attributes)
    truth = linear.apply(truth, weight.astype(np.float64))
    shift = linear.per_channel(bias)
    match how:
        case "Add":
            y = g.Add(y, shift)
        case "Add left":
            y = g.Add(shift, y)
    return y, truth if how == "none" else truth + shift
