"""Random nodes that reduce, multiply matrices and convolve."""

from __future__ import annotations

from functools import partial

import numpy as np

from .build import FLOAT, INT64, ONE, REAL, Builder, Dim, Value, broadcast

REDUCTIONS = ("Mean", "Sum", "Max", "Min", "Prod", "SumSquare", "L2", "L1", "LogSum", "LogSumExp")


def reduction(b: Builder) -> bool:
    x = b.real(1)
    if x is None:
        return False
    op = f"Reduce{b.pick(REDUCTIONS)}"
    axes = [b.pick((-1, 0, x.rank - 1, 1 % x.rank))]
    if b.chance(4) and x.rank > 1:
        axes = [0, x.rank - 1]
    b.reduce(op, x, axes, keepdims=0 if b.chance(3) else 1)
    return True


def reduction_of_all(b: Builder) -> bool:
    x = b.real()
    if x is None:
        return False
    keepdims = b.integer(0, 1)
    b.add(f"Reduce{b.pick(REDUCTIONS)}", x, dims=(ONE,) * x.rank if keepdims else (), keepdims=keepdims)
    return True


def reduction_of_none(b: Builder) -> bool:
    """No axes, and an attribute that says that none is meant."""
    x = b.value(lambda v: v.dtype == FLOAT)
    if x is None or b.opset < 18:
        return False
    b.add(b.pick(("ReduceSum", "ReduceMean")), x, b.integers(), noop_with_empty_axes=1, keepdims=1)
    return True


def arg_max(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == FLOAT and v.rank >= 1)
    if x is None:
        return False
    index = b.add("ArgMax", x, dims=(*x.dims[:-1], ONE), dtype=INT64, axis=x.rank - 1, keepdims=1)
    b.add("Cast", index, dtype=FLOAT, to=FLOAT)
    return True


