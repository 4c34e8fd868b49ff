"""Equations become steps of one op each, those of definitions among them."""

from __future__ import annotations

import ast

import pytest

from onnxfuse.derivatives.tape import Definition, NoDerivativeError, Tape

from .calculus import definition, expression


def steps(text: str, saved: dict[str, str] | None = None) -> list[str]:
    tape = Tape(definition, set(), saved or {})
    tape.write(expression(text), {})
    return [f"{s.name} = {ast.unparse(s.value)}" for s in tape.steps]


def test_a_step_is_one_op() -> None:
    assert steps("Exp(x) * x + 1") == ["t = Exp(x)", "t2 = t * x", "t3 = t2 + 1"]


def test_equal_steps_are_one() -> None:
    assert steps("Exp(x) + Exp(x)") == ["t = Exp(x)", "t2 = t + t"]


def test_a_definition_is_written_out_and_keeps_its_names() -> None:
    assert steps("Gelu(x, approximate='none')")[1].startswith("e = Erf(")
    assert steps("LayerNormalization(x, 1, 0, axis=-1, epsilon=e)")[0] == "Mean = ReduceMean(x, axes=trailing(-1))"


def test_what_is_left_out_has_its_default() -> None:
    assert steps("Swish(x)") == ["t = Sigmoid(x)", "t2 = x * t"]


def test_an_inverse_root_is_one_step() -> None:
    assert steps("y / Sqrt(v)") == ["t = Sqrt(v)", "t2 = 1 / Sqrt(v)", "t3 = y * t2"]


def test_numbers_are_computed() -> None:
    assert steps("x * (2 * 3)") == ["t = 6 * x"]
    assert steps("x * 1") == []


def test_definitions_that_never_end_are_refused() -> None:
    again = Definition(("x",), {}, (ast.parse("y = Again(x) + 1").body[0],), "y")  # type: ignore[arg-type]
    tape = Tape(lambda op: again if op == "Again" else None, set())
    with pytest.raises(NoDerivativeError, match="inside one another"):
        tape.write(expression("Again(x)"), {})


def test_a_choice_that_is_not_decided_is_refused() -> None:
    with pytest.raises(NoDerivativeError, match="not decided"):
        steps("x if mode == 1 else 2")
