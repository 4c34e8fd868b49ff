"""Views as nodes: targets of Reshapes that say it without a Shape, where that is the same in every run."""

from __future__ import annotations

from typing import Any

import pytest

from onnxfuse.model.broadcast import broadcast_dim
from onnxfuse.model.dims import Dim, symbol
from onnxfuse.rewriting.plan import Plan
from onnxfuse.rewriting.view_nodes import as_reshape, concat, expand, reshape, slice_
from onnxfuse.terms.term import Term
from tests.rewriting.test_operators import constants, plan

A, B, S = symbol("A"), symbol("B"), symbol("S")


def reshaped(shape: tuple[Dim, ...], source: str = "B, S, 12", opset: int = 17) -> tuple[list[str], list[list[Any]]]:
    """(ops, vectors) that x in another shape takes."""
    made = plan(opset, f"g (float[{source}] x) => (float[{source}] y) {{ y = Neg (x) }}")
    x = made.draft.view.term("x")
    term = as_reshape(made.draft.view.terms, x, shape)
    reshape(made, term, ["x"], {"shape": shape}, 1, "")
    return [node.op for node in made.nodes], constants(made)


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((B, S, 3, 4), [0, 0, 3, 4]),
        ((B * S, 12), [-1, 12]),
    ],
)
def test_unknown_sizes_are_copied_or_the_rest(shape: tuple[Dim, ...], target: list[int]) -> None:
    assert reshaped(shape) == (["Reshape"], [target])


@pytest.mark.parametrize("shape", [(4, B, S, 3), (B, S * 4, 3), (B, 3, S, 4)])
def test_a_shape_is_put_together_where_a_rest_would_be_undecided(shape: tuple[Dim, ...]) -> None:
    """Of no elements, since B is 0 in a run, -1 is any number."""
    ops, _ = reshaped(shape)
    assert ops[-2:] == ["Concat", "Reshape"]
    assert "Shape" in ops


@pytest.mark.parametrize(
    ("shape", "source", "exact"),
    [
        ((A * B, S, 8), "A, B, S, 8", False),  # of S = 0 Reshape-13 makes B: better the rest, which is nothing
        ((B, S * 4, 3), "B, S, 12", True),
        ((B, 3, S, 4), "B, S, 12", True),
    ],
)
def test_before_opset_14_a_size_of_0_is_written_where_what_it_copies_is_0(
    shape: tuple[Dim, ...], source: str, exact: bool
) -> None:
    _, vectors = reshaped(shape, source, opset=13)
    assert "Shape" in reshaped(shape, source)[0]
    assert any(-1 in vector for vector in vectors) != exact


@pytest.mark.parametrize(("shape", "axis"), [((B, S * 12), 1), ((B * S, 12), 2), ((B * S * 12, 1), 3)])
@pytest.mark.parametrize("opset", [13, 17])
def test_two_dimensions_of_all_are_a_flatten_where_a_shape_would_be_computed(
    shape: tuple[Dim, ...], axis: int, opset: int
) -> None:
    """Of no elements as well, where a Reshape before opset 14 cannot say 0."""
    ops, vectors = reshaped(shape, opset=opset)
    assert (ops, vectors) == (["Flatten"], []) or vectors == [[-1, 12]] or vectors == [[-1, 1]]
    assert (ops == ["Flatten"]) == (axis == 1)


def test_dims_of_one_that_come_or_go_need_no_shape() -> None:
    assert reshaped((B, 1, S, 12)) == (["Unsqueeze"], [[1]])
    assert reshaped((S, B), "1, S, B") == (["Squeeze"], [[0]])


def test_nor_are_sizes_named_that_are_known_where_none_need_be() -> None:
    """A file whose batch is set by hand to another size is right as before."""
    assert reshaped((1, 2, 7, 1, 12), "2, 7, 12") == (["Unsqueeze"], [[0, 3]])
    assert reshaped((2, 12), "2, 1, 12, 1") == (["Squeeze"], [[1, 3]])
    assert reshaped((2, 84), "2, 7, 12") == (["Reshape"], [[2, 84]])


def test_known_sizes_are_written_down() -> None:
    assert reshaped((6, 4), "2, 12") == (["Reshape"], [[6, 4]])


def test_an_expand_names_only_what_it_widens() -> None:
    made = plan(17, "g (float[B, 1, 12] x) => (float[B, 1, 12] y) { y = Neg (x) }")
    x = made.draft.view.term("x")
    term = made.draft.view.terms.raw("Expand", [x], (("shape", (B, 5, 12)),), shape=(B, 5, 12), dtype=1)
    expand(made, term, ["x"], {"shape": (B, 5, 12)}, 1, "")
    assert ([node.op for node in made.nodes], constants(made)) == (["Expand"], [[1, 5, 1]])


def cut(made: Plan, x: Term, axis: int, start: int, stop: int, step: int = 1) -> Term:
    attrs = {"axis": axis, "start": start, "stop": stop, "step": step}
    return made.draft.view.terms.raw("Slice", [x], tuple(attrs.items()), shape=(B, S, 4), dtype=1)


@pytest.mark.parametrize(("opset", "inputs"), [(9, 1), (10, 4)])
def test_bounds_of_a_slice_are_attributes_or_inputs(opset: int, inputs: int) -> None:
    made = plan(opset)
    x = made.draft.view.term("x")
    slice_(made, [cut(made, x, 2, 1, 5)], ["x"], 1, "")
    (node,) = made.nodes
    assert len(node.inputs) == inputs
    assert dict(node.attrs) == ({"starts": (1,), "ends": (5,), "axes": (2,)} if inputs == 1 else {})


def test_a_slice_of_a_slice_along_another_axis_is_one_node() -> None:
    made = plan(17)
    x = made.draft.view.term("x")
    inner = cut(made, x, 2, 1, 5)
    slice_(made, [cut(made, inner, 0, 0, 3, 2), inner], ["x"], 1, "")
    (node,) = made.nodes
    assert (node.op, constants(made)) == ("Slice", [[1, 0], [5, 3], [1, 2], [2, 0]])  # the steps first


@pytest.mark.parametrize(("opset", "axis"), [(10, 2), (11, -1)])
def test_an_axis_counts_from_the_end_since_opset_11(opset: int, axis: int) -> None:
    made = plan(opset)
    x = made.draft.view.term("x")
    term = made.draft.view.terms.raw("Concat", [x, x], (("axis", -1),), shape=(B, S, 24), dtype=1)
    concat(made, term, ["x", "x"], {"axis": -1}, 1, "")
    assert dict(made.nodes[-1].attrs) == {"axis": axis}


def test_what_is_broadcast_with_a_dimension_is_expanded_by_it() -> None:
    made = plan(17, "g (float[B, 1] x, float[S, 1] y) => (float[B, 1] z) { z = Neg (x) }")
    x, both = made.draft.view.term("x"), broadcast_dim(B, S)
    term = made.draft.view.terms.raw("Expand", [x], (("shape", (both, 4)),), shape=(both, 4), dtype=x.dtype)
    expand(made, term, ["x"], dict(term.attrs), 1, "")
    assert [node.op for node in made.nodes] == ["Shape", "Concat", "Expand"]
    assert made.nodes[0].inputs == ["y"]
