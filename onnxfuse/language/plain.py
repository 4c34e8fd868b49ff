"""Syntax trees and what is made of them as plain data, which JSON can write, and back.

What JSON knows stands for itself.  All else is an array that begins with what it is: one of the letters below, or the
kind of a syntax tree, its line and its column.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from .check import ALLOWED
from .rule import Parameter, Source

_TOPS: tuple[type[ast.AST], ...] = (ast.Assign, ast.Dict, *ALLOWED)
_KINDS: dict[str, type[ast.AST]] = {kind.__name__: kind for top in _TOPS for kind in (top, *top.__subclasses__())}
"""The kinds of syntax trees that a rule has, such as Call, and Add, which is one of operator."""


def to_plain(value: Any) -> Any:
    """Raises TypeError for what is neither a tree, nor a part of a rule, nor known to JSON."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case ast.AST():
            place = [getattr(value, "lineno", None), getattr(value, "col_offset", None)]
            fields = [to_plain(getattr(value, name, None)) for name in value._fields]
            return [type(value).__name__, *place, *fields] if value._attributes or fields else [type(value).__name__]
        case Parameter() | Source():
            return ["p" if isinstance(value, Parameter) else "s", *map(to_plain, vars(value).values())]
        case tuple() | list() | frozenset():
            items = sorted(value) if isinstance(value, frozenset) else value
            return ["t" if isinstance(value, tuple) else "l" if isinstance(value, list) else "f", *map(to_plain, items)]
        case Mapping():
            return ["d", *(to_plain(part) for item in value.items() for part in item)]
        case _:
            raise TypeError(f"{type(value).__name__} is no part of a rule")


def from_plain(data: Any) -> Any:
    """What `to_plain` was given, each tree at its place in the text."""
    if type(data) is not list:
        return data
    made = _MADE.get(data[0])
    return made(data) if made is not None else _tree(data)


def _tree(data: list[Any]) -> ast.AST:
    if len(data) == 1:
        return _alone(data[0])
    made = _KINDS[data[0]](*_parts(data[3:]))
    if data[1] is not None:
        made.lineno, made.col_offset = data[1], data[2]  # type: ignore[attr-defined]
    return made


def _parts(data: list[Any]) -> list[Any]:
    return [from_plain(part) if type(part) is list else part for part in data]


@cache
def _alone(name: str) -> ast.AST:
    """What has neither parts nor a place, such as a `+` by itself, is one object, as Python's parser has it."""
    return _KINDS[name]()


def _dict(data: list[Any]) -> dict[Any, Any]:
    parts = _parts(data)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


_MADE: dict[str, Callable[[list[Any]], Any]] = {
    "t": lambda data: tuple(_parts(data[1:])),
    "l": lambda data: _parts(data[1:]),
    "f": lambda data: frozenset(_parts(data[1:])),
    "d": _dict,
    "p": lambda data: Parameter(*_parts(data[1:])),
    "s": lambda data: Source(*_parts(data[1:])),
}
