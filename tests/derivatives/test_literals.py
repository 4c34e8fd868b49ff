"""What literals alone come to, and what is none of them."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from onnxfuse.derivatives.literals import UnknownError, literal


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[0, 2, 3, 4][:4 - 1]", [0, 2, 3]),
        ("[1, 2, 3][1:]", [2, 3]),
        ("[5, 6][-1]", 6),
        ("3 in [2, 3]", True),
        ("'none' != 'tanh'", True),
        ("7 // 2 * 2", 6),
        ("2 < 3", True),
        ("None", None),
    ],
)
def test_what_is_made_of_literals_has_a_value(text: str, value: Any) -> None:
    assert literal(ast.parse(text, mode="eval").body) == value


@pytest.mark.parametrize(
    "text", ["X + 1", "[1, 2][5]", "1 // 0", "[1] < 2", "f(2)", "[1, 2][:n]", "2 ** 3", "[1][::2]"]
)
def test_anything_else_has_none(text: str) -> None:
    with pytest.raises(UnknownError):
        literal(ast.parse(text, mode="eval").body)
