"""Gelu three ways: exact by Erf, the tanh approximation, and the quick sigmoid one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from tests.spellings.build import STYLE_CHOICES, Array, Case, Choices, Graph, Spelling, covering

OUTER: Choices = {
    "product": ("x*(1+e)*.5", "x*.5*(1+e)", ".5*x*(1+e)", "x*(.5*(1+e))", ".5*(x*(1+e))", "(1+e)*(x*.5)", "x*(1+e)/2"),
    "one": ("e+1", "1+e"),
    "precision": ("float32", "float16"),
    "dims": ("static", "dynamic"),
    **STYLE_CHOICES,
}
"""What exact and tanh Gelu share: half of x times one plus something."""

ERF: Choices = {
    "argument": ("x/sqrt2", "x*(1/sqrt2)", "(1/sqrt2)*x", "sqrt(.5)*x"),
    **OUTER,
    "product": (*OUTER["product"], "x*(.5+.5*e)"),
}

TANH: Choices = {
    "cube": ("pow", "x*x*x", "x*(x*x)", "x*x^2", "pow float64"),
    "inner": ("x+c*x^3", "c*x^3+x", "x+x^3*c", "x*(1+c*x^2)", "x*(c*x^2+1)", "(x*c)*x^2+x", "x*(a+ac*x^2)"),
    "argument": ("a*u", "u*a"),
    "tanh": ("tanh", "sigmoid"),
    **OUTER,
}
"""a is sqrt(2/pi), c is 0.044715; tanh by sigmoid is (1 + tanh u) / 2 = sigmoid(2u)."""

QUICK: Choices = {
    "argument": ("1.702*x", "x*1.702", "x/(1/1.702)"),
    "sigmoid": ("sigmoid", "1/(1+exp(-u))", "1/(exp(-u)+1)", "reciprocal"),
    "product": ("x*s", "s*x"),
    "precision": ("float32", "float16"),
    "dims": ("static", "dynamic"),
    **STYLE_CHOICES,
}

ROOT_2_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715


def gelu(x: Array) -> Array:
    """x * Phi(x), Phi the normal distribution function (ai.onnx Gelu-20)."""
    x = x.astype(np.float64)
    y: Array = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return y


def gelu_tanh(x: Array) -> Array:
    """Gelu with approximate="tanh" (ai.onnx Gelu-20)."""
    x = x.astype(np.float64)
    y: Array = 0.5 * x * (1 + np.tanh(ROOT_2_PI * (x + CUBIC * x**3)))
    return y


def quick_gelu(x: Array) -> Array:
    """x * sigmoid(1.702 x) (com.microsoft QuickGelu)."""
    x = x.astype(np.float64)
    y: Array = x / (1 + np.exp(-1.702 * x))
    return y


def erf_spellings(opset: int = 17, count: int = 72) -> Iterator[Spelling]:
    """`count` spellings of exact Gelu."""
    for name, case in covering(ERF, count):
        yield _unary(name, case, opset, {"Gelu": 1}, gelu, _erf)


def tanh_spellings(opset: int = 17, count: int = 110) -> Iterator[Spelling]:
    """`count` spellings of tanh Gelu."""
    for name, case in covering(TANH, count, _valid_tanh):
        yield _unary(name, case, opset, {"Gelu": 1}, gelu_tanh, _tanh)


def quick_spellings(opset: int = 17, count: int = 32) -> Iterator[Spelling]:
    """`count` spellings of quick Gelu."""
    for name, case in covering(QUICK, count):
        yield _unary(name, case, opset, {"QuickGelu": 1}, quick_gelu, _quick)


def _valid_tanh(case: Case) -> bool:
    refused = (
        # x^3 stands in the first three forms only, and a in all but the last.
        "x^3" not in case.inner and case.cube in ("x*x*x", "x*(x*x)"),
        case.inner == "x*(a+ac*x^2)" and case.argument == "u*a",
        case.tanh == "sigmoid" and (case.one == "1+e" or case.product not in ("x*(1+e)*.5", "(1+e)*(x*.5)")),
    )
    return not any(refused)


def _unary(
    name: str,
    case: Case,
    opset: int,
    expect: dict[str, int],
    definition: Callable[[Array], Array],
    write: Callable[[Graph, Case, str], str],
) -> Spelling:
    g = Graph(opset, case.style())
    value = np.linspace(-4, 4, 2 * 5 * 16).reshape(2, 5, 16)
    value = value.astype(np.float16 if case.precision == "float16" else np.float32)
    dims: list[int | str] = [2, 5, 16] if case.dims == "static" else ["batch", "seq", 16]
    x = g.input("x", value, dims)
    if case.precision == "float16":
        y = g.cast(write(g, case, g.cast(x, np.float32)), np.float16)
    else:
        y = write(g, case, x)
    g.output(y, definition(value), dims)
    return g.spelling(name, expect)


def _erf(g: Graph, case: Case, x: str) -> str:
    match case.argument:
        case "x/sqrt2":
            u = g.Div(x, math.sqrt(2))
        case "x*(1/sqrt2)":
            u = g.Mul(x, 0.70710678)
        case "(1/sqrt2)*x":
            u = g.Mul(0.7071067811865475, x)
        case _:
            u = g.Mul(g.Sqrt(0.5), x)
    return _half(g, case, x, g.Erf(u))


def _tanh(g: Graph, case: Case, x: str) -> str:
    a = ROOT_2_PI

    def square() -> str:
        return g.Mul(x, x) if case.cube == "x*x^2" else g.Pow(x, 2)

    def cube() -> str:
        match case.cube:
            case "x*x*x":
                return g.Mul(g.Mul(x, x), x)
            case "x*(x*x)":
                return g.Mul(x, g.Mul(x, x))
            case "x*x^2":
                return g.Mul(x, g.Pow(x, 2))
            case "pow float64":
                return g.Pow(x, np.array(3, np.float64))
            case _:
                return g.Pow(x, 3)

    match case.inner:
        case "x+c*x^3":
            u = g.Add(x, g.Mul(CUBIC, cube()))
        case "c*x^3+x":
            u = g.Add(g.Mul(CUBIC, cube()), x)
        case "x+x^3*c":
            u = g.Add(x, g.Mul(cube(), CUBIC))
        case "x*(1+c*x^2)":
            u = g.Mul(x, g.Add(1.0, g.Mul(CUBIC, square())))
        case "x*(c*x^2+1)":
            u = g.Mul(x, g.Add(g.Mul(square(), CUBIC), 1.0))
        case "(x*c)*x^2+x":
            u = g.Add(g.Mul(g.Mul(x, CUBIC), square()), x)
        case _:
            u = g.Mul(x, g.Add(g.Mul(square(), a * CUBIC), a))
    if case.inner != "x*(a+ac*x^2)":
        u = g.Mul(a, u) if case.argument == "a*u" else g.Mul(u, a)
    if case.tanh == "tanh":
        return _half(g, case, x, g.Tanh(u))
    p = g.Sigmoid(g.Mul(u, 2.0))
    return g.Mul(x, p) if case.product == "x*(1+e)*.5" else g.Mul(p, x)


def _half(g: Graph, case: Case, x: str, e: str) -> str:
    if case.product == "x*(.5+.5*e)":
        return g.Mul(x, g.Add(0.5, g.Mul(0.5, e)))
    one = g.Add(e, 1.0) if case.one == "e+1" else g.Add(1.0, e)
    match case.product:
        case "x*(1+e)*.5":
            return g.Mul(g.Mul(x, one), 0.5)
        case "x*.5*(1+e)":
            return g.Mul(g.Mul(x, 0.5), one)
        case ".5*x*(1+e)":
            return g.Mul(g.Mul(0.5, x), one)
        case "x*(.5*(1+e))":
            return g.Mul(x, g.Mul(0.5, one))
        case ".5*(x*(1+e))":
            return g.Mul(0.5, g.Mul(x, one))
        case "(1+e)*(x*.5)":
            return g.Mul(one, g.Mul(x, 0.5))
        case _:
            return g.Div(g.Mul(x, one), 2.0)


def _quick(g: Graph, case: Case, x: str) -> str:
    match case.argument:
        case "1.702*x":
            u = g.Mul(1.702, x)
        case "x*1.702":
            u = g.Mul(x, 1.702)
        case _:
            u = g.Div(x, 1 / 1.702)
    match case.sigmoid:
        case "sigmoid":
            s = g.Sigmoid(u)
        case "1/(1+exp(-u))":
            s = g.Div(1.0, g.Add(1.0, g.Exp(g.Neg(u))))
        case "1/(exp(-u)+1)":
            s = g.Div(1.0, g.Add(g.Exp(g.Neg(u)), 1.0))
        case _:
            s = g.Reciprocal(g.Add(1.0, g.Exp(g.Neg(u))))
    return g.Mul(x, s) if case.product == "x*s" else g.Mul(s, x)
