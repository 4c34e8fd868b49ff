"""What models are made of, written out in many nodes, as exporters do and sometimes a little differently."""

from __future__ import annotations

import math

import numpy as np

from .build import BOOL, FLOAT, INT64, ONE, REAL, Builder, Dim, Value, broadcast
from .elementwise import constant_number
from .views import halves

EPSILONS = (1e-5, 1e-12, 1e-6, 0.0, 1e-38, 1.0)


def _number(b: Builder, number: float, x: Value) -> Value:
    """A constant of this number, rarely of another."""
    return b.number(constant_number(b) if b.chance(40) else number, x.dtype)


def _square(b: Builder, x: Value) -> Value:
    return b.joined("Pow", x, b.number(2.0, x.dtype)) if b.chance(2) else b.joined("Mul", x, x)


def _inverse_root(b: Builder, variance: Value, x: Value) -> Value:
    """x / sqrt(variance + epsilon), in one of three spellings."""
    shifted = b.joined("Add", variance, _number(b, b.pick(EPSILONS if x.dtype == FLOAT else (1e-3, 1.0)), x))
    root = b.add("Sqrt", shifted)
    if b.chance(3):
        return b.joined("Mul", x, b.add("Reciprocal", root))
    if b.chance(3):
        return b.joined("Mul", b.joined("Div", b.number(1.0, x.dtype), root), x)
    return b.joined("Div", x, root)


def _affine(b: Builder, x: Value, shape: list[int]) -> None:
    if b.chance(2):
        x = b.joined("Mul", x, b.normal(shape, x.dtype, shift=1.0))
        if b.chance(2):
            b.joined("Add", x, b.normal(shape, x.dtype))


def layer_norm(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype in REAL and v.rank >= 1)
    if x is None:
        return False
    axes = [-1] if not b.chance(4) else [b.integer(0, x.rank - 1)] if b.chance(2) else [*range(-x.rank, 0)][-2:]
    mean = b.reduce("ReduceMean", x, axes)
    d = b.joined("Sub", x, mean)
    if b.chance(4):
        variance = b.joined("Sub", b.reduce("ReduceMean", _square(b, x), axes), _square(b, mean))
        if b.chance(2):
            variance = b.joined("Max", variance, b.number(0.0, x.dtype))
    else:
        variance = b.reduce("ReduceMean", _square(b, d), axes)
    y = _inverse_root(b, variance, d)
    if axes == [-1] and x.dims[-1].static:
        _affine(b, y, [x.dims[-1].size])
    return True


def rms_norm(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype in REAL and v.rank >= 1)
    if x is None:
        return False
    axes = [-1] if not b.chance(4) else [b.integer(0, x.rank - 1)]
    y = _inverse_root(b, b.reduce("ReduceMean", _square(b, x), axes), x)
    if axes == [-1] and x.dims[-1].static:
        _affine(b, y, [x.dims[-1].size])
    return True


def instance_norm(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == FLOAT and v.rank == 4 and v.dims[1].static and v.dims[1].size > 0)
    if x is None:
        return False
    d = b.joined("Sub", x, b.reduce("ReduceMean", x, [2, 3]))
    y = _inverse_root(b, b.reduce("ReduceMean", _square(b, d), [2, 3]), d)
    b.joined("Mul", y, b.normal((x.dims[1].size, 1, 1)))
    return True


def gelu(b: Builder) -> bool:
    x = b.real()
    if x is None:
        return False
    if b.chance(2):
        inner = b.joined("Mul", b.joined("Mul", x, _square(b, x)), _number(b, 0.044715, x))
        e = b.add("Tanh", b.joined("Mul", b.joined("Add", x, inner), _number(b, math.sqrt(2 / math.pi), x)))
    else:
        e = b.add("Erf", b.joined("Div", x, _number(b, math.sqrt(2), x)))
    half = b.joined("Mul", x, _number(b, 0.5, x))
    b.joined("Mul", half, b.joined("Add", e, b.number(1.0, x.dtype)))
    return True


def swish(b: Builder) -> bool:
    """x * sigmoid(x), also where its exponential is written out; a gate."""
    x = b.real()
    if x is None:
        return False
    if b.chance(2):
        z = b.joined("Mul", x, b.number(b.pick((1.702, 1.5, 0.0, -1.0)), x.dtype)) if b.chance(2) else x
        s = b.add("Sigmoid", z)
    else:
        s = b.joined("Add", b.add("Exp", b.add("Neg", x)), b.number(1.0, x.dtype))
        s = b.joined("Div", b.number(1.0, x.dtype), s)
    y = b.joined("Mul", x, s)
    other = b.value(lambda v: v.dtype == x.dtype and v.dims == x.dims and v is not y) if b.chance(2) else None
    if other is not None:
        b.joined("Mul", y, other)
    return True


