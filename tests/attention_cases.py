"""Calls of the attention kernels for tests: inputs, and what NumPy makes of them in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from ml_dtypes import finfo

from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.device.device import Device

from .row_cases import Values, Wanted, values

INPUTS = (
    *("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen", "head_sink"),
    *("cos_cache", "sin_cache", "position_ids"),
)
POSITIONS = 40
"""Rows of a table of angles that positions choose from."""


@dataclass(frozen=True)
class Case:
    """Shapes and attributes of a node.

    `mask` is the shape of an added mask, or of a boolean one with `boolean`; `hidden` rows of it hide every key.
    """

    queries: int
    keys: int
    head: int = 64
    batches: int = 2
    heads: int = 2
    kv_heads: int = 2
    head_v: int = 0
    mask: tuple[int, ...] | None = None
    boolean: bool = False
    hidden: tuple[int, ...] = ()
    lowest: bool = False
    """Whether they are hidden by the lowest finite number, not by -inf."""
    past: int = 0
    lengths: tuple[int, ...] | None = None
    sink: bool = False
    flat: bool = False
    angles: Literal["", "chosen", "given"] = ""
    """Whether Q and K are turned, and by tables of whose rows positions choose some, or that have one for each."""
    turned: int = 0
    """Channels that are turned; all of them if 0."""
    interleaved: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def node(self) -> dict[str, Any]:
        """The attributes of the node."""
        heads = {"q_num_heads": self.heads, "kv_num_heads": self.kv_heads} if self.flat else {}
        partial = {"rotary_embedding_dim": self.turned} if self.turned else {}
        return {**self.attributes, **heads, **partial, **({"rotary_interleaved": 1} if self.interleaved else {})}

    def inputs(self, dtype: np.dtype[Any]) -> list[Values | None]:
        rng = np.random.default_rng(self.seed)
        head_v = self.head_v or self.head

        def tensor(heads: int, rows: int, size: int, flat: bool = self.flat) -> Values:
            shape = (self.batches, rows, heads * size) if flat else (self.batches, heads, rows, size)
            return values(rng, shape, dtype)

        q, k = tensor(self.heads, self.queries, self.head), tensor(self.kv_heads, self.keys, self.head)
        v = tensor(self.kv_heads, self.keys, head_v)
        mask = None
        if self.mask is not None:
            mask = rng.random(self.mask) < 0.6 if self.boolean else values(rng, self.mask, dtype)
            for row in self.hidden:
                low = finfo(dtype).min if self.lowest else -np.inf
                mask[..., row, :] = False if self.boolean else np.asarray(low, dtype)
        past_key = tensor(self.kv_heads, self.past, self.head, False) if self.past else None
        past_value = tensor(self.kv_heads, self.past, head_v, False) if self.past else None
        lengths = None if self.lengths is None else np.asarray(self.lengths, np.int64)
        sink = values(rng, (self.heads,), dtype, 4) if self.sink else None
        return [q, k, v, mask, past_key, past_value, lengths, sink, *self._angles(rng, dtype)]

    def _angles(self, rng: np.random.Generator, dtype: np.dtype[Any]) -> list[Values | None]:
        if not self.angles:
            return [None, None, None]
        chosen, rows = self.angles == "chosen", (self.batches, self.queries)
        shape = (*((POSITIONS,) if chosen else rows), (self.turned or self.head) // 2)
        # Few digits: what float32 makes of them in half precision is what float64 makes, and both round alike.
        cosines, sines = ((rng.integers(-8, 9, shape) / 8).astype(dtype) for _ in range(2))
        return [cosines, sines, rng.integers(0, POSITIONS, rows) if chosen else None]


def launched(device: Device, case: Case, inputs: Sequence[Values | None], outputs: Sequence[Values | None]) -> None:
    Attention(case.node).launch(device, inputs, outputs)


def expected(attributes: Mapping[str, Any], inputs: Sequence[Values | None]) -> tuple[Wanted, Wanted, Wanted]:
    """Y, present_key and present_value in float64; inputs that are left out at the end are None."""
    inputs = [*inputs, *[None] * (len(Attention.signature.inputs) - len(inputs))]
    real = [None if a is None or a.dtype.kind in "bi" else a.astype(np.float64) for a in inputs]
    get = attributes.get

    def heads(x: Values | None, count: int) -> Values:
        assert x is not None
        return x if x.ndim == 4 else x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)

    q = heads(real[0], get("q_num_heads", 0))
    k, v = (heads(x, get("kv_num_heads", 0)) for x in real[1:3])
    key_size = np.abs(k)
    if inputs[8] is not None:
        dtype = inputs[8].dtype
        angles = [a if inputs[10] is None else a[inputs[10]] for a in real[8:10] if a is not None]
        (q, _), (k, key_size) = (turned(x, *angles, bool(get("rotary_interleaved", 0)), dtype) for x in (q, k))
    past = 0
    if real[4] is not None and real[5] is not None:
        past = real[4].shape[2]
        k, v = np.concatenate([real[4], k], 2), np.concatenate([real[5], v], 2)
        key_size = np.concatenate([np.abs(real[4]), key_size], 2)
    queries, keys, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, group, 1).swapaxes(2, 3) * get("scale", q.shape[3] ** -0.5)
    if cap := get("softcap", 0.0):
        scores = cap * np.tanh(scores / cap)
    scores = np.where(_hidden(attributes, q.shape[0], queries, keys, past, inputs[6]), -np.inf, scores)
    mask = inputs[3]
    if mask is not None:
        if mask.shape[-1] not in (1, keys):
            rest = np.full((*mask.shape[:-1], keys - mask.shape[-1]), False if mask.dtype == bool else -np.inf)
            mask = np.concatenate([mask.astype(rest.dtype), rest], -1)
        filler = get("mask_filter_value", 0.0) or -np.inf
        scores = np.where(mask, scores, filler) if mask.dtype == bool else scores + mask.astype(np.float64)
    if (sink := real[7]) is not None:
        scores = np.concatenate([scores, np.broadcast_to(sink[:, None, None], (*scores.shape[:3], 1))], 3)
    with np.errstate(all="ignore"):
        exponentials = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        weights = (exponentials / exponentials.sum(-1, keepdims=True))[..., :keys]
    if guard := get("nan_to_zero", 0):
        none = np.isnan(weights) if guard == 1 else (scores == -np.inf).all(-1, keepdims=True)
        weights = np.where(none, 0, weights)
    wide = np.repeat(v, group, 1)
    y, size = weights @ wide, weights @ np.abs(wide)
    if real[0] is not None and real[0].ndim == 3:
        y, size = (x.swapaxes(1, 2).reshape(*x.shape[:1], queries, -1) for x in (y, size))
    return Wanted(y, np.nan_to_num(size), weighed=True), Wanted(k, key_size), Wanted(v)


def turned(x: Values, cosine: Values, sine: Values, interleaved: bool, dtype: np.dtype[Any]) -> tuple[Values, Values]:
    """Heads [batch, heads, rows, size] turned by angles [batch, rows, pairs], in float64 and rounded once to `dtype`,
    and the size of the terms that each is the sum of."""
    pairs, cosine, sine = cosine.shape[-1], cosine[:, None], sine[:, None]
    first, second = (
        (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(pairs), slice(pairs, 2 * pairs))
    )
    result, size = x.copy(), np.abs(x)
    result[..., first] = x[..., first] * cosine - x[..., second] * sine
    result[..., second] = x[..., first] * sine + x[..., second] * cosine
    size[..., first] = size[..., second] = size[..., first] + size[..., second]
    return result.astype(dtype).astype(np.float64), size


def _hidden(
    attributes: Mapping[str, Any], batches: int, queries: int, keys: int, past: int, lengths: Values | None
) -> Values:
    """Which keys causal order, windows and lengths hide."""
    key = np.arange(keys)
    offset = np.full((batches, 1, 1, 1), past) if lengths is None else lengths.reshape(-1, 1, 1, 1) - queries
    query = np.arange(queries)[:, None] + offset
    hidden = np.zeros((batches, 1, queries, keys), bool)
    if attributes.get("is_causal", 0):
        hidden |= key > query
    if (left := attributes.get("left_window_size", -1)) > -1:
        hidden |= key < query - left
    if (right := attributes.get("right_window_size", -1)) > -1:
        hidden |= key > query + right
    if lengths is not None:
        hidden |= key >= lengths.reshape(-1, 1, 1, 1)
    return hidden


TURNED = {
    "a mask added to scores of a negative scale": Case(37, 70, mask=(37, 70), attributes={"scale": -0.5}),
    "a mask added to scores of a negative scale, causal": Case(
        37, 70, mask=(37, 70), hidden=(3,), attributes={"scale": -0.5, "is_causal": 1, "nan_to_zero": 1}
    ),
    "a mask added to scores that are all 0": Case(37, 70, mask=(37, 70), attributes={"scale": 0.0}),
    "a mask added to a score of a negative scale behind a past": Case(
        1, 1, past=130, mask=(1, 131), attributes={"scale": -0.5}
    ),
}
"""Cases whose scale makes no -inf of -inf."""

FAR = {
    "rows hidden by a filler far from 0": Case(
        37, 131, mask=(37, 131), boolean=True, hidden=(0, 36), attributes={"mask_filter_value": -1e9}
    ),
    "rows hidden by the lowest filler": Case(
        37, 136, mask=(37, 136), boolean=True, hidden=(0, 36), attributes={"mask_filter_value": -3.4028235e38}
    ),
    "one query hidden by a filler far from 0": Case(
        1, 700, mask=(1, 700), boolean=True, hidden=(0,), attributes={"mask_filter_value": -1e30}
    ),
    "scores far from 0": Case(37, 200, attributes={"scale": 1e7}),
    "scores farther from 0": Case(37, 200, attributes={"scale": -1e20}),
    "scores that are all 0": Case(
        37, 70, mask=(37, 70), boolean=True, hidden=(3,), attributes={"mask_filter_value": -1e9, "scale": 0.0}
    ),
}
"""Cases whose scores, or what hides them, float32 has no fractions for."""
