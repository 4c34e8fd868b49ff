"""Syntax trees as plain data and back: the same trees, at the same places of the text."""

from __future__ import annotations

import ast
import json

import pytest

from onnxfuse.language.parse import parse_text
from onnxfuse.language.plain import from_plain, to_plain

RULE = """Scaled(x: real, *, alpha=1.0, activation: Relu | Clip(low, high))

match:  s = x * alpha
        y = activation(Add(s, -3, axis=[-1, 2])) | s ** 0.5
where:  0 < alpha < 1e-2 and not (low is None or shape(x)[1:] == [4])
emit:   y = com.microsoft.Scaled(x, alpha=alpha, mode="a b", low=low)
test:   x=[2, 7]; alpha=0.5
"""


def through_json(value: object) -> object:
    return from_plain(json.loads(json.dumps(to_plain(value))))


def dumped(tree: ast.AST) -> tuple[str, list[tuple[int, int]]]:
    """What a tree says, and where its parts stand."""
    places = [(n.lineno, n.col_offset) for n in ast.walk(tree) if isinstance(n, ast.expr | ast.stmt)]
    return ast.dump(tree), places


def test_trees_come_back_with_their_places() -> None:
    rule = parse_text(RULE, "scaled.rule")
    for trees in (rule.blocks[0], rule.where, rule.emit):
        back = through_json(trees)
        assert isinstance(back, tuple)
        assert [dumped(tree) for tree in back] == [dumped(tree) for tree in trees]


def test_parts_of_a_rule_come_back() -> None:
    rule = parse_text(RULE, "scaled.rule")
    assert through_json(rule.source) == rule.source
    back = through_json(rule.parameters)
    assert isinstance(back, tuple)
    assert [(p.name, p.kind, p.ops, p.line, p.constant) for p in back] == [
        (p.name, p.kind, p.ops, p.line, p.constant) for p in rule.parameters
    ]
    assert [ast.dump(f) if f else f for f in back[2].forms] == [
        ast.dump(f) if f else f for f in rule.parameters[2].forms
    ]


@pytest.mark.parametrize(
    "value", [None, True, 3, -0.0, float("inf"), "a\n", (1, (2,)), [1], frozenset("ab"), {1: (2,)}]
)
def test_values_come_back_as_they_were(value: object) -> None:
    back = through_json(value)
    assert repr(back) == repr(value) or (back == value and type(back) is type(value))


def test_what_is_no_part_of_a_rule_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes is no part of a rule"):
        to_plain([b"x"])


def test_nothing_but_trees_of_rules_is_made_of_data() -> None:
    for strange in (["Lambda", 1, 0, None, None], ["Import", 1, 0, []], ["os", 1, 0]):
        with pytest.raises(LookupError):
            from_plain(strange)
