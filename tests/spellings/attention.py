"""Scaled dot-product attention: where the scale goes, what the mask is, how heads are split, transposed and merged."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tests.spellings.build import STYLE_CHOICES, Array, Case, Choices, Graph, Spelling, covering

CHOICES: Choices = {
    "layout": ("heads", "split", "bmm", "qkv split", "qkv slice", "qkv gather", "qkv unbind", "one head"),
    "reshape": ("static", "zero", "minus", "dynamic"),
    "kt": ("0132", "0231", "021"),
    "scale": ("scores", "none", "q", "k", "both", "kT", "q early", "k early"),
    "times": ("div", "mul", "mul left"),
    "mask": (
        *("none", "add", "mask first", "where keep", "where drop", "where not", "add where", "where first"),
        *("add (1-m)*fill", "add int mask"),
    ),
    "fill": ("-inf", "min", "-1e9", "-1e4"),
    "mask_shape": ("b11t", "11st", "b1st", "bhst"),
    "guard": ("none", "isnan"),
    "axis": ("-1", "positive"),
    "precision": ("float32", "no-op casts", "float16", "float16 softmax in float32"),
    "merge": ("none", "transpose"),
    **STYLE_CHOICES,
}
"""Layouts: `heads` is given as [B,H,S,D], `split` as three [B,S,H*D], `bmm` splits into [B*H,S,D], the `qkv` ones
come packed in one tensor, `one head` has no head axis.  kt is how the keys are transposed: after the head split, in
place of its Transpose, or as a batch of matrices between two Reshapes."""

B, H, S, T, D = 2, 2, 5, 6, 8
"""Batch, heads, queries, keys, head width; packed layouts have as many keys as queries."""

LOWEST = {np.dtype(np.float16): -65504.0, np.dtype(np.float32): float(np.finfo(np.float32).min)}

PACKED = ("qkv split", "qkv slice", "qkv gather", "qkv unbind")
FLAT = ("split", "qkv split", "qkv slice")
"""Layouts in which q, k and v are [B,S,H*D] before the head split."""


def attention(q: Array, k: Array, v: Array, scale: float, bias: Array | float) -> Array:
    """softmax(q k^T * scale + bias) v over [..., S, D] (ai.onnx Attention-23)."""
    scores = q @ np.swapaxes(k, -1, -2) * scale + bias
    weights: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total: Array = weights.sum(axis=-1, keepdims=True)
    return weights / total @ v


def spellings(opset: int = 17, count: int = 300) -> Iterator[Spelling]:
    """`count` spellings of Attention."""
    for name, case in covering(CHOICES, count, _valid):
        yield _Attention(Graph(opset, case.style()), case).spelling(name)


def _valid(case: Case) -> bool:
    filled = case.mask.startswith(("where", "add where", "add (", "add int"))
    refused = (
        # A case that nothing distinguishes from a plainer one.
        not filled and case.fill != "-inf",
        case.mask == "none" and case.mask_shape != "b11t",
        case.scale == "none" and case.times != "div",
        case.layout in ("heads", "one head") and case.reshape != "static",
        case.layout == "one head" and (case.merge != "none" or case.mask_shape == "bhst" or case.kt != "0132"),
        # Keys that arrive split have no head-split Transpose to merge the other one into.
        case.layout in ("heads", "qkv gather", "qkv unbind", "bmm") and case.kt == "0231",
        case.layout == "bmm" and case.kt == "021",
        case.scale.endswith("early") and case.layout not in FLAT,
        # Reshape's 0 copies a dimension of its input in place, so it cannot join or part batch and heads.
        case.reshape == "zero" and (case.layout == "bmm" or case.kt == "021"),
        # 0 * -inf is NaN.
        case.mask in ("add (1-m)*fill", "add int mask") and case.fill == "-inf",
        case.precision.startswith("float16") and case.fill == "-1e9",
        # 40 nodes at most.
        case.reshape == "dynamic" and (case.noise != "none" or case.mask == "add int mask"),
        case.reshape == "dynamic" and case.layout == "bmm" and case.mask != "none" and case.merge != "none",
        case.reshape == "dynamic" and case.layout == "bmm" and case.mask == "add (1-m)*fill",
    )
    return not any(refused)


class _Attention:
    """One case under construction; the methods follow the computation."""

    def __init__(self, g: Graph, case: Case) -> None:
        self.g, self.case = g, case
        self.packed = case.layout in PACKED
        self.heads = 1 if case.layout == "one head" else H
        self.dtype = np.dtype(np.float16 if case.precision.startswith("float16") else np.float32)
        self.rng = np.random.default_rng(0)
        self.size = {"B": B, "S": S, "T": S if self.packed else T}
        symbolic = {"static": "", "minus": "B", "zero": "BST", "dynamic": "BST"}[case.reshape]
        names = {"B": "batch", "S": "seq", "T": "seq" if self.packed else "keys"}
        self.declared: dict[str, int | str] = {dim: names[dim] if dim in symbolic else self.size[dim] for dim in "BST"}
        self.source: dict[str, tuple[str, int]] = {}
        """Where a dynamic dimension can be read: an input and its axis."""
        self.read: dict[str, str] = {}
        """The dynamic dimensions read so far, each as a value of shape [1]."""

    def spelling(self, name: str) -> Spelling:
        g, case, size = self.g, self.case, self.size
        q, k, v = (
            self.rng.standard_normal((B, self.heads, size[length], D)).astype(self.dtype) for length in ("S", "T", "T")
        )
        query, key_t, value = self._operands(q, k, v)
        scores = self._scaled(g.MatMul(query, key_t), "scores")
        weights, bias = self._weights(scores)
        y = g.MatMul(weights, value)
        q, k, v = (operand.astype(np.float64) for operand in (q, k, v))
        truth = attention(q, k, v, 1.0 if case.scale == "none" else 1 / math.sqrt(D), bias)
        batch, seq = self.declared["B"], self.declared["S"]
        if case.merge == "transpose":
            g.output(self._merged(y), truth.transpose(0, 2, 1, 3).reshape(B, S, H * D), [batch, seq, H * D])
        elif case.layout == "bmm":
            matrices = B * H if batch == B else "batch_heads"
            g.output(y, truth.reshape(B * H, S, D), [matrices, seq, D])
        elif case.layout == "one head":
            g.output(y, truth[:, 0], [batch, seq, D])
        else:
            g.output(y, truth, [batch, H, seq, D])
        return g.spelling(name, {"Attention": 1})

    def _operands(self, q: Array, k: Array, v: Array) -> tuple[str, str, str]:
        """Queries and values as [B,H,S,D] (or rank 3), keys transposed to [B,H,D,T]."""
        g, case = self.g, self.case
        if case.layout == "heads":
            names = [g.input(name, value) for name, value in zip("qkv", (q, k, v), strict=True)]
        elif case.layout == "one head":
            names = [g.input(name, value[:, 0]) for name, value in zip("qkv", (q, k, v), strict=True)]
        elif case.layout in ("qkv gather", "qkv unbind"):
            names = self._unstacked(self._packed(q, k, v))
        else:
            names = self._split(self._flat(q, k, v))
        query, key, value = names
        query = self._scaled(query, "q")
        return query, self._scaled(self._transposed(self._scaled(key, "k")), "kT"), value

    def _packed(self, q: Array, k: Array, v: Array) -> str:
        packed = np.concatenate([value.transpose(0, 2, 1, 3).reshape(B, S, H * D) for value in (q, k, v)], axis=-1)
        self.source = {"B": ("qkv", 0), "S": ("qkv", 1), "T": ("qkv", 1)}
        return self.g.input("qkv", packed, [self.declared["B"], self.declared["S"], 3 * H * D])

    def _flat(self, q: Array, k: Array, v: Array) -> list[str]:
        """Queries, keys and values as [B,S,H*D]."""
        g, case, width = self.g, self.case, H * D
        if case.layout == "qkv split":
            names = g.split(self._packed(q, k, v), 3, 2, width)
        elif case.layout == "qkv slice":
            qkv = self._packed(q, k, v)
            names = [
                g.Slice(qkv, *(np.array([i], np.int64) for i in (n * width, (n + 1) * width, 2))) for n in range(3)
            ]
        else:
            names = []
            for name, value, length in zip("qkv", (q, k, v), "STT", strict=True):
                flat = value.transpose(0, 2, 1, 3).reshape(B, -1, width)
                names.append(g.input(name, flat, [self.declared["B"], self.declared[length], width]))
            self.source = {"B": ("q", 0), "S": ("q", 1), "T": ("k", 1)}
        query, key, value_ = names
        return [self._scaled(query, "q early"), self._scaled(key, "k early"), value_]

    def _unstacked(self, qkv: str) -> list[str]:
        g = self.g
        stacked = g.Transpose(self._reshape(qkv, "B", "S", 3, H, D), perm=[2, 0, 3, 1, 4])
        if self.case.layout == "qkv gather":
            return [g.Gather(stacked, np.array(n, np.int64), axis=0) for n in range(3)]
        return [g.Squeeze(part, np.array([0], np.int64)) for part in g.split(stacked, 3, 0, 1)]

    def _split(self, flat: list[str]) -> list[str]:
        g, case = self.g, self.case
        query, key, value = (self._reshape(x, "B", n, H, D) for x, n in zip(flat, "STT", strict=True))
        query, value = g.Transpose(query, perm=[0, 2, 1, 3]), g.Transpose(value, perm=[0, 2, 1, 3])
        if case.kt != "0231":
            key = g.Transpose(key, perm=[0, 2, 1, 3])
        if case.layout == "bmm":
            query, key, value = (self._reshape(x, "B*H", n, D) for x, n in zip((query, key, value), "STT", strict=True))
        return [query, key, value]

    def _transposed(self, key: str) -> str:
        g, case = self.g, self.case
        if case.layout in ("bmm", "one head"):
            return g.Transpose(key, perm=[0, 2, 1])
        if case.kt == "021":
            matrices = g.Transpose(self._reshape(key, "B*H", "T", D), perm=[0, 2, 1])
            return self._reshape(matrices, "B", H, D, "T")
        return g.Transpose(key, perm=[0, 1, 3, 2] if case.kt == "0132" else [0, 2, 3, 1])

    def _scaled(self, x: str, site: str) -> str:
        """`x` times its part of the scale, if the case scales at `site`."""
        g, case = self.g, self.case
        if case.scale == site:
            divisor = math.sqrt(D)
        elif case.scale == "both" and site in ("q", "kT"):
            divisor = math.sqrt(math.sqrt(D))
        else:
            return x
        match case.times:
            case "div":
                return g.Div(x, divisor)
            case "mul":
                return g.Mul(x, 1 / divisor)
            case _:
                return g.Mul(1 / divisor, x)

    def _weights(self, scores: str) -> tuple[str, Array | float]:
        """Masked and normalised scores, and the mask as what it adds to them."""
        g, case = self.g, self.case
        bias: Array | float = 0.0
        matrices = case.layout == "bmm"
        if case.mask != "none":
            # The mask has a head axis; batches of matrices gain one for the addition and lose it again.
            scores, bias = self._masked(self._reshape(scores, "B", H, "S", "T") if matrices else scores)
            scores = self._reshape(scores, "B*H", "S", "T") if matrices else scores
        if "casts" in case.precision or "softmax" in case.precision:
            scores = g.cast(scores, np.float32)
        rank = 3 if case.layout in ("bmm", "one head") else 4
        weights = g.Softmax(scores, axis=-1 if case.axis == "-1" else rank - 1)
        if "casts" in case.precision or "softmax" in case.precision:
            weights = g.cast(weights, self.dtype)
        if case.guard == "isnan":
            weights = g.Where(g.IsNaN(weights), 0.0, weights)
        return weights, bias

    def _masked(self, scores: str) -> tuple[str, Array]:
        g, case = self.g, self.case
        letters = case.mask_shape
        shape = tuple({"b": B, "h": H, "s": S, "t": self.size["T"], "1": 1}[letter] for letter in letters)
        keep = self.rng.random(shape) < 0.7
        keep[..., 0] = True  # A row that is masked altogether has no softmax.
        bias = np.where(keep, 0.0, -np.inf)
        fill = LOWEST[self.dtype] if case.fill == "min" else float(case.fill)

        def mask(value: Array) -> str:
            names: dict[str, int | str] = {"b": self.declared["B"], "s": self.declared["S"], "t": self.declared["T"]}
            dims = [names.get(letter, size) for letter, size in zip(letters, shape, strict=True)]
            if case.layout == "one head":
                value, dims = value[:, 0], [dims[0], *dims[2:]]
            return g.input("mask", value, dims)

        def scalar(value: float) -> str:
            return g.scalar(value, self.dtype)

        match case.mask:
            case "add" | "mask first":
                bias = np.where(keep, self.rng.standard_normal(shape), -1e4).astype(self.dtype)
                name = mask(bias)
                return g.Add(scores, name) if case.mask == "add" else g.Add(name, scores), bias.astype(np.float64)
            case "where keep":
                return g.Where(mask(keep), scores, scalar(fill)), bias
            case "where drop":
                return g.Where(mask(~keep), scalar(fill), scores), bias
            case "where not":
                return g.Where(g.Not(mask(keep)), scalar(fill), scores), bias
            case "add where":
                return g.Add(scores, g.Where(mask(keep), scalar(0.0), scalar(fill))), bias
            case "where first":
                return g.Add(g.Where(mask(keep), scalar(0.0), scalar(fill)), scores), bias
            case "add (1-m)*fill":
                return g.Add(scores, g.Mul(g.Sub(1.0, mask(keep.astype(self.dtype))), scalar(fill))), bias
            case _:
                ones = g.cast(mask(keep.astype(np.int64)), self.dtype)
                return g.Add(scores, g.Mul(g.Sub(1.0, ones), scalar(fill))), bias

    def _merged(self, y: str) -> str:
        if self.case.layout == "bmm":
            y = self._reshape(y, "B", H, "S", D)
        return self._reshape(self.g.Transpose(y, perm=[0, 2, 1, 3]), "B", "S", H * D)

    def _reshape(self, x: str, *dims: int | str) -> str:
        """Reshape to `dims`, whose letters are written as the case writes dimensions that it may not know."""
        g, case = self.g, self.case
        if case.reshape == "dynamic":
            parts = [self._dim(dim) if isinstance(dim, str) else np.array([dim], np.int64) for dim in dims]
            return g.Reshape(x, g.Concat(*parts, axis=0))
        sizes = {**self.size, "B*H": B * H}
        if case.reshape == "zero":
            sizes = dict.fromkeys(sizes, 0)
        elif case.reshape == "minus":
            sizes |= {"B": -1, "B*H": -1}
        return g.Reshape(x, np.array([sizes[dim] if isinstance(dim, str) else dim for dim in dims], np.int64))

    def _dim(self, dim: str) -> str:
        g = self.g
        if dim not in self.read:
            if dim == "B*H":
                self.read[dim] = g.Mul(self._dim("B"), np.array([H], np.int64))
            else:
                value, axis = self.source[dim]
                size = g.Gather(g.Shape(value), np.array(axis, np.int64), axis=0)
                self.read[dim] = g.Unsqueeze(size, np.array([0], np.int64))
        return self.read[dim]
