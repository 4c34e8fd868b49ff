"""A model that is to be fused, perhaps more than once, with other bans each time."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from onnx import ModelProto

from onnxfuse.language.catalogue import Catalogue
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.rewriting.dims_apart import DimNames, told_apart
from onnxfuse.training.recompute import Limit

from .naming import Naming


def repeats_wanted() -> bool:
    """Are repeated blocks to be fused once?  ONNXFUSE_REPEATS=0 in the environment says that all are to be worked on:
    what is written is the same, and this is how that is tested."""
    return os.environ.get("ONNXFUSE_REPEATS") != "0"


@dataclass
class Source:
    """A model, and what is known of it whatever is banned."""

    model: ModelProto
    base_dir: Path | None = None
    """Where its external data lies."""
    catalogue: Catalogue | None = None
    repeats: bool = field(default_factory=repeats_wanted)
    """Are repeated blocks to be fused once?"""
    uneven: set[int] = field(default_factory=set)
    """The nodes of runs whose blocks turned out to be treated differently."""
    limit: Limit | None = None
    """How many bytes a training step may keep between forward and backward."""
    _apart: Source | None = None

    @cached_property
    def lifted(self) -> Lifted:
        """All of it, as terms."""
        return Lifted.of(self.model, self.base_dir, self.catalogue)

    def apart(self, names: DimNames) -> Source:
        """The same with other names of dimensions, of which there are one set at most."""
        if names and self._apart is None:
            self._apart = replace(self, model=told_apart(self.model, names), uneven=set())
        return self._apart if names and self._apart is not None else self

    @cached_property
    def naming(self) -> Naming:
        """Its names."""
        return Naming.of(self.model)
