"""Attention whose scores are never in memory: attention.cu, and attention_combine.cu where keys are few rows' alone.

A block has 16, 32 or 64 rows of a head of keys.  Where that gives too few blocks for the card (one query over a long
cache), the keys are divided among several, whose parts are put together by a second launch.  Extra memory is that of
the parts: HEAD_V + 2 floats for each row and split, and none without splits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ..errors import KernelError
from .device import Array, Device, Source, TensorType, address
from .kernel import EITHER, Parameter, Signature, Work
from .replay import Replay
from .row_source import TYPES

MOST_HEAD = 256
MOST_LENGTH = 2**28
UNBOUNDED = 2**29
"""Of a window without an end: more than any two positions are apart, and no sum of such numbers overflows 32 bits."""
MOST_SPLITS = 64
COMBINED = 4
"""Rows of a block of attention_combine.cu."""
Given = TypeVar("Given")
PRECISIONS = (0, 1, 10, 16)
"""Of the softmax, as TensorProto has them, that float32 satisfies."""


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


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the inputs of a node come to."""

    q: Layout
    k: Layout
    v: Layout
    past: int

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


class Tiles(NamedTuple):
    """A block: `warps` of 16 rows each, and the keys of a tile."""

    warps: int
    keys: int

    @property
    def rows(self) -> int:
        return 16 * self.warps


def tiles(rows: int, head: int, head_v: int, tensor: bool) -> Tiles:
    """How large the tiles of so many rows are: what fits into a thread's registers, and several blocks into 160 KiB.

    `head` and `head_v` are head sizes padded to a multiple of 16.
    """
    warps = 1 if rows <= 16 else 2 if rows <= 32 else 4
    widest = max(head, head_v)
    if tensor:
        return Tiles(warps, 64 if widest <= 128 else 32 if widest <= 192 else 16)
    return Tiles(warps, 32 if widest <= 128 else 16)


def shared_bytes(tile: Tiles, head: int, head_v: int, itemsize: int) -> int:
    """The dynamic shared memory of a block: its rows, and a tile of keys and of values; see attention.cu."""
    pad = 16 // itemsize
    stride, stride_v = head + pad, head_v + pad
    return itemsize * (tile.rows * max(stride, stride_v) + tile.keys * (stride + stride_v))


