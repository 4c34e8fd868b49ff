"""Activations that ai.onnx has an operator for, written out as exporters and older opsets do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.spellings.build import STYLE_CHOICES, Array, Case, Choices, Graph, Spelling, distinct, everything

Write = Callable[[Graph, str], str]

STYLES: Choices = {"precision": ("float32", "float16"), **STYLE_CHOICES}
ALPHA, GAMMA = 1.6732632423543772, 1.0507009873554805
"""Selu's (Klambauer et al. 2017)."""


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


DEFINITIONS: dict[str, Callable[[Array], Array]] = {
    "Sigmoid": _sigmoid,
    "Swish": lambda x: x * _sigmoid(x),
    "HardSigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Softplus": _softplus,
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "Elu": _elu,
    "Celu": lambda x: np.maximum(x, 0) + np.minimum(0, 2 * np.expm1(np.minimum(x, 0) / 2)),
    "Selu": lambda x: GAMMA * _elu(x, ALPHA),
    "LeakyRelu": lambda x: np.where(x < 0, 0.01 * x, x),
    "Relu": lambda x: np.maximum(x, 0),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "ThresholdedRelu": lambda x: np.where(x > 1, x, 0),
}
"""ai.onnx's definitions; Celu with alpha 2, LeakyRelu with alpha 0.01, ThresholdedRelu with alpha 1."""


def _gate(g: Graph, x: str) -> str:
    """relu6(x + 3), which both hard ones divide by 6."""
    return _clip(g, g.Add(x, 3.0), 0, 6)


def _clip(g: Graph, x: str, low: float, high: float) -> str:
    # Clip's bounds are scalars whatever the style.
    dtype = g.dtype(x)
    return g.Clip(x, np.array(low, dtype), np.array(high, dtype))


def _zero(g: Graph, x: str) -> Array:
    return np.zeros((), g.dtype(x))


def _exp_minus_1(g: Graph, x: str) -> str:
    return g.Sub(g.Exp(x), 1.0)


def _negative(g: Graph, x: str) -> str:
    return g.Min(x, _zero(g, x))


def _swiglu(g: Graph, x: str, order: str) -> str:
    up = g.Add(x, 1.0)
    return g.Mul(g.Mul(x, g.Sigmoid(x)), up) if order == "silu first" else g.Mul(up, g.Mul(g.Sigmoid(x), x))


