"""Attention by position: causal masks, windows and bands, stored or compared, alone or beside padding, with sinks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tests.spellings.build import STYLE_CHOICES, Array, Case, Choices, Graph, Spelling, covering

CHOICES: Choices = {
    "layout": ("heads", "split", "single heads"),
    "positions": ("causal", "window", "band", "before"),
    "compared": ("stored", "limits", "distance", "not later"),
    "beside": ("none", "and", "and first", "added", "where"),
    "fill": ("-inf", "min"),
    "guard": ("none", "isnan"),
    "sink": ("none", "expanded", "stored"),
    "length": ("static", "symbolic"),
    **STYLE_CHOICES,
}
"""Layouts: `single heads` slices [B,S,H*D] into heads that attend one by one, which is one attention.  Positions:
`window` is causal with keys at most 2 before the query, `band` has 2 before and 1 behind it, `before` is without a
bound in front.  Beside: padding [B,1,1,S] in one condition with the positions, before or behind them, or as a mask of
its own."""

B, H, S, D = 2, 2, 6, 8
"""Batch, heads, positions, head width."""

BOUNDS = {"causal": (S, 0), "window": (2, 0), "band": (2, 1), "before": (S, 1)}
"""How many keys before and behind a query it sees."""


def spellings(opset: int = 17, count: int = 60) -> Iterator[Spelling]:
    """`count` spellings of Attention."""
    for name, case in covering(CHOICES, count, _valid):
        yield _Attention(Graph(opset, case.style()), case).spelling(name)


def _valid(case: Case) -> bool:
    refused = (
        case.layout == "single heads" and (case.sink != "none" or case.length == "symbolic"),
        case.length == "symbolic" and (case.compared == "stored" or case.sink == "stored"),
        case.sink != "none" and case.guard != "none",
        # They would be too large to read.
        case.noise != "none" and (case.layout == "single heads" or case.length == "symbolic"),
    )
    return not any(refused)


class _Attention:
    """One case under construction."""

    def __init__(self, g: Graph, case: Case) -> None:
        self.g, self.case = g, case
        self.rng = np.random.default_rng(0)
        self.length: int | str = "length" if case.length == "symbolic" else S

    def spelling(self, name: str) -> Spelling:
        g, case = self.g, self.case
        q, k, v = (self.rng.standard_normal((B, H, S, D)).astype(np.float32) for _ in range(3))
        padding = self.rng.random((B, 1, 1, S)) < 0.8
        padding[..., 0] = padding[..., 3] = True
        logits = self.rng.standard_normal(H).astype(np.float32)
        heads = self._heads(q, k, v)
        keep = self._keep()
        mask = self._padding(padding) if case.beside == "where" else self._mask(keep, padding)
        outputs = []
        for query, key, value in heads:
            turn = [0, 1, 3, 2] if case.layout != "single heads" else [0, 2, 1]
            masked = g.Mul(g.MatMul(query, g.Transpose(key, perm=turn)), 1 / math.sqrt(D))
            if case.beside == "where":
                low = self._fill()
                masked = g.Where(self._rank(mask), g.Where(self._rank(keep), masked, low), low)
            else:
                masked = g.Add(masked, self._rank(mask))
            outputs.append(g.MatMul(self._weights(masked, logits), value))
        truth = self._truth(q, k, v, padding, logits)
        if case.layout == "heads":
            g.output(outputs[0], truth, [B, H, self.length, D])
        else:
            last = g.Concat(*outputs, axis=-1) if len(outputs) > 1 else self._merged(outputs[0])
            g.output(last, truth.swapaxes(1, 2).reshape(B, S, H * D), [B, self.length, H * D])
        return g.spelling(name, {"Attention": 1})

    def _heads(self, *operands: Array) -> list[list[str]]:
        g, layout = self.g, self.case.layout
        if layout == "heads":
            return [[g.input(name, x, [B, H, self.length, D]) for name, x in zip("qkv", operands, strict=True)]]
        flat = [x.swapaxes(1, 2).reshape(B, S, H * D) for x in operands]
        names = [g.input(name, x, [B, self.length, H * D]) for name, x in zip("qkv", flat, strict=True)]
        if layout == "split":
            shape = np.array([B, -1, H, D], np.int64)
            return [[g.Transpose(g.Reshape(name, shape), perm=[0, 2, 1, 3]) for name in names]]
        return [
            [g.Slice(name, *(np.array([i], np.int64) for i in (h * D, (h + 1) * D, 2))) for name in names]
            for h in range(H)
        ]

    def _merged(self, y: str) -> str:
        return self.g.Reshape(self.g.Transpose(y, perm=[0, 2, 1, 3]), np.array([B, -1, H * D], np.int64))

    def _rank(self, mask: str) -> str:
        """The mask for scores of one head, which have no axis of heads."""
        return self.g.Squeeze(mask, np.array([1], np.int64)) if self.case.layout == "single heads" else mask

    def _keep(self) -> str:
        """Booleans [1,1,S,S]: what a query sees by position."""
        g, case = self.g, self.case
        left, right = BOUNDS[case.positions]
        apart = np.arange(S)[None, :] - np.arange(S)[:, None]
        if case.compared == "stored":
            return g.constant(((apart >= -left) & (apart <= right)).reshape(1, 1, S, S))
        if case.length == "symbolic":
            axis = 2 if case.layout == "heads" else 1
            size: str | Array = g.Gather(g.Shape("q"), np.array(axis, np.int64), axis=0)
        else:
            size = np.array(S, np.int64)
        positions = g.Range(np.array(0, np.int64), size, np.array(1, np.int64))
        rows, columns = (g.Unsqueeze(positions, np.array(axes, np.int64)) for axes in ([0, 1, 3], [0, 1, 2]))
        last, first = (np.array(n, np.int64) for n in (right, -left))
        match case.compared:
            case "limits":
                behind = g.LessOrEqual(columns, g.Add(rows, last))
                before = g.GreaterOrEqual(columns, g.Add(rows, first))
            case "distance":
                distance = g.Sub(columns, rows)
                behind, before = g.LessOrEqual(distance, last), g.GreaterOrEqual(distance, first)
            case _:
                behind = g.Not(g.Greater(columns, g.Add(rows, last)))
                before = g.LessOrEqual(rows, g.Sub(columns, first))
        return behind if left == S else g.And(behind, before)

    def _padding(self, padding: Array) -> str:
        """Booleans [B,1,1,S]: which keys there are."""
        name = self.g.input("padding", padding[:, 0, 0], [B, self.length])
        return self.g.Unsqueeze(name, np.array([1, 2], np.int64))

    def _fill(self) -> float:
        return -math.inf if self.case.fill == "-inf" else float(np.finfo(np.float32).min)

    def _mask(self, keep: str, padding: Array) -> str:
        """What is added to the scores, [B or 1,1,S,S]."""
        g, beside, low = self.g, self.case.beside, self._fill()
        if beside == "none":
            return g.Where(keep, 0.0, low)
        there = self._padding(padding)
        if beside == "added":
            return g.Add(g.Where(keep, 0.0, low), g.Where(there, 0.0, -1e9 if low > -math.inf else low))
        return g.Where(g.And(keep, there) if beside == "and" else g.And(there, keep), 0.0, low)

    def _weights(self, masked: str, logits: Array) -> str:
        g, case = self.g, self.case
        if case.sink != "none":
            column = logits.reshape(1, H, 1, 1)
            if case.sink == "stored":
                sink = g.constant(np.broadcast_to(column, (B, H, S, 1)).copy())
            else:
                sizes = g.Slice(g.Shape(masked), *(np.array([i], np.int64) for i in (0, 3, 0)))
                sink = g.Expand(column, g.Concat(sizes, np.array([1], np.int64), axis=0))
            shares = g.Softmax(g.Concat(masked, sink, axis=-1), axis=-1)
            return g.Slice(shares, *(np.array([i], np.int64) for i in (0, -1, 3)))
        weights = g.Softmax(masked, axis=-1)
        return g.Where(g.IsNaN(weights), 0.0, weights) if case.guard == "isnan" else weights

    def _truth(self, q: Array, k: Array, v: Array, padding: Array, logits: Array) -> Array:
        left, right = BOUNDS[self.case.positions]
        apart = np.arange(S)[None, :] - np.arange(S)[:, None]
        keep = (apart >= -left) & (apart <= right)
        if self.case.beside != "none":
            keep = keep & padding
        q, k, v = (x.astype(np.float64) for x in (q, k, v))
        e = np.exp(q @ k.swapaxes(-1, -2) / math.sqrt(D)) * keep
        total = e.sum(axis=-1, keepdims=True)
        if self.case.sink != "none":
            total = total + np.exp(logits.astype(np.float64)).reshape(1, H, 1, 1)
        mixed: Array = e / total @ v
        return mixed
