"""One walk of expressions: what needs no tensor is the same wherever it stands; tensors are what a backend says."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from onnx import TensorProto

from onnxfuse.language.bodies import Body, Equations, Ref
from onnxfuse.language.builtins import UndecidedError
from onnxfuse.language.catalogue import load
from onnxfuse.language.evaluate import Scope
from onnxfuse.language.expressions import _BUILDERS, _COMPARE, BINARY, EVERYTHING
from onnxfuse.language.variants import _Builder

NAMES = {"a": 2, "b": 3, "items": (1, 2, 4), "none": None, "word": "relu"}


def in_body(text: str, **names: Any) -> tuple[Any, Body]:
    """The value of an expression in a function body, and the body."""
    body = Body(load(), 18, TensorProto.FLOAT)
    statement = ast.parse(f"y = {text}").body[0]
    assert isinstance(statement, ast.Assign)
    return Equations(body, NAMES | names).follow([statement]), body


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + b * 2 - 1", 7),
        ("a / b", 2 / 3),
        ("6 / b", 2),
        ("6 // b", 2),
        ("a ** -1", 0.5),
        ("-a", -2),
        ("a | b", 2),
        ("items[0]", 1),
        ("items[-1]", 4),
        ("items[1:]", (2, 4)),
        ("[1] * 2 + [b]", (1, 1, 3)),
        ("a <= 2", True),
        ("a >= 3", False),
        ("1 < a < b", True),
        ("1 < a < 2", False),
        ("a in items", True),
        ("b not in items", True),
        ("none is None", True),
        ("a is not None", True),
        ("word == 'relu'", True),
        ("not a", False),
        ("a == 2 or 1 / 0", True),
        ("a == 3 and 1 / 0", False),
        ("a if a else 1 / 0", 2),
        ("len(items)", 3),
        ("trailing(-2)", (-2, -1)),
        ("given(a)", False),
        ("isint(word)", False),
    ],
)
def test_what_needs_no_tensor(text: str, value: Any) -> None:
    found, body = in_body(text)
    assert found == value
    assert type(found) is type(value)
    assert not body.nodes


@pytest.mark.parametrize("text", ["7 // b", "+a", "~a", "a % b", "none + 1", "items[9]", "a[0]", "word < 1", "x // 2"])
def test_what_has_no_value_is_undecided(text: str) -> None:
    with pytest.raises(UndecidedError):
        in_body(text, x=Ref("x"))


def test_every_backend_reads_what_the_walk_knows() -> None:
    assert frozenset(_BUILDERS) == EVERYTHING
    assert all(kind.READS <= EVERYTHING for kind in (Scope, Equations, _Builder))
    assert set(_COMPARE) == set(ast.cmpop.__subclasses__())
    assert set(BINARY) < set(ast.operator.__subclasses__())
