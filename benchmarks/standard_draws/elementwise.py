"""Draws of ops that compute each element by itself."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

from .drawing import BOOL, DOUBLE, FLOAT, HALF, INT32, INT64, REAL, Drawing, fixed, integers, normal
from .table import draws

ACTIVATIONS = "Elu HardSigmoid HardSwish LeakyRelu Mish Relu Selu Softplus Softsign Swish ThresholdedRelu Celu"
PARAMETERS: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "Elu": {"alpha": (1.0, 0.5)},
    "Celu": {"alpha": (1.0, 0.5, 2.0)},
    "Selu": {"alpha": (1.6732632, 0.5), "gamma": (1.0507010, 2.0)},
    "HardSigmoid": {"alpha": (0.2, 1 / 6), "beta": (0.5, 0.25)},
    "LeakyRelu": {"alpha": (0.01, 0.2, 1.5)},
    "Swish": {"alpha": (1.0, 1.702)},
    "ThresholdedRelu": {"alpha": (1.0, 0.0)},
}
"""Op → its numbers, and what they usually are."""


@draws(*ACTIVATIONS.split())
def activation(d: Drawing) -> None:
    dtype = d.allowed("T")
    for name, usual in PARAMETERS.get(d.op, {}).items():
        number = d.number(*usual)
        # Below 0, the formula of Celu and the function that the standard gives it disagree.
        if d.chance(2):
            d.attributes[name] = abs(number) or 1.0 if d.op == "Celu" else number
    _unknown_to_onnxruntime(d)
    d.give(dtype, d.dims(0, 5))
    d.output(dtype)


def _unknown_to_onnxruntime(d: Drawing) -> None:
    if d.op in ("Swish", "SwiGLU") and d.opset > 24:
        d.lacking["onnx"] = f"no onnxruntime runs {d.op} of an opset above 24, so that it is not written for it"


@draws("Gelu")
def gelu(d: Drawing) -> None:
    dtype = d.allowed("T")
    d.maybe(approximate=d.pick(("none", "tanh")))
    d.give(dtype, d.dims(0, 5))
    d.output(dtype)


@draws("Shrink")
def shrink(d: Drawing) -> None:
    dtype = d.allowed("T", (*REAL, INT32, INT64, TensorProto.INT8))
    real = dtype in REAL
    d.maybe(lambd=d.number(0.5, 1.0) if real else float(d.integer(-3, 3)))
    d.maybe(bias=d.number(0.0, 0.5) if real else float(d.integer(-3, 3)))
    d.give(dtype, d.dims(0, 4), normal if real else integers(-5, 5))
    if not real:
        d.impossible = "integers: their numbers are cut to integers, of which rules know nothing"
    if dtype == DOUBLE:
        d.impossible = "onnxruntime's Shrink computes float64 in single precision: the rule leaves that alone"
    d.output(dtype)


@draws("PRelu")
def prelu(d: Drawing) -> None:
    dtype = d.allowed("T", (*REAL, INT32, INT64))
    dims = d.dims(0, 4)
    skipped = d.integer(0, len(dims))
    slope = [fixed(1) if d.chance(3) else dim for dim in dims[skipped:]]
    fill = normal if dtype in REAL else integers(-5, 5)
    d.give(dtype, dims, fill)
    d.give(dtype, slope, fill, constant=d.chance(2))
    d.output(dtype)


@draws("SwiGLU")
def swiglu(d: Drawing) -> None:
    dtype = d.allowed("T")
    dims = d.dims(0, 4)
    d.maybe(alpha=d.number(1.0, 1.702))
    _unknown_to_onnxruntime(d)
    d.give(dtype, dims)
    d.give(dtype, dims)
    d.output(dtype)


@draws("Clip")
def clip(d: Drawing) -> None:
    dtype = d.allowed("T", (*REAL, INT32, INT64, TensorProto.INT8, TensorProto.UINT8))
    fill = normal if dtype in REAL else integers(0 if dtype == TensorProto.UINT8 else -9, 9)
    d.give(dtype, d.dims(0, 4), fill)
    bounds = [d.number(0.0, -1.0), d.number(6.0, 1.0)] if dtype in REAL else [d.integer(0, 4), d.integer(3, 9)]
    for bound in sorted(bounds) if d.chance(6) is False else bounds:
        if d.chance(4):
            d.leave()
            continue
        constant = not d.chance(3)
        d.exactly(dtype, bound, constant=constant)
        if not constant:
            d.impossible = "a bound that is computed may be NaN, below which the body finds nothing, and the op all"
    d.output(dtype)


@draws("CastLike")
def cast_like(d: Drawing) -> None:
    kinds = (*REAL, INT32, INT64, BOOL, TensorProto.UINT8, TensorProto.INT8)
    dtype, target = d.allowed("T1", kinds), d.allowed("T2", kinds)
    d.give(dtype, d.dims(0, 4), normal if dtype in REAL else integers(0, 1))
    d.give(target, d.dims(0, 3, "uvw"), fill=integers(0, 1), constant=d.chance(2))
    d.output(target)


@draws("GreaterOrEqual", "LessOrEqual")
def compare(d: Drawing) -> None:
    dtype = d.allowed("T", (FLOAT, HALF, DOUBLE, INT32, INT64))
    dims = d.dims(0, 4)
    other = [fixed(1) if d.chance(4) else dim for dim in dims[d.integer(0, len(dims)) :]]
    pair = [dims, other]
    for shape in reversed(pair) if d.chance(2) else pair:
        d.give(dtype, shape, integers(-2, 2), constant=d.chance(6))
    d.output(BOOL)


@draws("Bernoulli")
def bernoulli(d: Drawing) -> None:
    dtype = d.allowed("T1")
    out = d.allowed("T2", (*REAL, INT32, BOOL))
    d.set(seed=float(d.integer(0, 9)))
    if d.chance(2):
        d.set(dtype=out)
    else:
        out = dtype
    d.give(dtype, d.dims(1, 4), lambda rng, shape: rng.uniform(0, 1, shape))
    d.output(out)
    d.impossible = "random numbers: another op draws others"


@draws("DynamicQuantizeLinear")
def dynamic_quantize(d: Drawing) -> None:
    d.give(FLOAT, d.dims(0, 4))
    d.output(TensorProto.UINT8)
    d.output(FLOAT)
    d.output(TensorProto.UINT8)
