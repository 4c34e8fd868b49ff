"""LayerNormalization, alone and behind a residual sum, in every way exporters and people write it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np

from tests.spellings.build import STYLE_CHOICES, Array, Case, Choices, Graph, Operand, Spelling, covering

CHOICES: Choices = {
    "mean": ("mean", "sum/n", "sum*1/n"),
    "centre": ("x-m", "subtracted twice", "mean twice", "x+(-m)"),
    "var": ("pow", "mul", "(m-x)^2", "sum of squares", "E[x^2]-m^2", "E[xx]-mm", "E[xx]-mm clamped"),
    "eps": ("var+eps", "eps+var"),
    "root": ("/sqrt", "*reciprocal", "reciprocal*", "*1/sqrt", "*pow", "/pow"),
    "affine": (
        *("n*s+b", "s*n+b", "b+n*s", "b+s*n", "n*s", "n+b", "n"),
        *("d*s/std+b", "d*(s/std)+b", "b+(s/std)*d", "s*d/std"),
        *("x*k+(b-m*k)", "(b-k*m)+k*x", "x*k-m*k", "x*r+(b-m*r)"),
    ),
    "axes": ("last", "positive", "two"),
    "keep": ("keepdims", "unsqueeze", "late"),
    "rank": ("3", "4", "2"),
    "epsilon": ("1e-5", "1e-12", "1e-3"),
    "precision": ("float32", "float16", "float16 parameters", "float16 affine", "float32 variance"),
    "residual": ("none",),
    "dims": ("static", "dynamic"),
    **STYLE_CHOICES,
}
"""k is scale / std and r is 1 / std: with them TensorFlow writes the affine part without the difference d."""

SKIP_CHOICES: Choices = {
    **CHOICES,
    "residual": ("x+skip", "skip+x", "sum kept", "(x+b)+skip", "skip+(b+x)", "(x+skip)+third"),
}

SHAPES = {"2": (6, 16), "3": (2, 5, 16), "4": (2, 3, 4, 16)}


def layer_norm(x: Array, scale: Array | float, bias: Array | float, axes: Sequence[int], epsilon: float) -> Array:
    """Normalise `x` over `axes` to mean 0 and variance 1, then scale and shift (ai.onnx LayerNormalization-17)."""
    x = x.astype(np.float64)
    centred: Array = x - x.mean(axis=tuple(axes), keepdims=True)
    std: Array = np.sqrt((centred**2).mean(axis=tuple(axes), keepdims=True) + epsilon)
    return centred / std * scale + bias


def spellings(opset: int = 17, count: int = 280) -> Iterator[Spelling]:
    """`count` spellings of LayerNormalization."""
    for name, case in covering(CHOICES, count, _valid):
        yield _spelling(name, case, opset)


def skip_spellings(opset: int = 17, count: int = 180) -> Iterator[Spelling]:
    """`count` spellings of a residual sum and its LayerNormalization (com.microsoft SkipLayerNormalization)."""
    for name, case in covering(SKIP_CHOICES, count, _valid):
        yield _spelling(name, case, opset)


def _valid(case: Case) -> bool:
    behind_island = ("n*s+b", "s*n+b", "b+n*s", "b+s*n", "n*s", "n+b")
    refused = (
        # A one-element constant must not raise the rank of what it meets.
        case.rank == "2" and (case.scalar == "[1,1,1]" or case.axes == "two"),
        case.keep == "late" and case.scalar == "[1,1,1]",
        # SkipLayerNormalization normalises the last axis and wants a scale.
        case.residual != "none" and (case.axes == "two" or not _scaled(case)),
        case.precision == "float16 affine" and case.affine not in behind_island,
        # In half precision E[x^2] - m^2 and x*k - m*k cancel: nobody's norm, only noise.
        case.precision == "float32 variance" and (case.var[0] == "E" or not _uses_difference(case)),
        case.var[0] == "E" and case.centre != "x-m",
    )
    return not any(refused)


def _scaled(case: Case) -> bool:
    return "s" in case.affine.replace("std", "") or "k" in case.affine


def _shifted(case: Case) -> bool:
    return "b" in case.affine


def _uses_difference(case: Case) -> bool:
    return "x" not in case.affine


def _spelling(name: str, case: Case, opset: int) -> Spelling:
    g = Graph(opset, case.style())
    shape = SHAPES[case.rank]
    last = len(shape) - 1
    axes = {"last": [-1], "positive": [last], "two": [last - 1, last]}[case.axes]
    dims: list[int | str] = [*shape] if case.dims == "static" else ["batch", *shape[1:]]
    dtype = np.float32 if case.precision == "float32" else np.float16
    rng = np.random.default_rng(0)

    def tensor(*size: int) -> Array:
        return (rng.standard_normal(size) + 0.25).astype(dtype)

    x, truth = _residual_sum(g, case, tensor, shape, dims)
    scale, bias = tensor(*shape[axes[0] :]), tensor(*shape[axes[0] :])
    g.output(
        _layer_norm(g, case, x, scale, bias, axes, math.prod(scale.shape)),
        layer_norm(truth, scale if _scaled(case) else 1.0, bias if _shifted(case) else 0.0, axes, float(case.epsilon)),
        dims,
    )
    if case.residual == "sum kept":
        g.output(x, truth, dims)
    return g.spelling(name, {"LayerNormalization" if case.residual == "none" else "SkipLayerNormalization": 1})


def _residual_sum(
    g: Graph, case: Case, tensor: Callable[..., Array], shape: tuple[int, ...], dims: list[int | str]
) -> tuple[str, Array]:
    """What is normalised, and its value, rounded as the graph rounds it."""
    vx, vskip, vthird = (tensor(*shape) for _ in range(3))
    b = tensor(shape[-1])
    x = g.input("x", vx, dims)
    if case.residual == "none":
        return x, vx
    skip = g.input("skip", vskip, dims)
    match case.residual:
        case "x+skip" | "sum kept":
            return g.Add(x, skip), vx + vskip
        case "skip+x":
            return g.Add(skip, x), vskip + vx
        case "(x+b)+skip":
            return g.Add(g.Add(x, b), skip), (vx + b) + vskip
        case "skip+(b+x)":
            return g.Add(skip, g.Add(b, x)), vskip + (b + vx)
        case _:
            return g.Add(g.Add(x, skip), g.input("third", vthird, dims)), (vx + vskip) + vthird


def _layer_norm(g: Graph, case: Case, x: str, scale: Array, bias: Array, axes: list[int], n: int) -> str:
    """The normalisation in the case's precision; its float32 island, if any, begins and ends here."""
    dtype = scale.dtype
    match case.precision:
        case "float32" | "float32 variance":
            return _body(g, case, x, scale, bias, axes, n)
        case "float16":
            y = _body(g, case, g.cast(x, np.float32), scale.astype(np.float32), bias.astype(np.float32), axes, n)
            return g.cast(y, dtype)
        case "float16 parameters":
            s = g.cast(g.constant(scale), np.float32) if _scaled(case) else scale
            b = g.cast(g.constant(bias), np.float32) if _shifted(case) else bias
            return g.cast(_body(g, case, g.cast(x, np.float32), s, b, axes, n), dtype)
        case _:
            return _body(g, case, g.cast(x, np.float32), scale, bias, axes, n)


