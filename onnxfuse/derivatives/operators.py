"""What the operators of an equation are for tensors: the rule language and its derivatives read one table."""

from __future__ import annotations

import ast

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "Div",
    ast.Pow: "Pow",
}
"""Operators → the ops that they are for tensors."""
