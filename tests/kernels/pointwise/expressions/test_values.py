"""Tensors as functions of their coordinates: constants, arrays and what broadcasts."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.pointwise.expressions.index import ZERO, flat, variable
from onnxfuse.kernels.pointwise.expressions.scalars import Scalars
from onnxfuse.kernels.pointwise.expressions.values import (
    TABLE,
    aligned,
    broadcast,
    computed_type,
    constant,
    expressible,
    source,
)

i, j = variable("i", 4), variable("j", 3)


def test_an_array_is_read_at_the_position_of_its_coordinates() -> None:
    scalars = Scalars()
    value = source(scalars, 2, (4, 3), np.dtype(np.float32))
    found = value.at((i, j))
    assert (found.kind, found.payload[:2]) == ("load", (2, flat((i, j), (4, 3))))
    assert value.at((i, j)) is found
    assert value.size == 12


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (np.full((4, 3), 2.5, np.float32), "literal"),
        (np.full((4, 3), 7), "literal"),
        (np.arange(12).reshape(4, 3), "position"),
        (np.repeat(np.arange(4), 3).reshape(4, 3) * 5 + 2, "position"),
        (np.array([[0, 1, 3], [1, 1, 1], [2, 2, 2], [9, 9, 9]]), "table"),
        (np.arange(12, dtype=np.float32).reshape(4, 3), "table"),
    ],
)
def test_a_constant_is_a_number_a_function_of_its_coordinates_or_a_table(content: np.ndarray, kind: str) -> None:
    assert constant(Scalars(), content).at((i, j)).kind == kind


@pytest.mark.parametrize("number", [2.5, np.nan])
def test_a_number_that_is_repeated_more_often_than_memory_holds_is_a_number(number: float) -> None:
    repeated = np.broadcast_to(np.float32(number), (1 << 20, 1 << 20))
    assert expressible(repeated)
    assert constant(Scalars(), repeated).at((variable("i", 1 << 20), variable("j", 1 << 20))).kind == "literal"


def test_what_steps_is_a_function_of_its_position() -> None:
    rows = constant(Scalars(), np.repeat(np.arange(4), 3).reshape(4, 3) * 5 + 2).at((i, j))
    assert rows.payload == i * 5 + 2


def test_a_large_constant_is_no_part_of_a_kernel() -> None:
    numbers = np.random.default_rng(0).standard_normal(TABLE + 1).astype(np.float32)
    large = constant(Scalars(), numbers)
    assert not expressible(numbers)
    assert all(map(expressible, (numbers[:TABLE], np.full(TABLE + 1, 2.5, np.float32), np.arange(TABLE + 1) // 3)))
    assert not expressible(np.arange(TABLE + 1).astype(np.float32)), "steps of real numbers round"
    with pytest.raises(KernelError, match="is no part of a pointwise kernel"):
        large.at((variable("k", TABLE + 1),))


def test_operands_that_broadcast_stay_where_they_have_one_element() -> None:
    assert aligned((i, j), (3,)) == (j,)
    assert aligned((i, j), (4, 1)) == (i, ZERO)
    assert aligned((i, j), ()) == ()
    assert broadcast([(4, 1), (3,)]) == (4, 3)
    with pytest.raises(KernelError, match="do not broadcast"):
        broadcast([(4,), (3,)])


def test_types_that_no_kernel_computes_in_are_refused() -> None:
    assert computed_type(np.dtype(np.float16)) == "float"
    with pytest.raises(KernelError, match="no kernel computes in complex64"):
        computed_type(np.dtype(np.complex64))