def _body(g: Graph, case: Case, x: str, s: Operand, b: Operand, axes: list[int], n: int) -> str:
    def mean(value: str) -> str:
        if case.mean == "mean":
            return g.reduce("ReduceMean", value, axes, keep=case.keep)
        total = g.reduce("ReduceSum", value, axes, keep=case.keep)
        return g.Div(total, n) if case.mean == "sum/n" else g.Mul(total, 1 / n)

    def kept(value: str) -> str:
        """The axes come back where what has been computed without them meets x again."""
        return g.node("Unsqueeze", value, np.array(axes, np.int64)) if case.keep == "late" else value

    low = mean(x)
    m = kept(low)

    @cache
    def difference() -> str:
        return g.Add(x, g.Neg(m)) if case.centre == "x+(-m)" else g.Sub(x, m)

    def difference_again() -> str:
        match case.centre:
            case "subtracted twice":
                return g.Sub(x, m)
            case "mean twice":
                return g.Sub(x, kept(mean(x)))
            case _:
                return difference()

    def variance() -> str:
        match case.var:
            case "E[x^2]-m^2":
                return g.Sub(mean(g.Pow(x, 2)), g.Pow(low, 2))
            case "E[xx]-mm":
                return g.Sub(mean(g.Mul(x, x)), g.Mul(low, low))
            case "E[xx]-mm clamped":
                return g.Max(g.Sub(mean(g.Mul(x, x)), g.Mul(low, low)), np.zeros((), g.dtype(x)))
            case "(m-x)^2":
                return mean(up(g.Pow(g.Sub(m, x), 2)))
            case "sum of squares":
                return g.Div(g.reduce("ReduceSumSquare", up(difference_again()), axes, keep=case.keep), n)
            case "mul":
                return mean(g.Mul(up(difference()), up(difference_again())))
            case _:
                return mean(g.Pow(up(difference_again()), 2))

    def up(value: str) -> str:
        return g.cast(value, np.float32) if case.precision == "float32 variance" else value

    shifted = (
        g.Add(variance(), float(case.epsilon)) if case.eps == "var+eps" else g.Add(float(case.epsilon), variance())
    )
    divide = _division(g, case, shifted, g.dtype(x), kept)
    if case.precision == "float16 affine":
        return _affine(g, case, x, m, difference, lambda value: g.cast(divide(value), np.float16), s, b)
    return _affine(g, case, x, m, difference, divide, s, b)


