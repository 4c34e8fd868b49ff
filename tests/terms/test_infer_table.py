"""The table of inferences: each op has the rule that was entered last for it, and axes count from the first."""

from __future__ import annotations

import pytest

from onnxfuse.terms.infer_table import RULES, Inferred, normal_axis, rule, unknown_rank
from tests.terms.normal.space import Space, b, s


def test_a_rule_is_entered_for_each_of_its_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> Inferred:
        return [(None, 0)]

    for op in ("OfNobody", "OfOthers"):
        monkeypatch.setitem(RULES, op, RULES["Gather"])
    assert rule("OfNobody", "OfOthers")(nothing) is nothing
    assert RULES["OfNobody"] is RULES["OfOthers"] is nothing
    assert RULES["Gather"] is not nothing


def test_sizes_that_nobody_knows_are_new_ones() -> None:
    t = Space()
    x = t.input("x", b, s, 4)
    found, again = unknown_rank(t.terms, x), unknown_rank(t.terms, x)
    assert found is not None
    assert again is not None
    assert len({*found, *again, b, s}) == 8


@pytest.mark.parametrize(("axis", "wanted"), [(0, 0), (2, 2), (-1, 2), (-3, 0)])
def test_axes_count_from_the_first(axis: int, wanted: int) -> None:
    assert normal_axis(axis, 3) == wanted
