"""A fused model compared as a whole, and in each body that has fused nodes as if it stood for its node: those of
control flow, and those of local functions.

Inputs are generated for each by itself: a branch that reads a cache wants other sizes than the one that has none.  What
is fused in a branch of an If that cannot be run is not proved, and left out.  A step of a Loop or a Scan that cannot be
run alone, or is not there, is compared with the whole model; so is a function of which the fused model has no call, and
one that is called wherever the model runs, whose values are then among those of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from onnxfuse.reporting.records import Validation
from onnxfuse.rewriting.inline_control_flow import straightened

from .blame import Suspects, suspects
from .branches import Branch, branches
from .claim import Claim, Experiment
from .comparison import Comparison
from .namesakes import REFUSED, namesakes

if TYPE_CHECKING:
    from onnxfuse.fusing.fused import Banned, Fused, Progress
    from onnxfuse.rewriting.dims_apart import DimNames


class Comparisons:
    """Runs the original once, in the constructor, and each of its branches when a fused node first stands in it."""

    def __init__(self, claim: Claim, experiment: Experiment, progress: Progress) -> None:
        self.claim, self.experiment, self.progress = claim, experiment, progress
        # Its bodies and values are where those of the fused model are.
        self._straight = straightened(claim.original, claim.base_dir)
        self.whole = Comparison(claim, experiment, progress, self._straight)
        self._branches = branches(self._straight)
        self._made: dict[Branch, Comparison] = {}

    def _parts(self, fused: Fused) -> Iterator[Comparison]:
        """The bodies in which a fused model has fused nodes."""
        for scope in dict.fromkeys(site.scope for site in fused.sites):
            own = self._branches.get(scope)
            if own is None or own.called or not own.is_in(fused.model):
                continue
            for branch in own.each_step():
                part = self._made.get(branch) or self._of(branch)
                if part.oracle.cases or branch.chosen:
                    yield part

    def _of(self, branch: Branch) -> Comparison:
        """A branch on the inputs or the sizes that were given, if it runs on those, else on others."""
        for experiment in (self.experiment, replace(self.experiment, inputs=None, shapes=None)):
            self._made[branch] = Comparison(self.claim, experiment, self.progress, self._straight, branch)
            if self._made[branch].oracle.cases:
                break
        return self._made[branch]

    def outputs(self, fused: Fused) -> Validation:
        """The verdict on a fused model by its outputs: those of a branch are to be the same, too."""
        verdict = self.whole.outputs(fused)
        for part in self._parts(fused) if verdict.verdict == "equal" else ():
            own = part.outputs(fused)
            if own.verdict == "mismatch":
                assert part.branch is not None
                return replace(own, note=f"{own.note}, in {part.branch.scope}")
            errors = [error for error in (verdict.max_error, own.max_error) if error is not None]
            verdict = replace(verdict, max_error=max(errors, default=None), cases=verdict.cases + own.cases)
        return verdict

    @property
    def namesakes(self) -> DimNames:
        """New names for dimensions that bear one and are not equal."""
        return namesakes(self.claim.original, self.whole.oracle.cases)

    def told_apart(self, fused: Fused, verdict: Validation) -> tuple[Fused, Validation]:
        """A fused model that differs, and the verdict on it; if that is for dimensions of inputs that bear one name and
        are not equal, it and all that are made from here on have a name for each, where that is wanted."""
        names, rebuild = self.namesakes, self.claim.rebuild
        if not names or not self.experiment.rename_dims:
            return fused, verdict

        def again(banned: Banned, apart: DimNames = names) -> Fused:
            return replace(rebuild(banned, apart), apart=apart)

        named = again(fused.banned)
        other = self.outputs(named)
        if other.verdict == "mismatch" and REFUSED not in verdict.note:
            return fused, verdict
        self.claim = replace(self.claim, rebuild=again)
        return named, other

    def suspects(self, fused: Fused) -> Suspects:
        """The fusions that single values of a fused model tell of, and what must not be simplified."""
        found = suspects(fused, *self.whole.cuts(fused))
        for part in self._parts(fused):
            found = found.joined(suspects(fused, *part.cuts(fused)))
        return found

    def with_sites(self, verdict: Validation) -> Validation:
        """A verdict that says how many values the last `suspects` compared."""
        parts = (self.whole, *self._made.values())
        return replace(verdict, sites=sum(part.sites for part in parts), kinds=sum(part.kinds for part in parts))

    def unreached(self, fused: Fused) -> dict[str, str]:
        """The branches with fused nodes that cannot be run, and why."""
        parts = [(part.branch, part.oracle) for part in self._parts(fused)]
        return {
            branch.scope: f"no inputs are found that its branch runs on: {oracle.reason}"
            for branch, oracle in parts
            if branch is not None and not oracle.cases
        }
