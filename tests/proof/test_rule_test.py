"""A rule is tested by the models that it describes: a wrong one is found out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onnxfuse.errors import RuleError
from onnxfuse.language import catalogue as language
from onnxfuse.language.parse import parse_text
from onnxfuse.proof import rule_test


def test_a_wrong_rule_is_found_out(tmp_path: Path) -> None:
    """The meaning says cosine where the second spelling says sine."""
    (tmp_path / "wrong.rule").write_text(
        "# Wrong.\nWrong(X)\n\nmatch:  Y = X * Cos(X) | X * Sin(X)\nemit:   Y = Wrong(X)\ntest:   X=[3,4]\n"
    )
    catalogue = language.load([tmp_path])
    failed = [o for o in rule_test.check(catalogue.named("Wrong")[0], catalogue) if not o.passed]
    assert {outcome.claim for outcome in failed} == {"spellings agree", "float32 body"}


def test_a_rule_that_matches_nothing_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "never.rule").write_text(
        "# Never.\nNever(X)\n\nmatch:  Y = X * Cos(X)\nwhere:  rank(X) == 7\nemit:   Y = Never(X)\ntest:   X=[3,4]\n"
    )
    catalogue = language.load([tmp_path])
    failed = [o for o in rule_test.check(catalogue.named("Never")[0], catalogue) if not o.passed]
    assert [outcome.claim for outcome in failed] == ["matched"]
    assert "rank(X) == 7" in failed[0].detail


def test_the_template_passes_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "my_norm.rule").write_text(rule_test.template("MyNorm"))
    catalogue = language.load([tmp_path])
    outcomes = list(rule_test.check(catalogue.named("MyNorm")[0], catalogue))
    assert outcomes
    assert all(outcome.passed for outcome in outcomes), [o.text for o in outcomes if not o.passed]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ("x=[[2,3],[2,5]]; alpha=[0.5]", "`test:` gives lists of different lengths for what is behind a `*`"),
        ("x=[2,3]; alpha=[0.5,0.25]", "x stands for a list, and its test for the shape of each"),
    ],
)
def test_a_list_is_tested_with_a_shape_for_each(shapes: str, message: str) -> None:
    text = (
        "Sides(x, *, alpha)\nmatch: y = Concat(*Elu(Sin(x), alpha=alpha), axis=-1)\n"
        "emit: y = Concat(*Elu(Cos(x), alpha=alpha), axis=-1)\ntest: "
    )
    with pytest.raises(RuleError, match=re.escape(message)):
        list(rule_test.check(parse_text(text + shapes, "sides.rule"), language.load()))
