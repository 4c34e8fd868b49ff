"""The launches of an attention: sources and tiles are chosen once for a class of shapes, lengths filled in at a call.

    past and new keys one behind the other, where the node gives out present_key and present_value   1 launch for each
    the new keys turned by their angles, where it does not, into scratch memory of their size        1 launch
    attention                                                                                        1 launch
    its parts put together, where the keys of a row are divided among blocks                         1 launch

Queries are turned by the blocks that read them.  Keys are turned once, however many blocks read them: where there are
present_key and present_value, on their way there, and attention reads these instead of the past and the new, so that
turning costs no byte and no launch.

A cache that grows by one key at a call stays in its class: only the lengths and what follows from them (the steps of a
mask, the grid of the copies) are worked out again, and given to the launches as values.  They are written down once for
each number of parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onnxfuse.kernels.device.access import ACCESS, vector_of
from onnxfuse.kernels.device.device import Array, Buffer, Device, Launch, Source, address
from onnxfuse.kernels.device.replay import Arrays, Capture, Launches, Value, record

from .sizes import INPUTS, OUTPUTS, Layout, Mask, Sizes, filled
from .source import UNTURNED, Rotary, combine_source, padded, present_source, source
from .tiles import FORMS, SMALL, Form, Tiles, resident, shared_bytes, splits, tiles

UNBOUNDED = 2**29
"""Of a window without an end: more than any two positions are apart, and no sum of such numbers overflows 32 bits."""
COMBINED = 4
"""Rows of a block of attention_combine.cu."""
COPIERS = 256
"""Threads of a block of attention_present.cu."""
BYTES = np.dtype(np.uint8)
_NOTHING = nullcontext()


class Setting(NamedTuple):
    """The attributes of a node, as the kernel takes them; without a `scale`, it is that of the head size."""

    heads: int
    kv_heads: int
    scale: float | None
    softcap: float
    filler: float
    left: int
    right: int
    nan_to_zero: int
    interleaved: bool
    rotary: int


Class = tuple[object, ...]


def class_of(device: Device, inputs: Arrays, outputs: Arrays) -> Class:
    """What a plan depends on behind a past, for inputs that fit each other and outputs that fit them: the same for all
    lengths that a past has."""
    q, k, v, mask, past_k, *_ = inputs
    assert q is not None
    assert k is not None
    assert v is not None
    assert past_k is not None
    past = past_k.shape[2]
    # How many neighbouring keys are aligned in all rows of the mask is a matter of their number, too.
    told = (
        None if mask is None else (*relative(mask.shape, past), mask.shape[-1:] and mask.shape[-1] % (2 if past else 8))
    )
    aligned = [
        None if a is None else (a.pointer if type(a) is Buffer else address(a)) % ACCESS for a in (*inputs, *outputs)
    ]
    others = [None if a is None else a.shape for a in inputs[6:]]
    kinds = q.dtype.num, None if mask is None else mask.dtype.num
    return device, past > 0, len(inputs), kinds, q.shape, k.shape, v.shape, told, *others, *aligned


def relative(shape: tuple[int, ...], past: int) -> tuple[int, ...]:
    """The shape of a mask of all keys, the same for all lengths of a past."""
    return (*shape[:-1], shape[-1] - past, -1) if shape and shape[-1] != 1 else shape


class Length(NamedTuple):
    """What differs from call to call in a class of shapes, as the values of its launches: see `replay.Value`."""

    mask_batch: int
    mask_head: int
    mask_row: int
    mask_key: int
    mask_keys: int
    past: int
    """Rows that are read from the past, of `fresh` besides: those of the presents stand in one piece."""
    fresh: int
    start: int
    """Where the first query stands: behind all of the past."""
    keys: int
    """Elements of keys, then of values, that are copied, and the blocks that copy them."""
    keys_blocks: int
    values: int
    values_blocks: int
    rows: int
    """Of the presents."""


def _value(field: str, kind: type[np.generic]) -> Value:
    return Value(Length._fields.index(field), kind)


class _Copy:
    """Keys or values on their way to where they stand behind a past; `rotary` turns the new ones."""

    def __init__(
        self, layout: Layout, arrays: Sequence[Array | None], dtype: np.dtype[Any], rotary: Rotary, positions: int = 0
    ) -> None:
        numbers = [*layout[3:], *([rotary.step] if rotary.pairs else [])]
        vector = vector_of(dtype.itemsize, numbers, arrays)
        self._source = present_source(dtype.name, vector, rotary._replace(vector=vector) if rotary.pairs else rotary)
        self._rows, self._each = layout.rows, layout.batches * layout.heads * layout.size
        self._elements = COPIERS * vector
        self._numbers = (*layout.steps, np.int32(layout.heads), np.int32(layout.size), np.int64(positions))

    def counts(self, length: int) -> tuple[int, int]:
        """Elements behind a past of so many rows, and blocks."""
        count = (length + self._rows) * self._each
        return count, -(-count // self._elements)

    def behind(
        self, recorder: Capture, which: str, past: Array | None, added: Array, to: Array, angles: Arrays
    ) -> None:
        """Behind a past, if there is one; `which` is the length's name for what is copied."""
        lengths = (_value(which, np.int64), _value("start", np.int32), _value("rows", np.int32))
        launch = Launch(self._source, "attention_present", (1,), (COPIERS,))
        arguments = (past, added, to, *angles, *self._numbers, *lengths)
        recorder.launch(launch, arguments, blocks=_value(f"{which}_blocks", np.int64))

    def alone(self, recorder: Capture, added: Array, to: Array, angles: Arrays) -> None:
        """What is added and nothing else."""
        count, blocks = self.counts(0)
        lengths = (np.int64(count), np.int32(0), np.int32(self._rows))
        launch = Launch(self._source, "attention_present", (blocks,), (COPIERS,))
        recorder.launch(launch, (None, added, to, *angles, *self._numbers, *lengths))


