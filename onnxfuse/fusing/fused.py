"""What fusing a model gives, and what it may be told not to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from onnx import ModelProto, NodeProto

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.reporting.records import NearMiss
from onnxfuse.rewriting.dims_apart import DimNames
from onnxfuse.rewriting.provenance import FusedNode, Vanished

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with (step, done, total)."""
Banned: TypeAlias = frozenset[tuple[str, str, str]]
"""(scope, rule, value) of fusions that must not be made, and of values that must not be simplified."""
SIMPLIFY = "simplify"
"""Stands for a rule where a value is computed anew without one."""
EVERY = "*"
"""Stands for all rules: in this scope, at whatever value, nothing is fused."""


UNNAMED: DimNames = {}
"""All dimensions have the names that they had."""


@dataclass
class Blocks:
    """How a model was fused by a few blocks of each of its runs (`onnxfuse.fusing.repeats`)."""

    source: Lifted
    """The original with those blocks alone."""
    fused: Fused
    """That, fused."""
    before: Sequence[Sequence[NodeProto]]
    """The nodes of the whole original that each node of `source` stands for."""
    after: Sequence[Sequence[NodeProto]]
    """The nodes of the whole fused model that each node of `fused` stands for."""


@dataclass
class Fused:
    """A model with fusions, before it is proved."""

    model: ModelProto
    sites: list[FusedNode]
    """Its fused nodes, those of inner scopes after those around them."""
    near_misses: list[NearMiss]
    simplified: Banned
    """What to ban for nothing to be simplified."""
    unread: frozenset[str] = frozenset()
    """Tensors whose values were wanted while their external data is missing: the model is good for a report alone."""
    banned: Banned = frozenset()
    """What was banned when it was made."""
    vanished: list[Vanished] = field(default_factory=list)
    """Matches that left no node of their own, and may change numbers all the same."""
    lifted: Lifted | None = None
    """The model as the last pass has read it, which wrote it again just as it was; None where it was not read."""
    blocks: Blocks | None = None
    """How it came about; None where all of it was worked on."""
    apart: DimNames = field(default_factory=dict)
    """The dimensions of inputs that have got new names."""


class Rebuild(Protocol):
    """A model fused again, without what is banned, and with other names of its dimensions."""

    def __call__(self, banned: Banned, apart: DimNames = ..., /) -> Fused: ...
