"""Attention whose scores are never in memory: attention.cu, and attention_combine.cu where keys are few rows' alone.

A block has 16 to 128 rows of a head of keys (README.md has the forms of its products).  Where that gives too few blocks
for the card (one query over a long cache), the keys are divided among several, whose parts are put together by a second
launch.  Extra memory is that of the parts: HEAD_V + 2 floats for each row and split, and none without splits.  A rotary
embedding of queries and new keys is part of the op; plan.py says what that takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Array, Buffer, Device, Launch, TensorType, nbytes
from onnxfuse.kernels.device.kernel import EITHER, Parameter, Signature, Work
from onnxfuse.kernels.device.recorder import ADDRESS, Recorder
from onnxfuse.kernels.device.replay import Arrays, Capture, Replay, record

from .plan import UNBOUNDED, Class, Plan, Setting, class_of, relative
from .proof import proofs
from .sizes import MOST_LENGTH, OUTPUTS, Sizes
from .tiles import Form, form_of

KNOWN = 64
"""Classes of shapes that a node remembers; past that it begins anew."""
PRECISIONS = (0, 1, 10, 16)
"""Of the softmax, as TensorProto has them, that float32 satisfies."""


class Attention:
    """Scaled dot-product attention: ai.onnx Attention-25 with nan_to_zero, mask_filter_value, windows and head_sink.

    With cos_cache and sin_cache, Q and K are turned first as ai.onnx RotaryEmbedding-23 does it, and rounded to their
    element type: by the row position_ids [batch, sequence] of tables [positions, pairs], or by tables
    [batch, sequence, pairs].  present_key holds the keys turned.

    qk_matmul_output is no output of this kernel: it would be the scores.
    """

    name: ClassVar[str] = "attention"
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
            Parameter("cos_cache", optional=True),
            Parameter("sin_cache", optional=True),
            Parameter("position_ids", "int64", optional=True),
        ),
        (Parameter("Y"), Parameter("present_key", optional=True), Parameter("present_value", optional=True)),
    )

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        get = attributes.get
        if get("softmax_precision", 0) not in PRECISIONS:
            raise KernelError(f"Attention computes in float32 only; softmax_precision is {get('softmax_precision')}")
        left, right = int(get("left_window_size", -1)), int(get("right_window_size", -1))
        right = 0 if get("is_causal", 0) else right
        self._setting = Setting(
            heads=int(get("q_num_heads", 0)),
            kv_heads=int(get("kv_num_heads", 0)),
            scale=get("scale"),
            softcap=float(get("softcap", 0.0)),
            filler=float(get("mask_filter_value", 0.0)) or -math.inf,
            left=UNBOUNDED if left < 0 else min(left, UNBOUNDED),
            right=UNBOUNDED if right < 0 else min(right, UNBOUNDED),
            nan_to_zero=int(get("nan_to_zero", 0)),
            interleaved=bool(get("rotary_interleaved", 0)),
            rotary=int(get("rotary_embedding_dim", 0)),
        )
        self._plans: dict[Class, Plan] = {}
        """Behind a past."""
        self._replay = Replay(self._write_down)
        self._types: dict[tuple[object, ...], tuple[TensorType, ...]] = {}
        """Of outputs, without the past, by those of inputs."""

    def sizes(self, inputs: Sequence[TensorType | Array | None]) -> Sizes:
        """What the inputs come to.  Raises KernelError if they do not fit each other."""
        return Sizes.of(inputs, self._setting.heads, self._setting.kv_heads, self._setting.rotary)

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        past = inputs[4].shape[2] if len(inputs) > 4 and inputs[4] is not None else 0
        key = self._shapes(inputs, past)
        known = self._types.get(key)
        if known is None or past + known[1].shape[2] >= MOST_LENGTH:
            sizes = self.sizes(inputs)
            assert inputs[0] is not None
            dtype, q, v = inputs[0].dtype, sizes.q, sizes.v
            three = len(inputs[0].shape) == 3
            y = (q.batches, q.rows, q.heads * v.size) if three else (*q[:3], v.size)
            present = (q.batches, sizes.k.heads, sizes.k.rows)
            known = tuple(TensorType(dtype, shape) for shape in (y, (*present, q.size), (*present, v.size)))
            if len(self._types) >= KNOWN:
                self._types.clear()
            self._types[key] = known
        if not past:
            return known
        y_type, *presents = known
        return y_type, *[TensorType(t.dtype, (*t.shape[:2], t.shape[2] + past, t.shape[3])) for t in presents]

    def _shapes(self, inputs: Sequence[TensorType | None], past: int) -> tuple[object, ...]:
        """The types of inputs, the same for all lengths of a past."""
        if not past:
            return tuple(inputs)
        q, k, v, mask, past_k, past_v, *others = inputs
        told = None if mask is None else (mask.dtype, relative(mask.shape, past))
        behind = [None if a is None else (*a.shape[:2], a.shape[2] - past, *a.shape[3:], -1) for a in (past_k, past_v)]
        return q, k, v, told, *behind, *others

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        if len(inputs) < 5 or inputs[4] is None:
            self._replay(device, inputs, outputs)
            return
        key = class_of(device, inputs, outputs)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(device, inputs, outputs)
            if len(self._plans) >= KNOWN:
                self._plans.clear()
            self._plans[key] = plan
        plan.launch(device, inputs, outputs)

    def by_form(
        self,
        form: Form,
        inputs: Sequence[TensorType | None],
        multiprocessors: int,
        wanted: Sequence[bool] | None = None,
    ) -> list[Launch]:
        """What would be launched in a form of a single architecture for aligned inputs of these types and the outputs
        that are `wanted` (all if nothing is said); nothing where it is not for them."""
        given = [None if t is None else Buffer(ADDRESS, t.shape, t.dtype) for t in inputs]
        asked = [True] * OUTPUTS if wanted is None else [*wanted, *[False] * OUTPUTS]
        types = zip(self.outputs(inputs), asked, strict=False)
        made = [Buffer(ADDRESS, t.shape, t.dtype) if ask else None for t, ask in types]
        recorder = Recorder(multiprocessors)
        plan = Plan(self._setting, self.sizes(given), multiprocessors, given, made, lambda each, dtype: each is form)
        record(plan.write_down, recorder, given, made)((*given, *made))
        return recorder.launches if any(one.source.architecture for one in recorder.launches) else []

    def _plan(self, device: Device | Capture, inputs: Arrays, outputs: Arrays) -> Plan:
        of = device.device if isinstance(device, Capture) else device
        return Plan(self._setting, self.sizes(inputs), device.multiprocessors, inputs, outputs, partial(_allowed, of))

    def _write_down(self, recorder: Capture, inputs: Arrays, outputs: Arrays) -> None:
        self._plan(recorder, inputs, outputs).write_down(recorder, inputs, outputs)

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        sizes = self.sizes(inputs)
        return Work(
            read=sum(nbytes(i) for i in inputs if i is not None),
            written=sum(nbytes(o) for o in self.outputs(inputs)),
            flops=sizes.q.batches * sizes.q.heads * self.seen(sizes) * (2 * (sizes.q.size + sizes.v.size) + 5),
        )

    def seen(self, sizes: Sizes) -> int:
        """Scores of a head that neither causal order nor a window hides."""
        at = np.arange(sizes.q.rows, dtype=np.int64) + sizes.past
        first = np.maximum(at - self._setting.left, 0)
        last = np.minimum(at + self._setting.right, sizes.total - 1)
        return int(np.maximum(last - first + 1, 0).sum())


def _allowed(device: Device, form: Form, dtype: str) -> bool:
    """Whether a device runs attention of an element type in a form: it has what that takes, and it has been proved."""
    vendor = device.vendor
    if vendor is None or form_of(device.architecture) is not form:
        return False
    return proofs().holds(device, vendor, form, dtype)
