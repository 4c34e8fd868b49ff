"""Each entry of the transposition table is the derivative of its op, operand by operand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.derivatives.reverse import gradient
from onnxfuse.derivatives.table import ELEMENTWISE, MOVED, OPERANDS, REFUSED, ROWS, transposed
from onnxfuse.derivatives.tape import NoDerivativeError

from .calculus import MEANS, by_differences, definition, derived, expression, forward, summed

SPELLED = {
    "Add": "{a} + {b}",
    "Sub": "{a} - {b}",
    "Mul": "{a} * {b}",
    "Div": "{a} / {b}",
    "Pow": "{a}**{b}",
    "Neg": "-{a}",
    "Rsqrt": "1 / Sqrt({a})",
    "Where": "Where({a} > 1, {b}, {c})",
    "Cast": "Cast({a}, to=1)",
    "CastLike": "CastLike({a}, {b})",
    "ReduceSum": "ReduceSum({a}, axes=[-1])",
    "ReduceMean": "ReduceMean({a}, axes=[-1])",
}
"""Ops that are no calls of one tensor."""


@pytest.mark.parametrize("op", [*ELEMENTWISE, *ROWS])
def test_an_entry_is_the_derivative(op: str) -> None:
    entry = transposed(op)
    assert entry is not None
    assert op in SPELLED or op in MEANS
    rng = np.random.default_rng(3)
    env = {name: rng.uniform(0.5, 2, (2, 3, 4)) for name in "uvw"}
    if op == "Where":
        env["u"] = np.asarray(env["u"] > 1)
    text = SPELLED.get(op, f"{op}({{a}})").format(a="u", b="v", c="w").replace("u > 1", "u")
    reduced = op.startswith("Reduce")
    seed = rng.standard_normal((2, 3, 1) if reduced else (2, 3, 4))
    for own, name in zip(entry, "uvw", strict=False):
        if own is not None:
            expected = by_differences(text, name, env, seed)
            for spelling in derived(text, name, env, np.broadcast_to(seed, (2, 3, 4)) if reduced else seed):
                np.testing.assert_allclose(summed(spelling, (2, 3, 4)), expected, rtol=1e-5, atol=1e-7)


MOVES = {
    "MatMul": "MatMul(u, v)",
    "Reshape": "Reshape(u, shape=[4, -1])",
    "Squeeze": "Squeeze(Unsqueeze(u, axes=[1]), axes=[1])",
    "Unsqueeze": "Unsqueeze(u, axes=[0, 2])",
    "Transpose": "Transpose(u, perm=[2, 0, 1])",
    "ReduceMax": "ReduceMax(u, axes=[-1])",
    "ReduceMin": "ReduceMin(u, axes=[-2, -1])",
    "Gather": "Gather(u, index)",
    "GatherElements": "GatherElements(u, places, axis=1)",
    "Slice": "Slice(u, axis=2, start=1, stop=3)",
    "Slice from behind": "Slice(u, axis=1, start=-2, stop=-1)",
    "Slice to the end": "Slice(u, axis=1, start=1, stop=2147483647)",
    "Concat": "Concat(Exp(u), v, u, axis=-1)",
    "Clip": "Clip(u, 0.8, 1.5)",
    "Clip from above": "Clip(u, None, 1.5)",
}
"""Expressions whose results have other shapes, or in which an op goes by others."""


@pytest.mark.parametrize("op", MOVES)
def test_what_is_moved_has_its_gradient_where_it_was(op: str) -> None:
    rng = np.random.default_rng(5)
    env: dict[str, Any] = {"index": np.array([1, 0, 1]), "places": rng.integers(0, 3, (2, 5, 4))}
    env["u"] = rng.uniform(0.5, 2, (2, 3, 4))
    env["v"] = rng.uniform(0.5, 2, (2, 4, 5) if op == "MatMul" else (2, 3, 4))
    text = MOVES[op]
    seed = rng.standard_normal(forward(text, env).shape)
    for name in "uv":
        if f"{name}," in text or f"{name})" in text:
            made = derived(text, name, env, seed, spread=False)
            assert made
            for spelling in made:
                assert spelling.shape == env[name].shape
                np.testing.assert_allclose(spelling, by_differences(text, name, env, seed), rtol=1e-5, atol=1e-7)


def test_every_op_that_moves_is_shown() -> None:
    assert {op for op in MOVED if op not in MOVES} == {"Flatten"}  # which is a Reshape


@pytest.mark.parametrize("op", REFUSED)
def test_an_op_without_a_gradient_says_why(op: str) -> None:
    with pytest.raises(NoDerivativeError, match=REFUSED[op][:20]):
        gradient(expression(f"{op}(u, v, u)"), "u", expression("dY"), definition, {"u", "v", "dY"})


def test_an_entry_has_no_more_operands_than_have_names() -> None:
    assert all(len(entry) <= len(OPERANDS) for entry in (*ELEMENTWISE.values(), *ROWS.values()))


def test_what_is_not_in_the_table_has_no_entry() -> None:
    assert transposed("Floor") is None
