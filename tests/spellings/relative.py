"""Attention with decomposed relative positions, which scores of an image's places get, but not those of a class token.

What is added is the sum of one tensor for the rows and one for the columns of the keys (Li et al., "MViTv2", CVPR 2022;
Kirillov et al., "Segment Anything", ICCV 2023, which has no class token and folds heads into the batch).  Exporters
write `scores[:, :, 1:, 1:] += ...` as a ScatterND by constants or by ranges, one axis after the other, or it is a
Concat or a Pad in the program already.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tests.spellings.build import Array, Case, Choices, Graph, Spelling, covering

CHOICES: Choices = {
    "write": ("constants", "ranges", "twice", "axis by axis", "and back", "concat", "pad", "whole"),
    "view": ("none", "places"),
    "batch": ("static", "dynamic"),
    "scale": ("scores", "queries", "none"),
    "heads": ("axis", "folded", "one"),
    "guard": ("none", "isnan"),
}
"""`whole`: there is no class token.  `twice`: what was written by ranges is written there once more, as TorchScript has
a `+=`.  `and back`: what was written axis by axis is read and written once more, as torch does behind every `+=` on a
part.  The view `places` is [.., rows, columns, rows, columns].  `one`: one picture and one head, whose axes of 1 a
Transpose only seems to move."""

SLIPS = ("none", "read", "written", "exchanged", "factor")
"""What is wrong: the part that is read begins one too early, the part that is written does, rows and columns of it are
exchanged, what is read is multiplied first."""

B, H, D, ROWS, COLUMNS = 2, 3, 8, 2, 4
"""Batch, heads, head width, and places."""
PLACES = ROWS * COLUMNS


def relative(opset: int = 17, count: int = 40, slip: str = "none") -> Iterator[Spelling]:
    """`count` spellings, or what `slip` makes of them; each expects one Attention unless something slips."""
    for name, case in covering(CHOICES, count, _valid):
        if slip == "none" or case.write not in ("pad", "whole"):
            yield _Relative(opset, case, slip).spelling(name)


def _valid(case: Case) -> bool:
    if case.heads == "one" and case.batch == "dynamic":
        return False
    return bool(case.view == "none" or case.write != "pad")


class _Relative:
    """One case, and how it is built."""

    def __init__(self, opset: int, case: Case, slip: str) -> None:
        self.g, self.case, self.slip = Graph(opset), case, slip
        self.first = 0 if case.write == "whole" else 1
        self.tokens = PLACES + self.first
        self.lead = (B * H,) if case.heads == "folded" else (1, 1) if case.heads == "one" else (B, H)
        self.dims: tuple[int | str, ...] = self.lead
        if case.batch == "dynamic":
            self.dims = ("batch", *self.lead[1:])

    def spelling(self, name: str) -> Spelling:
        g, rng, rank = self.g, np.random.default_rng(0), len(self.lead) + 2
        given = {n: rng.standard_normal((*self.lead, self.tokens, D)).astype(np.float32) for n in "qkv"}
        for n, size in (("rows", ROWS), ("columns", COLUMNS)):
            given[n] = rng.standard_normal((*self.lead, ROWS, COLUMNS, size)).astype(np.float32)
        for n, value in given.items():
            g.input(n, value, (*self.dims, *value.shape[len(self.lead) :]))
        scale, turned = 1 / math.sqrt(D), [*range(rank - 2), rank - 1, rank - 2]
        q = g.Mul("q", scale) if self.case.scale == "queries" else "q"
        scores = g.MatMul(q, g.Transpose("k", perm=turned))
        scores = g.Mul(scores, scale) if self.case.scale == "scores" else scores
        weights = g.Softmax(self._positioned(scores), axis=-1)
        if self.case.guard == "isnan":
            weights = g.Where(g.IsNaN(weights), 0.0, weights)
        y = g.MatMul(weights, "v")
        g.output(y, self.truth(given), ["a", "b", "c", "d"][:rank])
        return g.spelling(name, {"Attention": int(self.slip == "none")})

    # --------------------------------------------------------------------------------------------- positions

    def _positioned(self, scores: str) -> str:
        g, case, rank = self.g, self.case, len(self.lead) + 2
        at, behind = rank - 2, rank - 1
        if case.write == "whole":
            return self._sum(scores)
        if case.write == "pad":
            pads = [0] * (rank - 2) + [1, 1] + [0] * rank
            return g.Add(scores, g.Pad(self._added(), np.array(pads, np.int64)))
        start = 0 if self.slip == "read" else 1
        part = self._slice(self._slice(scores, at, start, start + PLACES), behind, start, start + PLACES)
        total = self._sum(g.Mul(part, 2.0) if self.slip == "factor" else part)
        if self.slip == "exchanged":
            total = g.Transpose(total, perm=[*range(at), behind, at])
        start = 0 if self.slip == "written" else 1
        if case.write == "concat":
            low = self._slice(scores, at, start, start + PLACES)
            low = self._joined(low, total, behind, start)
            return self._joined(scores, low, at, start)
        if case.write in ("axis by axis", "and back"):
            written = self._part_scattered(scores, total, start)
            if case.write == "axis by axis":
                return written
            part = self._slice(self._slice(written, at, start, start + PLACES), behind, start, start + PLACES)
            return self._part_scattered(written, part, start)
        written = g.ScatterND(scores, self._mesh(scores, total, start), total)
        return g.ScatterND(written, self._mesh(scores, total, start), total) if case.write == "twice" else written

    def _added(self) -> str:
        g, rank = self.g, len(self.lead) + 2
        rows = g.Unsqueeze("rows", np.array([rank + 1], np.int64))
        return self._merged(g.Add(rows, g.Unsqueeze("columns", np.array([rank], np.int64))))

    def _sum(self, part: str) -> str:
        """What is in the part, and the positions."""
        g, rank = self.g, len(self.lead) + 2
        if self.case.view == "none":
            return g.Add(part, self._added())
        sizes = np.array([0] * (rank - 2) + [ROWS, COLUMNS, ROWS, COLUMNS], np.int64)
        apart = g.Add(g.Reshape(part, sizes), g.Unsqueeze("rows", np.array([rank + 1], np.int64)))
        return self._merged(g.Add(apart, g.Unsqueeze("columns", np.array([rank], np.int64))))

    def _merged(self, x: str) -> str:
        return self.g.Reshape(x, np.array([0] * len(self.lead) + [PLACES, PLACES], np.int64))

    def _slice(self, x: str, axis: int, start: int, stop: int) -> str:
        return self.g.Slice(x, *(np.array([n], np.int64) for n in (start, stop, axis)))

    def _joined(self, x: str, low: str, axis: int, start: int) -> str:
        """x, with `low` instead of what it has from `start` on."""
        parts = [self._slice(x, axis, 0, start)] if start else []
        behind = [self._slice(x, axis, start + PLACES, self.tokens)] if start + PLACES < self.tokens else []
        return self.g.Concat(*parts, low, *behind, axis=axis)

    def _part_scattered(self, scores: str, part: str, start: int) -> str:
        """The scores with this part, written along their last axis and then along the one before."""
        rank = len(self.lead) + 2
        rows = self._slice(scores, rank - 2, start, start + PLACES)
        return self._scattered(scores, self._scattered(rows, part, rank - 1, start), rank - 2, start)

    def _scattered(self, x: str, low: str, axis: int, start: int) -> str:
        """The same, written along the first axis."""
        g, rank = self.g, len(self.lead) + 2
        order = [axis, *(i for i in range(rank) if i != axis)]
        rows = np.arange(start, start + PLACES)[:, None]
        written = g.ScatterND(g.Transpose(x, perm=order), rows, g.Transpose(low, perm=order))
        return g.Transpose(written, perm=[order.index(i) for i in range(rank)])

    def _mesh(self, scores: str, total: str, start: int) -> str:
        g, rank = self.g, len(self.lead) + 2
        if self.case.write == "constants" and self.case.batch == "static":
            box = [*map(range, self.lead), *(range(start, start + PLACES),) * 2]
            return g.constant(np.stack(np.meshgrid(*box, indexing="ij"), -1).astype(np.int64))
        shape, indices = g.Shape(total), []
        for axis in range(rank):
            first = start if axis >= rank - 2 else 0
            stop = g.Add(g.Gather(shape, np.array(axis, np.int64), axis=0), np.array(first, np.int64))
            run = g.Range(np.array(first, np.int64), stop, np.array(1, np.int64))
            apart = g.Reshape(run, np.array([-1 if i == axis else 1 for i in range(rank)], np.int64))
            indices.append(g.Unsqueeze(g.Expand(apart, shape), np.array([rank], np.int64)))
        return g.Concat(*indices, axis=-1)

    # --------------------------------------------------------------------------------------------- definition

    def truth(self, given: dict[str, Array]) -> Array:
        """The attention without a slip, in float64."""
        q, k, v, rows, columns = (value.astype(np.float64) for value in given.values())
        scores = q @ k.swapaxes(-1, -2) * (1 if self.case.scale == "none" else 1 / math.sqrt(D))
        more = (rows[..., :, None] + columns[..., None, :]).reshape(*self.lead, PLACES, PLACES)
        scores[..., self.first :, self.first :] += more
        exponentials = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(-1, keepdims=True) @ v)
