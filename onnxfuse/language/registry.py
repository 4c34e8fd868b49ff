"""What is known of a function that rules may call, from its definition in Python: name, arguments, description."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from onnxfuse.model.dims import Shape

Run: TypeAlias = Callable[..., Any]


class Facts(Protocol):
    """What is known where a match is concluded, and where the body of a function is written as well."""

    def shape(self, x: Any) -> Shape:
        """Raises UndecidedError where it is unknown."""

    def given(self, x: Any) -> bool:
        """Is it a tensor that was not left out?"""

    def boolean(self, x: Any) -> bool:
        """Is it a tensor of booleans?"""


@dataclass(frozen=True)
class Builtin:
    """A function of `let`, `where`, `emit` and attributes, and of `meaning` and `standard` if it is of `meaning`."""

    name: str
    run: Run
    """Takes what evaluates the expression, and values; raises UndecidedError where it cannot answer."""
    parameters: tuple[str, ...]
    required: int
    """How many arguments must be given."""
    many: bool
    """Whether the last of them may be given any number of times."""
    meaning: bool
    """Whether it asks for nothing but `Facts`, so that what an op means may depend on it."""
    shapes: bool
    """Whether it asks for the shape or the element type of a tensor."""

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.run) or ""

    @property
    def form(self) -> str:
        """How it is called, with all that it takes: ``has(op, feature, ...)``."""
        return f"{self.name}({', '.join((*self.parameters, *['...'] * self.many))})"

    def takes(self, count: int) -> bool:
        """Can it be called with so many arguments?"""
        return self.required <= count and (self.many or count <= len(self.parameters))


def registering(table: dict[str, Builtin]) -> Callable[..., Callable[[Run], Run]]:
    """The decorator by which functions enter a table, each under its name without the underscore before it."""

    def builtin(*, meaning: bool = False, shapes: bool = False) -> Callable[[Run], Run]:
        def register(run: Run) -> Run:
            _, *given = inspect.signature(run).parameters.values()
            many = any(p.kind is p.VAR_POSITIONAL for p in given)
            required = sum(p.default is p.empty for p in given) - many
            name = run.__name__.removeprefix("_")
            assert name not in table, f"{name} is defined twice"
            table[name] = Builtin(name, run, tuple(p.name for p in given), required, many, meaning, shapes)
            return run

        return register

    return builtin
