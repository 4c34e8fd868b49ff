"""The gradients of attention, whose weights are computed again: attention_grad_queries.cu, attention_grad_keys.cu.

    dQ, and 16 bytes of each row, from which its weights are computed    1 launch
    dK and dV (each by itself, where heads are too wide for both)        1 launch, or 2

No scores are in memory: what lives between the launches are 16 bytes for each row of queries.  Nothing is added
atomically, so that the same inputs give the same gradients each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.access import vector_of
from onnxfuse.kernels.device.device import Array, Device, Launch, TensorType, nbytes
from onnxfuse.kernels.device.kernel import EITHER, Parameter, Signature, Work
from onnxfuse.kernels.device.replay import Arrays, Capture, Replay

from .grad_source import ROW, GradTiles, grad_shared_bytes, grad_source, grad_tiles, together
from .sizes import Layout, Mask, Sizes, filled
from .source import padded

INPUTS, OUTPUTS = 5, 3


class AttentionGrad:
    """The gradients of scaled dot-product attention: dQ, dK and dV from that of what it gives.

    dY, Q, K, V are [batch, heads, rows, size] or [batch, rows, heads * size]; heads of queries may share one of keys,
    whose gradients then are summed over these.  attn_mask is added or boolean, and broadcasts to the scores.
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
        (Parameter("dQ", optional=True), Parameter("dK", optional=True), Parameter("dV", optional=True)),
    )

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        get = attributes.get
        self._heads, self._kv_heads = int(get("q_num_heads", 0)), int(get("kv_num_heads", 0))
        if "scale" not in attributes:
            raise KernelError("AttentionGrad lacks its attribute scale")
        self._scale = float(attributes["scale"])
        self._causal, self._nan_to_zero = bool(get("is_causal", 0)), bool(get("nan_to_zero", 0))
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
        self.sizes(inputs)
        return tuple(one for one in inputs[1:4] if one is not None)

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._replay(device, inputs, outputs)

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        """Nine products: two for what is said of rows, these two once more for each launch, and three sums."""
        _, sizes = self.sizes(inputs)
        scores = sizes.q.rows * sizes.total
        seen = sum(min(sizes.total, row + 1) for row in range(sizes.q.rows)) if self._causal else scores
        read = sum(nbytes(i) for i in inputs if i is not None)
        written = sum(nbytes(o) for o in self.outputs(inputs))
        each = 2 * (5 * sizes.q.size + 4 * sizes.v.size) + 20
        return Work(read, written, sizes.q.batches * sizes.q.heads * seen * each)

    def _write_down(self, recorder: Capture, inputs: Arrays, outputs: Arrays) -> None:
        dq, dk, dv = (None if one is None or 0 in one.shape else one for one in filled(outputs, OUTPUTS))
        if dq is None and dk is None and dv is None:
            return
        _, sizes = self.sizes(inputs)
        with recorder.scratch(max(1, ROW * sizes.q.batches * sizes.q.heads * sizes.q.rows)) as known:
            if sizes.rows:
                self._of_queries(recorder, inputs, (dq, known), (dq, dk, dv))
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
        made = self._made("attention_grad_keys", sizes.total, inputs, to, wanted)
        launch, numbers, mask, across = made
        recorder.launch(launch, (*filled(inputs, INPUTS), known, *to, *numbers, *mask, across))

    def _made(
        self, entry: str, rows: int, inputs: Arrays, outputs: Arrays, wanted: str = ""
    ) -> tuple[Launch, tuple[np.generic, ...], tuple[np.generic, ...], np.int32]:
        """A launch over blocks of `rows` rows of each head of keys, and the numbers that it is given: before what only
        one kernel takes, the steps of the mask, and the blocks of a head."""
        y, sizes = self.sizes(inputs)
        dy, q, k, v, mask = filled(inputs, INPUTS)
        assert q is not None
        dtype, itemsize = q.dtype, q.dtype.itemsize
        layouts = (y, sizes.q, sizes.k, sizes.v)
        head, head_v = padded(sizes.q.size), padded(sizes.v.size)
        kind = "" if mask is None else mask.dtype.name
        tile: GradTiles = grad_tiles(rows, head, head_v, dtype.name != "float32", kind not in ("", "bool"))
        vector = vector_of(itemsize, [n for layout in layouts for n in layout[3:]], (dy, q, k, v, *outputs))
        code = grad_source(f"{entry}.cu", dtype.name, tile, head, head_v, vector, kind, wanted)
        across = -(-rows // tile.rows)
        grid = (across * sizes.q.batches * sizes.k.heads,)
        shared = grad_shared_bytes(tile, head, head_v, itemsize)
        numbers: tuple[np.generic, ...] = (
            *(step for layout in layouts for step in layout.steps),
            *map(np.int32, (sizes.k.heads, sizes.group, sizes.q.rows, sizes.total, sizes.q.size, sizes.v.size)),
            np.float32(self._scale),
            np.int32(self._causal),
        )
        steps = (0, 0, 0, 0) if mask is None else Mask.of(mask.shape, sizes.total).steps
        launch = Launch(code, entry, grid, (32 * tile.warps,), shared)
        return launch, numbers, tuple(map(np.int64, steps)), np.int32(across)
