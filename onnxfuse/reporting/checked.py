"""What `check` found, of all models together: what its formats are written from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .records import Report
from .requirements import Finding

AS_BEFORE = "as in the baseline"
"""What a baseline demands of a model."""


@dataclass(frozen=True)
class Checked:
    """One model that was checked."""

    model: str
    """The file, as the user named it."""
    demands: tuple[str, ...] = ()
    """What was asked of it: expectations, and AS_BEFORE."""
    findings: tuple[Finding, ...] = ()
    report: Report | None = None
    """None if the model could not be read."""

    def to_json(self) -> dict[str, Any]:
        census = dict(self.report.census) if self.report is not None else {}
        return {"model": self.model, "census": census, "findings": [f.to_json() for f in self.findings]}


@dataclass(frozen=True)
class Check:
    """All of them, in the order given."""

    models: Sequence[Checked]
    findings: tuple[Finding, ...] = ()
    """About none of the models given."""

    def all(self) -> Iterator[Finding]:
        for checked in self.models:
            yield from checked.findings
        yield from self.findings

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data.  Schema 2 is of layers that are told together."""
        read = [checked for checked in self.models if checked.report is not None]
        return {
            "schema": 2,
            "models": [checked.to_json() for checked in read],
            "findings": [finding.to_json() for finding in self.findings],
            "errors": [
                {"model": checked.model, "message": finding.message}
                for checked in self.models
                for finding in checked.findings
                if finding.kind == "error"
            ],
        }