def softplus(b: Builder) -> bool:
    x = b.real()
    if x is None:
        return False
    y = b.add("Log", b.joined("Add", b.add("Exp", x), _number(b, 1.0, x)))
    if b.chance(2):
        b.joined("Mul", x, b.add("Tanh", y))
    return True


def hyperbolic(b: Builder) -> bool:
    """tanh in exponentials, softsign, and hard activations in pieces."""
    x = b.real()
    if x is None:
        return False
    how, one = b.integer(0, 3), b.number(1.0, x.dtype)
    if how == 0:
        x = b.add("Sin", x) if b.chance(2) else x
        up, down = b.add("Exp", x), b.add("Exp", b.add("Neg", x))
        b.joined("Div", b.joined("Sub", up, down), b.joined("Add", up, down))
    elif how == 1:
        b.joined("Div", x, b.joined("Add", b.add("Abs", x), one))
    elif how == 2:
        top = b.number(6.0, x.dtype)
        clipped = b.add("Clip", b.joined("Add", x, b.number(3.0, x.dtype)), b.number(0.0, x.dtype), top)
        b.joined("Mul", x, b.joined("Div", clipped, top))
    else:
        two = b.number(2.0, x.dtype)
        b.joined("Sub", b.joined("Mul", b.add("Sigmoid", b.joined("Mul", x, two)), two), one)
    return True


def choice(b: Builder) -> bool:
    """LeakyRelu, Elu, PRelu, ThresholdedRelu and Relu by Where."""
    x = b.value(lambda v: v.dtype == FLOAT)
    if x is None:
        return False
    zero = b.number(0.0)
    positive = b.joined(b.pick(("Greater", "Less")), x, b.number(b.pick((0.0, 0.5))), dtype=BOOL)
    how = b.integer(0, 3)
    other = zero
    if how == 1:
        other = b.joined("Mul", x, b.number(b.pick((0.1, 0.0, -1.0, 2.0))))
    elif how == 2:
        other = b.joined("Sub", b.add("Exp", x), b.number(1.0))
    elif how == 3 and x.dims and x.dims[-1].static:
        other = b.joined("Mul", x, b.normal((x.dims[-1].size,)))
    b.joined("Where", positive, *((x, other) if not b.chance(3) else (other, x)), dtype=FLOAT)
    if b.chance(4):
        b.joined("Mul", x, b.add("Cast", positive, dtype=FLOAT, to=FLOAT))
    return True


def written_softmax(b: Builder) -> bool:
    x = b.real(1)
    if x is None:
        return False
    if b.chance(3):
        d = b.add("Tanh", x) if b.chance(2) else x
    else:
        d = b.joined("Sub", x, b.reduce("ReduceMax", x, [-1]))
    e = b.add("Exp", d)
    total = b.reduce("ReduceSum", e, [-1])
    if b.chance(3):
        b.joined("Sub", d, b.add("Log", total))
    else:
        b.joined("Div", e, total)
    return True


def _weights(b: Builder, scores: Value) -> Value:
    """Softmax of scores under some mask, sometimes guarded against rows of NaN."""
    how = b.integer(0, 4)
    if how == 1:
        mask = b.value(lambda v: v.dtype == FLOAT and broadcast(v.dims, scores.dims) == scores.dims and v is not scores)
        scores = b.joined("Add", scores, mask if mask is not None else b.number(-1e9))
    elif how in (2, 3):
        mask = b.value(lambda v: v.dtype == BOOL and broadcast(v.dims, scores.dims) == scores.dims)
        if mask is None and scores.dims[-1].static and scores.dims[-2].static:
            mask = b.array(np.tri(*scores.sizes[-2:], dtype=bool))
        if mask is not None:
            low = b.number(b.pick((float("-inf"), -1e9, -3.4028235e38, -1e4)))
            if how == 2:
                scores = b.joined("Where", mask, scores, low, dtype=FLOAT)
            else:
                scores = b.joined("Add", scores, b.joined("Where", mask, b.number(0.0), low, dtype=FLOAT))
    weights = b.add("Softmax", scores, axis=-1 if b.opset >= 13 else scores.rank - 1)
    if b.chance(3):
        weights = b.joined("Where", b.add("IsNaN", weights, dtype=BOOL), b.number(0.0), weights, dtype=FLOAT)
    return weights


