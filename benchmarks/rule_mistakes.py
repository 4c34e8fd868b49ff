"""Mistakes that are planted in rules, one in each: for `plants.py`, which asks whether the proof finds them.

What a rule emits is 1e-5 too large, an epsilon is ten times too large or 1e-5 off, a constant of its equations is 1e-5
off, a guard against NaN is gone, an operand is dropped, an axis is another.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

from onnxfuse.language.catalogue import Catalogue, define
from onnxfuse.language.rule import Rule, op_name, targets

SMALL = 1 + 1e-5
NUMBERS = frozenset("epsilon scale alpha beta gamma softcap lambd bias".split())
"""Attributes that are real numbers of an equation."""
FLAGS = frozenset({"nan_to_zero", "is_causal"})


@dataclass(frozen=True)
class Plant:
    """A rule with a mistake in it."""

    rule: Rule
    what: str
    wrong: Rule

    def __str__(self) -> str:
        return f"{self.rule.path}: {self.what}"

    def catalogue(self, right: Catalogue) -> Catalogue:
        """The rules with the wrong one in the place of the right one."""
        rules = [self.wrong if rule is self.rule else rule for rule in right.rules]
        return replace(right, rules=rules, definitions=right.definitions | define(rules))


def plants(rule: Rule) -> Iterator[Plant]:
    """All the mistakes that are made in a rule."""
    for what, emit in _in_statements(rule.emit, True):
        yield Plant(rule, what, replace(rule, emit=emit))
    for what, meaning in _in_statements(rule.meaning, False):
        yield Plant(rule, what, replace(rule, meaning=meaning))
    for what, blocks in _in_blocks(rule.blocks):
        yield Plant(rule, what, replace(rule, blocks=blocks))


def _in_blocks(blocks: tuple[tuple[ast.Assign, ...], ...]) -> Iterator[tuple[str, tuple[tuple[ast.Assign, ...], ...]]]:
    """In the first block, which is the meaning of an op that has no other."""
    for what, made in _in_statements(blocks[0], False) if blocks else ():
        yield what, (made, *blocks[1:])


def _in_statements(statements: tuple[ast.Assign, ...], emitted: bool) -> Iterator[tuple[str, tuple[ast.Assign, ...]]]:
    if emitted and statements and len(targets(statements[-1])) == 1:
        made = copy.deepcopy(statements)
        made[-1].value = _times(made[-1].value)
        yield "result 1e-5 too large", made
    for index, node in enumerate(n for statement in statements for n in ast.walk(statement.value)):
        for edit in (_literal, *((_attribute, _tenfold, _flag, _axis, _operand) if emitted else ())):
            if what := edit(copy.copy(node)):
                made = copy.deepcopy(statements)
                edit([n for statement in made for n in ast.walk(statement.value)][index])
                yield what, made


def _times(value: ast.expr) -> ast.expr:
    return ast.BinOp(value, ast.Mult(), ast.Constant(SMALL))


def _literal(node: ast.AST) -> str:
    """A real constant of an equation."""
    if isinstance(node, ast.Constant) and isinstance(node.value, float) and abs(node.value) < 1e4 and node.value:
        node.value *= SMALL
        return f"{node.value / SMALL:g} 1e-5 off"
    return ""


def _attribute(node: ast.AST) -> str:
    if isinstance(node, ast.keyword) and node.arg in NUMBERS:
        node.value = _times(node.value)
        return f"{node.arg} 1e-5 off"
    return ""


def _tenfold(node: ast.AST) -> str:
    if isinstance(node, ast.keyword) and node.arg == "epsilon":
        node.value = ast.BinOp(node.value, ast.Mult(), ast.Constant(10.0))
        return "epsilon ten times too large"
    return ""


def _flag(node: ast.AST) -> str:
    if isinstance(node, ast.keyword) and node.arg in FLAGS and not isinstance(node.value, ast.Constant):
        node.value = ast.Constant(0)
        return f"{node.arg} forgotten"
    return ""


def _axis(node: ast.AST) -> str:
    if isinstance(node, ast.keyword) and node.arg in ("axis", "axes") and isinstance(node.value, ast.Name):
        node.value = ast.Constant(-2) if node.arg == "axis" else ast.List([ast.Constant(-2)], ast.Load())
        return f"{node.arg} another"
    return ""


def _operand(node: ast.AST) -> str:
    """An operand that may be left out is."""
    if isinstance(node, ast.Call) and len(node.args) > 2 and isinstance(last := node.args[-1], ast.Name):
        node.args = node.args[:-1]
        return f"{last.id} dropped from {op_name(node)}"
    return ""
