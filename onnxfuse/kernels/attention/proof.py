"""Attention in the forms of a single architecture proves itself at its first use on a card, against that by warps
(device/first_use.py).

What is compared is made so that both are equal to the last bit.  Scores are whole numbers from -4 to 4 and count in
units of log 2, so that shares are powers of 2, and their sums with values from -4 to 4 are exact in whatever order they
are taken; all else is the same text in both.  Queries and keys are more than a tile, the last tiles are not whole.
A few kernels of each element type stand for the others: heads of one panel, and of two with a mask that is read by
eights, by which keys change places; and one warpgroup instead of two.  The result by warps is held to numpy's in
float64.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfuse.errors import UsageError
from onnxfuse.kernels.device.access import ACCESS
from onnxfuse.kernels.device.device import Buffer, Device, TensorType, Vendor
from onnxfuse.kernels.device.first_use import POISON, FirstUse, results
from onnxfuse.kernels.device.recorder import ADDRESS, Recorder
from onnxfuse.kernels.device.replay import Arrays, record
from onnxfuse.kernels.device.types import DTYPES
from onnxfuse.system.cache_folder import cache_folder

from .plan import UNBOUNDED, Plan, Setting
from .sizes import Sizes
from .tiles import Form

KEYS, HEADS = 264, 2
"""More than two tiles, and a multiple of eight, of which a mask's rows are aligned."""
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
FEW = 1
"""Multiprocessors that the plan is made for, so that blocks fill them."""
LARGEST, SEEN = 4, 4
"""Of the values; and channels of a query that are not 0."""


VARIABLE, WARPS = "ONNXFUSE_ATTENTION", "warps"
"""The environment variable that settles the form, and the one that it can settle."""


class Sample(NamedTuple):
    """What stands for the kernels of an element type."""

    head: int
    queries: int
    masked: bool


SAMPLES = (Sample(64, 136, False), Sample(128, 136, True), Sample(128, 40, False))
SETTING = Setting(HEADS, HEADS, math.log(2), 0.0, -math.inf, UNBOUNDED, UNBOUNDED, 0, False, 0)


class Proofs(FirstUse):
    """The verdicts of attention."""

    def holds(self, device: Device, vendor: Vendor, form: Form, dtype: str) -> bool:
        """Whether attention of an element type runs in a form on a device; the first time it is compared there (see
        `FirstUse.proved`).  The user may have settled on that by warps: raises UsageError where there is none of that
        name."""
        settled = os.environ.get(VARIABLE, "")
        if settled not in ("", WARPS):
            raise UsageError(f"{VARIABLE}={settled}: it is {WARPS}, or not set")
        if settled:
            return False
        found = partial(difference, device, vendor, form, dtype)
        return self.proved(vendor, digest(form, dtype), found, f"attention kernels of {dtype} {form.how}")

    def refusal(self, card: str, form: Form, dtype: str) -> str:
        """Why it is refused on the cards that go by this name; empty where it is not, on one of them, and where nothing
        is known."""
        found = self.refused(card, lambda: digest(form, dtype))
        return f"attention kernels {form.how} ({dtype}) are refused on {found[0]}: {found[1]}" if found else ""


def samples(form: Form) -> tuple[Sample, ...]:
    """Those that the form has a kernel of."""
    return tuple(s for s in SAMPLES if form.tiles(s.queries, s.head, s.head, "float16", ACCESS // 2) is not None)


def difference(device: Device, vendor: Vendor, form: Form, dtype: str) -> str:
    """In what attention in a form differs from that by warps, empty if in nothing."""
    return next(filter(None, (_difference(device, vendor, form, dtype, sample) for sample in samples(form))), "")


def _difference(device: Device, vendor: Vendor, form: Form, dtype: str, sample: Sample) -> str:
    given = _given(DTYPES[dtype], sample)
    result = TensorType(DTYPES[dtype], (1, HEADS, sample.queries, sample.head))

    def run(asked: Form | None, arrays: Mapping[str, Buffer], whole: Buffer) -> None:
        _launch(device, [*arrays.values()], Buffer(whole.pointer, result.shape, result.dtype), asked)

    try:
        by_warps, by_form = results(device, vendor, given, result, [partial(run, asked) for asked in (None, form)])
    except Exception as error:  # of the driver, of CuPy, ours: whatever it is, this kernel is not to run there
        return f"its proof failed: {error}"
    count = math.prod(result.shape)
    end = count * result.dtype.itemsize
    found = by_warps[:end].view(result.dtype).reshape(result.shape).astype(np.float64)
    exact = _exact(given)
    # Half a unit in the last place, of sums and shares; far less than a key in a wrong place makes.
    if not np.abs(found - exact).max() <= 4 * EPSILON[dtype] * np.abs(exact).max():
        return "that by warps, which it is compared with, is wrong there"
    if (by_form[end:] != POISON).any():
        return "it writes behind its result"
    wrong = int((by_warps[:end].view(np.uint16) != by_form[:end].view(np.uint16)).sum())
    return f"{wrong} of {count} numbers with heads of {sample.head} are others" if wrong else ""


def _given(real: np.dtype[Any], sample: Sample) -> dict[str, NDArray[Any]]:
    """Q, K, V and a mask."""
    rng = np.random.default_rng(sample.head)
    queries = np.zeros((1, HEADS, sample.queries, sample.head))
    channels = rng.permuted(np.broadcast_to(np.arange(sample.head), queries.shape), axis=-1)[..., :SEEN]
    np.put_along_axis(queries, channels, rng.choice((-1.0, 1.0), channels.shape), axis=-1)
    keys = rng.integers(-1, 2, (1, HEADS, KEYS, sample.head))
    values = rng.integers(-LARGEST, LARGEST + 1, keys.shape)
    given = {name: x.astype(np.float32).astype(real) for name, x in zip("QKV", (queries, keys, values), strict=True)}
    return {**given, "mask": rng.random((sample.queries, KEYS)) < 0.8} if sample.masked else given


def _exact(given: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    q, k, v = (given[name].astype(np.float64) for name in "QKV")
    shares = np.where(given.get("mask", True), np.exp2(q @ k.swapaxes(-1, -2)), 0.0)
    return np.asarray(shares @ v / shares.sum(-1, keepdims=True))


def _launch(device: Device, inputs: Arrays, output: Buffer, form: Form | None) -> None:
    sizes = Sizes.of(inputs, HEADS, HEADS, 0)
    plan = Plan(SETTING, sizes, FEW, inputs, [output], lambda each, dtype: each is form)
    record(plan.write_down, device, inputs, [output])((*inputs, output))


@cache
def digest(form: Form, dtype: str) -> str:
    """Of the text of the kernels that attention of an element type is proved by."""
    recorder = Recorder()
    for sample in samples(form):
        inputs = [Buffer(ADDRESS, a.shape, a.dtype) for a in _given(DTYPES[dtype], sample).values()]
        _launch(recorder, inputs, Buffer(ADDRESS, (1, HEADS, sample.queries, sample.head), DTYPES[dtype]), form)
    texts = "".join(launch.source.text for launch in recorder.launches)
    return hashlib.sha256(texts.encode()).hexdigest()[:16]


@cache
def proofs() -> Proofs:
    """Those of this user."""
    return Proofs(cache_folder("emulator") / "proofs.json")
