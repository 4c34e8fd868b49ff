"""What the conditions of a rule may ask about the place of a match, which no term shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from onnxfuse.terms.term import Term


@dataclass(frozen=True)
class Context:
    """A scope and the state of its search: values of this class are made anew for each round, and never edited.

    Terms are given by their ids.
    """

    opset: int
    """Of the model."""
    held: Set[str] = frozenset()
    """Standard ops that the graph had when it was read."""
    raisable: bool = False
    """May the model's opset still be raised, for an op that is worth it?"""
    in_function: bool = False
    """Is the scope the body of a local function?"""
    reused: Set[int] = frozenset()
    """Terms that several terms use, or that must exist as values."""
    alive: Set[int] = frozenset()
    """Terms that outputs depend on."""
    inside_gemms: Set[int] = frozenset()
    """Products that are part of a Gemm; known only where products are kept."""
    named: Set[int] = frozenset()
    """Terms that values of the model are."""
    written_out: Callable[[Term], Sequence[Term] | None] = lambda term: None
    """What the outputs of an op of ai.onnx are by the body that the standard gives it, if it has one."""
    outputs: Mapping[int, Mapping[int, Term]] = field(default_factory=dict)
    """Terms that stand for several values → each of these, an Output, by its index."""