def softmax(b: Builder) -> bool:
    x = b.real(1)
    if x is None:
        return False
    op = b.pick(("Softmax", "LogSoftmax", "Softmax"))
    b.add(op, x, axis=b.pick((-1, x.rank - 1, 0, x.rank // 2)))
    return True


def pool(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == FLOAT and v.rank in (3, 4))
    if x is None:
        return False
    b.add("GlobalAveragePool", x, dims=(*x.dims[:2], *(ONE for _ in x.dims[2:])))
    return True


def matmul_constant(b: Builder) -> bool:
    """A linear layer: MatMul and Add, Gemm, or an Einsum."""
    x = b.value(lambda v: v.dtype in REAL and v.rank >= 1 and v.dims[-1].static and v.dims[-1].size > 0)
    if x is None:
        return False
    n, k = b.pick((4, 8, 1)), x.dims[-1].size
    dims = (*x.dims[:-1], Dim(n))
    weight = b.normal((k, n), x.dtype, 0.5)
    how = b.integer(0, 3)
    if how == 1 and x.rank == 2:
        bias = b.normal((n,), x.dtype) if not b.chance(3) else None
        alpha = b.pick((1.0, 0.5, 0.0))
        b.add("Gemm", x, weight, bias, dims=dims, alpha=alpha, beta=b.pick((1.0, 2.0, 0.0)))
        return True
    if how == 2 and x.rank >= 2 and b.opset >= 12 and x.dtype == FLOAT:
        letters = "abcde"[: x.rank]
        b.add("Einsum", x, weight, dims=dims, equation=f"{letters},{letters[-1]}z->{letters[:-1]}z")
        return True
    y = b.add("MatMul", x, weight, dims=dims)
    if b.chance(2):
        b.joined("Add", y, b.normal((n,), x.dtype))
    if b.chance(3):
        b.joined("Mul", b.values[-1], b.normal((n,), x.dtype))
    return True


def matmul(b: Builder) -> bool:
    """A product of two values, one of them transposed."""
    x = b.value(lambda v: v.dtype in REAL and v.rank >= 2)
    if x is None:
        return False
    y = b.value(partial(_multiplies, x))
    if y is None:
        return False
    if b.chance(3):
        x = b.joined("Mul", x, b.number(b.pick((0.5, 0.0, 1e-30, 1e30)), x.dtype))
    turned = b.transpose(y, [*range(y.rank - 2), y.rank - 1, y.rank - 2])
    lead = broadcast(x.dims[:-2], y.dims[:-2])
    assert lead is not None
    product = b.add("MatMul", x, turned, dims=(*lead, x.dims[-2], y.dims[-2]))
    if b.chance(3):
        b.joined("Mul", product, b.number(b.pick((0.0, 0.25, 1e30)), x.dtype))
    return True


def _multiplies(x: Value, y: Value) -> bool:
    """Is there a product of x and the transpose of y?"""
    if y.dtype != x.dtype or y.rank != x.rank:
        return False
    return y.dims[-1] == x.dims[-1] and broadcast(y.dims[:-2], x.dims[:-2]) is not None


def gemm(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == FLOAT and v.rank == 2)
    y = b.value(lambda v: x is not None and v.dtype == FLOAT and v.rank == 2 and v.dims[0] == x.dims[0])
    if x is None or y is None:
        return False
    b.add("Gemm", x, y, dims=(x.dims[1], y.dims[1]), transA=1, alpha=b.pick((1.0, 0.5, 0.0)))
    return True


def einsum(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == FLOAT and v.rank in (2, 3))
    if x is None or b.opset < 12:
        return False
    if x.rank == 2:
        equation, dims = b.pick((("ij->ji", (x.dims[1], x.dims[0])), ("ij->i", x.dims[:1]), ("ij->", ())))
        b.add("Einsum", x, dims=dims, equation=equation)
        return True
    b0, i, _ = x.dims
    equation, dims = b.pick((("bik,bjk->bij", (b0, i, i)), ("bik,bjk->ijb", (i, i, b0)), ("bik,bik->bi", (b0, i))))
    b.add("Einsum", x, x, dims=dims, equation=equation)
    return True


def conv(b: Builder) -> bool:
    """A convolution, and often what may be folded into it."""
    x = b.value(lambda v: v.dtype == FLOAT and v.rank == 4 and v.dims[1].static and v.dims[1].size > 0)
    if x is None:
        return False
    channels, k = x.dims[1].size, b.pick((1, 3))
    if any(d.size < k for d in x.dims[2:]):
        return False
    if b.chance(4):
        around = b.integers(0, 0, 1, 1, 0, 0, 1, 1)
        padded = tuple(Dim(d.size + 2) if d.static else d.made(d.size + 2, "+2") for d in x.dims[2:])
        x = b.add("Pad", x, around, dims=(*x.dims[:2], *padded))
    pads = b.pick((0, 1))
    spatial = tuple(d if (n := 2 * pads - k + 1) == 0 else d.made(d.size + n, f"conv{n}") for d in x.dims[2:])
    bias = b.normal((6,)) if b.chance(2) else None
    weight = b.normal((6, channels, k, k), scale=0.4)
    y = b.add("Conv", x, weight, bias, dims=(x.dims[0], Dim(6), *spatial), pads=[pads] * 4)
    behind = b.integer(0, 3)
    if behind == 1:
        batch_norm(b, y)
    if behind == 2:
        b.joined("Mul", y, b.normal((6, 1, 1)))
    if behind == 3:
        b.joined("Add", y, b.number(b.pick((1.0, float("inf"), 0.0))))
    return True


def batch_norm(b: Builder, x: Value) -> Value:
    n = x.dims[1].size
    variance = b.array(np.abs(np.random.default_rng(n).standard_normal(n)).astype(np.float32) + np.float32(0.1))
    statistics = [b.normal((n,), shift=1.0), b.normal((n,)), b.normal((n,)), variance]
    return b.add("BatchNormalization", x, *statistics, epsilon=1e-5)


def normalized_channels(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == FLOAT and v.rank in (2, 3, 4) and v.dims[1].static and v.dims[1].size > 0)
    if x is None:
        return False
    if x.rank > 2 and b.chance(2):
        n = x.dims[1].size
        b.add("InstanceNormalization", x, b.normal((n,), shift=1.0), b.normal((n,)), epsilon=b.pick((1e-5, 1e-12)))
    else:
        batch_norm(b, x)
    return True


def normalization(b: Builder) -> bool:
    """The ops themselves, where the opset has them."""
    x = b.value(lambda v: v.dtype == FLOAT and v.rank >= 2 and v.dims[-1].static and v.dims[-1].size > 0)
    if x is None or b.opset < 17:
        return False
    n, epsilon = x.dims[-1].size, b.pick((1e-5, 1e-12))
    if b.opset >= 23 and b.chance(2):
        b.add("RMSNormalization", x, b.normal((n,), shift=1.0), axis=-1, epsilon=epsilon)
    else:
        b.add("LayerNormalization", x, b.normal((n,), shift=1.0), b.normal((n,)), axis=-1, epsilon=epsilon)
    return True


def standard_attention(b: Builder) -> bool:
    """ai.onnx Attention, and RotaryEmbedding before it."""
    x = b.value(lambda v: v.dtype == FLOAT and v.rank == 4 and v.dims[-1].static and v.dims[-1].size in (4, 8))
    if x is None or b.opset < 23:
        return False
    b.add("Attention", x, x, x, scale=b.pick((0.5, 0.25)), is_causal=b.integer(0, 1))
    return True
