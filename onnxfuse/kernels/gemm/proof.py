"""Products by warpgroups, or with sums in tensor memory, prove themselves at their first use on a card, against those
by warps.

No such kernel runs on a card before it has: a product of whole numbers from -4 to 4, of several tiles and more steps
than there are stages, with tiles and steps that are not whole, is computed by both, in each tile that the form has.
Its sums are exact in whatever order they are taken, so that the results are equal to the last bit, or the kernels are
refused for that card, and mma.sync multiplies.  What is proved is the source of a product with nothing behind it, of a
batch of two where operands come by tensor maps, which have a dimension for it; of a gate, whose tile has two products
side by side; and of several products of one operand, each tile of which chooses one: for each element type and way to
store b.  What is behind a product is the same text for all tiles.

Verdicts are kept in `proofs.json` beside those of autotune.py, by card (with the versions of its driver and compiler)
and by the digest of the kernels' text: "" where it is proved, else why it is refused.  A proof that was begun and did
not end has taken its process with it: it stands as a refusal until another text, driver or compiler comes, or the file
goes::

    {"schema": 1, "proofs": {"NVIDIA H200 sm_90, driver 13000, NVRTC 13.2, ...": {"1f0c89ab77d01c3e": ""}}}
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Mapping
from functools import cache
from itertools import accumulate
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxfuse.kernels.device.device import Buffer, Device, Launch, Product, Vendor, address
from onnxfuse.kernels.device.types import DTYPES
from onnxfuse.system.cache_folder import cache_folder

from .autotune import GATED, SIBLINGS, TCGEN05, TMA, WGMMA, Class
from .by_card import ByCard, is_named
from .plan import (
    FORM_TILES,
    Pass,
    Result,
    Sibling,
    SiblingsLaunch,
    Vectors,
    gate_pass,
    siblings_launch,
    whole_product,
)
from .source import epilogue
from .source import gated as gated_source
from .tiles import HALF, Division, Tile

SCHEMA = 1
SIZE = (392, 520, 1032)
"""m, n and k of the product that is compared."""
LARGEST = 4
"""Of its operands: their sums are below 2^24, and exact in float32."""
GUARD = 256
"""Bytes behind each result that nobody may write, and a multiple of which each array begins at."""
POISON = 0xFF
GATE = """struct Gate {
    static __device__ __forceinline__ float of(float first, float second) { return first - 2.0f * second; }
};
"""
BY = {WGMMA: "by warpgroups", TMA: "by warpgroups and tensor maps", TCGEN05: "with sums in tensor memory"}
SECOND = "second"
"""The result of the second product of several."""
BEGUN = "its proof was begun there, and did not end"
EMULATED = "emulated"
"""The card where there is none."""

Real = NDArray[np.float32]
Known = dict[str, dict[str, str]]
"""Card → digest of a kernel's text → why it is refused, empty if it is not."""


class Proofs:
    """The verdicts, in memory and in a file.  Several threads and processes may share them."""

    def __init__(self, path: Path) -> None:
        self._file = ByCard(path, SCHEMA, "proofs", str)
        self._lock = threading.Lock()
        self._known: Known | None = None
        self._read: Known | None = None

    def holds(self, device: Device, vendor: Vendor, which: Class, form: str = WGMMA) -> bool:
        """Whether products of a class may run on a device in this form; the first time they are compared
        there.

        A RuntimeWarning says once for each process and kernel that it is refused.  Nothing is compared, and nothing
        unknown holds, while a graph is captured."""
        card, digest = vendor.card or EMULATED, _digest(which, form)
        known = self._known
        if known is not None and digest in known.get(card, {}):
            return not known[card][digest]
        if vendor.capturing:
            return False
        with self._lock:
            found = (self._known or {}).get(card, {}).get(digest)
            if found is None and vendor.card:
                found = self._file.read().get(card, {}).get(digest)
            if found is None:
                self._keep(vendor, card, digest, BEGUN)
                found = difference(device, vendor, which, form)
            self._keep(vendor, card, digest, found)
        if found:
            warnings.warn(
                f"products of {which.dtype} {BY[form]} are refused on {card}: {found}; other forms run",
                RuntimeWarning,
                stacklevel=2,
            )
        return not found

    def refusal(self, card: str, which: Class, form: str = WGMMA) -> str:
        """Why products of a class are refused in a form on the cards that go by this name; empty where they are not, on
        one of them, and where nothing is known."""
        if self._read is None:
            self._read = self._file.read()
        verdicts = {name: known for name, known in self._read.items() if is_named(card, name)}
        digest = _digest(which, form) if verdicts else ""
        found = {name: known[digest] for name, known in verdicts.items() if digest in known}
        if not found or "" in found.values():
            return ""
        name, why = max(found.items())
        return f"{BY[form]} ({which.dtype}) are refused on {name}: {why}"

    def _keep(self, vendor: Vendor, card: str, digest: str, verdict: str) -> None:
        """Remember a verdict, and add it to what other processes have put into the file; none of an emulated card."""
        known = self._file.read() if vendor.card else {}
        for other, verdicts in (self._known or {}).items():
            known.setdefault(other, {}).update(verdicts)
        known.setdefault(card, {})[digest] = verdict
        if vendor.card:
            self._file.write(known)
        if verdict != BEGUN:
            self._known = known


def difference(device: Device, vendor: Vendor, which: Class, form: str = WGMMA) -> str:
    """In what products of a form differ from that by warps, empty if in nothing."""
    m, n, k = SIZE
    real, kind, parts = DTYPES[which.dtype], _kind(which), _matrices(which, form)
    shapes = _shapes(which, form)
    sizes = [-(-prod(shape) * real.itemsize // GUARD) * GUARD + GUARD for shape in shapes.values()]
    starts = list(accumulate(sizes, initial=0))
    rng = np.random.default_rng(m)
    operands = {
        name: rng.integers(-LARGEST, LARGEST + 1, shape).astype(np.float32)
        for name, shape in shapes.items()
        if name != "y"
    }
    try:
        with device.scratch(starts[-1]) as memory:
            first = address(memory)
            arrays = {
                name: Buffer(first + start, shape, real)
                for (name, shape), start in zip(shapes.items(), starts, strict=False)
            }
            for name, values in operands.items():
                vendor.write(arrays[name], values.astype(real))
            whole = Buffer(arrays["y"].pointer, (sizes[-1],), np.dtype(np.uint8))
            arrays[SECOND] = Buffer(whole.pointer + m * n * real.itemsize, (m, n), real)
            results = []
            for one in _launched(*kind, form):
                vendor.write(whole, np.full(whole.shape, POISON, np.uint8))
                device.launch(one.launch, one.arguments(arrays))
                results.append(vendor.read(whole))
    except Exception as error:  # of the driver, of CuPy, ours: whatever it is, this kernel is not to run there
        return f"its proof failed: {error}"
    end = parts * m * n * real.itemsize
    by_warps, *by_warpgroups = (found[:end].view(np.uint16) for found in results)
    if (by_warps != _exact(which, operands).astype(real).view(np.uint16).ravel()).any():
        return "those by warps, which it is compared with, are wrong there"
    for found, whole_result in zip(by_warpgroups, results[1:], strict=True):
        if (whole_result[end:] != POISON).any():
            return "it writes behind its result"
        if wrong := int((by_warps != found).sum()):
            return f"{wrong} of {parts * m * n} numbers of a product {m} x {k} x {n} are others"
    return ""


def _shapes(which: Class, form: str) -> dict[str, tuple[int, ...]]:
    """Of what is multiplied, and of the result."""
    m, n, k = SIZE
    _, transposed, kind = _kind(which)
    parts = _matrices(which, form)
    batch = 1 if kind else parts
    b = (batch, n, k) if transposed else (batch, k, n)
    return {"a": (batch, m, k), "b": b, **({"c": b} if kind else {}), "y": (parts, m, n)}


def _matrices(which: Class, form: str) -> int:
    """How many the result is."""
    kind = _kind(which)[-1]
    return 2 if kind == SIBLINGS or (not kind and _maps(form)) else 1


def _maps(form: str) -> bool:
    """Whether operands come by tensor maps."""
    return FORM_TILES[form][0].maps


def _exact(which: Class, operands: Mapping[str, Real]) -> Real:
    """The result."""
    _, transposed, kind = _kind(which)
    a, *others = (x.swapaxes(-1, -2) if transposed and name != "a" else x for name, x in operands.items())
    if kind == GATED:
        return a @ (others[0] - 2 * others[1])
    return np.concatenate([a @ b for b in others])


def _kind(which: Class) -> tuple[str, bool, str]:
    """What the kernels of a class are told apart by: element type, how b is stored, and whether they are a gate's, or
    of several products of one operand."""
    kind = which.epilogue.split()[-1] if which.epilogue else ""
    return which.dtype, which.transposed, kind if kind in (GATED, SIBLINGS) else ""


def _digest(which: Class, form: str = WGMMA) -> str:
    """Of the text of the kernels that a class is proved by."""
    _, *kernels = _launched(*_kind(which), form)
    return hashlib.sha256("".join(one.launch.source.text for one in kernels).encode()).hexdigest()[:16]


@cache
def _launched(dtype: str, transposed: bool, kind: str, form: str) -> tuple[Pass | SiblingsLaunch, ...]:
    """The product by warps, and in each of the form's tiles; or what else is of a `kind` in each."""
    m, n, k = SIZE
    vectors = Vectors(8, 8, 8)
    own = FORM_TILES[form]
    if kind == GATED:
        return tuple(_gate(dtype, transposed, vectors, tile) for tile in (HALF[1], *own))
    after, tiles = epilogue("FusedMatMul", (), False, False, True), (HALF[0], *own)
    if kind == SIBLINGS:
        each = [Sibling(b, "", y, n, 0, n, 0, after) for b, y in (("b", "y"), ("c", SECOND))]
        return tuple(siblings_launch(tile, "a", m, k, each, transposed, dtype, vectors) for tile in tiles)
    batch = (2, m * k, k * n) if _maps(form) else (1, 0, 0)
    result = Result(DTYPES[dtype], batch[0] * m, n, 1, after)
    product = Product(m, n, k, transposed, 1.0, *batch)
    return tuple(whole_product(product, Division(tile, 1), result, vectors) for tile in tiles)


def _gate(dtype: str, transposed: bool, vectors: Vectors, tile: Tile) -> Pass:
    """Two products of one operand, the second twice taken from the first."""
    m, n, k = SIZE
    source = gated_source(dtype, tile, transposed, vectors, GATE)
    blocks, shared = tile.count(m, n * (1 + tile.warpgroups)), tile.shared(DTYPES[dtype].itemsize, transposed)
    sizes = tuple(map(np.int32, (m, n, n, k, 0, 0)))
    launch = Launch(source, "gated", (blocks,), (tile.threads,), shared)
    return gate_pass(launch, sizes, Product(m, n, k, transposed), tile)


@cache
def proofs() -> Proofs:
    """Those of this user."""
    return Proofs(cache_folder("emulator") / "proofs.json")
