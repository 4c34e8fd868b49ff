"""Why a match stopped, in the words of its rule.  A reason is a function: it is formatted only when printed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

from onnxfuse.language.evaluate import Bindings
from onnxfuse.language.pattern import Pattern
from onnxfuse.terms.term import Term

Reason: TypeAlias = Callable[[], str]

MISSING = object()
"""An attribute that a node does not have."""


def surplus(wanted: Pattern, seen: Term) -> str:
    """A sum or product with more operands than the rule has; of a power, the exponents."""
    if wanted.op == seen.op == "Mul" and len({id(a) for a in wanted.args}) == len({a.id for a in seen.args}) == 1:
        return f"Pow exponent wants {len(wanted.args)}, saw {len(seen.args)}"
    return f"{wanted.op} has further operands: {listed(seen.args)}"


def lacking(op: str, wanted: Collection[str], seen: Sequence[Term]) -> Reason:
    """A sum or product none of whose operands is what the rule has."""
    return lambda: f"{op} wants {min(wanted)} among its operands, saw {listed(seen)}"


def listed(operands: Sequence[Term]) -> str:
    return ", ".join(map(str, operands))


def unmet(condition: ast.expr, bindings: Bindings) -> Reason:
    """A `where` line that is not true, with what its names stand for."""

    def text() -> str:
        names = sorted({n.id for n in ast.walk(condition) if isinstance(n, ast.Name) and n.id in bindings})
        seen = ", ".join(_seen(n, bindings[n]) for n in names)
        return f"wants {ast.unparse(condition)}" + (f"; {seen}" if seen else "")

    return text


def is_other(condition: ast.expr) -> bool:
    """Does a condition that fails say that something else is meant, as ``not isnumber(mask)`` does of a factor?"""
    match condition:
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Name(id="isnumber"))):
            return True
    return False


def attribute(op: str, name: str, wanted: ast.expr, value: Any) -> Reason:
    return lambda: f"{op} wants {name}={ast.unparse(wanted)}, saw {'none' if value is MISSING else value}"


def _seen(name: str, value: Any) -> str:
    """What a name stands for; of a node's other attributes, which ``**name`` binds, each."""
    if isinstance(value, tuple) and value and all(isinstance(v, tuple) and len(v) == 2 for v in value):
        has = ", ".join(f"{key}={list(v) if isinstance(v, tuple) else v}" for key, v in value)
        return f"{name} has {has}"
    return f"{name} is {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    if not isinstance(value, Term) or value.scalar is not None:
        return str(value)
    shape = f" of shape {list(value.shape) if value.shape is not None else 'unknown'}"
    return str(value).removesuffix(shape) + shape
