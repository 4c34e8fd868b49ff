"""RMSNormalization, alone and behind a residual sum: Llama's, Gemma's, T5's and everybody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tests.spellings.build import STYLE_CHOICES, Array, Case, Choices, Graph, Operand, Spelling, covering

CHOICES: Choices = {
    "square": ("pow", "mul", "sum of squares"),
    "mean": ("mean", "sum/n", "sum*1/n"),
    "eps": ("ms+eps", "eps+ms"),
    "root": ("*reciprocal", "reciprocal*", "*1/sqrt", "/sqrt", "*pow", "/pow"),
    "affine": ("w*n", "n*w", "n", "x*(w/rms)", "x*w/rms", "n*(1+w)", "(w+1)*n"),
    "weight": ("initializer", "input"),
    "axes": ("last", "positive"),
    "keep": ("keepdims", "unsqueeze"),
    "rank": ("3", "4", "2"),
    "epsilon": ("1e-6", "1e-5"),
    "precision": ("float32", "llama", "gemma", "t5"),
    "residual": ("none",),
    "dims": ("static", "dynamic"),
    **STYLE_CHOICES,
}
"""The half-precision ones: llama weighs after casting back, gemma before it, t5 upcasts nothing but the mean square."""

SKIP_CHOICES: Choices = {**CHOICES, "residual": ("x+skip", "skip+x", "sum kept", "(x+skip)+third")}

SHAPES = {"2": (6, 16), "3": (2, 5, 16), "4": (2, 3, 4, 16)}
SKIP = "SkipSimplifiedLayerNormalization"
"""com.microsoft's name for a sum and its RMSNormalization."""


def rms_norm(x: Array, scale: Array | float, epsilon: float) -> Array:
    """Divide `x` by the root mean square of its last axis, then scale (ai.onnx RMSNormalization-23)."""
    x = x.astype(np.float64)
    rms: Array = np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)
    return x / rms * scale


def spellings(opset: int = 17, count: int = 140) -> Iterator[Spelling]:
    """`count` spellings of RMSNormalization."""
    for name, case in covering(CHOICES, count, _valid):
        yield _spelling(name, case, opset)


def skip_spellings(opset: int = 17, count: int = 100) -> Iterator[Spelling]:
    """`count` spellings of a residual sum and its RMSNormalization (`SKIP`)."""
    for name, case in covering(SKIP_CHOICES, count, _valid):
        yield _spelling(name, case, opset)


def _valid(case: Case) -> bool:
    refused = (
        # A one-element constant must not raise the rank of what it meets.
        case.rank == "2" and case.scalar == "[1,1,1]",
        case.scalar == "[1,1,1]" and "1" in case.affine,
        case.residual != "none" and case.affine == "n",
        case.weight == "input" and case.affine == "n",
        # Llama and T5 cast the quotient, so the weight cannot go in before it.
        case.precision in ("llama", "t5") and case.affine.startswith("x"),
        case.square == "sum of squares" and case.mean == "mean",
    )
    return not any(refused)


def _spelling(name: str, case: Case, opset: int) -> Spelling:
    g = Graph(opset, case.style())
    shape = SHAPES[case.rank]
    dims: list[int | str] = [*shape] if case.dims == "static" else ["batch", *shape[1:]]
    dtype = np.dtype(np.float32 if case.precision == "float32" else np.float16)
    rng = np.random.default_rng(0)

    def tensor(*size: int) -> Array:
        return (rng.standard_normal(size) + 0.25).astype(dtype)

    x, truth = _residual_sum(g, case, tensor, shape, dims)
    weight = tensor(shape[-1])
    g.output(_rms_norm(g, case, x, weight), rms_norm(truth, _scale(case, weight), float(case.epsilon)), dims)
    if case.residual == "sum kept":
        g.output(x, truth, dims)
    return g.spelling(name, {"RMSNormalization" if case.residual == "none" else SKIP: 1})


def _scale(case: Case, weight: Array) -> Array | float:
    if case.affine == "n":
        return 1.0
    return weight.astype(np.float64) + ("1" in case.affine)


