"""The rarer forms of attention: windows, positions first, packed heads, Einsum, repeated heads, Softmax spelled out,
masks that are stored or multiplied in, caches."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tests.spellings.attention import attention
from tests.spellings.build import STYLE_CHOICES, Array, Case, Choices, Graph, Spelling, covering

CHOICES: Choices = {
    "layout": ("heads", "split", "positions first", "windows", "qkv within heads", "qkv behind heads", "stacked"),
    "products": ("matmul", "einsum"),
    "repeat": ("none", "expand", "gather", "concat", "tile"),
    "softmax": ("op", "shifted", "exp", "deferred"),
    "mask": ("none", "two", "higher rank", "triangle", "product"),
    "cache": ("none", "concat", "presents"),
    "batch": ("static", "symbolic"),
    **STYLE_CHOICES,
}
"""Layouts: `heads` is given as [B,H,S,D], `split` as three [B,S,H*D], `positions first` as three [S,B,H*D], `windows`
as three [B,W,S,H*D]; one tensor holds [B,S,H*3*D] (GPT-NeoX), [B,S,H,3,D] (BLOOM), [3,B,H,S,D].  Masks: `two` are added
one after the other, `triangle` is part of a stored one, `product` is scores * keep + -1e4 * (1 - keep)."""

B, H, W, S, P, D = 2, 4, 3, 5, 2, 8
"""Batch, heads, windows, positions, positions of the past, head width."""


def spellings(opset: int = 17, count: int = 72) -> Iterator[Spelling]:
    """`count` spellings of Attention."""
    for name, case in covering(CHOICES, count, _valid):
        yield _Attention(Graph(opset, case.style()), case).spelling(name)


def _valid(case: Case) -> bool:
    packed = case.layout in ("qkv within heads", "qkv behind heads", "stacked")
    refused = (
        packed and (case.repeat != "none" or case.cache != "none"),
        case.layout in ("positions first", "windows") and (case.repeat != "none" or case.cache != "none"),
        # Einsum would contract the windows' axis as a batch that has no letter of its own here.
        case.layout == "windows" and case.products == "einsum",
        case.layout in ("positions first", "windows") and case.mask == "higher rank",
        case.cache != "none" and case.mask in ("triangle", "product"),
        # With its difference turned round, the exponential of a fill is infinite and the model's output is NaN.
        case.softmax in ("exp", "deferred") and case.mask in ("triangle", "product"),
        # The stacked tensor's first axis is not the batch.
        case.layout == "stacked" and case.batch == "symbolic",
        # Nothing says that three inputs have the same batch: MatMul and Einsum would broadcast one of 1.
        case.batch == "symbolic" and not packed and (case.products == "einsum" or case.layout == "positions first"),
    )
    return not any(refused)


class _Attention:
    """One case under construction; the methods follow the computation."""

    def __init__(self, g: Graph, case: Case) -> None:
        self.g, self.case = g, case
        self.rng = np.random.default_rng(0)
        self.batch: int | str = "batch" if case.batch == "symbolic" else B
        self.groups = 2 if case.repeat != "none" else H
        self.keys = S + P if case.cache != "none" else S
        self.lead = (B, W) if case.layout == "windows" else (B,)

    def spelling(self, name: str) -> Spelling:
        g, case = self.g, self.case
        q, k, v = (self._draw(*self.lead, heads, S, D) for heads in (H, self.groups, self.groups))
        query, key, value = self._operands(q, k, v)
        key, k = self._cached("key", key, k)
        value, v = self._cached("value", value, v)
        key_heads, value_heads = self._repeated(key), self._repeated(value)
        products = self._product(query, key_heads, "bhsd,bhtd->bhst", turned=True)
        scores, bias = self._masked(g.Mul(products, 1 / math.sqrt(D)))
        y = self._mixed(scores, value_heads)
        q, k, v = (x.astype(np.float64) for x in (q, k, v))
        k, v = (np.repeat(x, H // self.groups, axis=-3) for x in (k, v))
        truth = attention(q, k, v, 1 / math.sqrt(D), bias)
        self._merged(y, truth)
        if case.cache == "presents":
            for present, x in ((key, k), (value, v)):
                g.output(present, x[:, :: H // self.groups], [self.batch, self.groups, self.keys, D])
        return g.spelling(name, {"Attention": 1})

    def _draw(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.float32)

    def _operands(self, q: Array, k: Array, v: Array) -> list[str]:
        """Queries, keys and values as [B,H,S,D], [B,W,H,S,D] or [B*H,S,D]."""
        g, layout = self.g, self.case.layout
        whole = np.stack([q, k, v]) if self.groups == H else q
        match layout:
            case "heads":
                return [g.input(name, x, [self.batch, *x.shape[1:]]) for name, x in zip("qkv", (q, k, v), strict=True)]
            case "stacked":
                stacked = g.input("qkv", whole)
                return [g.Gather(stacked, np.array(n, np.int64), axis=0) for n in range(3)]
            case "qkv within heads":
                packed = whole.transpose(1, 3, 2, 0, 4).reshape(B, S, H * 3 * D)
                split = self._reshape(g.input("qkv", packed, [self.batch, S, H * 3 * D]), -1, S, H, 3 * D)
                heads = g.Transpose(split, perm=[0, 2, 1, 3])
                return [g.Slice(heads, *(np.array([i], np.int64) for i in (n * D, (n + 1) * D, 3))) for n in range(3)]
            case "qkv behind heads":
                packed = whole.transpose(1, 3, 2, 0, 4).reshape(B, S, H * 3 * D)
                split = self._reshape(g.input("qkv", packed, [self.batch, S, H * 3 * D]), -1, S, H, 3, D)
                parts = [g.Gather(split, np.array(n, np.int64), axis=3) for n in range(3)]
                return [g.Transpose(part, perm=[0, 2, 1, 3]) for part in parts]
        return [self._split(name, x) for name, x in zip("qkv", (q, k, v), strict=True)]

    def _split(self, name: str, x: Array) -> str:
        g, heads = self.g, x.shape[-3]
        match self.case.layout:
            case "positions first":
                flat = g.input(name, x.transpose(2, 0, 1, 3).reshape(S, B, heads * D), [S, self.batch, heads * D])
                return g.Transpose(self._reshape(flat, S, -1, D), perm=[1, 0, 2])
            case "windows":
                flat = g.input(name, x.swapaxes(2, 3).reshape(B, W, S, heads * D), [self.batch, W, S, heads * D])
                return g.Transpose(self._reshape(flat, -1, W, S, heads, D), perm=[0, 1, 3, 2, 4])
            case _:
                flat = g.input(name, x.swapaxes(1, 2).reshape(B, S, heads * D), [self.batch, S, heads * D])
                return g.Transpose(self._reshape(flat, -1, S, heads, D), perm=[0, 2, 1, 3])

    def _cached(self, name: str, x: str, value: Array) -> tuple[str, Array]:
        if self.case.cache == "none":
            return x, value
        past = self._draw(B, self.groups, P, D)
        whole = self.g.Concat(self.g.input(f"past_{name}", past, [self.batch, *past.shape[1:]]), x, axis=2)
        return whole, np.concatenate([past, value], axis=2)

    def _repeated(self, x: str) -> str:
        g, n = self.g, H // self.groups
        match self.case.repeat:
            case "none":
                return x
            case "gather":
                return g.Gather(x, np.repeat(np.arange(self.groups), n), axis=1)
        one = g.Unsqueeze(x, np.array([2], np.int64))
        match self.case.repeat:
            case "expand":
                wide = g.Expand(one, np.array([1, 1, n, 1, 1], np.int64))
            case "concat":
                wide = g.Concat(*[one] * n, axis=2)
            case _:
                wide = g.Tile(one, np.array([1, 1, n, 1, 1], np.int64))
        return self._reshape(wide, -1, H, self.keys, D)

    def _product(self, a: str, b: str, equation: str, *, turned: bool) -> str:
        """a times b, whose last two axes are turned round."""
        g = self.g
        rank = 3 if self.case.layout == "positions first" else len(self.lead) + 3
        if self.case.products == "einsum":
            return g.Einsum(a, b, equation=equation if rank == 4 else equation.replace("h", ""))
        turn = [*range(rank - 2), rank - 1, rank - 2]
        return g.MatMul(a, g.Transpose(b, perm=turn) if turned else b)

    def _masked(self, scores: str) -> tuple[str, Array]:
        """Masked scores, and the mask as what it adds to them."""
        g = self.g
        keep = np.tril(np.ones((S, self.keys), np.float32))
        match self.case.mask:
            case "none":
                return scores, np.zeros(1)
            case "two":
                first, second = self._draw(S, self.keys), self._draw(self.keys)
                masked = g.Add(g.Add(scores, g.input("mask", first)), g.input("bias", second))
                return masked, first.astype(np.float64) + second
            case "higher rank":
                mask = self._draw(1, 1, 1, S, self.keys)
                added = g.Add(scores, g.input("mask", mask))
                return g.Squeeze(added, np.array([0], np.int64)), mask[0].astype(np.float64)
            case "triangle":
                stored: str | Array = np.tril(np.ones((16, 16), bool))
                for axis in (0, 1):
                    stored = g.Slice(stored, *(np.array([i], np.int64) for i in (0, S, axis)))
                return g.Where(str(stored), scores, float(np.finfo(np.float32).min)), np.where(keep > 0, 0, -np.inf)
            case _:
                name = g.constant(keep)
                fill = g.Mul(g.Sub(1.0, name), -1e4)
                return g.Add(g.Mul(scores, name), fill), np.where(keep > 0, 0, -np.inf)

    def _mixed(self, scores: str, value: str) -> str:
        """The values mixed by the Softmax of the scores."""
        g, how = self.g, self.case.softmax
        if how == "op":
            return self._product(g.Softmax(scores, axis=-1), value, "bhst,bhtd->bhsd", turned=False)
        shifted = g.Sub(scores, g.reduce("ReduceMax", scores, [-1]))
        if how == "shifted":
            return self._product(g.Softmax(shifted, axis=-1), value, "bhst,bhtd->bhsd", turned=False)
        e = g.Exp(shifted)
        total = g.ReduceSum(e, np.array([-1], np.int64), keepdims=1)
        if how == "exp":
            return self._product(g.Div(e, total), value, "bhst,bhtd->bhsd", turned=False)
        return g.Div(self._product(e, value, "bhst,bhtd->bhsd", turned=False), total)

    def _merged(self, y: str, truth: Array) -> None:
        """Heads put together as the inputs had them."""
        g, layout = self.g, self.case.layout
        match layout:
            case "heads" | "stacked":
                g.output(y, truth, [self.batch, H, S, D])
            case "positions first":
                merged = g.Transpose(y, perm=[1, 0, 2])
                last = self._reshape(merged, S, -1, H * D)
                g.output(last, truth.transpose(2, 0, 1, 3).reshape(S, B, H * D), [S, self.batch, H * D])
            case "windows":
                merged = g.Transpose(y, perm=[0, 1, 3, 2, 4])
                last = self._reshape(merged, -1, W, S, H * D)
                g.output(last, truth.swapaxes(2, 3).reshape(B, W, S, H * D), [self.batch, W, S, H * D])
            case _:
                last = self._reshape(g.Transpose(y, perm=[0, 2, 1, 3]), -1, S, H * D)
                g.output(last, truth.swapaxes(1, 2).reshape(B, S, H * D), [self.batch, S, H * D])

    def _reshape(self, x: str, *dims: int) -> str:
        return self.g.Reshape(x, np.array(dims, np.int64))
