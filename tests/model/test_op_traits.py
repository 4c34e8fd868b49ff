"""What the table says of an op is so: the ops compute it, by the reference of onnx."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, defs, helper
from onnx.reference import ReferenceEvaluator

from onnxfuse.language import catalogue
from onnxfuse.model import op_traits
from onnxfuse.model.op_traits import TRAITS

IN_TERMS_ALONE = {"Absent", "Input", "Integers", "Output", "Repeat", "SafeSoftmax"}
"""Ops that no model has."""
ALIASES = {"BiasGelu", "FastGelu"}
"""Ops of com.microsoft that shapes are inferred for by their name alone."""
INTEGER = {"BitShift", "BitwiseAnd", "BitwiseOr"}
LOGIC = {"And", "Or", "Xor", "Not"}


def standard(trait: str) -> list[str]:
    """The ops of ai.onnx with a trait, that need no attribute and no operand beyond what the test has."""
    names = {s.name for s in defs.get_all_schemas() if s.domain == ""}
    return sorted(op for op, traits in TRAITS.items() if trait in traits and op in names - {"Cast", "CastLike"})


def run(op: str, *inputs: NDArray[Any]) -> NDArray[Any]:
    names = [f"x{i}" for i in range(len(inputs))]
    attrs = {"direction": "LEFT"} if op == "BitShift" else {}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), None)
        for n, x in zip(names, inputs, strict=True)
    ]
    node = helper.make_node(op, names, ["y"], **attrs)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    (result,) = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    return np.asarray(result)


def draw(op: str, count: int) -> list[NDArray[Any]]:
    rng = np.random.default_rng(7)
    if op in LOGIC or op == "Where":
        conditions = [rng.random((2, 3)) < 0.5 for _ in range(count)]
        return conditions if op != "Where" else [conditions[0], *draw("Add", 2)]
    if op in INTEGER:
        return [rng.integers(0, 5, (2, 3)).astype(np.uint8) for _ in range(count)]
    if op == "Mod":
        return [rng.integers(1, 9, (2, 3)) for _ in range(count)]
    return [
        rng.standard_normal((2, 3)).astype(np.float32) ** (2 if op in ("Pow", "Log", "Sqrt") else 1)
        for _ in range(count)
    ]


def operands(op: str) -> int:
    schema = defs.get_schema(op)
    return 3 if op == "Where" else 2 if "broadcast" in TRAITS[op] or op == "PRelu" else schema.min_input


def test_every_op_of_the_table_exists() -> None:
    known = {s.name for s in defs.get_all_schemas()} | {rule.op for rule in catalogue.load().rules}
    assert TRAITS.keys() - known - IN_TERMS_ALONE - ALIASES == set()


def test_every_trait_has_a_constant() -> None:
    constants = [value for value in vars(op_traits).values() if isinstance(value, frozenset)]
    for trait in set().union(*TRAITS.values()):
        assert frozenset(op for op, traits in TRAITS.items() if trait in traits) in constants, trait


def test_traits_imply_others() -> None:
    assert {"comparison", "broadcast", "boolean", "elementwise", "row_by_row"} <= TRAITS["Greater"]
    assert op_traits.RESHAPES < op_traits.VIEWS < op_traits.MOVEMENT


@pytest.mark.parametrize("op", standard("elementwise"))
def test_elements_move_with_those_at_their_place(op: str) -> None:
    inputs = draw(op, operands(op))
    with np.errstate(all="ignore"):
        result, turned = run(op, *inputs), run(op, *(x[::-1, [2, 0, 1]] for x in inputs))
    assert result.shape == inputs[0].shape
    np.testing.assert_array_equal(result[::-1, [2, 0, 1]], turned)
    assert (result.dtype == bool) == ("boolean" in TRAITS[op])


@pytest.mark.parametrize("op", standard("commutative"))
def test_operands_may_change_places(op: str) -> None:
    a, b = draw(op, 2)
    np.testing.assert_array_equal(run(op, a, b), run(op, b, a))


@pytest.mark.parametrize("op", [op for op in standard("broadcast") if op not in INTEGER | {"Mod", "Where"}])
def test_other_ops_of_two_do_not_commute(op: str) -> None:
    a, b = draw(op, 2)
    differs = not np.array_equal(run(op, a, b), run(op, b, a))
    assert differs or "commutative" in TRAITS[op] or op in ("Sum", "Mean")  # of any number of operands


@pytest.mark.parametrize("op", standard("nonnegative"))
def test_nothing_is_below_zero(op: str) -> None:
    (x,) = draw(op, 1)
    assert (run(op, x * 10) >= 0).all()


@pytest.mark.parametrize("op", ["Abs", "Ceil", "Clip", "Floor", "Max", "Min", "Neg", "Relu", "Round", "Sign", "Trilu"])
def test_what_is_exact_gives_integers_or_what_it_is_given(op: str) -> None:
    assert op in op_traits.EXACT
    inputs = draw(op, operands(op))
    result = run(op, *inputs)
    sizes = np.abs(np.concatenate([x.ravel() for x in inputs]))
    assert (np.isin(np.abs(result), sizes) | (result == np.round(result))).all()


@pytest.mark.parametrize("op", ["Identity", "Flatten"])
def test_a_reshape_moves_nothing(op: str) -> None:
    (x,) = draw(op, 1)
    np.testing.assert_array_equal(run(op, x).ravel(), x.ravel())


def test_what_draws_numbers_is_not_deterministic() -> None:
    seeded = {s.name for s in defs.get_all_schemas() if s.domain == "" and "seed" in s.attributes}
    assert seeded - {"Dropout"} == op_traits.RANDOM
