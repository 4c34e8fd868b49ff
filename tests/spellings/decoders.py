"""Attention of a decoder that keeps its keys: caches, masks, positions and groups of queries as exporters spell them.

Past length, new tokens and the mask's length are dynamic, and may each have a name of their own.  What slips by one
(a mask, a position), or is put in another order (past and new, heads and groups), computes something else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tests.spellings.build import Array, Case, Choices, Graph, Spelling, covering

CHOICES: Choices = {
    "tokens": ("seq", "one", "three"),
    "lengths": ("one name", "own names"),
    "cache": ("concat", "heads third", "scatter", "where"),
    "mask": ("and", "triangle", "replaced", "window", "sinks", "tree", "causal", "none"),
    "heads": ("expand", "all", "interleaved", "one", "rows", "rows of heads", "five axes"),
    "rotary": ("table", "from the mask", "none"),
    "scale": ("scores", "both"),
    "guard": ("none", "isnan"),
}
"""Caches: `scatter` and `where` write into one of a fixed length.  Heads of keys: `expand` and `interleaved` are
copied for each group of queries, `rows` puts a group's queries side by side, `rows of heads` views their scores as
heads to mask them, `five axes` has one for the group."""

SLIPS = ("none", "mask", "position", "order", "groups", "hidden", "values")
"""What is wrong: the last key that is seen, the position of a token, past behind new, groups and heads exchanged, the
sense of the mask, values of the past."""

B, H, D, LENGTH = 2, 4, 8, 12
"""Batch, heads of queries, head width, and the length of a cache that does not grow."""
TREE = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], bool)
"""Which of three guessed tokens each sees: two follow the first."""


def decoders(opset: int = 17, count: int = 60, slip: str = "none") -> Iterator[Decoder]:
    """`count` spellings of Attention with a cache, or what `slip` makes of them."""
    for name, case in covering(CHOICES, count, _valid):
        yield Decoder(opset, name, case, slip)


def _valid(case: Case) -> bool:
    fixed = case.cache in ("scatter", "where")
    refused = (
        case.mask == "tree" and (case.tokens != "three" or fixed),
        case.cache == "where" and case.tokens != "one",
        fixed and case.mask in ("triangle", "none"),
        fixed and case.rotary == "from the mask",
        case.rotary == "from the mask" and case.mask in ("causal", "none"),
        case.guard == "isnan" and case.mask in ("none", "triangle"),
    )
    return not any(refused)


class Decoder:
    """One case, and how it is built; the methods follow the computation."""

    def __init__(self, opset: int, name: str, case: Case, slip: str) -> None:
        self.g, self.name, self.case, self.slip = Graph(opset), name, case, slip
        self.groups = {"all": H, "one": 1}.get(case.heads, 2)
        self.fixed = case.cache in ("scatter", "where")
        self.masked = case.mask in ("and", "triangle", "replaced", "window", "sinks", "tree")
        self.frequencies = 1 / 10.0 ** np.arange(D // 2)

    def lengths(self) -> tuple[tuple[int, int], ...]:
        """(past, new) at which it can be run, first those of the spelling's own inputs."""
        new = {"one": 1, "three": 3}.get(self.case.tokens)
        return tuple((past, new or more) for past, more in ((5, 3), (1, 4), (7, 2)))

    # --------------------------------------------------------------------------------------------- operands

    def feeds(self, past: int, new: int) -> dict[str, Array]:
        rng = np.random.default_rng(past * 10 + new)
        kept = LENGTH if self.fixed else past
        shape = (B, kept, self.groups, D) if self.case.cache == "heads third" else (B, self.groups, kept, D)
        q, k, v = (rng.standard_normal((B, new, n * D)) for n in (H, self.groups, self.groups))
        given = {
            "q": q,
            "k": k,
            "v": v,
            "past_key": rng.standard_normal(shape),
            "past_value": rng.standard_normal(shape),
        }
        found = {name: x.astype(np.float32) for name, x in given.items()}
        if self.masked:
            mask = np.ones((B, LENGTH if self.fixed else past + new), np.int64)
            mask[1, 0] = 0
            found["mask"] = mask
        if self.fixed:
            found["start"] = np.array([past], np.int64)
        return found

    def spelling(self) -> Spelling:
        self.g = Graph(self.g.opset)
        g, case = self.g, self.case
        given = self.feeds(*self.lengths()[0])
        seq: int | str = {"one": 1, "three": 3}.get(case.tokens, "seq")
        own = case.lengths == "own names"
        for key, value in given.items():
            dims: list[int | str] = [*value.shape]
            if key != "start":
                dims[0] = "batch"
            if key in "qkv":
                dims[1] = seq
            elif key.startswith("past") and not self.fixed:
                dims[1 if case.cache == "heads third" else 2] = f"{key}_length" if own else "past"
            elif key == "mask" and not self.fixed:
                dims[1] = "mask_length" if own else "total"
            g.input(key, value, dims)
        self.new = self._size("q", 1)
        self.first = "start" if self.fixed else self._size("past_key", 1 if case.cache == "heads third" else 2)
        total = np.array([LENGTH]) if self.fixed else g.Add(self.first, self.new)
        self.total = total if isinstance(total, str) else g.constant(total)
        outputs = self._attended()
        for key, value, truth in zip(("y", "present_key", "present_value"), outputs, self.truth(given), strict=True):
            g.output(g.node("Identity", value), truth, [f"{key}_{axis}" for axis in range(truth.ndim)])
        return g.spelling(self.name, {"Attention": 1})

    def _size(self, value: str, axis: int) -> str:
        g = self.g
        size = g.Gather(g.Shape(value), np.array(axis, np.int64), axis=0)
        return g.Unsqueeze(size, np.array([0], np.int64))

    def _range(self, start: str, stop: str) -> str:
        g = self.g
        ends = [g.Squeeze(x, np.array([0], np.int64)) for x in (start, stop)]
        return g.Range(*ends, np.array(1, np.int64))

    def _reshape(self, x: str, *dims: int | str) -> str:
        sizes = [np.array([n], np.int64) if isinstance(n, int) else n for n in dims]
        return self.g.Reshape(x, self.g.Concat(*sizes, axis=0))

    # --------------------------------------------------------------------------------------------- attention

    def _attended(self) -> tuple[str, str, str]:
        g, case, groups = self.g, self.case, self.groups
        q, k, v = (
            g.Transpose(self._reshape(x, 0, 0, n, D), perm=[0, 2, 1, 3])
            for x, n in (("q", H), ("k", groups), ("v", groups))
        )
        positions = self._range(self.first, g.Add(self.first, self.new))
        if case.rotary != "none":
            cosine, sine = self._angles(positions)
            q, k = self._turned(q, cosine, sine), self._turned(k, cosine, sine)
        present_key = self._kept("past_key", k)
        present_value = self._kept("past_value", self._kept_values(v))
        keys, values = (
            g.Transpose(x, perm=[0, 2, 1, 3]) if case.cache == "heads third" else x
            for x in (present_key, present_value)
        )
        mixed = self._mixed(q, keys, values, None if case.mask == "none" else self._mask(positions))
        y = self._reshape(g.Transpose(mixed, perm=[0, 2, 1, 3]), 0, self.new, H * D)
        return y, present_key, present_value

    def _kept_values(self, v: str) -> str:
        return self.g.Neg(v) if self.slip == "values" else v

    def _angles(self, positions: str) -> tuple[str, str]:
        g = self.g
        if self.case.rotary == "from the mask":
            counted = g.Clip(
                g.Sub(g.CumSum("mask", np.array(1, np.int64)), np.array(1, np.int64)), np.array(0, np.int64)
            )
            last = np.array([2**62], np.int64)
            positions = g.Slice(counted, g.Mul(self.new, np.array([-1], np.int64)), last, np.array([1], np.int64))
        if self.slip == "position":
            positions = g.Add(positions, np.array(1, np.int64))
        tables = (f(np.outer(np.arange(2 * LENGTH), self.frequencies)).astype(np.float32) for f in (np.cos, np.sin))
        axes = np.array([1] if self.case.rotary == "from the mask" else [0, 1], np.int64)
        found = [g.Unsqueeze(g.Gather(table, positions, axis=0), axes) for table in map(g.constant, tables)]
        return found[0], found[1]

    def _turned(self, x: str, cosine: str, sine: str) -> str:
        g = self.g
        a, b = g.split(x, 2, 3, D // 2)
        turned = g.Concat(g.Neg(b), a, axis=-1)
        cosine, sine = (g.Concat(angles, angles, axis=-1) for angles in (cosine, sine))
        return g.Add(g.Mul(x, cosine), g.Mul(turned, sine))

    def _kept(self, past: str, new: str) -> str:
        g, case = self.g, self.case
        if case.cache == "where":
            here = g.Equal(g.constant(np.arange(LENGTH).reshape(1, 1, LENGTH, 1)), "start")
            return g.Where(here, new, past)
        if case.cache == "scatter":
            rows = g.Unsqueeze(self._range(self.first, g.Add(self.first, self.new)), np.array([0, 1, 3], np.int64))
            return g.ScatterElements(past, g.Expand(rows, g.Shape(new)), new, axis=2)
        third = case.cache == "heads third"
        new = g.Transpose(new, perm=[0, 2, 1, 3]) if third else new
        both = (new, past) if self.slip == "order" else (past, new)
        return g.Concat(*both, axis=1 if third else 2)

    def _mask(self, positions: str) -> str:
        """Booleans [b or 1,1,s,t], or for `triangle` what is added."""
        g, mask = self.g, self.case.mask
        slipped = g.Add(positions, np.array(1, np.int64)) if self.slip == "mask" else positions
        rows = g.Unsqueeze(slipped, np.array([0, 1, 3], np.int64))
        columns = g.Unsqueeze(
            self._range(g.constant(np.array([0], np.int64)), self.total), np.array([0, 1, 2], np.int64)
        )
        there = g.Unsqueeze("mask", np.array([1, 2], np.int64)) if self.masked else ""
        if mask == "triangle":
            sizes = g.Concat(self.new, self.total, axis=0)
            behind = g.Squeeze(g.Add(self.first, np.array([2 if self.slip == "mask" else 1], np.int64)))
            upper = g.Trilu(g.Expand(g.constant(np.array(-1e9, np.float32)), sizes), behind, upper=1)
            return g.Add(
                g.Unsqueeze(upper, np.array([0, 1], np.int64)), g.Mul(g.Sub(1.0, g.cast(there, np.float32)), -1e9)
            )
        if mask == "tree":
            sizes = g.Concat(np.array([1, 1], np.int64), self.new, np.array([1], np.int64), axis=0)
            last = g.Sub(self.first, np.array([1], np.int64)) if self.slip == "mask" else self.first
            kept = g.cast(g.Slice(there, np.array([0], np.int64), last, np.array([3], np.int64)), np.bool_)
            batch = g.Concat(self._size("q", 0), np.array([1, 1, 1], np.int64), axis=0)
            guessed = g.Expand(g.constant(TREE[None, None]), batch)
            gap = [g.Expand(np.ones((1, 1, 3, 1), bool), batch)] if self.slip == "mask" else []
            return g.Concat(g.Expand(kept, sizes), *gap, guessed, axis=-1)
        seen = g.LessOrEqual(columns, rows)
        if mask in ("window", "sinks"):
            near = g.Greater(columns, g.Sub(rows, np.array(3, np.int64)))
            seen = g.And(seen, near if mask == "window" else g.Or(near, g.Less(columns, np.array(2, np.int64))))
        return g.And(seen, g.cast(there, np.bool_)) if there else seen

    def _mixed(self, q: str, keys: str, values: str, mask: str | None) -> str:
        g, case, groups = self.g, self.case, self.groups
        each, shared = H // groups, case.heads in ("rows", "rows of heads", "five axes")
        if not shared and each > 1:
            keys, values = self._copied(keys), self._copied(values)
        if case.heads in ("rows", "rows of heads"):
            rows = g.Mul(self.new, np.array([each], np.int64))
            q = self._reshape(self._regrouped(q), 0, groups, rows, D)
        elif case.heads == "five axes":
            q = self._reshape(self._regrouped(q), 0, groups, each, self.new, D)
            keys, values = (g.Unsqueeze(x, np.array([2], np.int64)) for x in (keys, values))
        turned = [0, 1, 2, 4, 3] if case.heads == "five axes" else [0, 1, 3, 2]
        keys = g.Transpose(keys, perm=turned)
        if case.scale == "both":
            scores = g.MatMul(g.Mul(q, D**-0.25), g.Mul(keys, D**-0.25))
        else:
            scores = g.Mul(g.MatMul(q, keys), 1 / math.sqrt(D))
        if case.heads == "rows":
            scores = self._reshape(scores, 0, groups, each, self.new, self.total)
        elif case.heads == "rows of heads":
            scores = self._reshape(scores, 0, H, self.new, self.total)
        if mask is not None and case.heads in ("rows", "five axes"):
            mask = g.Unsqueeze(mask, np.array([2], np.int64))
        weights = g.Softmax(self._hidden(scores, mask), axis=-1)
        if case.guard == "isnan":
            weights = g.Where(g.IsNaN(weights), 0.0, weights)
        if case.heads in ("rows", "rows of heads"):
            weights = self._reshape(weights, 0, groups, rows, self.total)
        return self._reshape(g.MatMul(weights, values), 0, H, self.new, D)

    def _hidden(self, scores: str, mask: str | None) -> str:
        g, case = self.g, self.case
        if mask is None:
            return scores
        if case.mask == "triangle":
            return g.Sub(scores, mask) if self.slip == "hidden" else g.Add(scores, mask)
        low = -1e9 if case.guard == "none" else -math.inf
        shown, hidden = (low, 0.0) if self.slip == "hidden" else (0.0, low)
        if case.mask == "replaced":
            return g.Where(g.Not(mask) if self.slip == "hidden" else mask, scores, low)
        return g.Add(scores, g.Where(mask, g.constant(np.array(shown, np.float32)), hidden))

    def _regrouped(self, q: str) -> str:
        """Queries whose heads are counted group by group; slipped, each group has the heads of another."""
        if self.slip != "groups":
            return q
        apart = self._reshape(q, 0, H // self.groups, self.groups, self.new, D)
        return self._reshape(self.g.Transpose(apart, perm=[0, 2, 1, 3, 4]), 0, H, self.new, D)

    def _copied(self, x: str) -> str:
        """Each head of keys or values for every query of its group."""
        g, each = self.g, H // self.groups
        if self.case.heads == "interleaved" and self.slip != "groups":
            return g.Gather(x, np.repeat(np.arange(self.groups), each), axis=1)
        axis = 1 if self.slip == "groups" else 2
        wide = [1, each, self.groups, 1, 1] if axis == 1 else [1, self.groups, each, 1, 1]
        return self._reshape(
            g.Expand(g.Unsqueeze(x, np.array([axis], np.int64)), np.array(wide, np.int64)), 0, H, self.total, D
        )

    # --------------------------------------------------------------------------------------------- definition

    def truth(self, given: dict[str, Array]) -> tuple[Array, Array, Array]:
        """What the attention without a slip computes, in float64."""
        case, third = self.case, self.case.cache == "heads third"
        new = given["q"].shape[1]
        first = int(given["start"][0]) if self.fixed else given["past_key"].shape[1 if third else 2]
        q, k, v = (given[name].astype(np.float64).reshape(B, new, -1, D).swapaxes(1, 2) for name in ("q", "k", "v"))
        mask = given.get("mask")
        if case.rotary != "none":
            at = np.tile(np.arange(first, first + new), (B, 1))
            if case.rotary == "from the mask" and mask is not None:
                at = np.maximum(mask.cumsum(1) - 1, 0)[:, -new:]
            q, k = (_rotated(x, at[..., None] * self.frequencies) for x in (q, k))
        present = []
        for past, fresh in (("past_key", k), ("past_value", v)):
            old = given[past].astype(np.float64)
            old = old.swapaxes(1, 2) if third else old
            if self.fixed:
                old[:, :, first : first + new] = fresh
            present.append(old if self.fixed else np.concatenate([old, fresh], 2))
        keys, values = (np.repeat(x, H // self.groups, 1) for x in present)
        scores = q @ keys.swapaxes(-1, -2) / math.sqrt(D)
        apart = np.arange(keys.shape[2])[None] - np.arange(first, first + new)[:, None]
        seen = np.ones_like(apart, bool) if case.mask == "none" else apart <= 0
        if case.mask in ("window", "sinks"):
            seen &= (apart > -3) | ((np.arange(keys.shape[2]) < 2) if case.mask == "sinks" else False)
        if case.mask == "tree":
            seen[:, first:] = TREE
        hidden = ~seen if mask is None else ~(seen & (mask[:, None, None] != 0))
        exponentials = np.exp(scores - scores.max(-1, keepdims=True)) * ~hidden
        total = exponentials.sum(-1, keepdims=True)
        y = (exponentials / np.where(total == 0, 1, total)) @ values
        out = [x.swapaxes(1, 2) if third else x for x in present]
        return y.swapaxes(1, 2).reshape(B, new, H * D), out[0], out[1]


def _rotated(x: Array, angles: Array) -> Array:
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate([a * cosine - b * sine, a * sine + b * cosine], -1)
