"""What language models add to the attention of a decoder: norms of heads, caps, slopes, and caches of fixed pages.

Queries, keys and values come from one input, and most things are written in either of two ways; whatever the form, it
is one Attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tests.spellings.build import Array, Case, Choices, Graph, Spelling, covering

CHOICES: Choices = {
    "rotary": ("halves", "neighbours", "none"),
    "share": ("whole", "partial"),
    "norm": ("none", "of heads", "of projections"),
    "cap": ("none", "tanh"),
    "slope": ("none", "keys", "distance", "counted"),
    "cache": ("concat", "one hot", "rows", "elements", "mesh", "ring", "pages", "slots"),
    "window": ("none", "keys", "distance"),
    "sink": ("none", "plain", "steadied"),
    "spelling": ("first", "second"),
    "heads": ("grouped", "all"),
}
"""Norm: RMS normalization of queries and keys (Qwen3, Gemma 3), behind or before heads come second.  Slope: ALiBi, by
the position of the key, by its distance, or as the mask counts.  Cache: a column of a one-hot matrix, rows of a
transposed ScatterND, ScatterElements, a mesh of ScatterND, positions modulo the length, or blocks and rows of a pool by
a table."""

SLIPS = ("none", "position", "mask", "norm", "cap", "slope", "write")
"""What is wrong: the position that is turned, the last key that is seen, a norm of keys alone, a cap whose factors
differ, slopes of other heads, the place that is written in the cache."""

B, H, D, LENGTH, PAST, NEW = 2, 4, 8, 12, 5, 3
"""Batch, heads of queries, head width, length of fixed caches, kept positions, new ones."""
CAP, WINDOW, PAGE = 2.0, 4, 4
FIXED = ("one hot", "rows", "elements", "mesh", "ring")
POOLED = ("pages", "slots")


def forms(opset: int = 17, count: int = 50, slip: str = "none") -> Iterator[Spelling]:
    """`count` spellings, or what `slip` makes of those that have what slips."""
    for name, case in covering(CHOICES, count, _valid):
        if _slips(case, slip):
            yield _Form(opset, case, slip).spelling(name)


def _valid(case: Case) -> bool:
    refused = (
        case.share == "partial" and case.rotary == "none",
        case.slope != "none" and case.rotary != "none",
        case.slope == "counted" and case.cache != "concat",
        case.cache in POOLED and case.rotary != "none",
    )
    return not any(refused)


def _slips(case: Case, slip: str) -> bool:
    return {
        "none": True,
        "position": case.rotary != "none",
        "mask": True,
        "norm": case.norm != "none",
        "cap": case.cap != "none",
        "slope": case.slope != "none",
        "write": case.cache in FIXED,
    }[slip]


class _Form:
    """One case, and how it is built; the methods follow the computation."""

    def __init__(self, opset: int, case: Case, slip: str) -> None:
        self.g, self.case, self.slip = Graph(opset), case, slip
        self.groups = H if case.heads == "all" else 2
        self.new = 1 if case.cache == "one hot" else NEW
        self.total = PAST + self.new if case.cache == "concat" else LENGTH
        self.turned = 0 if case.rotary == "none" else D // 2 if case.share == "partial" else D
        self.first = case.spelling == "first"
        rng = np.random.default_rng(7)
        self.weights = {n: rng.standard_normal((H * D, c * D)) * 0.3 for n, c in zip("qkv", self._counts, strict=True)}
        self.gains = {n: rng.uniform(0.5, 1.5, D) for n in "qk"}
        self.sinks = rng.standard_normal(H)
        self.slopes = 2.0 ** -np.arange(1, H + 1)

    @property
    def _counts(self) -> tuple[int, int, int]:
        return H, self.groups, self.groups

    def spelling(self, name: str) -> Spelling:
        g, case, rng = self.g, self.case, np.random.default_rng(3)
        seq: int | str = 1 if self.new == 1 else "seq"
        x = g.input("x", rng.standard_normal((B, self.new, H * D)).astype(np.float32), ["batch", seq, H * D])
        positions = np.arange(PAST, PAST + self.new)
        if case.cache == "concat":
            kept: tuple[int, ...] = (B, self.groups, PAST, D)
            dims: list[int | str] = ["batch", self.groups, "past", D]
        elif case.cache == "pages":
            kept, dims = (7, self.groups, PAGE, D), ["pages", self.groups, PAGE, D]
        elif case.cache == "slots":
            kept, dims = (7 * PAGE, self.groups, D), ["slots", self.groups, D]
        else:
            kept, dims = (B, self.groups, LENGTH, D), ["batch", self.groups, LENGTH, D]
        for key in ("past_key", "past_value"):
            g.input(key, rng.standard_normal(kept).astype(np.float32), dims)
        if case.cache in POOLED:
            rows = LENGTH // PAGE if case.cache == "pages" else LENGTH
            table = np.stack([rng.permutation(kept[0])[:rows] for _ in range(B)]).astype(np.int64)
            g.input("table", table, ["batch", rows])
        if case.cache == "concat":
            mask = np.ones((B, self.total), np.int64)
            mask[1, 0] = 0
            g.input("mask", mask, ["batch", "total"])
            self.start = g.Gather(g.Shape("past_key"), np.array(2, np.int64), axis=0)
            self.end = g.Add(self.start, g.Gather(g.Shape(x), np.array(1, np.int64), axis=0))
            self.positions = g.Range(self.start, self.end, np.array(1, np.int64))
        else:
            self.positions = g.input("positions", positions.astype(np.int64), [seq])
        y, more = self._attended(x)
        truth = self.truth(g.inputs)
        g.output(g.Identity(y), truth[0], ["a", "b", "c"])
        for i, (value, wanted) in enumerate(zip(more, truth[1:], strict=False)):
            g.output(g.Identity(value), wanted, [f"p{i}{axis}" for axis in range(wanted.ndim)])
        return g.spelling(name, {"Attention": 1})

    # --------------------------------------------------------------------------------------------- operands

    def _attended(self, x: str) -> tuple[str, list[str]]:
        g, case = self.g, self.case
        q, k, v = (self._heads(x, name, count) for name, count in zip("qkv", self._counts, strict=True))
        if self.turned:
            q, k = self._rotated(q), self._rotated(k)
        if case.cache in POOLED:
            keys, values = self._pooled("past_key"), self._pooled("past_value")
            more: list[str] = []
        else:
            more = [self._kept("past_key", k), self._kept("past_value", v)]
            keys, values = more
        if self.groups < H:
            keys, values = self._copied(keys), self._copied(values)
        scores = g.Mul(g.MatMul(q, g.Transpose(keys, perm=[0, 1, 3, 2])), 1 / math.sqrt(D))
        weights = self._weights(self._biased(scores))
        y = g.Reshape(g.Transpose(g.MatMul(weights, values), perm=[0, 2, 1, 3]), np.array([0, 0, H * D], np.int64))
        return y, more

    def _heads(self, x: str, name: str, count: int) -> str:
        g, case = self.g, self.case
        apart = g.Reshape(
            g.MatMul(x, g.constant(self.weights[name].astype(np.float32))), np.array([0, 0, count, D], np.int64)
        )
        normed = name in "qk" and case.norm != "none" and not (self.slip == "norm" and name == "q")
        if normed and case.norm == "of projections":
            apart = self._normed(apart, name)
        second = g.Transpose(apart, perm=[0, 2, 1, 3])
        return self._normed(second, name) if normed and case.norm == "of heads" else second

    def _normed(self, x: str, name: str) -> str:
        g = self.g
        square = g.reduce("ReduceMean", g.Mul(x, x) if self.first else g.Pow(x, 2.0), [-1])
        root = g.Sqrt(g.Add(square, 1e-6))
        unit = g.Mul(x, g.Reciprocal(root)) if self.first else g.Div(x, root)
        return g.Mul(g.constant(self.gains[name].astype(np.float32)), unit)

    def _rotated(self, x: str) -> str:
        g, half = self.g, self.turned // 2
        positions = g.Add(self.positions, np.array(1, np.int64)) if self.slip == "position" else self.positions
        angles = np.outer(np.arange(2 * LENGTH), self._frequencies)
        wide = np.concatenate([angles, angles], -1) if self.case.rotary == "halves" else np.repeat(angles, 2, -1)
        cosine, sine = (
            g.Unsqueeze(g.Gather(g.constant(t.astype(np.float32)), positions, axis=0), np.array([0, 1], np.int64))
            for t in (np.cos(wide), np.sin(wide))
        )
        part = self._part(x, 0, self.turned) if self.turned < D else x
        if self.case.rotary == "halves":
            other = g.Concat(g.Neg(self._part(part, half, self.turned)), self._part(part, 0, half), axis=-1)
        else:
            a, b = self._part(part, 0, self.turned, 2), self._part(part, 1, self.turned, 2)
            last = np.array([4], np.int64)
            other = g.Reshape(g.Concat(g.Unsqueeze(g.Neg(b), last), g.Unsqueeze(a, last), axis=-1), g.Shape(part))
        turned = g.Add(g.Mul(part, cosine), g.Mul(other, sine))
        return g.Concat(turned, self._part(x, self.turned, D), axis=-1) if self.turned < D else turned

    def _part(self, x: str, start: int, stop: int, step: int = 1) -> str:
        return self.g.Slice(x, *(np.array([n], np.int64) for n in (start, stop, 3, step)))

    @property
    def _frequencies(self) -> Array:
        return 1 / 10.0 ** np.arange(self.turned // 2)

    # --------------------------------------------------------------------------------------------- caches

    def _kept(self, past: str, new: str) -> str:
        g, case = self.g, self.case
        if case.cache == "concat":
            return g.Concat(past, new, axis=2)
        at = g.Add(self.positions, np.array(1, np.int64)) if self.slip == "write" else self.positions
        if case.cache == "ring":
            at = g.Mod(at, np.array(LENGTH, np.int64))
        if case.cache == "one hot":
            here = g.cast(g.Equal(g.constant(np.arange(LENGTH)), at), np.float32)
            here = g.Reshape(here, np.array([1, 1, LENGTH, 1], np.int64))
            if self.first:
                return g.Add(g.Mul(past, g.Sub(1.0, here)), g.Mul(new, here))
            return g.Add(past, g.Mul(here, g.Sub(new, past)))
        if case.cache == "mesh" or (case.cache == "ring" and self.first):
            shape, indices = g.Slice(g.Shape(new), *(np.array([n], np.int64) for n in (0, 3, 0))), []
            for axis in range(3):
                size = g.Gather(shape, np.array(axis, np.int64), axis=0)
                run = at if axis == 2 else g.Range(np.array(0, np.int64), size, np.array(1, np.int64))
                run = g.Reshape(run, np.array([-1 if i == axis else 1 for i in range(3)], np.int64))
                indices.append(g.Unsqueeze(g.Expand(run, shape), np.array([3], np.int64)))
            return g.ScatterND(past, g.Concat(*indices, axis=-1), new)
        if case.cache == "rows":
            old, fresh = (g.Transpose(t, perm=[2, 0, 1, 3]) for t in (past, new))
            return g.Transpose(g.ScatterND(old, g.Unsqueeze(at, np.array([1], np.int64)), fresh), perm=[1, 2, 0, 3])
        rows = g.Expand(g.Reshape(at, np.array([1, 1, -1, 1], np.int64)), g.Shape(new))
        return g.ScatterElements(past, rows, new, axis=2)

    def _pooled(self, pool: str) -> str:
        g = self.g
        taken = g.Gather(pool, "table", axis=0)
        if self.case.cache == "slots":
            return g.Transpose(taken, perm=[0, 2, 1, 3])
        whole = np.array([0, self.groups, LENGTH, D], np.int64)
        return g.Reshape(g.Transpose(taken, perm=[0, 2, 1, 3, 4]), whole)

    def _copied(self, x: str) -> str:
        g, each = self.g, H // self.groups
        if not self.first:
            return g.Gather(x, np.repeat(np.arange(self.groups), each), axis=1)
        wide = g.Expand(g.Unsqueeze(x, np.array([2], np.int64)), np.array([1, 1, each, 1, 1], np.int64))
        return g.Reshape(wide, np.array([0, H, -1, D], np.int64))

    # --------------------------------------------------------------------------------------------- scores

    def _biased(self, scores: str) -> str:
        g, case = self.g, self.case
        if case.cap == "tanh":
            inner = CAP * (1.5 if self.slip == "cap" else 1)
            scores = g.Tanh(g.Div(scores, inner) if self.first else g.Mul(scores, 1 / inner))
            scores = g.Mul(scores, CAP)
        zero, one = np.array(0, np.int64), np.array(1, np.int64)
        keys = g.Range(zero, self.end, one) if case.cache == "concat" else g.constant(np.arange(LENGTH))
        columns = g.Unsqueeze(keys, np.array([0, 1, 2], np.int64))
        rows = g.Unsqueeze(self.positions, np.array([0, 1, 3], np.int64))
        if case.slope != "none":
            scores = g.Add(scores, self._sloped(columns, rows))
        limit = g.Add(rows, np.array(1, np.int64)) if self.slip == "mask" else rows
        seen = g.LessOrEqual(columns, limit) if self.first else g.Not(g.Greater(columns, limit))
        if case.window == "keys":
            seen = g.And(seen, g.Greater(columns, g.Sub(rows, np.array(WINDOW, np.int64))))
        elif case.window == "distance":
            seen = g.And(seen, g.Less(g.Sub(rows, columns), np.array(WINDOW, np.int64)))
        if case.cache == "concat":
            seen = g.And(seen, g.cast(g.Unsqueeze("mask", np.array([1, 2], np.int64)), np.bool_))
        low = float(np.finfo(np.float32).min)
        if not self.first and case.cap == case.slope == "none":
            return g.Where(seen, scores, low)
        return g.Add(scores, g.Where(seen, g.constant(np.array(0, np.float32)), low))

    def _sloped(self, columns: str, rows: str) -> str:
        g, case = self.g, self.case
        slopes = self.slopes[::-1] if self.slip == "slope" else self.slopes
        each = g.constant(slopes.astype(np.float32).reshape(1, H, 1, 1))
        if case.slope == "counted":
            counted = g.Sub(g.CumSum("mask", np.array(1, np.int64)), np.array(1, np.int64))
            columns = g.Unsqueeze(g.Mul(counted, "mask"), np.array([1, 2], np.int64))
        far = g.Sub(columns, rows) if case.slope == "distance" else columns
        return g.Mul(each, g.cast(far, np.float32)) if self.first else g.Mul(g.cast(far, np.float32), each)

    def _weights(self, scores: str) -> str:
        g, case = self.g, self.case
        if case.sink == "none":
            return g.Softmax(scores, axis=-1)
        rows = g.Slice(g.Shape(scores), *(np.array([n], np.int64) for n in (0, 3, 0)))
        wide = g.Concat(rows, np.array([1], np.int64), axis=0)
        sinks = g.Expand(g.constant(self.sinks.astype(np.float32).reshape(1, H, 1, 1)), wide)
        both = g.Concat(scores, sinks, axis=-1)
        if case.sink == "steadied":
            both = g.Sub(both, g.reduce("ReduceMax", both, [-1]))
        return self._part(g.Softmax(both, axis=-1), 0, -1)

    # --------------------------------------------------------------------------------------------- definition

    def truth(self, given: dict[str, Array]) -> tuple[Array, ...]:
        """What the attention without a slip computes, in float64."""
        case, new = self.case, self.new
        x = given["x"].astype(np.float64)
        q, k, v = (
            (x @ self.weights[n]).reshape(B, new, c, D).swapaxes(1, 2) for n, c in zip("qkv", self._counts, strict=True)
        )
        if case.norm != "none":
            q, k = (t / np.sqrt((t**2).mean(-1, keepdims=True) + 1e-6) * self.gains[n] for n, t in (("q", q), ("k", k)))
        positions = np.arange(PAST, PAST + new)
        if self.turned:
            q, k = (self._truly_rotated(t, positions) for t in (q, k))
        old = [given[key].astype(np.float64) for key in ("past_key", "past_value")]
        more: list[Array] = []
        if case.cache == "pages":
            present = [t[given["table"]].swapaxes(1, 2).reshape(B, self.groups, LENGTH, D) for t in old]
        elif case.cache == "slots":
            present = [t[given["table"]].swapaxes(1, 2) for t in old]
        elif case.cache == "concat":
            present = more = [np.concatenate([t, n], 2) for t, n in zip(old, (k, v), strict=True)]
        else:
            for t, n in zip(old, (k, v), strict=True):
                t[:, :, positions] = n
            present = more = old
        keys, values = (np.repeat(t, H // self.groups, 1) for t in present)
        scores = q @ keys.swapaxes(-1, -2) / math.sqrt(D)
        scores = CAP * np.tanh(scores / CAP) if case.cap == "tanh" else scores
        columns, rows = np.arange(self.total), positions[:, None]
        counted = columns + 0 * rows
        far: Array = {"distance": columns - rows, "none": 0 * counted}.get(case.slope, counted)
        if case.slope == "counted":
            far = ((given["mask"].cumsum(1) - 1) * given["mask"])[:, None, None]
        scores = scores + self.slopes[:, None, None] * far
        seen = columns <= rows if case.window == "none" else (columns <= rows) & (columns > rows - WINDOW)
        visible = seen if case.cache != "concat" else seen & (given["mask"] != 0)[:, None, None]
        hidden = np.where(visible, scores, -np.inf)
        sinks = self.sinks[:, None, None] if case.sink != "none" else np.full((1, 1, 1), -np.inf)
        top = np.maximum(hidden.max(-1, keepdims=True), sinks)
        exponentials = np.exp(hidden - top)
        y = exponentials / (exponentials.sum(-1, keepdims=True) + np.exp(sinks - top)) @ values
        return y.swapaxes(1, 2).reshape(B, new, H * D), *more

    def _truly_rotated(self, x: Array, positions: Array) -> Array:
        angles = np.outer(positions, self._frequencies)
        cosine, sine = np.cos(angles), np.sin(angles)
        part, rest = x[..., : self.turned], x[..., self.turned :]
        half = self.turned // 2
        halves = self.case.rotary == "halves"
        a, b = (part[..., :half], part[..., half:]) if halves else (part[..., ::2], part[..., 1::2])
        pair = a * cosine - b * sine, a * sine + b * cosine
        turned = np.concatenate(pair, -1) if halves else np.stack(pair, -1).reshape(part.shape)
        return np.concatenate([turned, rest], -1)