def splits(blocks: int, total: int, tile: Tiles, multiprocessors: int) -> int:
    """Among how many blocks the keys of a row are divided: as many as fill the card, each with two tiles at least."""
    wanted = 8 * multiprocessors // tile.warps
    if 2 * blocks > wanted:
        return 1
    return max(1, min(wanted // max(1, blocks), total // (2 * tile.keys), MOST_SPLITS))


@dataclass(frozen=True, slots=True)
class Mask:
    """attn_mask as the kernel reads it: its element type, its steps along batch, head, row and key, and its keys."""

    dtype: np.dtype[Any]
    steps: tuple[int, int, int, int]
    keys: int

    @classmethod
    def of(cls, mask: Array | TensorType, sizes: Sizes) -> Mask:
        """Raises KernelError if it does not broadcast to the scores."""
        shape = (1,) * (4 - len(mask.shape)) + tuple(mask.shape)
        whole = (sizes.q.batches, sizes.q.heads, sizes.q.rows, sizes.total)
        short = not sizes.past and 1 < shape[-1] < sizes.total
        fits = len(shape) == 4 and all(own in (1, all_) for own, all_ in zip(shape[:3], whole[:3], strict=True))
        if not fits or not (short or shape[3] in (1, sizes.total)):
            raise KernelError(f"Attention: attn_mask of shape {list(mask.shape)} for scores of shape {list(whole)}")
        steps = [0 if own == 1 else math.prod(shape[i + 1 :]) for i, own in enumerate(shape)]
        return cls(mask.dtype, (steps[0], steps[1], steps[2], steps[3]), shape[3] if steps[3] else sizes.total)

    def vector(self, pointer: int) -> int:
        """How many neighbouring keys are one access: 2 where all pairs are aligned."""
        even = self.steps[3] == 1 and not any(step % 2 for step in (*self.steps[:3], self.keys))
        return 2 if even and pointer % (2 * self.dtype.itemsize) == 0 else 1


@cache
def source(
    dtype: str,
    tile: Tiles,
    head: int,
    head_v: int,
    vectors: tuple[int, int],
    capped: bool = False,
    mask: str = "",
    mask_vector: int = 1,
) -> Source:
    """attention.cu; `mask` is the element type of the mask, empty if there is none."""
    return Source.file(
        "attention.cu",
        TYPE=TYPES[dtype],
        TENSOR=int(dtype != "float32"),
        WARPS=tile.warps,
        KEYS=tile.keys,
        HEAD=head,
        HEAD_V=head_v,
        VECTOR=vectors[0],
        VECTOR_Y=vectors[1],
        CAPPED=int(capped),
        MASK="BOOLEAN" if mask == "bool" else "ADDED" if mask else "NONE",
        MASK_TYPE=TYPES.get(mask, "bool"),
        MASK_VECTOR=mask_vector,
    )


@cache
def combine_source(dtype: str, head_v: int) -> Source:
    return Source.file("attention_combine.cu", TYPE=TYPES[dtype], HEAD_V=head_v)


@cache
def present_source(dtype: str, vector: int) -> Source:
    return Source.file("attention_present.cu", TYPE=TYPES[dtype], VECTOR=vector)


@cache
def name_of(dtype: np.dtype[Any]) -> str:
    """A dtype's name, which NumPy puts together anew each time: a past that grows makes every launch a new one."""
    return dtype.name


def padded(size: int) -> int:
    """A head size as products take it."""
    return -(-size // 16) * 16


def vector_of(itemsize: int, numbers: Sequence[int], arrays: Sequence[Array | None]) -> int:
    """The most elements, up to 16 bytes, of which all steps and sizes and all addresses are multiples."""
    vector = 16 // itemsize
    pointers = [address(array) for array in arrays if array is not None]
    while any(n % vector for n in numbers) or any(p % (vector * itemsize) for p in pointers):
        vector //= 2
    return vector


class Attention:
    """Scaled dot-product attention: ai.onnx Attention-25 with nan_to_zero, mask_filter_value, windows and head_sink.

    qk_matmul_output is no output of this kernel: it would be the scores.
    """

    signature: ClassVar[Signature] = Signature(
        "Attention",
        (
            Parameter("Q"),
            Parameter("K"),
            Parameter("V"),
            Parameter("attn_mask", EITHER, optional=True),
            Parameter("past_key", optional=True),
            Parameter("past_value", optional=True),
            Parameter("nonpad_kv_seqlen", "int64", optional=True),
            Parameter("head_sink", optional=True),
        ),
        (Parameter("Y"), Parameter("present_key", optional=True), Parameter("present_value", optional=True)),
    )

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        get = attributes.get
        if get("softmax_precision", 0) not in PRECISIONS:
            raise KernelError(f"Attention computes in float32 only; softmax_precision is {get('softmax_precision')}")
        self.heads, self.kv_heads = int(get("q_num_heads", 0)), int(get("kv_num_heads", 0))
        self.scale = get("scale")
        self.softcap = float(get("softcap", 0.0))
        self.filler = float(get("mask_filter_value", 0.0)) or -math.inf
        self.nan_to_zero = bool(get("nan_to_zero", 0))
        left, right = int(get("left_window_size", -1)), int(get("right_window_size", -1))
        right = 0 if get("is_causal", 0) else right
        self.left, self.right = (UNBOUNDED if size < 0 else min(size, UNBOUNDED) for size in (left, right))
        self._replay = Replay(self._launch)

    def sizes(self, inputs: Sequence[TensorType | Array | None]) -> Sizes:
        """What the inputs come to.  Raises KernelError if they do not fit each other."""
        q_type, k_type, v_type, _, past_key, past_value, lengths, sink = _filled(inputs, 8)
        assert q_type is not None
        assert k_type is not None
        assert v_type is not None
        q = Layout.of("Q", q_type.shape, self.heads)
        k = Layout.of("K", k_type.shape, self.kv_heads or self.heads)
        v = Layout.of("V", v_type.shape, self.kv_heads or self.heads)
        shapes = f"Q {list(q_type.shape)}, K {list(k_type.shape)}, V {list(v_type.shape)}"
        if q.batches != k.batches or k[:3] != v[:3] or q.size != k.size or not k.heads or q.heads % k.heads:
            raise KernelError(f"Attention: {shapes} do not fit each other")
        if not 0 < q.size <= MOST_HEAD or not 0 < v.size <= MOST_HEAD:
            raise KernelError(f"Attention: {shapes}: its kernel has head sizes from 1 to {MOST_HEAD}")
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
        found = Sizes(q, k, v, past)
        if max(found.total, found.rows) >= MOST_LENGTH:
            raise KernelError(f"Attention: {shapes} are longer than 2^28")
        return found

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        sizes = self.sizes(inputs)
        if (mask := _filled(inputs, 8)[3]) is not None:
            Mask.of(mask, sizes)
        assert inputs[0] is not None
        dtype, q, v = inputs[0].dtype, sizes.q, sizes.v
        three = len(inputs[0].shape) == 3
        y = (q.batches, q.rows, q.heads * v.size) if three else (*q[:3], v.size)
        present = (q.batches, sizes.k.heads, sizes.total)
        return tuple(TensorType(dtype, shape) for shape in (y, (*present, q.size), (*present, v.size)))

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._replay(device, inputs, outputs)

    def _launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        q, k, v, mask, past_k, past_v, lengths, sinks = _filled(inputs, 8)
        y, *presents = _filled(outputs, 3)
        sizes = self.sizes(inputs)
        for added, layout, past, present in zip((k, v), (sizes.k, sizes.v), (past_k, past_v), presents, strict=True):
            if added is not None and present is not None and 0 not in present.shape:
                self._present(device, added, layout, past, present)
        if y is None or 0 in y.shape:
            return
        assert q is not None
        dtype, itemsize = name_of(q.dtype), q.dtype.itemsize
        head, head_v = padded(sizes.q.size), padded(sizes.v.size)
        tile = tiles(sizes.rows, head, head_v, dtype != "float32")
        across = -(-sizes.rows // tile.rows)
        pairs = sizes.q.batches * sizes.k.heads
        parts = splits(across * pairs, sizes.total, tile, device.multiprocessors)
        three = len(y.shape) == 3
        to = Layout.of("Y", y.shape, sizes.q.heads if three else 0)
        numbers = [n for layout in (sizes.q, sizes.k, sizes.v) for n in layout[3:]]
        told = Mask.of(mask, sizes) if mask is not None else None
        code = source(
            dtype,
            tile,
            head,
            head_v,
            (vector_of(itemsize, numbers, (q, k, v, past_k, past_v)), vector_of(itemsize, to[3:], (y,))),
            self.softcap != 0,
            name_of(told.dtype) if told else "",
            told.vector(address(mask)) if told and mask is not None else 1,
        )
        scale = self.scale if self.scale is not None else 1 / math.sqrt(sizes.q.size)
        # Without any key a row is 0, whatever else holds.
        nan_to_zero = np.int32(self.nan_to_zero or not sizes.total)

        def attend(partial: Array | None) -> None:
            arrays = (q, k, v, past_k, past_v, mask, lengths, sinks, y, partial)
            steps = (*sizes.q.steps, *sizes.k.steps, *sizes.v.steps, *to.steps)
            counts = (told.keys if told else 0, sizes.k.heads, sizes.group, sizes.q.rows, sizes.past, sizes.k.rows)
            device.launch(
                code,
                "attention",
                (across * pairs * parts,),
                (32 * tile.warps,),
                (
                    *arrays,
                    *steps,
                    *map(np.int64, told.steps if told else (0, 0, 0, 0)),
                    *map(np.int32, (*counts, sizes.q.size, sizes.v.size)),
                    *map(np.float32, (scale, self.softcap, self.filler)),
                    *map(np.int32, (self.left, self.right, across, parts)),
                    nan_to_zero,
                ),
                shared_bytes(tile, head, head_v, itemsize),
            )

        if parts == 1:
            attend(None)
            return
        count = pairs * sizes.rows
        with device.scratch(4 * count * parts * (head_v + 2)) as partial:
            attend(partial)
            whole = map(np.int32, (sizes.k.heads, sizes.group, sizes.rows, sizes.v.size, parts))
            device.launch(
                combine_source(dtype, head_v),
                "attention_combine",
                (-(-count // COMBINED),),
                (32 * COMBINED,),
                (partial, sinks, y, *to.steps, np.int64(count), *whole, nan_to_zero),
            )

    def _present(self, device: Device, added: Array, layout: Layout, past: Array | None, present: Array) -> None:
        vector = vector_of(added.dtype.itemsize, layout[3:], (added, past, present))
        count = math.prod(present.shape)
        past_rows = 0 if past is None else past.shape[2]
        sizes = map(np.int32, (layout.heads, past_rows, past_rows + layout.rows, layout.size))
        device.launch(
            present_source(name_of(added.dtype), vector),
            "attention_present",
            (-(-count // (256 * vector)),),
            (256,),
            (past, added, present, *layout.steps, np.int64(count), *sizes),
        )

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        sizes = self.sizes(inputs)
        return Work(
            read=sum(_bytes(i) for i in inputs if i is not None),
            written=sum(_bytes(o) for o in self.outputs(inputs)),
            flops=sizes.q.batches * sizes.q.heads * self.seen(sizes) * (2 * (sizes.q.size + sizes.v.size) + 5),
        )

    def seen(self, sizes: Sizes) -> int:
        """Scores of a head that neither causal order nor a window hides."""
        at = np.arange(sizes.q.rows, dtype=np.int64) + sizes.past
        first, last = np.maximum(at - self.left, 0), np.minimum(at + self.right, sizes.total - 1)
        return int(np.maximum(last - first + 1, 0).sum())


def _filled(given: Sequence[Given | None], count: int) -> list[Given | None]:
    """`count` of them: what a node leaves out at the end is None, too."""
    return [*given, *[None] * (count - len(given))]


def _bytes(tensor: TensorType) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize
