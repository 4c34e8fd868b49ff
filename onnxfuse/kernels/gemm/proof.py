"""Products by warpgroups, or with sums in tensor memory, prove themselves at their first use on a card, against those
by warps.

No such kernel runs on a card before it has: a product of whole numbers from -4 to 4, of several tiles and more steps
than there are stages, with tiles and steps that are not whole, is computed by both, in each tile that the form has.
Its sums are exact in whatever order they are taken, so that the results are equal to the last bit, or the kernels are
refused for that card, and mma.sync multiplies.  What is proved is the source of a product with nothing behind it, of a
batch of two where operands come by tensor maps, which have a dimension for it; of a gate, whose tile has two products
side by side; and of several products of one operand, each tile of which chooses one: for each element type and way to
store b.  What is behind a product is the same text for all tiles.

Verdicts are kept in `proofs.json` beside those of autotune.py, see device/first_use.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from onnxfuse.kernels.device.device import Buffer, Device, Launch, Product, TensorType, Vendor
from onnxfuse.kernels.device.first_use import POISON, FirstUse, results
from onnxfuse.kernels.device.types import DTYPES
from onnxfuse.system.cache_folder import cache_folder

from .autotune import GATED, SIBLINGS, TCGEN05, TMA, WGMMA, Class
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

SIZE = (392, 520, 1032)
"""m, n and k of the product that is compared."""
LARGEST = 4
"""Of its operands: their sums are below 2^24, and exact in float32."""
GATE = """struct Gate {
    static __device__ __forceinline__ float of(float first, float second) { return first - 2.0f * second; }
};
"""
BY = {WGMMA: "by warpgroups", TMA: "by warpgroups and tensor maps", TCGEN05: "with sums in tensor memory"}
SECOND = "second"
"""The result of the second product of several."""

Real = NDArray[np.float32]


class Proofs(FirstUse):
    """The verdicts of products."""

    def holds(self, device: Device, vendor: Vendor, which: Class, form: str = WGMMA) -> bool:
        """Whether products of a class may run on a device in this form; the first time they are compared there (see
        `FirstUse.proved`)."""
        found = partial(difference, device, vendor, which, form)
        return self.proved(vendor, _digest(which, form), found, f"products of {which.dtype} {BY[form]}")

    def refusal(self, card: str, which: Class, form: str = WGMMA) -> str:
        """Why products of a class are refused in a form on the cards that go by this name; empty where they are not, on
        one of them, and where nothing is known."""
        found = self.refused(card, lambda: _digest(which, form))
        return f"products {BY[form]} ({which.dtype}) are refused on {found[0]}: {found[1]}" if found else ""


def difference(device: Device, vendor: Vendor, which: Class, form: str = WGMMA) -> str:
    """In what products of a form differ from that by warps, empty if in nothing."""
    m, n, k = SIZE
    real, kind, parts = DTYPES[which.dtype], _kind(which), _matrices(which, form)
    shapes = _shapes(which, form)
    rng = np.random.default_rng(m)
    operands = {
        name: rng.integers(-LARGEST, LARGEST + 1, shape).astype(np.float32)
        for name, shape in shapes.items()
        if name != "y"
    }

    def run(one: Pass | SiblingsLaunch, arrays: Mapping[str, Buffer], whole: Buffer) -> None:
        made = {"y": Buffer(whole.pointer, shapes["y"], real)}
        made[SECOND] = Buffer(whole.pointer + m * n * real.itemsize, (m, n), real)
        device.launch(one.launch, one.arguments({**arrays, **made}))

    try:
        given = {name: values.astype(real) for name, values in operands.items()}
        runs = [partial(run, one) for one in _launched(*kind, form)]
        found = results(device, vendor, given, TensorType(real, shapes["y"]), runs)
    except Exception as error:  # of the driver, of CuPy, ours: whatever it is, this kernel is not to run there
        return f"its proof failed: {error}"
    end = parts * m * n * real.itemsize
    by_warps, *by_warpgroups = (each[:end].view(np.uint16) for each in found)
    if (by_warps != _exact(which, operands).astype(real).view(np.uint16).ravel()).any():
        return "those by warps, which it is compared with, are wrong there"
    for numbers, whole_result in zip(by_warpgroups, found[1:], strict=True):
        if (whole_result[end:] != POISON).any():
            return "it writes behind its result"
        if wrong := int((by_warps != numbers).sum()):
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
