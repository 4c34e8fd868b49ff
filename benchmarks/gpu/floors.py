"""What no launch on the card can beat: bytes by the bandwidth of a copy, operations by the rate of large products."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from onnxfuse.kernels.device.device import Launch, Product, Source, TensorType
from onnxfuse.kernels.device.types import DTYPES

from .machine import Machine, copy_rate
from .plan import OK, Row, SkippedError

SECTION = "floor"
RATED = ("float16", "bfloat16", "float32")
COPIED = 8
"""Times the last cache that a copy moves."""
PRODUCT = 8192
"""Rows and columns of the product that a rate is measured by."""
ROUNDS = 9
NOTHING = Source("nothing.cu", 'extern "C" __global__ void nothing() {}\n')
LAUNCHES = 200
"""Of one graph."""


class Bound(NamedTuple):
    """The least time of a launch, and what it is the time of: "bytes" or "flops"."""

    seconds: float
    by: str


@dataclass(frozen=True, slots=True)
class Floors:
    """Rates that were measured on this card."""

    copy: float | None = None
    """Bytes a second, read and written."""
    products: Mapping[str, float] = field(default_factory=dict)
    """Element type → operations a second, a fused multiply-add being two."""
    launch: float | None = None
    """Seconds of a kernel that does nothing, one of many in a graph."""

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Floors:
        """From the rows of a journal."""
        copy, products, launch = None, dict[str, float](), None
        for row in rows:
            if row["section"] == SECTION and row["outcome"] == OK:
                copy = float(row.get("bytes_per_second", 0)) or copy
                launch = row.get("launch_seconds", launch)
                if "flops_per_second" in row:
                    products[row["dtype"]] = float(row["flops_per_second"])
        return cls(copy, products, launch)

    def bound(self, moved: int, flops: int, dtype: str) -> Bound | None:
        """Of a launch; None where the rates were not measured."""
        if self.copy is None or dtype not in self.products:
            return None
        times = {"bytes": moved / self.copy, "flops": flops / self.products[dtype]}
        by = max(times, key=lambda name: times[name])
        return Bound(times[by], by)


Measured = Callable[[], Floors]
"""What was measured so far."""


def copy(machine: Machine) -> Iterable[Row]:
    """What a copy on the card moves in a second."""
    count = max(COPIED * machine.cache, 1 << 20)
    yield {"bytes": 2 * count, "bytes_per_second": round(copy_rate(machine, count))}


def launch(machine: Machine) -> Iterable[Row]:
    """What a kernel takes that does nothing."""

    def run() -> None:
        machine.device.launch(Launch(NOTHING, "nothing", (1,), (32,)), [])

    many, how = machine.graph([run] * LAUNCHES)
    seconds = statistics.median(machine.seconds(many) for _ in range(ROUNDS)) / LAUNCHES
    yield {"launch_seconds": seconds, "how": how}


def products(dtype: str, machine: Machine, size: int = PRODUCT) -> Iterable[Row]:
    """What the vendor's library computes in a second, by a square product of random numbers.

    Raises SkippedError without the library.
    """
    vendor = machine.device.vendor
    if vendor is None:
        raise SkippedError("there is no library of matrix products")
    type, rng = TensorType(DTYPES[dtype], (size, size)), np.random.default_rng(0)
    a, b, y = (machine.allocate(type) for _ in range(3))
    for memory in (a, b):
        # Numbers that a sum of `size` products does not carry out of range.
        machine.fill(memory, rng.standard_normal(1 << 18).astype(np.float32).astype(type.dtype))
    product = Product(size, size, size)

    def run() -> None:
        vendor.product(product, a, b, y)

    run()
    seconds = statistics.median(machine.seconds(run) for _ in range(ROUNDS))
    flops = 2 * size**3
    yield {"dtype": dtype, "flops": flops, "flops_per_second": round(flops / seconds)}
