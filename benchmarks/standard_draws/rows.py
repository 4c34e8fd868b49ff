"""Draws of norms, softmaxes, reductions and losses."""

from __future__ import annotations

from .drawing import BFLOAT, FLOAT, HALF, INT32, INT64, REAL, Drawing, Size, fixed, integers, normal, positive
from .table import draws

NORMS = (1e-5, 1e-6, 1e-3, 1e-12)
"""Epsilons that models have."""


@draws("Softmax", "LogSoftmax")
def softmax(d: Drawing) -> None:
    dtype = d.allowed("T")
    dims = d.dims(1, 5)
    d.maybe(axis=d.axis(len(dims)))
    d.give(dtype, dims)
    d.output(dtype)


@draws("LayerNormalization")
def layer_norm(d: Drawing) -> None:
    dtype = d.allowed("T")
    dims = d.dims(1, 4)
    axis = d.axis(len(dims)) if d.maybe(axis=0) else -1
    if "axis" in d.attributes:
        d.set(axis=axis)
    d.maybe(epsilon=d.pick(NORMS))
    d.give(dtype, dims)
    weight = dims[axis:]
    d.give(dtype, weight, constant=d.chance(2))
    if d.chance(2):
        d.give(dtype, weight, constant=d.chance(2))
    d.output(dtype)
    d.output(FLOAT, given=d.chance(4))
    d.output(FLOAT, given=d.chance(4))


@draws("RMSNormalization")
def rms_norm(d: Drawing) -> None:
    dtype = d.allowed("T")
    dims = d.dims(1, 4)
    axis = d.axis(len(dims)) if d.chance(2) else -1
    d.maybe(axis=axis) if axis == -1 else d.set(axis=axis)
    d.maybe(epsilon=d.pick(NORMS))
    d.give(dtype, dims)
    d.give(dtype, dims[axis:], constant=d.chance(2))
    d.output(dtype)


@draws("GroupNormalization")
def group_norm(d: Drawing) -> None:
    dtype = d.allowed("T", REAL)
    groups, each = d.integer(1, 4), d.integer(1, 3)
    channels = fixed(groups * each)
    d.set(num_groups=groups)
    d.maybe(epsilon=d.pick(NORMS))
    x = d.give(dtype, (d.size(name="n"), channels, *d.dims(1, 3, "hwd")))
    weights = channels if d.opset >= 21 else fixed(groups)
    for _ in range(2):
        d.give(dtype, (weights,), constant=d.chance(2))
    d.output(dtype, rank=len(x.dims))


@draws("MeanVarianceNormalization")
def mean_variance(d: Drawing) -> None:
    dtype = d.allowed("T")
    dims = d.dims(1, 4)
    # Of one element the variance is 0, and what is left of it rounding.
    dims = tuple(Size(dim.first + 2, dim.then + 2, dim.name) for dim in dims)
    if len(dims) < 4 or d.chance(2):
        axes = [axis for axis in range(len(dims)) if d.chance(2)]
        d.set(axes=[a - len(dims) if d.chance(3) else a for a in axes or [len(dims) - 1]])
    d.lacking["onnx"] = "onnxruntime's kernel adds no epsilon, and gives NaN where all elements are equal"
    d.give(dtype, dims)
    d.output(dtype, rank=len(dims))


@draws("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
def reduce(d: Drawing) -> None:
    dtype = d.allowed("T", (*REAL, INT32, INT64))
    # Along no axis these two are a function of one element, behind a rounding that nothing leaves out.
    rounds = d.op in ("ReduceL2", "ReduceLogSumExp")
    dims = d.dims(1 if rounds else 0, 4)
    d.maybe(keepdims=d.integer(0, 1))
    d.maybe(4, noop_with_empty_axes=0 if rounds else d.integer(0, 1))
    fill = positive if d.op == "ReduceLogSum" else normal
    d.give(dtype, dims, fill if dtype in REAL else integers(1, 9))
    axes = [a - len(dims) if d.chance(2) else a for a in range(len(dims)) if d.chance(2)]
    if not d.chance(4):
        d.exactly(INT64, axes, constant=True)
    if dtype not in REAL and d.op in ("ReduceL2", "ReduceLogSumExp"):
        d.impossible = "integers: the body computes in another type and cuts the result"
    d.output(dtype)


@draws("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(d: Drawing) -> None:
    dtype, index = d.allowed("T"), d.allowed("Tind", (INT64, INT32))
    classes, batch = d.size(2, 5), d.size(name="n")
    rest = d.dims(0, 3, "def")
    ignored = d.pick((-100, 0, 1))
    if given := d.chance(2):
        d.set(ignore_index=ignored)
    d.maybe(reduction=d.pick(("mean", "sum", "none")))
    d.give(dtype, (batch, classes, *rest))

    def labels(rng, shape):  # type: ignore[no-untyped-def]
        drawn = rng.integers(0, classes.first, shape)
        return drawn if not given else (rng.random(shape) < 0.3) * (ignored - drawn) + drawn

    d.give(index, (batch, *rest), labels)
    if d.chance(2):
        d.give(dtype, (classes,), positive, constant=d.chance(2))
    d.output(dtype)
    if d.op == "SoftmaxCrossEntropyLoss":
        if dtype in (HALF, BFLOAT):
            d.impossible = "half precision: onnxruntime's op overflows where its parts do not"
        d.output(dtype, given=d.chance(2))