def _source(
    setting: Setting,
    sizes: Sizes,
    tile: Tiles,
    dtype: str,
    mask: Array | None,
    vectors: tuple[int, int],
    rotary: Rotary,
    form: Form | None,
) -> Source:
    told = Mask.of(mask.shape, sizes.total) if mask is not None else None
    return source(
        dtype,
        tile,
        padded(sizes.q.size),
        padded(sizes.v.size),
        vectors,
        setting.softcap != 0,
        mask.dtype.name if mask is not None else "",
        told.vector(address(mask), mask.dtype.itemsize, _most(setting, sizes, tile, mask))
        if told and mask is not None
        else 1,
        rotary,
        form,
    )


def _most(setting: Setting, sizes: Sizes, tile: Tiles, mask: Array) -> int:
    """Keys of a mask that are one access at most: a thread has eight neighbours where a tile is of 32 keys.  A number
    that grows from call to call is no multiple of eight the next time, and float32 fills sectors as it is.  By eights
    nothing is said of keys behind the mask's last, which therefore must not count."""
    counts = mask.shape[-1] < sizes.total and mask.dtype == bool and setting.filler > -math.inf
    return 8 if not sizes.past and tile.keys % 32 == 0 and mask.dtype.itemsize <= 2 and not counts else 2


def _mask(shape: tuple[int, ...] | None, total: int) -> tuple[int, int, int, int, int]:
    """The steps of a mask, those of batches, heads and rows in rows; and how many more keys it has than there are."""
    if shape is None:
        return 0, 0, 0, 0, 0
    steps, keys = Mask.of(shape, total)
    batch, head, row = (step // shape[-1] if shape and shape[-1] else 0 for step in steps[:3])
    return batch, head, row, steps[3], keys - total


class Plan:
    """What all calls of one class have in common."""

    def __init__(
        self,
        setting: Setting,
        sizes: Sizes,
        multiprocessors: int,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
        allowed: Callable[[Form, str], bool] = lambda form, dtype: False,
    ) -> None:
        """`allowed` says whether a form of a single architecture may be taken for an element type."""
        y, present_k, present_v = filled(outputs, OUTPUTS)
        self._sizes, self._multiprocessors, self._allowed = sizes, multiprocessors, allowed
        self._rotary = Rotary(sizes.turned, setting.interleaved)
        # Turned keys are read from where they are turned.
        self._from_present = bool(sizes.turned and present_k is not None and present_v is not None)
        self._apart = bool(sizes.turned) and not self._from_present
        self._wanted = y is not None and 0 not in y.shape
        self._known: dict[int, Launches] = {}
        """By the number of parts that the keys of a row are divided in."""
        self._last: tuple[int, Launches | None, tuple[int, ...]] = -1, None, ()
        """Of the call before, by the length of its past."""
        mask = inputs[3] if len(inputs) > 3 else None
        self._mask = _mask(None if mask is None else mask.shape, sizes.total)
        self._prepare_copies(filled(inputs, INPUTS), present_k, present_v)
        if y is not None and self._wanted:
            self._prepare_attention(setting, filled(inputs, INPUTS), y, present_k, present_v)

    def _prepare_copies(self, inputs: Sequence[Array | None], present_k: Array | None, present_v: Array | None) -> None:
        q, k, v, _, past_k, past_v, _, _, cosines, sines, _ = inputs
        assert q is not None
        sizes, rotary, dtype = self._sizes, self._rotary, q.dtype
        angles = () if rotary.interleaved else (cosines, sines)
        self._positions = cosines.shape[0] if cosines is not None else 0
        self._turn: _Copy | None = None
        self._keys: _Copy | None = None
        self._values: _Copy | None = None
        if self._apart:
            self._turn = _Copy(sizes.k, (k, *angles), dtype, rotary, self._positions)
        if present_k is not None and 0 not in present_k.shape:
            self._keys = _Copy(sizes.k, (k, past_k, present_k, *angles), dtype, rotary, self._positions)
        if present_v is not None and 0 not in present_v.shape:
            self._values = _Copy(sizes.v, (v, past_v, present_v), dtype, UNTURNED)
        self._turned = padded(math.prod(sizes.k[:4]) * dtype.itemsize) if self._apart else 0

    def _prepare_attention(
        self,
        setting: Setting,
        inputs: Sequence[Array | None],
        y: Array,
        present_k: Array | None,
        present_v: Array | None,
    ) -> None:
        q, k, v, mask, past_k, past_v, _, _, cosines, sines, _ = inputs
        assert q is not None
        sizes, rotary, dtype, itemsize = self._sizes, self._rotary, q.dtype, q.dtype.itemsize
        head, head_v = padded(sizes.q.size), padded(sizes.v.size)
        to = Layout.of("Y", y.shape, sizes.q.heads)
        numbers = [n for layout in (sizes.q, sizes.k, sizes.v) for n in layout[3:]]
        vectors = (
            vector_of(itemsize, numbers, (q, k, v, past_k, past_v, present_k, present_v)),
            vector_of(itemsize, to[3:], (y,)),
        )
        if sizes.turned:
            angles = () if rotary.interleaved else (cosines, sines)
            rotary = rotary._replace(vector=vector_of(itemsize, [*sizes.q[3:], rotary.step], (q, *angles)))
        tile = tiles(sizes.rows, head, head_v, dtype.name != "float32")
        self._pairs = sizes.q.batches * sizes.k.heads
        form = None
        for each in FORMS.values():
            if each.tiles(sizes.rows, head, head_v, dtype.name, vectors[0]) and self._allowed(each, dtype.name):
                form, tile = each, each.widened(sizes.rows, self._pairs, self._multiprocessors)
        self._across = -(-sizes.rows // tile.rows)
        self._blocks = self._across * self._pairs
        self._tile, self._head_v = tile, head_v
        code = _source(setting, sizes, tile, dtype.name, mask, vectors, rotary, form)
        shared = shared_bytes(tile, head, head_v, itemsize, form)
        small = dtype.name != "float32" and max(head, head_v) <= SMALL and not setting.softcap
        whole = vectors[0] * itemsize == ACCESS
        self._places = self._multiprocessors * resident(tile, shared, small and whole, form)
        self._whole = Launch(code, "attention", (self._blocks,), (32 * tile.warps,), shared)
        rows = -(-self._pairs * sizes.rows // COMBINED)
        self._combine = Launch(combine_source(dtype.name, head_v), "attention_combine", (rows,), (32 * COMBINED,))
        # Without any key a row is 0, whatever else holds.
        nan_to_zero = np.int32(setting.nan_to_zero or int(not sizes.total))
        turned = Layout.of("K", sizes.k[:4], 0).steps if self._apart else sizes.k.steps
        scale = 1 / math.sqrt(sizes.q.size) if setting.scale is None else setting.scale
        self._steps: tuple[np.generic, ...] = (*sizes.q.steps, *turned, *sizes.v.steps, *to.steps)
        self._numbers: tuple[np.generic, ...] = (
            *map(np.int32, (sizes.k.heads, sizes.group, sizes.q.rows, sizes.q.size, sizes.v.size)),
            *map(np.float32, (scale, setting.softcap, setting.filler)),
            *map(np.int32, (setting.left, setting.right, self._across)),
            nan_to_zero,
            np.int64(self._positions),
        )
        self._rows: tuple[np.generic, ...] = (
            *to.steps,
            np.int64(self._pairs * sizes.rows),
            *map(np.int32, (sizes.k.heads, sizes.group, sizes.rows, sizes.v.size)),
            nan_to_zero,
        )

    def launch(self, device: Device, inputs: Arrays, outputs: Arrays) -> None:
        """Launch what the outputs ask for.  Several threads may."""
        past_k = inputs[4]
        assert past_k is not None
        past, launches, values = self._last  # one look: another thread sees the old or the new
        if launches is None or past != past_k.shape[2]:
            parts, values = self._called(inputs)
            launches = self._known.get(parts)
            if launches is None:
                launches = self._known[parts] = record(partial(self._write_down, parts), device, inputs, outputs)
            self._last = past_k.shape[2], launches, values
        launches((*inputs, *outputs), values)

    def write_down(self, recorder: Capture, inputs: Arrays, outputs: Arrays) -> None:
        """The same, for arrays of these lengths alone."""
        parts, recorder.values = self._called(inputs)
        self._write_down(parts, recorder, inputs, outputs)

    def _called(self, inputs: Arrays) -> tuple[int, tuple[int, ...]]:
        """The number of parts of a call, and its values, as Length has them."""
        past_k = inputs[4] if len(inputs) > 4 else None
        past = 0 if past_k is None else past_k.shape[2]
        total = past + self._sizes.k.rows
        parts = splits(self._blocks, total, self._tile, self._places) if self._wanted else 1
        batch, head, row, key, more = self._mask
        told = total + more
        apart = told if key else 1  # rows of a mask
        copied = self._keys.counts(past) if self._keys is not None else (0, 0)
        copied_values = self._values.counts(past) if self._values is not None else (0, 0)
        cached = (total, 0) if self._from_present else (past, total - past)
        return parts, (
            *(batch * apart, head * apart, row * apart, key, told),
            *(*cached, past, *copied, *copied_values, total),
        )

    def _write_down(self, parts: int, recorder: Capture, inputs: Arrays, outputs: Arrays) -> None:
        given, made = filled(inputs, INPUTS), filled(outputs, OUTPUTS)
        _, k, v, _, past_k, past_v, _, _, *angles = given
        _, present_k, present_v = made
        assert k is not None
        assert v is not None
        if self._keys is not None and present_k is not None:
            self._keys.behind(recorder, "keys", past_k, k, present_k, angles)
        if self._values is not None and present_v is not None:
            self._values.behind(recorder, "values", past_v, v, present_v, (None, None, None))
        if not self._wanted:
            return
        parted = 4 * self._pairs * self._sizes.rows * parts * (self._head_v + 2) if parts > 1 else 0
        count = self._turned + parted
        with recorder.scratch(count) if count else _NOTHING as memory:
            keys: Array = k
            if memory is not None and self._turn is not None:
                keys = Buffer(address(memory), (self._turned,), BYTES)
                self._turn.alone(recorder, k, keys, angles)
            held = Buffer(address(memory) + self._turned, (parted,), BYTES) if memory is not None and parted else None
            self._attend(recorder, given, made, keys, parts, held)

    def _attend(
        self, recorder: Capture, inputs: Arrays, outputs: Arrays, keys: Array, parts: int, partial: Array | None
    ) -> None:
        q, _, v, mask, past_k, past_v, lengths, sinks, *angles = inputs
        y, present_k, present_v = outputs
        if self._from_present:
            past_k, past_v = present_k, present_v
        recorder.launch(
            replace(self._whole, grid=(self._blocks * parts,)),
            (
                *(q, keys, v, past_k, past_v, mask, lengths, sinks, *angles, y, partial),
                *self._steps,
                *self._numbers,
                *(_value(f"mask_{step}", np.int64) for step in ("batch", "head", "row", "key")),
                *(_value(each, np.int32) for each in ("mask_keys", "past", "fresh", "start")),
                np.int32(parts),
            ),
        )
        if partial is not None:
            recorder.launch(self._combine, (partial, sinks, y, *self._rows, np.int32(parts)))
