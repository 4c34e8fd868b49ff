"""Lists of what stands behind a `*`: one by one, and spread among operands."""

from __future__ import annotations

import pytest

from onnxfuse.language.variadic import Each, one_by_one, spread


def test_names_of_lists_stand_for_one_value_at_a_time_and_all_others_for_what_they_are() -> None:
    values = {"x": Each("ab"), "n": Each((3, 4)), "shape": (2, 7), "other": Each((1,))}
    found = list(one_by_one(values, ["x", "n", "shape"]))
    assert [(v["x"], v["n"], v["shape"]) for v in found] == [("a", 3, (2, 7)), ("b", 4, (2, 7))]
    assert found[0]["other"] == (1,), "it is not mentioned, and stays a list"


@pytest.mark.parametrize(
    ("names", "message"),
    [(["x", "other"], "other, x differ in length"), (["shape"], "no name in it stands for a list")],
)
def test_lists_that_do_not_go_together(names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(one_by_one({"x": Each("ab"), "other": Each((1,)), "shape": (2, 7)}, names))


def test_operands_behind_a_star_stand_in_their_places() -> None:
    assert spread(["a", Each("bc"), (1, 2)]) == ["a", "b", "c", (1, 2)]
    assert spread([Each()]) == []
