"""What the inputs of an attention come to: their layouts, whether they fit each other, and how a mask is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Array, TensorType

INPUTS, OUTPUTS = 11, 3
"""Of Attention, those that a node leaves out among them."""
MOST_HEAD = 256
MOST_LENGTH = 2**28
Given = TypeVar("Given")


class Layout(NamedTuple):
    """A tensor of heads: [batch, heads, rows, size], and how far apart its elements are, in elements."""

    batches: int
    heads: int
    rows: int
    size: int
    batch: int
    head: int
    row: int

    @classmethod
    def of(cls, name: str, shape: Sequence[int], heads: int) -> Layout:
        """From [batch, heads, rows, size] or [batch, rows, heads * size]; KernelError if it is neither."""
        if len(shape) == 4:
            b, h, s, d = shape
            return cls(b, h, s, d, h * s * d, s * d, d)
        if len(shape) != 3 or not heads or shape[2] % heads:
            raise KernelError(f"Attention: {name} of shape {list(shape)} with {heads} heads")
        b, s, hidden = shape
        return cls(b, heads, s, hidden // heads, s * hidden, hidden // heads, hidden)

    @property
    def steps(self) -> tuple[np.int64, np.int64, np.int64]:
        return np.int64(self.batch), np.int64(self.head), np.int64(self.row)


class Sizes(NamedTuple):
    """What the inputs of a node come to; `turned` are the pairs of a head that a rotary embedding turns."""

    q: Layout
    k: Layout
    v: Layout
    past: int
    turned: int

    @property
    def group(self) -> int:
        """Heads of queries that share one of keys."""
        return self.q.heads // self.k.heads

    @property
    def total(self) -> int:
        return self.past + self.k.rows

    @property
    def rows(self) -> int:
        """Queries that go through the same keys."""
        return self.q.rows * self.group

    @classmethod
    def of(cls, inputs: Sequence[TensorType | Array | None], heads: int, kv_heads: int, rotary: int) -> Sizes:
        """Of inputs with so many heads, if they do not say it themselves, whose first `rotary` channels are turned (0:
        all).  Raises KernelError if they do not fit each other."""
        q_type, k_type, v_type, mask, past_key, past_value, lengths, sink, *angles = filled(inputs, INPUTS)
        assert q_type is not None
        assert k_type is not None
        assert v_type is not None
        q = Layout.of("Q", q_type.shape, heads)
        k = Layout.of("K", k_type.shape, kv_heads or heads)
        v = Layout.of("V", v_type.shape, kv_heads or heads)
        if q.batches != k.batches or k[:3] != v[:3] or q.size != k.size or not k.heads or q.heads % k.heads:
            raise KernelError(f"Attention: {_shapes(inputs)} do not fit each other")
        if not 0 < q.size <= MOST_HEAD or not 0 < v.size <= MOST_HEAD:
            raise KernelError(f"Attention: {_shapes(inputs)}: its kernel has head sizes from 1 to {MOST_HEAD}")
        past = 0 if past_key is None else past_key.shape[2]
        if (past_key is None) != (past_value is None) or (
            past_key is not None
            and past_value is not None
            and (past_key.shape != (*k[:2], past, k.size) or past_value.shape != (*v[:2], past, v.size))
        ):
            raise KernelError("Attention: past_key and past_value do not fit K and V")
        if lengths is not None and lengths.shape != (q.batches,):
            raise KernelError(f"Attention: nonpad_kv_seqlen of shape {list(lengths.shape)} for {q.batches} batches")
        if sink is not None and math.prod(sink.shape) != q.heads:
            raise KernelError(f"Attention: head_sink of shape {list(sink.shape)} for {q.heads} heads")
        found = cls(q, k, v, past, _turned(angles, q, k, rotary))
        if max(found.total, found.rows) >= MOST_LENGTH:
            raise KernelError(f"Attention: {_shapes(inputs)} are longer than 2^28")
        if mask is not None:
            _fits(mask.shape, found)
        return found


class Mask(NamedTuple):
    """attn_mask as the kernel reads it: its steps along batch, head, row and key, and its keys."""

    steps: tuple[int, int, int, int]
    keys: int

    @classmethod
    def of(cls, shape: tuple[int, ...], total: int) -> Mask:
        """Of a mask that broadcasts to the scores of `total` keys."""
        batches, heads, rows, keys = (1,) * (4 - len(shape)) + shape
        row = 0 if rows == 1 else keys
        head = 0 if heads == 1 else rows * keys
        batch = 0 if batches == 1 else heads * rows * keys
        return cls((batch, head, row, int(keys != 1)), total if keys == 1 else keys)

    def vector(self, pointer: int, itemsize: int, most: int = 2) -> int:
        """How many neighbouring keys are one access: as many as are aligned wherever such a number of them begins."""
        for count in (8, 2):
            apart = any(step % count for step in (*self.steps[:3], self.keys))
            if count <= most and self.steps[3] == 1 and not apart and pointer % (count * itemsize) == 0:
                return count
        return 1


def _fits(mask: tuple[int, ...], sizes: Sizes) -> None:
    shape = (1,) * (4 - len(mask)) + mask
    whole = (sizes.q.batches, sizes.q.heads, sizes.q.rows, sizes.total)
    short = not sizes.past and 1 < shape[-1] < sizes.total
    fits = len(shape) == 4 and all(own in (1, all_) for own, all_ in zip(shape[:3], whole[:3], strict=True))
    if not fits or not (short or shape[3] in (1, sizes.total)):
        raise KernelError(f"Attention: attn_mask of shape {list(mask)} for scores of shape {list(whole)}")


def _turned(angles: Sequence[TensorType | Array | None], q: Layout, k: Layout, rotary: int) -> int:
    cosines, sines, positions = angles
    if cosines is None or sines is None:
        if cosines is not None or sines is not None or positions is not None:
            raise KernelError("Attention: cos_cache, sin_cache and position_ids belong together")
        return 0
    pairs, rows = cosines.shape[-1] if cosines.shape else 0, (q.batches, q.rows)
    if k.rows != q.rows:
        raise KernelError(f"Attention: one position for each of {q.rows} queries and {k.rows} keys")
    known = len(cosines.shape) == 2 and positions.shape == rows if positions is not None else cosines.shape[:-1] == rows
    if sines.shape != cosines.shape or not known or not pairs or 2 * pairs != (rotary or q.size) or 2 * pairs > q.size:
        given = [list(tensor.shape) for tensor in angles if tensor is not None]
        raise KernelError(
            f"Attention: angles of shapes {given} for {q.batches} batches of {q.rows} positions, of which "
            f"{rotary or q.size} channels are turned"
        )
    return pairs


def _shapes(inputs: Sequence[TensorType | Array | None]) -> str:
    named = zip("QKV", inputs, strict=False)
    return ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in named if tensor is not None)


def filled(given: Sequence[Given | None], count: int) -> list[Given | None]:
    """`count` of them: what a node leaves out at the end is None, too."""
    return [*given, *[None] * (count - len(given))]
