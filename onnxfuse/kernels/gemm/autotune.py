"""Which form of a product is the fastest: measured once for each class of shapes, element type and card.

The forms are "tiled", a kernel of ours; "wgmma", the same by warpgroups, for large products in half precision on cards
of compute capability 9.0, where it has proved itself (proof.py); "tma", that with operands that come by tensor maps,
where it has; "tcgen05", one with its sums in tensor memory, on cards of compute capability 10.0, where it has;
"vendor", the vendor's product and one pass of ours over it; and "cublaslt", the vendor's product with an epilogue of
its own, where nvmath-python is installed and has such an epilogue.

A verdict holds for all products of its `Class`.  It is measured at the first launch of that class, which waits for the
device then: each form is captured in a CUDA graph and replayed, for below 30 µs a launch from Python takes longer than
the product.  While a CUDA graph is captured, where another thread is measuring already, and where forms cannot be
captured (on the default stream), the vendor's form runs, and nothing is kept.
Another is chosen only where it was the faster by `MARGIN`, so that a fused product is never slower than the vendor's
followed by one pass.  Where there is no vendor's library, and where times say nothing of a GPU (in the emulator), ours
runs.  The environment variable ONNXFUSE_PRODUCT=tiled, =wgmma, =tma, =tcgen05, =vendor or =cublaslt settles it
without a measurement; a product that cannot have that form has the vendor's, and "tiled" in place of "wgmma", "tma" and
"tcgen05".

Verdicts are kept in `products.json` in the cache folder of the kernels (~/.cache/onnxfuse/emulator, or
$ONNXFUSE_CACHE), as device/by_card.py has it::

    {"schema": 3,
     "seconds": {"NVIDIA H200 sm_90, driver 13000, NVRTC 13.2, cuBLAS 13.2.0, nvmath 1.0.0":
                   {"1f0c89ab float16 1x4096x1024x4096 transposed 16 Relu bias":
                      {"tiled": 6.1e-05, "vendor": 5.4e-05, "cublaslt": 5.1e-05}}}}

A card is named with all that was measured on it but our kernels: another driver, compiler or library has verdicts of
its own.  A class is named by the digest of our kernels and of what launches them, element type, batch x m x k x n
rounded up to powers of two, how b is stored, the bytes of the narrowest access that its alignment allows, and the
epilogue if the vendor's library has it.
Times are medians, in seconds.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from onnxfuse.errors import KernelError, UsageError
from onnxfuse.kernels.device.by_card import ByCard, is_named
from onnxfuse.kernels.device.device import Product, Source, Vendor
from onnxfuse.system.cache_folder import cache_folder

TILED, WGMMA, TMA, TCGEN05, VENDOR, CUBLASLT = "tiled", "wgmma", "tma", "tcgen05", "vendor", "cublaslt"
OF_ONE_CARD = (WGMMA, TMA, TCGEN05)
"""Those of ours that one architecture has, and that prove themselves there."""
FORMS = (TILED, *OF_ONE_CARD, VENDOR, CUBLASLT)
GATED, SIBLINGS = "gated", "siblings"
"""What a class has in place of an epilogue where it is of a gate's two products; and, behind their number, where it is
of several of one operand."""
VARIABLE = "ONNXFUSE_PRODUCT"
LAUNCHING = ("gated", "gemm", "members", "parts", "plan", "proof", "reduced", "siblings", "source", "tiles")
"""Modules of the kernels' host side."""
SCHEMA = 3
"""Of the file, and of the way to measure: verdicts of another are not looked at."""
ROUNDS = 9
"""Measurements of each form, in turns; the median counts."""
MARGIN = 0.02
"""What is less is noise."""

Seconds = Mapping[str, float]
"""Form → time."""
Forms = Mapping[str, Callable[[], None]]
"""Form → what runs it; with a vendor's library, its form is one of them."""


class Class(NamedTuple):
    """Products that share a verdict; sizes are powers of two."""

    dtype: str
    batch: int
    m: int
    n: int
    k: int
    transposed: bool
    access: int
    """Bytes of the narrowest access to a, b or y."""
    epilogue: str = ""
    """As `cublaslt.name` has it: the forms of all others do not depend on it.  Of a region, whose vendor's form is a
    product and a pass, that word; of several products of one operand, how many: n is that of all."""

    @classmethod
    def of(cls, product: Product, count: int, dtype: str, access: int, epilogue: str = "") -> Class:
        """The class of `count` such products, the first of which is given."""
        batch, m, n, k = map(_bucket, (product.batch * count, product.m, product.n, product.k))
        return cls(dtype, batch, m, n, k, product.transposed, access, epilogue)

    def __str__(self) -> str:
        size = f"{self.batch}x{self.m}x{self.k}x{self.n}"
        stored = "transposed" if self.transposed else ""
        return " ".join(filter(None, (_digest(), self.dtype, size, stored, str(self.access), self.epilogue)))


def _bucket(size: int) -> int:
    return 1 << (size - 1).bit_length() if size else 0