def _division(
    g: Graph, case: Case, variance: str, dtype: np.dtype[np.floating], kept: Callable[[str], str]
) -> Callable[[Operand], str]:
    """How something is divided by the root of `variance`; 1.0 divided by it is the bare reciprocal."""

    def down(value: str) -> str:
        return kept(value if g.dtype(value) == dtype else g.cast(value, dtype))

    if case.root.startswith("/"):
        std = down(g.Sqrt(variance) if case.root == "/sqrt" else g.Pow(variance, 0.5))
        return lambda value: g.Div(value, std)
    match case.root:
        case "*1/sqrt":
            r = g.Div(1.0, g.Sqrt(variance))
        case "*pow":
            r = g.Pow(variance, -0.5)
        case _:
            r = g.Reciprocal(g.Sqrt(variance))
    r = down(r)

    def times(value: Operand) -> str:
        if isinstance(value, float):
            return r
        return g.Mul(r, value) if case.root == "reciprocal*" else g.Mul(value, r)

    return times


def _affine(
    g: Graph,
    case: Case,
    x: str,
    m: str,
    difference: Callable[[], str],
    divide: Callable[[Operand], str],
    s: Operand,
    b: Operand,
) -> str:
    match case.affine:
        case "n*s+b":
            return g.Add(g.Mul(divide(difference()), s), b)
        case "s*n+b":
            return g.Add(g.Mul(s, divide(difference())), b)
        case "b+n*s":
            return g.Add(b, g.Mul(divide(difference()), s))
        case "b+s*n":
            return g.Add(b, g.Mul(s, divide(difference())))
        case "n*s":
            return g.Mul(divide(difference()), s)
        case "n+b":
            return g.Add(divide(difference()), b)
        case "n":
            return divide(difference())
        case "d*s/std+b":
            return g.Add(divide(g.Mul(difference(), s)), b)
        case "d*(s/std)+b":
            return g.Add(g.Mul(difference(), divide(s)), b)
        case "b+(s/std)*d":
            return g.Add(b, g.Mul(divide(s), difference()))
        case "s*d/std":
            return divide(g.Mul(s, difference()))
        case "x*k+(b-m*k)":
            k = divide(s)
            return g.Add(g.Mul(x, k), g.Sub(b, g.Mul(m, k)))
        case "(b-k*m)+k*x":
            k = divide(s)
            return g.Add(g.Sub(b, g.Mul(k, m)), g.Mul(k, x))
        case "x*k-m*k":
            k = divide(s)
            return g.Sub(g.Mul(x, k), g.Mul(m, k))
        case "x*r+(b-m*r)":
            r = divide(1.0)
            return g.Add(g.Mul(x, r), g.Sub(b, g.Mul(m, r)))
        case _:
            raise ValueError(case.affine)
