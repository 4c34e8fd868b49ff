"""The original's answers, and what fused models make of the same inputs: whole, and value by value."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from onnxfuse.reporting.records import Validation

from . import inputs
from .branches import WHOLE, Branch, called_alike, taken, with_calls
from .claim import Claim, Experiment
from .cut_proof import compare_sites, wanted
from .inside import Inside
from .oracle import Oracle

if TYPE_CHECKING:
    from onnxfuse.fusing.fused import Fused, Progress

    from .cut_proof import Compared

ORIGINAL, FUSED, CUTS = "run the original", "run the fused model", "compare site by site"
SEARCH = "find what to leave out"
"""Steps of the proof: the last begins where the fused model is known to differ."""
STEPS = 3
OTHERWISE = "onnxruntime's optimizer changes what the original computes; both ran without it"


class Comparison:
    """Runs the original once, in the constructor, and compares fused models with it; of all of them the same `branch`,
    if one is given (`branches.taken`).  Values are looked for where the `straight` original has them
    (`rewriting.inline_control_flow`), and branches there."""

    optimized = True
    """Does onnxruntime's optimizer work on the fused model?  Not where it alone makes the original differ."""
    sites = kinds = 0
    """How many values were compared one by one when that was done last, and how many of them were run for that."""

    def __init__(
        self,
        claim: Claim,
        experiment: Experiment,
        progress: Progress,
        straight: ModelProto,
        branch: Branch | None = None,
    ) -> None:
        self.claim, self.experiment, self.progress, self.branch = claim, experiment, progress, branch
        self._straight = self._of(straight)
        self._original = claim.original if branch is None else self._straight
        self._kernels: dict[str, Any] = {"emulate": experiment.validate == "kernels", "rules": claim.rules}
        self._inside = Inside(self._straight, claim.base_dir)
        self._watch(claim.fused)
        progress(ORIGINAL, 0, STEPS)
        self.oracle = Oracle(
            self._original,
            seed=experiment.seed,
            shapes=experiment.shapes,
            given=experiment.inputs,
            base_dir=claim.base_dir,
            reference=experiment.validate == "reference",
            inside=self._inside if self._original is self._straight else None,
            **self._kernels,
        )

    def _watch(self, fused: Fused) -> None:
        """Let the runs of the original tell what `cuts` will ask, where it is known at which sizes of inputs it runs:
        what is large there is reduced as it runs."""
        sizes = inputs.known_sizes(self._straight, self.experiment.shapes, self.experiment.inputs)
        if sizes is not None and self._original is self._straight and not self._straight.functions:
            asked = wanted(self._straight, self.runnable(fused))
            self._inside.watch(asked.names, sizes, asked.exact)

    def runnable(self, fused: Fused) -> ModelProto:
        """What is compared of a fused model, as the proof can run it."""
        return self._of(self.claim.runnable(fused.model))

    def _of(self, model: ModelProto) -> ModelProto:
        """What is compared of a model."""
        if self.branch is None:
            return model
        own = taken(model, self.branch)
        assert own is not None, "a site stands there"
        return own

    def outputs(self, fused: Fused) -> Validation:
        """The verdict on a fused model by its outputs, without onnxruntime's optimizer where that changes the
        original."""
        runnable = self.runnable(fused)
        verdict = self._verdict(runnable)
        if verdict.verdict == "mismatch" or (self.optimized and self.oracle.stepped):
            self.progress(SEARCH, 1, STEPS)
            if self.optimized and (self._verdict(self._original).verdict == "mismatch" or self.oracle.stepped):
                self.optimized = False
                verdict = self._verdict(runnable)
        if not self.optimized and verdict.verdict == "equal":
            return replace(verdict, note="; ".join(filter(None, (verdict.note, OTHERWISE))))
        return verdict

    def _verdict(self, model: ModelProto) -> Validation:
        rtol, atol = self.experiment.rtol, self.experiment.atol
        return self.oracle.compare(model, optimize=self.optimized, rtol=rtol, atol=atol)

    def cuts(self, fused: Fused) -> tuple[ModelProto, Compared, list[Branch]]:
        """What was compared of a fused model value by value, each cut out of both models, what came of it, and of which
        bodies values were.  Of the whole model those of functions are."""
        self.progress(CUTS, 2, STEPS)
        runnable = self.runnable(fused)
        branches = [self.branch or WHOLE]
        called = called_alike(self._straight, runnable, {s.scope for s in fused.sites}) if self.branch is None else []
        compared = None
        if called:
            tested = with_calls(runnable, called)
            compared = self._compared(with_calls(self._straight, called), tested)
            if compared.count:
                runnable, branches = tested, [*branches, *called]
        if compared is None or not compared.count:
            compared = self._compared(self._straight, runnable)
        self.sites, self.kinds = compared.count, compared.judged
        if compared.wrong:
            self.progress(SEARCH, 2, STEPS)
        return runnable, compared, branches

    def _compared(self, original: ModelProto, fused: ModelProto) -> Compared:
        return compare_sites(
            original,
            fused,
            self.oracle.cases,
            scope="" if self.branch is None else self.branch.name(""),
            inside=self._inside if original is self._straight else None,
            base_dir=self.claim.base_dir,
            seed=self.experiment.seed,
            optimize=self.experiment.optimizing,
            tell=partial(self.progress, CUTS),
            **self.experiment.tolerances,
            **self._kernels,
        )
