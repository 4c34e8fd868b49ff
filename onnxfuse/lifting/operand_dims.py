"""Dimensions of an op's operands that must fit each other, though its result does not show it.

The sum of two tensors shows that their dimensions are broadcast together; that of Attention shows nothing of its mask.
What the op demands is known all the same, and a file in which only fused ops are left tells no less than its original.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxfuse.model.dims import Dim
from onnxfuse.terms.term import Term

LONGER = 24
"""The first opset at which Attention's mask may have fewer keys than there are."""


def together(term: Term, opset: int) -> Iterator[tuple[Dim, Dim]]:
    """Pairs of dimensions that are equal in every run that does not fail, or of which one is 1.

    By the specifications of ai.onnx Attention-23, Concat-13, MatMul-13 and RotaryEmbedding-23."""
    if term.op == "Attention":
        yield from _attention(term, opset)
    elif term.op == "MatMul":
        a, b = (arg.shape for arg in term.args)
        if a and b:
            yield a[-1], b[-2:][0]
            yield from zip(a[-3::-1], b[-3::-1], strict=False)
    elif term.op == "Concat":
        yield from _concat(term)
    elif term.op == "RotaryEmbedding":
        x, table = term.args[0].shape, term.args[1].shape
        if x is not None and table is not None and len(table) == 3:
            yield x[0], table[0]
            yield x[-2], table[1]


def spanned(term: Term) -> Iterator[tuple[Dim, int]]:
    """Dimensions of a convolution's input, and how long each is in every run that does not fail: with its padding no
    shorter than the kernel.  A pooling window may be longer."""
    x, w = (term.args[0].shape, term.args[1].shape) if term.op in ("Conv", "FusedConv") else (None, None)
    attrs = dict(term.attrs)
    if x is None or w is None or attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return
    n = len(w) - 2
    kernel, steps, pads = (
        attrs.get("kernel_shape", w[2:]),
        attrs.get("dilations", (1,) * n),
        attrs.get("pads", (0,) * 2 * n),
    )
    for i, (dim, size, step) in enumerate(zip(x[2:], kernel, steps, strict=True)):
        if isinstance(size, int):
            yield dim, step * (size - 1) + 1 - pads[i] - pads[i + n]


def _concat(term: Term) -> Iterator[tuple[Dim, Dim]]:
    first, *others = (arg.shape for arg in term.args)
    for other in others:
        if first is not None and other is not None and len(first) == len(other):
            along = term.attr("axis") % len(first)
            yield from (pair for axis, pair in enumerate(zip(first, other, strict=True)) if axis != along)


def _attention(term: Term, opset: int) -> Iterator[tuple[Dim, Dim]]:
    shapes = [arg.shape if arg.op != "Absent" else () for arg in term.args] + [()] * 5
    q, k, v, mask, past = shapes[:5]
    if q is None or k is None or v is None or min(map(len, (q, k, v))) < 3:
        return
    yield q[0], k[0]
    yield k[0], v[0]
    yield k[-2], v[-2]
    if mask is None or past is None or not mask:
        return
    keys = past[-2] + k[-2] if past else k[-2]
    scores = (q[0], 1, q[-2], keys)
    first = 1 if opset >= LONGER else 0
    yield from zip(mask[::-1][first:], scores[::-1][first:], strict=False)
