"""Embeddings with the normalization behind them: BERT's words, positions and segments, GPT-2's and OPT's, LLaMA's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.spellings.build import STYLE_CHOICES, Array, Case, Choices, Graph, Spelling, covering, distinct
from tests.spellings.layer_norm import layer_norm
from tests.spellings.rms_norm import rms_norm

CHOICES: Choices = {
    "positions": ("slice", "range", "stored ids", "row of ids", "ids", "one sequence", "behind", "folded", "none"),
    "segments": ("none", "ids", "one sequence", "stored ids", "zeros", "row", "expanded row"),
    "order": ("w+p+s", "p+w+s", "w+(p+s)", "s+(p+w)"),
    "ids": ("int64", "int32", "widened", "narrowed"),
    "rank": ("2", "1", "3"),
    "root": ("/sqrt", "*1/sqrt"),
    "affine": ("s,b", "s"),
    "kept": ("no", "sum"),
    "precision": ("float32", "float16"),
    "dims": ("dynamic", "static"),
    **STYLE_CHOICES,
}
RMS_CHOICES: Choices = {
    **{c: CHOICES[c] for c in ("ids", "rank", "root", "kept", "precision", "dims")},
    **STYLE_CHOICES,
}

WORDS, PLACES, SEGMENTS, COLUMNS = 23, 9, 3, 16
"""Rows of the tables, and their length."""
SHAPES = {"1": (5,), "2": (2, 5), "3": (2, 3, 5)}
BEHIND = 2
"""Positions count from here where they lie behind others (BART, OPT)."""


def spellings(opset: int = 17, count: int = 150) -> Iterator[Spelling]:
    """Spellings of rows of tables, added up, and LayerNormalization: the different ones of `count`."""
    yield from distinct(_Writer(case, opset).layer(name) for name, case in covering(CHOICES, count, _valid))


def rms_spellings(opset: int = 17, count: int = 60) -> Iterator[Spelling]:
    """`count` spellings of rows of a table and RMSNormalization."""
    for name, case in covering(RMS_CHOICES, count, _rms_valid):
        yield _Writer(case, opset).rms(name)


def _rms_valid(case: Case) -> bool:
    return case.rank != "1" or case.scalar != "[1,1,1]"


def _valid(case: Case) -> bool:
    refused = (
        # Of a single sequence both are one, and without positions nothing else is there to add.
        case.rank == "1" and "one sequence" in (case.positions, case.segments),
        case.positions == "none" and case.segments in ("row", "expanded row", "zeros"),
        # What has the length of a sequence stored in it does not take another.
        case.dims == "dynamic" and (case.positions in ("folded", "row of ids") or case.segments == "stored ids"),
        # In half precision a sum of three rounds by its order: a mutant that divides by a difference shows it.
        case.precision == "float16" and "none" not in (case.positions, case.segments),
        # A one-element constant must not raise the rank of what it meets.
        case.rank == "1" and case.scalar == "[1,1,1]",
    )
    return not any(refused)


class _Writer:
    """Writes one case; every value goes with what it is in float64."""

    def __init__(self, case: Case, opset: int) -> None:
        self.case, self.g = case, Graph(opset, case.style())
        self.shape = SHAPES[case.rank]
        names: list[int | str] = ["batch", "beam", "sequence"][-len(self.shape) :]
        if case.rank == "2":
            names = ["batch", "sequence"]
        self.dims: list[int | str] = [*self.shape] if case.dims == "static" else names
        self.dtype = np.dtype(case.precision)
        self.rng = np.random.default_rng(0)

    def layer(self, name: str) -> Spelling:
        case, g = self.case, self.g
        word, words = self.words()
        position, positions = self.positions(word)
        segment, segments = self.segments(word)
        words = words + positions + segments
        total = self.added(self.g.Gather(self.table, word), position, segment)
        if case.kept == "sum":
            g.output(total, words, [*self.dims, COLUMNS])
        scale, bias = self.drawn(COLUMNS), self.drawn(COLUMNS)
        d = g.Sub(total, g.reduce("ReduceMean", total, [-1]))
        y = g.Mul(self.divided(d), g.constant(scale))
        if case.affine == "s,b":
            y = g.Add(y, g.constant(bias))
        truth = layer_norm(words, scale, bias if case.affine == "s,b" else 0.0, [-1], 1e-5)
        g.output(y, truth, [*self.dims, COLUMNS])
        return g.spelling(name, {"EmbedLayerNormalization": 1})

    def rms(self, name: str) -> Spelling:
        g = self.g
        word, words = self.words()
        rows = g.Gather(self.table, word)
        if self.case.kept == "sum":
            g.output(rows, words, [*self.dims, COLUMNS])
        scale = self.drawn(COLUMNS)
        y = g.Mul(self.divided(rows), g.constant(scale))
        g.output(y, rms_norm(words, scale, 1e-5), [*self.dims, COLUMNS])
        return g.spelling(name, {"EmbedSimplifiedLayerNormalization": 1})

    def drawn(self, *shape: int) -> Array:
        return (self.rng.standard_normal(shape) + 0.25).astype(self.dtype)

    def divided(self, x: str) -> str:
        """x by the root of the mean of its squares."""
        g = self.g
        root = g.Sqrt(g.Add(g.reduce("ReduceMean", g.Mul(x, x), [-1]), 1e-5))
        return g.Div(x, root) if self.case.root == "/sqrt" else g.Mul(x, g.Div(1.0, root))

    def words(self) -> tuple[str, Array]:
        """The ids, and the rows that they choose of `self.table`."""
        given = np.int32 if self.case.ids in ("int32", "widened") else np.int64
        table, ids = self.drawn(WORDS, COLUMNS), self.rng.integers(0, WORDS, self.shape)
        self.table = self.g.constant(table)
        name = self.g.input("input_ids", ids.astype(given), self.dims)
        if self.case.ids in ("widened", "narrowed"):
            name = self.g.cast(name, np.int64 if self.case.ids == "widened" else np.int32)
        return name, table.astype(np.float64)[ids]

    def length(self, word: str) -> str:
        """The length of the sequences as [1]."""
        g, last = self.g, len(self.shape) - 1
        return g.Gather(g.Shape(word), np.array([last], np.int64))

    def positions(self, word: str) -> tuple[str, Array]:
        g, n, last = self.g, self.shape[-1], len(self.shape) - 1
        table = self.drawn(PLACES, COLUMNS)
        zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
        places = np.arange(n)
        match self.case.positions:
            case "none":
                return "", np.zeros(COLUMNS)
            case "slice":
                rows = g.Slice(g.constant(table), zero, self.length(word), zero)
            case "range":
                index = g.Range(np.array(0, np.int64), g.Squeeze(self.length(word), zero), np.array(1, np.int64))
                rows = g.Gather(g.constant(table), g.Unsqueeze(index, zero) if last else index)
            case "stored ids":
                index = g.Slice(np.arange(PLACES)[None], zero, self.length(word), one)
                rows = g.Gather(g.constant(table), index if last else g.Squeeze(index, zero))
            case "row of ids":
                places = self.rng.integers(0, PLACES, n)
                rows = g.Gather(g.constant(table), g.input("position_ids", places))
            case "ids" | "one sequence":
                shape = self.shape if self.case.positions == "ids" else (*(1 for _ in self.shape[1:]), n)
                places = self.rng.integers(0, PLACES, shape)
                dims = self.dims if self.case.positions == "ids" else [*shape[:-1], self.dims[-1]]
                rows = g.Gather(g.constant(table), g.input("position_ids", places, dims))
            case "behind":
                places = places + BEHIND
                stop = g.Add(self.length(word), np.array([BEHIND], np.int64))
                rows = g.Slice(g.constant(table), np.array([BEHIND], np.int64), stop, zero)
            case _:
                rows = g.constant(np.broadcast_to(table[:n], (*self.shape, COLUMNS)).copy())
        return rows, table.astype(np.float64)[places]

    def segments(self, word: str) -> tuple[str, Array]:
        g, n = self.g, self.shape[-1]
        table = self.drawn(SEGMENTS, COLUMNS)
        exact = table.astype(np.float64)
        match self.case.segments:
            case "none":
                return "", np.zeros(COLUMNS)
            case "ids" | "one sequence":
                shape = self.shape if self.case.segments == "ids" else (*(1 for _ in self.shape[1:]), n)
                ids = self.rng.integers(0, SEGMENTS, shape)
                dims = self.dims if self.case.segments == "ids" else [*shape[:-1], self.dims[-1]]
                return g.Gather(g.constant(table), g.input("token_type_ids", ids, dims)), exact[ids]
            case "stored ids":
                ids = np.arange(n) // 3
                return g.Gather(g.constant(table), g.constant(ids)), exact[ids]
            case "zeros":
                ids_of_zero = g.Expand(np.zeros([1] * len(self.shape), np.int64), g.Shape(word))
                return g.Gather(g.constant(table), ids_of_zero), exact[0]
            case "row":
                return g.constant(table[0]), exact[0]
            case _:
                row = g.constant(table[0].reshape(*(1 for _ in self.shape), COLUMNS))
                whole = g.Concat(g.Shape(word), np.array([COLUMNS], np.int64), axis=0)
                return g.Expand(row, whole), exact[0]

    def added(self, word: str, position: str, segment: str) -> str:
        g = self.g
        if not position or not segment:
            other = position or segment
            if not other:
                return word
            return g.Add(word, other) if self.case.order[0] == "w" else g.Add(other, word)
        match self.case.order:
            case "w+p+s":
                return g.Add(g.Add(word, position), segment)
            case "p+w+s":
                return g.Add(g.Add(position, word), segment)
            case "w+(p+s)":
                return g.Add(word, g.Add(position, segment))
            case _:
                return g.Add(segment, g.Add(position, word))
