"""What is to be built of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxfuse.language.catalogue import GROWTH, REGIONS, RULES, Catalogue, load
from onnxfuse.targets.target import DEFAULT, Target

LEVEL = REGIONS
"""How much is fused where nothing else is said."""


@dataclass(frozen=True)
class Build:
    """For whom a model is fused, and by which rules."""

    target: Target = DEFAULT
    opset: int | None = None
    """To convert to first.  None: the model's own, which a target without function bodies may raise (`lower`)."""
    select: Sequence[str] = ()
    """Names of the rules to use, and no regions beside them; none are all."""
    ignore: Sequence[str] = ()
    """Names of the rules not to use."""
    rules: Sequence[Path] = ()
    """Folders of rules besides the catalogue's."""
    base_dir: Path | None = None
    """Where external data lies."""
    growth: int = GROWTH
    """Bytes by which constants may make the file larger."""
    level: int = LEVEL
    """-O0 folds alone, -O1 what rules name, -O2 regions too, and -O3 leaves out what a card is predicted to lose by."""

    @property
    def reached(self) -> int:
        """The level that it comes to: regions are for a target that has function bodies, and are no rule to select."""
        named = bool(self.select) or not self.target.functions
        return min(self.level, RULES) if named else self.level

    @property
    def catalogue(self) -> Catalogue:
        """The rules for the target.  Raises RuleError and UsageError."""
        return load(self.rules).choose(self.select, self.ignore).serving(self.target, self.growth, self.reached)
