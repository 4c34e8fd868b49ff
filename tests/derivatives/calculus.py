"""Equations of rules computed in float64, and gradients by differences: what derived gradients are compared with."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import CodeType
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.derivatives.reverse import gradient
from onnxfuse.derivatives.tape import Definition, Tape
from onnxfuse.language import catalogue
from onnxfuse.language.gradients import definition_of

Array = npt.NDArray[np.float64]

STEP = 1e-6


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axes: function(x, axis=tuple(axes), keepdims=True)


def _softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def _part(x: Array, axis: int, start: int, stop: int) -> Array:
    return np.take(x, range(*slice(start, stop).indices(x.shape[axis])), axis)


def _padded(x: Array, pads: Sequence[int], value: None, axes: Sequence[int]) -> Array:
    widths = [(0, 0)] * x.ndim
    widths[axes[0]] = (pads[0], pads[1])
    return np.pad(x, widths)


def _scattered(x: Array, index: Any, updates: Array, reduction: str) -> Array:
    made = x.copy()
    np.add.at(made, tuple(np.moveaxis(index, -1, 0)), updates)
    return made


def _reshaped(x: Array, to: Any = None, shape: Any = None) -> Array:
    dims = to if shape is None else shape
    return np.reshape(x, [x.shape[i] if d == 0 else d for i, d in enumerate(dims)])


def _put(x: Array, index: Any, updates: Array, axis: int, reduction: str) -> Array:
    made, places = x.copy(), list(np.indices(index.shape))
    places[axis] = index
    np.add.at(made, tuple(places), updates)
    return made


MEANS: Mapping[str, Any] = {
    "Abs": np.abs,
    "Cast": lambda x, to: x,
    "CastLike": lambda x, like: np.asarray(x, np.float64),
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "ConstantOfShape": np.zeros,
    "Cos": np.cos,
    "Einsum": lambda *operands, equation: np.einsum(equation, *operands),
    "Equal": np.equal,
    "Erf": np.vectorize(math.erf, otypes=[np.float64]),
    "Exp": np.exp,
    "Expand": lambda x, shape: np.broadcast_to(x, shape),
    "Gather": lambda x, index, axis=0: np.take(x, index, axis),
    "GatherElements": lambda x, index, axis=0: np.take_along_axis(x, index, axis),
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Identity": lambda x: x,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Log": np.log,
    "LogSoftmax": lambda x, axis=-1: np.log(_softmax(x, axis)),
    "MatMul": np.matmul,
    "Min": np.minimum,
    "Pad": _padded,
    "Reciprocal": np.reciprocal,
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
    "ReduceMean": _reduced(np.mean),
    "ReduceSum": _reduced(np.sum),
    "Reshape": _reshaped,
    "ScatterElements": _put,
    "ScatterND": _scattered,
    "Shape": lambda x: np.array(np.shape(x)),
    "Slice": _part,
    "Squeeze": lambda x, axes: np.squeeze(x, tuple(axes)),
    "Transpose": lambda x, perm: np.transpose(x, perm),
    "Unsqueeze": lambda x, axes: np.expand_dims(x, tuple(axes)),
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Sign": np.sign,
    "Sin": np.sin,
    "Softmax": _softmax,
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
    "Where": np.where,
    "dim": lambda x, axis: 0 if x is None else np.shape(x)[axis],
    "min": min,
    "size": lambda x, axes: math.prod(np.shape(x)[a] for a in axes),
    "trailing": lambda axis: list(range(axis, 0)),
}


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def definition(op: str) -> Definition | None:
    """What an op of the shipped rules means."""
    rule = catalogue.load().definitions.get(op)
    return None if rule is None else definition_of(rule)


def compiled(node: ast.expr) -> CodeType:
    return compile(ast.unparse(node), "equation", "eval")


def computed(code: CodeType, env: Mapping[str, Any]) -> Any:
    return eval(code, {"__builtins__": {}, **MEANS, **env})


def value(node: ast.expr, env: Mapping[str, Any]) -> Any:
    """An expression over arrays and numbers."""
    return computed(compiled(node), env)


@cache
def written_out(text: str, names: frozenset[str]) -> list[tuple[str, CodeType]]:
    """An expression in which ops of rules are written out by what they mean, step by step; the last is nameless."""
    tape = Tape(definition, set(names))
    root = tape.write(expression(text), {})
    return [*((step.name, compiled(step.value)) for step in tape.steps), ("", compiled(root))]


def forward(text: str, env: Mapping[str, Any]) -> Array:
    """What an expression is, by the definitions of its ops."""
    known = dict(env)
    for name, code in written_out(text, frozenset(env)):
        known[name] = computed(code, known)
    return np.asarray(known[""], np.float64)


def derived(text: str, wrt: str, env: Mapping[str, Any], seed: Array, *, spread: bool = True) -> list[Array]:
    """Every spelling of the gradient of an expression, `spread` to the shape of the result or as it is."""
    numbers = frozenset(name for name, given in env.items() if not isinstance(given, np.ndarray))
    made = gradient(expression(text), wrt, expression("dY"), definition, {"dY", *env}, None, numbers)
    known = {**env, "dY": seed}
    for equation in made.equations:
        target = equation.targets[0]
        assert isinstance(target, ast.Name)
        known[target.id] = value(equation.value, known)
    values = [np.asarray(value(s, known)) for s in made.spellings]
    return [np.broadcast_to(v, seed.shape) for v in values] if spread else values


def by_differences(text: str, wrt: str, env: Mapping[str, Any], seed: Array) -> Array:
    """The gradient of sum(seed * expression) by central differences."""
    x = env[wrt]
    found: Array = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        sides = []
        for step in (STEP, -STEP):
            moved = x.copy()
            moved[place] += step
            sides.append(float((seed * forward(text, {**env, wrt: moved})).sum()))
        found[place] = (sides[0] - sides[1]) / (2 * STEP)
    return found


def summed(g: Array, shape: Sequence[int]) -> Array:
    """A gradient over the axes along which its tensor was broadcast."""
    lead = tuple(range(g.ndim - len(shape)))
    ones = tuple(len(lead) + i for i, d in enumerate(shape) if d == 1)
    return np.asarray(g.sum(axis=(*lead, *ones)).reshape(shape))