def _residual_sum(
    g: Graph, case: Case, tensor: Callable[..., Array], shape: tuple[int, ...], dims: list[int | str]
) -> tuple[str, Array]:
    """What is normalised, and its value, rounded as the graph rounds it."""
    vx, vskip, vthird = (tensor(*shape) for _ in range(3))
    x = g.input("x", vx, dims)
    if case.residual == "none":
        return x, vx
    skip = g.input("skip", vskip, dims)
    match case.residual:
        case "x+skip" | "sum kept":
            return g.Add(x, skip), vx + vskip
        case "skip+x":
            return g.Add(skip, x), vskip + vx
        case _:
            return g.Add(g.Add(x, skip), g.input("third", vthird, dims)), (vx + vskip) + vthird


def _rms_norm(g: Graph, case: Case, x: str, weight: Array) -> str:
    dtype = weight.dtype
    w: Operand = weight
    if case.weight == "input":
        w = g.input("w", weight)
    elif case.precision != "float32" and case.affine != "n":
        w = g.constant(weight)
    match case.precision:
        case "float32":
            return _affine(g, case, x, _division(g, case, x), w)
        case "llama":
            wide = g.cast(x, np.float32)
            divide = _division(g, case, wide)
            return _affine(g, case, wide, lambda value: g.cast(divide(value), dtype), w)
        case "gemma":
            wide = g.cast(x, np.float32)
            if isinstance(w, str):
                w = g.cast(w, np.float32)
            return g.cast(_affine(g, case, wide, _division(g, case, wide), w), dtype)
        case _:
            # Multiplying half by float promotes in torch, and the exporter writes the promotion as a Cast of x.
            divide = _division(g, case, g.cast(x, np.float32))
            return _affine(g, case, g.cast(x, np.float32), lambda value: g.cast(divide(value), dtype), w)


def _division(g: Graph, case: Case, x: str) -> Callable[[Operand], str]:
    axes = [-1] if case.axes == "last" else [{"2": 1, "3": 2, "4": 3}[case.rank]]
    n = SHAPES[case.rank][-1]
    if case.square == "sum of squares":
        total = g.reduce("ReduceSumSquare", x, axes, keep=case.keep)
    else:
        square = g.Pow(x, 2) if case.square == "pow" else g.Mul(x, x)
        total = g.reduce("ReduceMean" if case.mean == "mean" else "ReduceSum", square, axes, keep=case.keep)
    match case.mean:
        case "sum/n":
            total = g.Div(total, n)
        case "sum*1/n":
            total = g.Mul(total, 1 / n)
    epsilon = float(case.epsilon)
    shifted = g.Add(total, epsilon) if case.eps == "ms+eps" else g.Add(epsilon, total)
    match case.root:
        case "/sqrt":
            root = g.Sqrt(shifted)
            return lambda value: g.Div(value, root)
        case "/pow":
            root = g.Pow(shifted, 0.5)
            return lambda value: g.Div(value, root)
        case "*1/sqrt":
            inverse = g.Div(1.0, g.Sqrt(shifted))
        case "*pow":
            inverse = g.Pow(shifted, -0.5)
        case _:
            inverse = g.Reciprocal(g.Sqrt(shifted))
    if case.root == "reciprocal*":
        return lambda value: g.Mul(inverse, value)
    return lambda value: g.Mul(value, inverse)


def _affine(g: Graph, case: Case, x: str, divide: Callable[[Operand], str], w: Operand) -> str:
    match case.affine:
        case "w*n":
            return g.Mul(w, divide(x))
        case "n*w":
            return g.Mul(divide(x), w)
        case "n":
            return divide(x)
        case "x*(w/rms)":
            return g.Mul(x, divide(w))
        case "x*w/rms":
            return divide(g.Mul(x, w))
        case "n*(1+w)":
            return g.Mul(divide(x), g.Add(1.0, w))
        case "(w+1)*n":
            return g.Mul(g.Add(w, 1.0), divide(x))
        case _:
            raise ValueError(case.affine)
