"""Expressions over numbers, texts and lists alone, as their values: which branch of an equation is taken, and which
axes a tensor of known rank has."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


class UnknownError(Exception):
    """An expression is not one of literals."""


def literal(node: ast.expr | None) -> Any:
    """The value of an expression over literals.  Raises UnknownError for any other."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [literal(e) for e in elements]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -literal(operand)
        case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
            if type(op) in OPERATORS:
                return _applied(OPERATORS[type(op)], literal(left), literal(right))
        case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=None)):
            bounds = [None if bound is None else literal(bound) for bound in (lower, upper)]
            return _applied(lambda x, b: x[slice(*b)], literal(value), bounds)
        case ast.Subscript(value=value, slice=index):
            return _applied(operator.getitem, literal(value), literal(index))
    raise UnknownError


def _applied(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    try:
        return function(a, b)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UnknownError from error
