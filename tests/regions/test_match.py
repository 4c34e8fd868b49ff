"""A region is a match of a rule that stands in no file."""

from __future__ import annotations

from onnxfuse.regions.match import match, rule
from onnxfuse.terms.term import Terms


def test_it_is_named_after_its_ops_and_banned_at_its_outputs() -> None:
    terms = Terms()
    x = terms.input("x", (2,), 1)
    found = match("Mul Add", x, [x], {"y": x, "z": terms.input("z", (2,), 1)}, [])
    assert found.rule.name == "Mul Add"
    assert not found.rule.lowers
    assert found.values == {"y", "z"}
    assert len(found.exposed) == 2


def test_its_version_is_that_of_all_regions() -> None:
    assert rule("Mul Add").version == rule("Exp").version