def attention(b: Builder) -> bool:
    q = b.value(lambda v: v.dtype == FLOAT and v.rank in (3, 4) and v.dims[-1].size > 0)
    if q is None:
        return False
    dims = q.dims
    keys = [b.value(lambda v: v.dtype == FLOAT and v.dims == dims) or q for _ in range(2)]
    turned = b.transpose(keys[0], [*range(q.rank - 2), q.rank - 1, q.rank - 2])
    scale = b.pick((0.25, 0.5, 1.0, 0.0, -1.0))
    where = b.integer(0, 3)
    if where == 1:
        q = b.joined("Mul", q, b.number(scale))
    scores = b.add("MatMul", q, turned, dims=(*q.dims[:-1], q.dims[-2]))
    if where == 2:
        scores = b.joined("Mul", scores, b.number(scale))
    if where == 3:
        scores = b.joined("Div", scores, b.number(4.0))
    b.add("MatMul", _weights(b, scores), keys[1], dims=q.dims)
    return True


def heads(b: Builder) -> bool:
    """[batch, sequence, width] as heads, and back."""
    x = b.value(lambda v: v.dtype in REAL and v.rank == 3 and v.dims[-1].static and v.dims[-1].size == 8)
    if x is None:
        return False
    split = b.reshape(x, (*x.dims[:2], Dim(2), Dim(4)), [0, 1, None, None])
    turned = b.transpose(split, [0, 2, 1, 3])
    if b.chance(2):
        together = b.transpose(turned, [0, 2, 1, 3])
        b.reshape(together, x.dims, [0, 1, None])
    return True


def rotate(b: Builder) -> bool:
    """x * cos + rotate_half(x) * sin."""
    x = b.value(lambda v: v.dtype == FLOAT and v.rank == 4 and v.dims[-1].static and v.dims[-1].size in (4, 8))
    if x is None:
        return False
    n = x.dims[-1].size
    first, second = halves(b, x, 3)
    turned = b.add("Concat", b.add("Neg", second), first, dims=x.dims, axis=3)
    angles = np.tile(np.linspace(0, 3, n // 2), 2)
    cos, sin = (b.array(f(angles).astype(np.float32).reshape(1, 1, 1, n)) for f in (np.cos, np.sin))
    b.joined("Add", b.joined("Mul", x, cos), b.joined("Mul", turned, sin))
    return True


def repeat(b: Builder) -> bool:
    """Each head several times: Unsqueeze, Expand, Reshape."""
    x = b.value(lambda v: v.dtype == FLOAT and v.rank == 4 and v.dims[1].static and 0 < v.dims[1].size < 4)
    if x is None:
        return False
    h = x.dims[1].size
    wide = b.with_axes("Unsqueeze", x, [2], (*x.dims[:2], ONE, *x.dims[2:]))
    longer = b.add("Expand", wide, b.integers(1, 1, 2, 1, 1), dims=(*x.dims[:2], Dim(2), *x.dims[2:]))
    if all(d.static for d in x.dims[2:]):
        b.reshape(longer, (x.dims[0], Dim(2 * h), *x.dims[2:]), [0, None, None, None])
    elif x.dims[3].static:
        b.reshape(longer, (x.dims[0], Dim(2 * h), *x.dims[2:]), [0, None, 3, None])
    return True


def causal_mask(b: Builder) -> bool:
    """Positions of keys against positions of queries, along the dimensions of a tensor."""
    x = b.real(3)
    if x is None:
        return False
    shape = b.add("Shape", x, dims=(Dim(x.rank),), dtype=INT64)
    n = x.dims[-2]
    length = b.add("Gather", shape, b.array(np.array(x.rank - 2, np.int64)), dims=(), axis=0)
    zero, one = (b.array(np.array(i, np.int64)) for i in (0, 1))
    run = b.add("Range", zero, length, one, dims=(n,), dtype=INT64)
    column = b.with_axes("Unsqueeze", run, [1], (n, ONE))
    later = b.joined("Greater", run, column, dtype=BOOL)
    b.joined("Where", later, b.number(b.pick((float("-inf"), -1e9))), b.number(0.0), dtype=FLOAT)
    return True


def residual_norm(b: Builder) -> bool:
    """x + y, normalised by the op itself."""
    x = b.value(lambda v: v.dtype == FLOAT and v.rank >= 2 and v.dims[-1].static and v.dims[-1].size > 0)
    y = b.value(lambda v: x is not None and v.dtype == FLOAT and v.dims == x.dims and v is not x)
    if x is None or y is None:
        return False
    n = x.dims[-1].size
    total = b.joined("Add", x, y)
    if b.opset >= 17:
        b.add("LayerNormalization", total, b.normal((n,), shift=1.0), b.normal((n,)), axis=-1, epsilon=1e-5)
    else:
        d = b.joined("Sub", total, b.reduce("ReduceMean", total, [-1]))
        _inverse_root(b, b.reduce("ReduceMean", _square(b, d), [-1]), d)
    return True
