"""The gradients of attention, whose weights are computed again: attention_grad_queries.cu, attention_grad_keys.cu and
attention_grad_bias.cu.

    dQ, and 16 bytes of each row, from which its weights are computed    1 launch
    dK and dV (each by itself, where heads are too wide for both)        1 launch, or 2
    dBias (the parts of few results of many scores, and their sum)       1 launch, or 2

No scores are in memory: what lives between the launches are 16 bytes for each row of queries, and the parts of dBias.
Nothing is added atomically, so that the same inputs give the same gradients each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.access import vector_of
from onnxfuse.kernels.device.device import Array, Buffer, Device, Launch, TensorType, address, nbytes
from onnxfuse.kernels.device.kernel import EITHER, Parameter, Signature, Work
from onnxfuse.kernels.device.replay import Arrays, Capture, Replay

from .grad_source import (
    ROW,
    GradTiles,
    bias_shared_bytes,
    bias_tiles,
    grad_shared_bytes,
    grad_source,
    grad_tiles,
    together,
)
from .sizes import Layout, Mask, Sizes, filled
from .source import padded

INPUTS, OUTPUTS = 5, 4
SUM, SUM_THREADS = 4, 256
"""Bytes of an element of a part, and threads of a block that adds parts up."""
BLOCKS_EACH = 4
"""Blocks for each multiprocessor that the gradient of a bias is cut into at most."""


class Bias(NamedTuple):
    """The gradient of a bias: those of its batches and heads that are its own, and those that are summed."""

    batches: int
    heads: int
    batches_summed: int
    heads_summed: int

    @property
    def pairs(self) -> int:
        return self.batches * self.heads

    @property
    def summed(self) -> int:
        return self.batches_summed * self.heads_summed


class AttentionGrad:
    """The gradients of scaled dot-product attention: dQ, dK, dV and dBias from that of what it gives.

    dY, Q, K, V are [batch, heads, rows, size] or [batch, rows, heads * size]; heads of queries may share one of keys,
    whose gradients then are summed over these.  attn_mask is added or boolean, and broadcasts to the scores.  dBias is
    the gradient of the scores [batch, heads, queries, keys], summed over bias_axes: of -4 and -3, one, both or none.
    """

    name: ClassVar[str] = "attention"
    signature: ClassVar[Signature] = Signature(
        "AttentionGrad",
        (
            Parameter("dY"),
            Parameter("Q"),
            Parameter("K"),
            Parameter("V"),
            Parameter("attn_mask", EITHER, optional=True),
        ),
        tuple(Parameter(name, optional=True) for name in ("dQ", "dK", "dV", "dBias")),
    )

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        get = attributes.get
        self._heads, self._kv_heads = int(get("q_num_heads", 0)), int(get("kv_num_heads", 0))
        if "scale" not in attributes:
            raise KernelError("AttentionGrad lacks its attribute scale")
        self._scale = float(attributes["scale"])
        self._causal, self._nan_to_zero = bool(get("is_causal", 0)), int(get("nan_to_zero", 0))
        self._bias_axes = tuple(map(int, get("bias_axes", ())))
        if not {-4, -3}.issuperset(self._bias_axes):
            raise KernelError(f"AttentionGrad: bias_axes {list(self._bias_axes)}: its kernel sums over -4 and -3 alone")
        self._replay = Replay(self._write_down)

    def sizes(self, inputs: Sequence[TensorType | Array | None]) -> tuple[Layout, Sizes]:
        """The layout of dY, and what the others come to.  Raises KernelError if they do not fit each other."""
        dy, *others = filled(inputs, INPUTS)
        sizes = Sizes.of(others, self._heads, self._kv_heads, 0)
        assert dy is not None
        y = Layout.of("dY", dy.shape, self._heads)
        if y[:4] != (*sizes.q[:3], sizes.v.size):
            raise KernelError(f"AttentionGrad: dY {list(dy.shape)} is not like what attention gives")
        mask = others[3]
        if mask is not None and mask.shape and mask.shape[-1] not in (1, sizes.total):
            raise KernelError(f"AttentionGrad: attn_mask of shape {list(mask.shape)} for {sizes.total} keys")
        return y, sizes

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        _, sizes = self.sizes(inputs)
        q, k, v = (one for one in inputs[1:4] if one is not None)
        bias = self._bias(sizes)
        return q, k, v, TensorType(q.dtype, (bias.batches, bias.heads, sizes.q.rows, sizes.total))

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._replay(device, inputs, outputs)

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        """Nine products: two for what is said of rows, these two once more for each launch, and three sums.  Two more
        are for a bias whose gradient is summed."""
        _, sizes = self.sizes(inputs)
        scores = sizes.q.rows * sizes.total
        seen = sum(min(sizes.total, row + 1) for row in range(sizes.q.rows)) if self._causal else scores
        read = sum(nbytes(i) for i in inputs if i is not None)
        more = 1 if self._bias_axes else 0
        written = sum(nbytes(o) for o in self.outputs(inputs)[: 3 + more])
        each = 2 * ((5 + more) * sizes.q.size + (4 + more) * sizes.v.size) + 20
        return Work(read, written, sizes.q.batches * sizes.q.heads * seen * each)

    def _write_down(self, recorder: Capture, inputs: Arrays, outputs: Arrays) -> None:
        dq, dk, dv, bias = (None if one is None or 0 in one.shape else one for one in filled(outputs, OUTPUTS))
        if dq is None and dk is None and dv is None and bias is None:
            return
        _, sizes = self.sizes(inputs)
        said = max(1, ROW * sizes.q.batches * sizes.q.heads * sizes.q.rows)
        parts, each = (1, 0) if bias is None else self._parts(inputs, recorder.multiprocessors)
        with recorder.scratch(said + (0 if bias is None or parts == 1 else SUM * parts * prod(bias.shape))) as memory:
            known = Buffer(address(memory), (said,), memory.dtype)
            if sizes.rows * sizes.q.batches:
                self._of_queries(recorder, inputs, (dq, known), (dq, dk, dv))
            if bias is not None:
                whole = (parts, *bias.shape)
                behind = None if parts == 1 else Buffer(address(memory) + said, whole, np.dtype(np.float32))
                self._of_bias(recorder, inputs, known, (bias, behind), (parts, each))
            if dk is None and dv is None:
                return
            head, head_v = padded(sizes.q.size), padded(sizes.v.size)
            wanted = [(dk, None, "KEY"), (None, dv, "VALUE")]
            if dk is not None and dv is not None and together(head, head_v):
                wanted = [(dk, dv, "BOTH")]
            for own_k, own_v, which in wanted:
                if own_k is not None or own_v is not None:
                    self._of_keys(recorder, inputs, known, (own_k, own_v), which)

    def _of_queries(self, recorder: Capture, inputs: Arrays, to: Arrays, outputs: Arrays) -> None:
        _, sizes = self.sizes(inputs)
        made = self._made("attention_grad_queries", sizes.rows, inputs, outputs)
        launch, numbers, mask, across = made
        flag = np.int32(self._nan_to_zero)
        recorder.launch(launch, (*filled(inputs, INPUTS), *to, *numbers, flag, *mask, across))

    def _of_keys(self, recorder: Capture, inputs: Arrays, known: Array, to: Arrays, wanted: str) -> None:
        _, sizes = self.sizes(inputs)
        made = self._made("attention_grad_keys", sizes.total, inputs, to, WANTED=wanted)
        launch, numbers, mask, across = made
        recorder.launch(launch, (*filled(inputs, INPUTS), known, *to, *numbers, *mask, across))

    def _bias(self, sizes: Sizes) -> Bias:
        """What is summed of a bias, and what is not."""
        batches, heads = sizes.q.batches, sizes.q.heads
        own = (1 if -4 in self._bias_axes else batches, 1 if -3 in self._bias_axes else heads)
        return Bias(*own, batches if -4 in self._bias_axes else 1, heads if -3 in self._bias_axes else 1)

    def _bias_tiles(self, inputs: Arrays, sizes: Sizes) -> tuple[GradTiles, int, int]:
        """Tiles of the gradient of a bias, and how many of them lie along queries and along keys."""
        q = inputs[1]
        assert q is not None
        tile = bias_tiles(sizes.q.rows, padded(sizes.q.size), padded(sizes.v.size), q.dtype.itemsize)
        return tile, -(-sizes.q.rows // tile.rows), -(-sizes.total // tile.others)

    def _parts(self, inputs: Arrays, multiprocessors: int) -> tuple[int, int]:
        """How many parts the sum of a bias is cut into, so that few results keep a card busy, and what each has."""
        _, sizes = self.sizes(inputs)
        bias, (_, across, along) = self._bias(sizes), self._bias_tiles(inputs, sizes)
        wanted = max(1, min(bias.summed, BLOCKS_EACH * multiprocessors // max(1, bias.pairs * across * along)))
        each = max(1, -(-bias.summed // wanted))
        return max(1, -(-bias.summed // each)), each

    def _of_bias(self, recorder: Capture, inputs: Arrays, known: Array, to: Arrays, cut: tuple[int, int]) -> None:
        _, sizes = self.sizes(inputs)
        q, mask, (made, parts), (number, each) = inputs[1], filled(inputs, INPUTS)[4], to, cut
        assert q is not None
        assert made is not None
        bias, (tile, across, along) = self._bias(sizes), self._bias_tiles(inputs, sizes)
        dtype, itemsize, heads = q.dtype, q.dtype.itemsize, (padded(sizes.q.size), padded(sizes.v.size))
        vector, kind = self._vector(inputs, ()), "" if mask is None else mask.dtype.name
        whole = vector_of(itemsize, [sizes.total], (made,))
        code = grad_source("attention_grad_bias.cu", dtype.name, tile, *heads, vector, kind, BIAS_VECTOR=whole)
        grid, shared = (across * along * bias.pairs * number,), bias_shared_bytes(tile, *heads, itemsize)
        launch = Launch(code, "attention_grad_bias", grid, (32 * tile.warps,), shared)
        numbers, steps = self._numbers(inputs)
        own = (across, along, bias.heads, bias.pairs, bias.heads_summed, bias.summed, each)
        recorder.launch(launch, (*filled(inputs, INPUTS), known, *to, *numbers, *steps, *map(np.int32, own)))
        if parts is not None:
            count = prod(made.shape)
            last = Launch(code, "attention_grad_bias_sum", (-(-count // SUM_THREADS),), (SUM_THREADS,), 0)
            recorder.launch(last, (parts, made, np.int64(count), np.int32(number)))

    def _vector(self, inputs: Arrays, outputs: Arrays) -> int:
        """Elements of one access to rows of heads."""
        y, sizes = self.sizes(inputs)
        dy, q, k, v, _ = filled(inputs, INPUTS)
        assert q is not None
        steps = [n for layout in (y, sizes.q, sizes.k, sizes.v) for n in layout[3:]]
        return vector_of(q.dtype.itemsize, steps, (dy, q, k, v, *outputs))

    def _numbers(self, inputs: Arrays) -> tuple[tuple[np.generic, ...], tuple[np.generic, ...]]:
        """The numbers that each launch is given, and the steps of the mask."""
        y, sizes = self.sizes(inputs)
        mask = filled(inputs, INPUTS)[4]
        numbers: tuple[np.generic, ...] = (
            *(step for layout in (y, sizes.q, sizes.k, sizes.v) for step in layout.steps),
            *map(np.int32, (sizes.k.heads, sizes.group, sizes.q.rows, sizes.total, sizes.q.size, sizes.v.size)),
            np.float32(self._scale),
            np.int32(self._causal),
        )
        steps = (0, 0, 0, 0) if mask is None else Mask.of(mask.shape, sizes.total).steps
        return numbers, tuple(map(np.int64, steps))

    def _made(
        self, entry: str, rows: int, inputs: Arrays, outputs: Arrays, **wanted: str
    ) -> tuple[Launch, tuple[np.generic, ...], tuple[np.generic, ...], np.int32]:
        """A launch over blocks of `rows` rows of each head of keys, and the numbers that it is given: before what only
        one kernel takes, the steps of the mask, and the blocks of a head."""
        _, sizes = self.sizes(inputs)
        q, mask = inputs[1], filled(inputs, INPUTS)[4]
        assert q is not None
        dtype, itemsize = q.dtype, q.dtype.itemsize
        head, head_v = padded(sizes.q.size), padded(sizes.v.size)
        kind = "" if mask is None else mask.dtype.name
        tile: GradTiles = grad_tiles(rows, head, head_v, dtype.name != "float32", kind not in ("", "bool"))
        vector = self._vector(inputs, outputs)
        code = grad_source(f"{entry}.cu", dtype.name, tile, head, head_v, vector, kind, **wanted)
        across = -(-rows // tile.rows)
        grid = (across * sizes.q.batches * sizes.k.heads,)
        shared = grad_shared_bytes(tile, head, head_v, itemsize)
        launch = Launch(code, entry, grid, (32 * tile.warps,), shared)
        return launch, *self._numbers(inputs), np.int32(across)
