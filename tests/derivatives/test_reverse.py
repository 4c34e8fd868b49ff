"""Derived gradients are those that differences give, in every spelling."""

from __future__ import annotations

import ast
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfuse.derivatives.reverse import gradient
from onnxfuse.derivatives.tape import NoDerivativeError

from .calculus import by_differences, definition, derived, expression, forward, summed

ACTIVATIONS = [
    "Celu(X, alpha=1.5)",
    "Elu(X, alpha=1.5)",
    "Gelu(X, approximate='none')",
    "Gelu(X, approximate='tanh')",
    "LeakyRelu(X, alpha=0.1)",
    "Mish(X)",
    "QuickGelu(X, alpha=1.702)",
    "Relu(X)",
    "Relu(X)**2",
    "Selu(X, alpha=1.6, gamma=1.05)",
    "Sigmoid(X)",
    "Softplus(X)",
    "Softsign(X)",
    "Swish(X, alpha=1.5)",
    "Tanh(X)",
]
ROWS = [
    "LayerNormalization(X, Scale, B, axis=-1, epsilon=0.01)",
    "LayerNormalization(X, Scale, B, axis=-2, epsilon=0.01)",
    "LogSoftmax(X, axis=-1)",
    "RMSNormalization(X, Scale, axis=-1, epsilon=0.01)",
    "Softmax(X, axis=-1)",
    "Softmax(X, axis=-2)",
    "X - ReduceMean(X, axes=[-1])",
    "X / Sqrt(ReduceSum(X**2, axes=[-1]) + epsilon)",
]
BINARY = ["SwiGLU(X, B, alpha=1.5)", "GeGLU(X, B, approximate='tanh')", "GLU(X, B)", "X / (B**2 + 1) - B * X"]

shapes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))


def compared(text: str, wrt: str, shape: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    own = shape[-2:] if "axis=-2, epsilon" in text else shape[-1:]
    env: dict[str, Any] = {
        "X": rng.standard_normal(shape) + 0.01,
        "Scale": rng.standard_normal(own),
        "B": rng.standard_normal(own if "Normalization" in text else shape),
        "epsilon": 0.01,
    }
    dy = rng.standard_normal(shape)
    expected = by_differences(text, wrt, env, dy)
    found = derived(text, wrt, env, dy)
    assert found
    for spelling in found:
        np.testing.assert_allclose(summed(spelling, env[wrt].shape), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("text", ACTIVATIONS + ROWS)
@settings(max_examples=8, deadline=None)
@given(shape=shapes, seed=st.integers(0, 99))
def test_what_is_derived_is_what_differences_give(text: str, shape: tuple[int, ...], seed: int) -> None:
    compared(text, "X", shape, seed)


@pytest.mark.parametrize("wrt", ["X", "B"])
@pytest.mark.parametrize("text", BINARY)
def test_of_either_operand(text: str, wrt: str) -> None:
    compared(text, wrt, (2, 3, 4), 1)


@pytest.mark.parametrize("wrt", ["Scale", "B"])
@pytest.mark.parametrize("text", [r for r in ROWS if "LayerNorm" in r])
def test_of_what_is_broadcast_it_is_summed_outside(text: str, wrt: str) -> None:
    compared(text, wrt, (2, 3, 4), 2)


WHOLE = {
    "instance normalization": "InstanceNormalization(X, Scale, B, epsilon=0.01)",
    "group normalization": "GroupNormalization(X, Scale, B, epsilon=0.01, num_groups=2)",
    "batch normalization": "BatchNormInternal(Y, Scale, B, epsilon=0.01)",
    "a rotation": "RotaryEmbedding(Y, cos, sin)",
    "attention": "Attention(Y, Y2, Y3, scale=0.5, q_num_heads=4, kv_num_heads=4)",
    "a gate": "HardSwish(X, alpha=0.2)",
}
"""Ops in whose equations elements move."""


@pytest.mark.parametrize("op", WHOLE)
def test_of_equations_that_move_elements(op: str) -> None:
    rng = np.random.default_rng(3)
    env: dict[str, Any] = {name: rng.standard_normal((2, 4, 6)) for name in ("X", "dY")}
    env |= {name: rng.standard_normal((2, 4, 3, 6)) for name in ("Y", "Y2", "Y3")}
    env |= {name: rng.standard_normal(4) for name in ("Scale", "B")}
    env |= {name: rng.standard_normal((2, 3, 3)) for name in ("cos", "sin")}
    text = WHOLE[op]
    for wrt in [name for name in ("X", "Y", "Y2", "Y3") if re.search(rf"\b{name}\b", text)]:
        seed = rng.standard_normal(forward(text, env).shape)
        for spelling in derived(text, wrt, env, seed, spread=False):
            np.testing.assert_allclose(spelling, by_differences(text, wrt, env, seed), rtol=1e-4, atol=1e-7)


def said(text: str, saved: dict[str, str] | None = None) -> list[str]:
    made = gradient(expression(text), "X", expression("dY"), definition, {"X", "Y", "dY"}, saved)
    equations = [ast.unparse(ast.fix_missing_locations(e)) for e in made.equations]
    return [*equations, *map(ast.unparse, made.spellings)]


def test_a_result_that_is_given_is_not_computed_again() -> None:
    assert said("Softmax(X)", {"": "Y"}) == ["Y * (dY - ReduceSum(dY * Y, axes=[-1]))"]
    assert said("Tanh(X)", {"": "Y"}) == ["dY * (1 - Y ** 2)"]


def test_intermediates_that_are_given_are_not_computed_again() -> None:
    saved = {"Mean": "Mean", "InvStdDev": "InvStdDev"}
    text = said("LayerNormalization(X, Scale, B, axis=-1, epsilon=0.01)", saved)
    assert not [line for line in text if line.startswith(("Mean =", "InvStdDev =")) or "Sqrt" in line]


def test_a_smooth_function_has_the_spelling_of_calculus_first() -> None:
    assert said("X * Sigmoid(X)") == [
        "t = Sigmoid(X)",
        "dY * (t + t * (1 - t) * X)",
        "dY * t * ((1 - t) * X + 1)",
        "dY * t + dY * X * t * (1 - t)",
    ]


def test_one_with_branches_is_chosen_last() -> None:
    assert said("Relu(X)**2")[-1] == "Where(LessOrEqual(t, 0), 0, 2 * dY * t)"


def test_of_what_does_not_depend_on_it_the_gradient_is_0() -> None:
    assert said("Exp(B)") == ["0"]
    assert said("3") == ["0"]


@pytest.mark.parametrize("text", ["Floor(X)", "Round(X)", "A[0] + X", "X if Y > 1 else 2", "Transpose(X, perm=p)"])
def test_what_has_no_derivative_says_so(text: str) -> None:
    with pytest.raises(NoDerivativeError):
        said(text)
