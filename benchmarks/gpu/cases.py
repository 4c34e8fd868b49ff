"""The grid on which every kernel is checked: element types, widths, broadcasts, misaligned and strange data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from onnxfuse.kernels.gemm.autotune import CUBLASLT, FORMS, TILED, VENDOR
from tests import attention_cases, kernel_runs

from . import regions
from .attended import ATTENTIONS
from .case import DTYPES, Case, Inputs, Maker, draw, drawn, text
from .expected import CATALOGUE
from .gradient_cases import attention_gradients, batch_norms, embedding_gradients, gradients, group_norms, losses

WIDTHS = (1, 2, 7, 31, 32, 33, 64, 127, 768, 1000, 1024, 4096, 5120, 16384 + 5, 65536)
FEW_WIDTHS = (1, 7, 64, 1000, 4096, 16384 + 5, 65536)
"""Of half precision."""
MANY_ROWS = 600
"""Enough to have another arrangement of threads."""

ROTARY = (
    # head, rotated channels (0 for all), interleaved, heads in 3-D, position_ids
    (16, 0, 0, False, False),
    (16, 0, 1, False, True),
    (32, 16, 0, True, True),
    (16, 8, 1, True, False),
    (10, 0, 0, True, True),
    (20, 6, 1, False, False),
    (2, 0, 0, False, False),
    (128, 0, 0, False, True),
)

BATCH, HEADS, POSITIONS = 2, 3, 5


def cases() -> Iterator[Case]:
    """All of them."""
    yield from pointwise()
    yield from rotary()
    yield from norms()
    yield from softmaxes()
    yield from losses()
    yield from groups()
    yield from embeddings()
    yield from embedding_gradients()
    yield from group_norms()
    yield from attentions()
    yield from attention_gradients()
    yield from products()
    yield from fused_regions()
    yield from batch_norms()


def pointwise() -> Iterator[Case]:
    """Every rule whose kernel is generated, but rotary embedding."""
    shapes: list[tuple[np.dtype[Any], tuple[int, ...], int]] = [(dtype, (3, 5, 8), 0) for dtype in DTYPES]
    shapes += [(dtype, (257, 4100), 0) for dtype in DTYPES]
    shapes += [(DTYPES[0], (3, 5, 7), 0), (DTYPES[1], (33, 999), 0), (DTYPES[0], (3, 5, 8), 1), (DTYPES[0], (4, 0), 0)]
    for op, rule in sorted(CATALOGUE.definitions.items()):
        if rule.kernel != "pointwise" or op == "RotaryEmbedding":
            continue
        for dtype, shape, by in shapes:
            make = drawn(dtype, *(shape for _ in rule.tensors), size=4.0)
            label = f"{dtype} {text(shape)}{' misaligned' if by else ''}"
            yield Case(op, label, make, kernel_runs.ATTRIBUTES.get(op, {}), by=by, size=int(np.prod(shape)))
    tanh = {"approximate": "tanh"}
    yield from (
        Case("Gelu", f"{dtype} tanh", drawn(dtype, (64, 512), size=4.0), tanh, size=1 << 15) for dtype in DTYPES
    )
    for x, slope in (((2, 3, 8), (8,)), ((2, 3, 8), (3, 1)), ((2, 3, 8), (2, 1, 1)), ((2, 3, 7), (7,))):
        label = f"{text(x)} by {text(slope)}"
        yield Case("PRelu", label, drawn(DTYPES[1], x, slope), size=48)


def rotary() -> Iterator[Case]:
    """Rotary embedding in all its forms."""
    for form in ROTARY:
        head, rotated, interleaved, flat, gathered = form
        every = {"interleaved": interleaved, "rotary_embedding_dim": rotated, "num_heads": HEADS if flat else 0}
        attributes = {key: value for key, value in every.items() if value}
        text = " ".join(f"{key}={value}" for key, value in attributes.items())
        for dtype in DTYPES:
            label = f"{dtype} head {head} {text}{' positions' if gathered else ''}"
            size = BATCH * HEADS * POSITIONS * head
            yield Case("RotaryEmbedding", label, turned(form, dtype), attributes, size=size)


def turned(form: tuple[int, int, int, bool, bool], dtype: np.dtype[Any]) -> Maker:
    """Inputs of rotary embedding."""
    head, rotated, _, flat, gathered = form
    half, table = (rotated or head) // 2, 11

    def make(rng: np.random.Generator) -> Inputs:
        angles = rng.standard_normal((table, half) if gathered else (BATCH, POSITIONS, half))
        x = draw(rng, (BATCH, POSITIONS, HEADS * head) if flat else (BATCH, HEADS, POSITIONS, head), dtype)
        made: Inputs = [x, np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)]
        return [*made, rng.integers(0, table, (BATCH, POSITIONS))] if gathered else made

    return make


def widths() -> Iterator[tuple[np.dtype[Any], int, int]]:
    """Element types, rows and widths of matrices.

    Many rows of two columns are left out: in some the two are nearly equal, and what a sum of inputs loses in float32
    is stretched beyond any tolerance.
    """
    for dtype in DTYPES:
        for width in WIDTHS if dtype == DTYPES[0] else FEW_WIDTHS:
            rows = (0, 1, 3, MANY_ROWS) if width == 64 else (3, MANY_ROWS) if width <= 5120 and width != 2 else (3,)
            yield from ((dtype, count, width) for count in rows)


def norms() -> Iterator[Case]:
    """Normalizations of rows, alone and behind a sum."""
    first = (True, False, False)
    for dtype, rows, width in widths():
        x, w, size = (rows, width), (width,), rows * width
        label = f"{dtype} {text(x)}"
        yield Case("LayerNormalization", f"{label} bias", drawn(dtype, x, w, w), size=size)
        yield Case("LayerNormalization", label, drawn(dtype, x, w), outputs=first, size=size)
        yield Case("RMSNormalization", label, drawn(dtype, x, w), size=size)
        yield Case("SkipLayerNormalization", f"{label} all", drawn(dtype, x, x, w, w, w), size=size)
        for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"):
            yield Case(op, label, drawn(dtype, x, x, w), outputs=first, size=size)
        yield Case("SkipSimplifiedLayerNormalization", f"{label} all", drawn(dtype, x, x, w, w), size=size)
    for dtype in DTYPES:
        for width in (7, 64, 1024, 4096):
            make, label = drawn(dtype, (3, width), (width,)), f"{dtype} 3x{width} misaligned"
            yield Case("LayerNormalization", label, make, outputs=first, by=1, size=3 * width)
        for axis, scale in ((2, (4, 5)), (2, (4, 1)), (-3, (3, 1, 1)), (-3, (4, 1)), (0, (2, 1, 1, 1))):
            make, label = drawn(dtype, (2, 3, 4, 5), scale), f"{dtype} axis {axis} scale {text(scale)}"
            for op in ("LayerNormalization", "RMSNormalization"):
                yield Case(op, label, make, {"axis": axis}, outputs=first, size=120)
    for width in (64, 1000, 4096, 65536):

        def far(rng: np.random.Generator, width: int = width) -> Inputs:
            x = draw(rng, (3, width), DTYPES[0], mean=1e4)
            x[1, 0] = 0.0  # one element may be nothing like the others
            return [x, np.ones(width, np.float32)]

        yield Case("LayerNormalization", f"3x{width} around 1e4", far, size=3 * width)


def softmaxes() -> Iterator[Case]:
    """Softmax over the last axis and others, of rows with infinities and NaN."""
    for dtype, rows, width in widths():
        for op in ("Softmax", "LogSoftmax", "SafeSoftmax"):
            make = drawn(dtype, (rows, width), size=5.0)
            yield Case(op, f"{dtype} {rows}x{width}", make, size=rows * width)
    for dtype in DTYPES:
        for op in ("Softmax", "LogSoftmax", "SafeSoftmax"):
            for width in (33, 1024, 4096, 40000):
                make = strange(dtype, width)
                yield Case(op, f"{dtype} 8x{width} strange", make, size=8 * width)
            for shape, axis in (((2, 7, 5), 1), ((3, 4, 300), -2), ((5, 2), 0), ((2, 300, 33), 1), ((6, 1, 9), 1)):
                label = f"{dtype} {text(shape)} axis {axis}"
                yield Case(op, label, drawn(dtype, shape, size=5.0), {"axis": axis}, size=int(np.prod(shape)))
        yield Case("Softmax", f"{dtype} 3x1024 misaligned", drawn(dtype, (3, 1024)), by=1, size=3072)


def strange(dtype: np.dtype[Any], width: int) -> Maker:
    """Rows hidden in part and in whole, rows with NaN and infinity, rows with one large element."""

    def make(rng: np.random.Generator) -> Inputs:
        x = draw(rng, (8, width), dtype)
        x[1] = -np.inf
        x[2, 1:] = -np.inf
        x[3, : width // 2] = -np.inf
        x[4] = np.asarray(1e4, dtype)
        x[4, 0] = np.asarray(-1e4, dtype)
        x[5, width // 3] = np.nan
        x[6, width // 3] = np.inf
        x[7, -1] = np.asarray(1e4, dtype)
        return [x]

    return make


def groups() -> Iterator[Case]:
    """Normalization of groups of channels."""
    for dtype in DTYPES:
        for shape, count in (
            ((2, 6, 4, 5), 3),
            ((2, 6, 7), 3),
            ((1, 64, 8, 8), 32),
            ((2, 4, 1), 2),
            ((1, 8, 100, 100), 2),
            ((2, 8), 4),
            ((3, 5, 2, 4), 5),
            ((1, 2, 64, 128), 2),
        ):
            channels = (shape[1],)
            make, size = drawn(dtype, shape, channels, channels), int(np.prod(shape))
            label = f"{dtype} {text(shape)} in {count}"
            yield Case("GroupNormalization", label, make, {"num_groups": count}, size=size)
            if count == shape[1]:
                yield Case("InstanceNormalization", label, make, size=size)


def attentions() -> Iterator[Case]:
    """Attention in its forms, in each element type."""
    for dtype in DTYPES:
        for name, case in ATTENTIONS.items():
            size = case.batches * max(case.heads * case.queries, case.kv_heads * (case.keys + case.past)) * case.head
            yield Case(
                "Attention",
                f"{dtype} {name}",
                partial(attended, case, dtype),
                case.node,
                outputs=(True, bool(case.past), bool(case.past), False),
                size=size,
            )


def attended(case: attention_cases.Case, dtype: np.dtype[Any], rng: np.random.Generator) -> Inputs:
    """The inputs of a call of attention, which draws its own."""
    return case.inputs(dtype)


def embeddings() -> Iterator[Case]:
    """Rows of tables, added and normalised; some ids name no row."""
    for dtype in DTYPES:
        for width in (1, 7, 64, 768, 1000, 16384 + 5):
            label, size = f"{dtype} 4x7 of {width}", 28 * width
            yield Case(
                "EmbedLayerNormalization", label, embedded(dtype, width, True), outputs=(True, False, True), size=size
            )
            yield Case("EmbedSimplifiedLayerNormalization", label, embedded(dtype, width, False), size=size)


def embedded(dtype: np.dtype[Any], width: int, segments: bool) -> Maker:
    """Ids with their tables: of words alone, or of words, positions and segments."""

    def make(rng: np.random.Generator) -> Inputs:
        ids = rng.integers(-11, 13, (4, 7))
        word, gamma = draw(rng, (11, width), dtype), draw(rng, (width,), dtype)
        if not segments:
            return [ids, word, gamma]
        tables = [draw(rng, (count, width), dtype) for count in (9, 2)]
        return [ids, rng.integers(0, 2, (4, 7)), word, *tables, gamma, draw(rng, (width,), dtype)]

    return make


PRODUCTS = (
    # m, k, n: a few rows and many, with all accesses and with single elements
    (1, 64, 48),
    (5, 33, 19),
    (16, 1024, 64),
    (65, 1, 66),
    (70, 72, 136),
    (130, 129, 131),
    (264, 328, 520),  # of tiles and steps of warpgroups, none of them whole at the end
    (512, 768, 3072),
    (2049, 513, 1025),
    # Sums that blocks share.
    (1, 4096, 1024),
    (13, 11008, 264),
)
ACTIVATION = {form: "Relu" if form == CUBLASLT else "Gelu" for form in FORMS}
"""One that a form has."""


def products() -> Iterator[Case]:
    """Products with bias and activation, in each form."""
    for dtype in DTYPES:
        for m, k, n in PRODUCTS:
            for transposed in (0, 1):
                b = (n, k) if transposed else (k, n)
                for form, activation in ACTIVATION.items():
                    label = f"{dtype} {m}x{k}x{n}{' transposed' if transposed else ''} {form}"
                    attributes = {"activation": activation, "alpha": 0.5, "transB": transposed}
                    size = max(m * k, k * n)
                    make = drawn(dtype, (m, k), b, (n,))
                    yield Case("FusedMatMul", label, make, attributes, size=size, product=form)
        for left, right in (((3, 40, 24), (3, 24, 72)), ((40, 24), (3, 24, 72)), ((2, 3, 40, 24), (3, 24, 72))):
            label, relu = f"{dtype} {text(left)} by {text(right)}", {"activation": "Relu"}
            make = drawn(dtype, left, right, None)
            yield Case("FusedMatMul", label, make, relu, size=int(np.prod(left)), product=TILED)
        for form in FORMS:
            make, label = drawn(dtype, (40, 64), (64, 72), (72,), (40, 72)), f"{dtype} with a residual {form}"
            yield Case("FusedMatMul", label, make, size=64 * 72, product=form)
        make, tanh = drawn(dtype, (40, 64), (64, 64), (64,)), {"activation": "Tanh"}
        yield Case("FusedMatMul", f"{dtype} misaligned", make, tanh, by=1, size=4096, product=TILED)


REDUCED = ((5, 16, 24), (37, 64, 70), (300, 128, 768), (1, 4096, 1024), (129, 72, 1001))
"""Sizes of products whose rows are reduced: m, k, n."""


def fused_regions() -> Iterator[Case]:
    """Regions of several kinds, in each element type."""
    for dtype in DTYPES:
        kind = {"dtype": dtype.name}
        for m, k, n in REDUCED:
            size = max(m * k, k * n, m * n)
            for form in (TILED, VENDOR):
                label = f"{dtype} {m}x{k}x{n} {form}"
                make = drawn(dtype, (m, k), (k, n), (n,), (m, n), (n,), (n,))
                yield Case(regions.NORM, label, make, kind, size=size, product=form)
                make = drawn(dtype, (m, k), (k, n), (n,), size=0.3)
                yield Case(regions.OF_PRODUCT, label, make, kind, size=size, product=form)
                make = drawn(dtype, (m, k), (k, n), (n,), (m, n))
                yield Case(regions.ACTIVATED, label, make, kind, size=size, product=form)
        for form in (TILED, VENDOR):
            make, label = drawn(dtype, (40, 64), (64, 64), (64,), (40, 64)), f"{dtype} misaligned {form}"
            yield Case(regions.ACTIVATED, label, make, kind, by=1, size=4096, product=form)
        for rows, width in ((3, 64), (37, 1), (37, 33), (600, 768), (3, 4099), (2, 65536)):
            shapes = ((rows, width), (rows, width), (width,), (rows, 1))
            label = f"{dtype} {rows}x{width}"
            yield Case(regions.IN_PARTS, label, drawn(dtype, (rows, width)), kind, size=rows * width)
            yield Case(regions.GRADIENTS, label, gradients(dtype, shapes), kind, size=rows * width)
            for height in (5, 8):  # rows that are no vectors, and rows that are
                along = ((2, width, height, 7), (width, 1, 1), (width, 1, 1))
                make = drawn(dtype, *along)
                yield Case(regions.OF_CHANNELS, f"{dtype} {width}x{height}x7", make, kind, size=14 * width * height)
        for rows, width in ((48, 64), (35, 64), (48, 33), (56, 768), (16, 4096)):
            label, size = f"{dtype} {rows}x{width}", 2 * rows * width
            yield Case(regions.TURNED_SOFTMAX, label, drawn(dtype, (2, width, rows)), kind, size=size)
            make = drawn(dtype, *[(2, rows, width)] * 2, *[(width,)] * 2)
            yield Case(regions.TURNED_NORM, label, make, kind, size=size)