WAYS: dict[str, dict[str, Write]] = {
    "Sigmoid": {
        "1/(1+exp(-x))": lambda g, x: g.Div(1.0, g.Add(1.0, g.Exp(g.Neg(x)))),
        "reciprocal": lambda g, x: g.Reciprocal(g.Add(g.Exp(g.Neg(x)), 1.0)),
        "exp(-1*x)": lambda g, x: g.Div(1.0, g.Add(1.0, g.Exp(g.Mul(x, -1.0)))),
    },
    "Swish": {
        "x*sigmoid": lambda g, x: g.Mul(x, g.Sigmoid(x)),
        "sigmoid*x": lambda g, x: g.Mul(g.Sigmoid(x), x),
        "x/(1+exp(-x))": lambda g, x: g.Div(x, g.Add(1.0, g.Exp(g.Neg(x)))),
        "x*1/(1+exp(-x))": lambda g, x: g.Mul(x, g.Div(1.0, g.Add(g.Exp(g.Neg(x)), 1.0))),
        "x*reciprocal": lambda g, x: g.Mul(x, g.Reciprocal(g.Add(1.0, g.Exp(g.Neg(x))))),
    },
    "HardSigmoid": {
        "relu6(x+3)/6": lambda g, x: g.Div(_gate(g, x), 6.0),
        "relu6(x+3)*(1/6)": lambda g, x: g.Mul(_gate(g, x), 1 / 6),
        "clip(x/6+.5)": lambda g, x: _clip(g, g.Add(g.Div(x, 6.0), 0.5), 0, 1),
        "clip(.5+x*(1/6))": lambda g, x: _clip(g, g.Add(0.5, g.Mul(x, 1 / 6)), 0, 1),
        "min(max)": lambda g, x: g.Min(g.Max(g.Add(g.Mul(x, 1 / 6), 0.5), _zero(g, x)), np.ones((), g.dtype(x))),
    },
    "HardSwish": {
        "x*relu6(x+3)/6": lambda g, x: g.Div(g.Mul(x, _gate(g, x)), 6.0),
        "x*(relu6(x+3)/6)": lambda g, x: g.Mul(x, g.Div(_gate(g, x), 6.0)),
        "(relu6(3+x)*x)*(1/6)": lambda g, x: g.Mul(g.Mul(_clip(g, g.Add(3.0, x), 0, 6), x), 1 / 6),
        "x*hardsigmoid": lambda g, x: g.Mul(x, g.HardSigmoid(x, alpha=1 / 6, beta=0.5)),
        "hardsigmoid*x": lambda g, x: g.Mul(g.HardSigmoid(x, alpha=1 / 6, beta=0.5), x),
        "(x/6)*relu6(x+3)": lambda g, x: g.Mul(g.Div(x, 6.0), _gate(g, x)),
    },
    "Softplus": {
        "log(1+exp)": lambda g, x: g.Log(g.Add(1.0, g.Exp(x))),
        "log(exp+1)": lambda g, x: g.Log(g.Add(g.Exp(x), 1.0)),
        "max+log": lambda g, x: g.Add(g.Relu(x), g.Log(g.Add(1.0, g.Exp(g.Neg(g.Abs(x)))))),
    },
    "Mish": {
        "x*tanh(softplus)": lambda g, x: g.Mul(x, g.Tanh(g.Softplus(x))),
        "tanh(softplus)*x": lambda g, x: g.Mul(g.Tanh(g.Softplus(x)), x),
        "x*tanh(log(1+exp))": lambda g, x: g.Mul(x, g.Tanh(g.Log(g.Add(1.0, g.Exp(x))))),
        "tanh(log(exp+1))*x": lambda g, x: g.Mul(g.Tanh(g.Log(g.Add(g.Exp(x), 1.0))), x),
    },
    "Elu": {
        "where(x>0)": lambda g, x: g.Where(g.Greater(x, 0.0), x, _exp_minus_1(g, x)),
        "where(x<=0)": lambda g, x: g.Where(g.LessOrEqual(x, 0.0), _exp_minus_1(g, x), x),
        "relu+min": lambda g, x: g.Add(g.Relu(x), _exp_minus_1(g, _negative(g, x))),
        "max+min": lambda g, x: g.Add(g.Max(x, _zero(g, x)), g.Add(g.Exp(_negative(g, x)), -1.0)),
    },
    "Celu": {
        "max+min": lambda g, x: g.Add(g.Relu(x), g.Min(g.Mul(2.0, _exp_minus_1(g, g.Div(x, 2.0))), _zero(g, x))),
        "2*elu(x/2)": lambda g, x: g.Mul(2.0, g.Elu(g.Div(x, 2.0))),
    },
    "Selu": {
        "gamma*elu": lambda g, x: g.Mul(GAMMA, g.Elu(x, alpha=ALPHA)),
        "elu*gamma": lambda g, x: g.Mul(g.Elu(x, alpha=ALPHA), GAMMA),
        "where": lambda g, x: g.Mul(GAMMA, g.Where(g.Greater(x, 0.0), x, g.Mul(ALPHA, _exp_minus_1(g, x)))),
    },
    "LeakyRelu": {
        "where(x>0)": lambda g, x: g.Where(g.Greater(x, 0.0), x, g.Mul(x, 0.01)),
        "where(x<0)": lambda g, x: g.Where(g.Less(x, 0.0), g.Mul(0.01, x), x),
        "max(x,.01x)": lambda g, x: g.Max(x, g.Mul(0.01, x)),
        "relu-.01*relu(-x)": lambda g, x: g.Sub(g.Relu(x), g.Mul(0.01, g.Relu(g.Neg(x)))),
    },
    "Relu": {
        "where(x<0)": lambda g, x: g.Where(g.Less(x, 0.0), _zero(g, x), x),
        "where(x<=0)": lambda g, x: g.Where(g.LessOrEqual(x, 0.0), _zero(g, x), x),
    },
    "Softsign": {
        "x/(1+abs)": lambda g, x: g.Div(x, g.Add(1.0, g.Abs(x))),
        "x*reciprocal": lambda g, x: g.Mul(x, g.Reciprocal(g.Add(g.Abs(x), 1.0))),
    },
    "ThresholdedRelu": {
        "where": lambda g, x: g.Where(g.Greater(x, 1.0), x, _zero(g, x)),
        "where(1<x)": lambda g, x: g.Where(g.Less(1.0, x), x, _zero(g, x)),
    },
}

GATED: dict[str, Write] = {
    "silu first": lambda g, x: _swiglu(g, x, "silu first"),
    "up first": lambda g, x: _swiglu(g, x, "up first"),
    "x*(sigmoid*up)": lambda g, x: g.Mul(x, g.Mul(g.Sigmoid(x), g.Add(x, 1.0))),
}
"""SwiGLU: Swish as a part of a longer product."""


@dataclass(frozen=True, slots=True)
class _Way:
    op_type: str
    name: str
    definition: Callable[[Array], Array]
    write: Write


def spellings(opset: int = 17) -> Iterator[Spelling]:
    """Every way in float32 with plain constants, and in every single other style that makes a difference."""
    yield from distinct(_all(opset))


def _all(opset: int) -> Iterator[Spelling]:
    for way in _ways():
        for style, case in everything(STYLES, _one_step):
            yield _spelling(f"{way.op_type}: {way.name}" + (f",{style}" if style != "plain" else ""), way, case, opset)


def _ways() -> Iterator[_Way]:
    for op_type, ways in WAYS.items():
        for name, write in ways.items():
            yield _Way(op_type, name, DEFINITIONS[op_type], write)
    for name, write in GATED.items():
        yield _Way("SwiGLU", f"gate, {name}", lambda x: x * _sigmoid(x) * (x + 1), write)


def _one_step(case: Case) -> bool:
    steps = [choice for choice, word in vars(case).items() if word != STYLES[choice][0]]
    return len(steps) <= 1


def _spelling(name: str, way: _Way, case: Case, opset: int) -> Spelling:
    g = Graph(opset, case.style())
    value = np.linspace(-5, 5, 2 * 5 * 16).reshape(2, 5, 16)
    value = value.astype(np.float16 if case.precision == "float16" else np.float32)
    x = g.input("x", value, ["batch", 5, 16])
    if case.precision == "float16":
        y = g.cast(way.write(g, g.cast(x, np.float32)), np.float16)
    else:
        y = way.write(g, x)
    g.output(y, way.definition(value.astype(np.float64)), ["batch", 5, 16])
    return g.spelling(name, {way.op_type: 1})
