"""Rotary position embedding: halves or neighbours turned, whole heads or their first channels, angles of any origin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.spellings.build import STYLE_CHOICES, Array, Case, Choices, Graph, Spelling, covering, distinct

BATCH, SEQUENCE, HEADS, SIZE = 2, 5, 4, 8
SCALE = 0.3

CHOICES: Choices = {
    "form": ("rotate half", "halves", "every two", "complex"),
    "angles": ("constant", "computed", "gathered"),
    "layout": ("second", "third", "4-D"),
    "parts": ("slice", "split"),
    "share": ("whole", "partial"),
    "minus": ("neg", "times -1", "sub"),
    "scaled": ("not", "before"),
    "precision": ("float32", "float16"),
    "dims": ("static", "dynamic"),
    **STYLE_CHOICES,
}
"""`layout`: the heads come second, third, or second in an input of rank 4.  `scaled`: as ESM scales its queries."""

INTERLEAVED = ("every two", "complex")


def rotary(x: Array, angles: Array, interleaved: bool) -> Array:
    """Channels of x [batch, heads, sequence, size] in pairs, each turned by angles [batch, sequence, pairs]; channels
    behind the last pair stay (ai.onnx RotaryEmbedding-23)."""
    x, pairs = x.astype(np.float64), angles.shape[-1]
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else (turned[..., :pairs], turned[..., pairs:])
    real, imaginary = a * cosine - b * sine, a * sine + b * cosine
    joined = (
        np.stack([real, imaginary], -1).reshape(turned.shape) if interleaved else np.concatenate([real, imaginary], -1)
    )
    result: Array = np.concatenate([joined, rest], -1)
    return result


def spellings(opset: int = 17, count: int = 110) -> Iterator[Spelling]:
    """Spellings of RotaryEmbedding: `count`, less those whose style makes no difference."""
    yield from distinct(_spelling(name, case, opset) for name, case in covering(CHOICES, count, _valid))


def _valid(case: Case) -> bool:
    unaffected = case.minus != "neg" and case.form in ("halves", "complex")
    return not unaffected and not (case.form in INTERLEAVED and case.parts == "split")


def _spelling(name: str, case: Case, opset: int) -> Spelling:
    g, rng = Graph(opset, case.style()), np.random.default_rng(0)
    dtype = np.float16 if case.precision == "float16" else np.float32
    batch: int | str = BATCH if case.dims == "static" else "batch"
    pairs = SIZE // 2 if case.share == "whole" else SIZE // 4
    frequencies = (1 / 10.0 ** np.arange(pairs)).astype(np.float32)
    if case.layout == "4-D":
        value = rng.standard_normal((BATCH, HEADS, SEQUENCE, SIZE)).astype(dtype)
        x = source = g.input("x", value, [batch, HEADS, SEQUENCE, SIZE])
        heads_second = value
    else:
        value = rng.standard_normal((BATCH, SEQUENCE, HEADS * SIZE)).astype(dtype)
        heads_second = value.reshape(BATCH, SEQUENCE, HEADS, SIZE).transpose(0, 2, 1, 3)
        source = g.input("x", value, [batch, SEQUENCE, HEADS * SIZE])
        x = g.Reshape(source, np.array([0, 0, HEADS, SIZE], np.int64))
    positions = np.tile(np.arange(SEQUENCE), (BATCH, 1))
    if case.angles != "constant":
        positions = np.array([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]])
        ids = g.input("position_ids", positions.astype(np.int64), [batch, SEQUENCE])
    x = g.cast(x, np.float32) if dtype == np.float16 else x
    x = g.Transpose(x, perm=[0, 2, 1, 3]) if case.layout == "second" else x
    x = g.Mul(x, SCALE) if case.scaled == "before" else x
    axis = 2 if case.layout == "third" else 1
    if case.angles == "computed":
        angle = g.Mul(g.Unsqueeze(g.cast(ids, np.float32), np.array([2], np.int64)), frequencies)
        angle = _doubled(g, case, angle, pairs)
        cosine, sine = g.Cos(angle), g.Sin(angle)
    elif case.angles == "gathered":
        table = _copied(case, np.outer(np.arange(16), frequencies))
        cosine, sine = (g.Gather(f(table).astype(np.float32), ids) for f in (np.cos, np.sin))
    else:
        table = _copied(case, np.outer(np.arange(SEQUENCE), frequencies))[None]
        cosine, sine = (g.constant(f(table).astype(np.float32)) for f in (np.cos, np.sin))
    cosine, sine = (g.Unsqueeze(value, np.array([axis], np.int64)) for value in (cosine, sine))
    y = _turned(g, case, x, cosine, sine, pairs)
    y = g.cast(y, np.float16) if dtype == np.float16 else y
    truth = rotary(heads_second, positions[..., None] * frequencies.astype(np.float64), case.form in INTERLEAVED)
    truth = truth.transpose(0, 2, 1, 3) if case.layout == "third" else truth
    truth = SCALE * truth if case.scaled == "before" else truth
    g.output(y, truth, [batch, *truth.shape[1:]])
    return g.spelling(name, {"RotaryEmbedding": 1})


def _copied(case: Case, angles: Array) -> Array:
    """Every angle twice, where the form wants that."""
    if case.form == "rotate half":
        return np.concatenate([angles, angles], -1)
    return np.repeat(angles, 2, -1) if case.form == "every two" else angles


def _doubled(g: Graph, case: Case, angle: str, pairs: int) -> str:
    if case.form == "rotate half":
        return g.Concat(angle, angle, axis=-1)
    if case.form != "every two":
        return angle
    wide = g.Expand(g.Unsqueeze(angle, np.array([3], np.int64)), np.array([1, 1, 1, 2], np.int64))
    return g.Reshape(wide, np.array([0, 0, 2 * pairs], np.int64))


def _turned(g: Graph, case: Case, x: str, cosine: str, sine: str, pairs: int) -> str:
    rest = ""
    if case.share == "partial":
        x, rest = _cut(g, case, x, 2 * pairs, SIZE)
    if case.form in INTERLEAVED:
        a, b = (_slice(g, x, start, 2 * pairs, 2) for start in (0, 1))
    else:
        a, b = _cut(g, case, x, pairs, 2 * pairs)
    if case.form in ("rotate half", "every two"):
        minus = {"neg": g.Neg, "times -1": lambda v: g.Mul(v, -1.0), "sub": lambda v: g.Sub(0.0, v)}[case.minus]
        y = g.Add(g.Mul(x, cosine), g.Mul(_joined(g, case, minus(b), a, pairs), sine))
    else:
        real = g.Sub(g.Mul(a, cosine), g.Mul(b, sine))
        y = _joined(g, case, real, g.Add(g.Mul(a, sine), g.Mul(cosine, b)), pairs)
    return g.Concat(y, rest, axis=-1) if rest else y


def _joined(g: Graph, case: Case, a: str, b: str, pairs: int) -> str:
    if case.form not in INTERLEAVED:
        return g.Concat(a, b, axis=-1)
    stacked = g.Concat(*(g.Unsqueeze(value, np.array([4], np.int64)) for value in (a, b)), axis=-1)
    return g.Reshape(stacked, np.array([0, 0, 0, 2 * pairs], np.int64))


def _cut(g: Graph, case: Case, x: str, middle: int, end: int) -> tuple[str, str]:
    if case.parts == "split" and 2 * middle == end:
        first, second = g.split(x, 2, 3, middle)
        return first, second
    return _slice(g, x, 0, middle, 1), _slice(g, x, middle, end, 1)


def _slice(g: Graph, x: str, start: int, stop: int, step: int) -> str:
    return g.Slice(x, *(np.array([bound], np.int64) for bound in (start, stop, 3, step)))
