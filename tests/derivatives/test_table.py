"""Each entry of the transposition table is the derivative of its op, operand by operand."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.derivatives.table import ELEMENTWISE, OPERANDS, ROWS, transposed

from .calculus import MEANS, by_differences, derived, summed

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


def test_an_entry_has_no_more_operands_than_have_names() -> None:
    assert all(len(entry) <= len(OPERANDS) for entry in (*ELEMENTWISE.values(), *ROWS.values()))


def test_what_is_not_in_the_table_has_no_entry() -> None:
    assert transposed("Floor") is None