@cache
def _digest() -> str:
    """What verdicts on our kernels depend on: their text, and that of what chooses tiles and launches them."""
    kinds = ("gemm", "gemm_epilogue", "gemm_gated", "gemm_region", "gemm_rows", "gemm_siblings")
    files = [Source.file(f"{kind}.cu").text for kind in kinds]
    files += [Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8") for name in LAUNCHING]
    return hashlib.sha256("".join(files).encode()).hexdigest()[:8]


class Verdicts:
    """The times that were measured, in memory and in a file.  Several threads and processes may share them."""

    def __init__(self, path: Path) -> None:
        self._file = ByCard(path, SCHEMA, "seconds", _times)
        self._measuring = threading.Lock()
        self._seconds: dict[str, dict[str, Seconds]] | None = None
        self._chosen: dict[tuple[str, Class], str] = {}

    def seconds(self, card: str, which: Class) -> Seconds | None:
        """The times of all forms, where they are known."""
        return self._known().get(card, {}).get(str(which))

    def _known(self) -> dict[str, dict[str, Seconds]]:
        if self._seconds is None:
            self._seconds = self._file.read()
        return self._seconds

    def measured(self, card: str, which: Class) -> Seconds | None:
        """The times of this class on the first card measured that goes by the name `card`."""
        for name in sorted(self._known()):
            times = self.seconds(name, which)
            if times and is_named(card, name):
                return times
        return None

    def choose(self, vendor: Vendor | None, which: Class, forms: Forms) -> str:
        """Run one form, and say which.  A form that was the fastest of its class, but refuses this product, gives way
        to the vendor's."""
        form = self._settled(vendor, which, forms)
        if form is None and vendor is not None:
            form = self._measured(vendor, which, forms)
        form = form or TILED
        try:
            forms[form]()
        except KernelError:
            if form != CUBLASLT or _forced():
                raise
            form = VENDOR
            forms[form]()
        return form

    def _settled(self, vendor: Vendor | None, which: Class, forms: Forms) -> str | None:
        """The form, where nothing need be measured."""
        if vendor is None or (forced := _forced()) == TILED:
            return TILED
        if not which.k:
            return TILED  # an empty sum is nothing that libraries agree on
        if forced:
            return forced if forced in forms else TILED if forced in OF_ONE_CARD else VENDOR
        card = vendor.card
        if card is None:
            return TILED
        form = self._chosen.get((card, which))
        if form is None and (times := self.seconds(card, which)):
            form = self._chosen[card, which] = best(times)
        return form if form is None or form in forms else VENDOR

    def _measured(self, vendor: Vendor, which: Class, forms: Forms) -> str:
        card = vendor.card
        assert card is not None
        if vendor.capturing or not self._measuring.acquire(blocking=False):
            return VENDOR
        try:
            times = measure(vendor, forms)
            if not times:
                self._chosen[card, which] = VENDOR
                return VENDOR
            self._keep(card, which, times)
            return best(times)
        finally:
            self._measuring.release()

    def _keep(self, card: str, which: Class, times: Seconds) -> None:
        """Remember times, and add them to what other processes have put into the file meanwhile."""
        known = self._file.read()
        for other, classes in (self._seconds or {}).items():
            known.setdefault(other, {}).update(classes)
        known.setdefault(card, {})[str(which)] = times
        self._seconds = known
        self._file.write(known)


def best(times: Seconds) -> str:
    """The form to choose: the vendor's unless another is clearly faster."""
    other = min((form for form in times if form != VENDOR), key=lambda form: times[form], default=VENDOR)
    return other if times[other] < times.get(VENDOR, math.inf) * (1 - MARGIN) else VENDOR


def measure(vendor: Vendor, forms: Forms) -> Seconds:
    """The median time of each form.  One that the card refuses has none; none has one where they cannot be timed."""
    clocks: dict[str, Callable[[], float]] = {}
    refusal: KernelError | None = None
    for form, run in forms.items():
        try:
            run()  # compiles, loads, allocates
        except KernelError as error:
            refusal = error if form == VENDOR else refusal
            continue
        try:
            clocks[form] = vendor.clock(run)
        except KernelError:
            return {}
    if refusal is not None and not clocks:
        raise refusal
    samples: dict[str, list[float]] = {form: [] for form in clocks}
    for _ in range(ROUNDS):
        for form, clock in clocks.items():
            samples[form].append(clock())
    import statistics  # of what is timed alone

    return {form: statistics.median(times) for form, times in samples.items()}


def forced(but: str) -> bool:
    """Whether the user has settled on another form.  Raises UsageError where there is none of that name."""
    return _forced() not in ("", but)


def _forced() -> str:
    form = os.environ.get(VARIABLE, "")
    if form not in ("", *FORMS):
        raise UsageError(f"{VARIABLE}={form}: it is {', '.join(FORMS)}, or not set")
    return form


def _times(value: Any) -> Seconds:
    return {str(form): float(seconds) for form, seconds in value.items()}


@cache
def verdicts() -> Verdicts:
    """Those of this user."""
    return Verdicts(cache_folder("emulator") / "products.json")


def choose(vendor: Vendor | None, which: Class, forms: Forms) -> str:
    """See `Verdicts.choose`."""
    return verdicts().choose(vendor, which, forms)
