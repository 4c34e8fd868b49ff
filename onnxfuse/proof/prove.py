"""Proof of a fused model, and the search for the fusions that break it.

Two tests, since each sees what the other does not: the outputs of the whole model on generated inputs, and every value
that is computed anew, cut out with its neighbourhood and fed with unit normals.

    1  Run the original.  One that does not run proves nothing, and that is the verdict.  A branch of an If is proved as
       if it were always taken; of one that does not run, what is fused is left out.
    2  Compare the outputs of the fused model, and then its cuts.
    3  Cuts that differ name the fusions that are to blame (`blame`).  Ban those, fuse again, and go on at 2; at most
       ATTEMPTS times, the last time with all rules that they were built on.
       Where inputs call dimensions the same that are not, these are told apart first (`namesakes`).
    4  If the outputs differ though no cut does, try one remedy after another, until they agree:
       a  fuse again with nothing computed anew but what rules ask for,
       b  find the guilty by bisection among matches that left no node, which no cut shows,
       c  find the guilty by bisection among all fusions.

Where nothing is to be left out (`Experiment.bisecting`), the first fusion to blame ends the proof, and b and c are not
tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from onnxfuse.fusing.fused import EVERY
from onnxfuse.model.graph import count_nodes
from onnxfuse.reporting.records import LeftOut, Validation
from onnxfuse.rewriting.provenance import keys

from . import namesakes
from .bisection import bisect
from .blame import Blame, left_out, left_out_vanished
from .claim import Claim, Experiment, Proved
from .comparison import FUSED, STEPS
from .comparisons import Comparisons
from .noise import ALIKE, alike
from .oracle import NOT_RUN

if TYPE_CHECKING:
    from onnxfuse.fusing.fused import Banned, Fused, Progress
    from onnxfuse.rewriting.provenance import Vanished

ATTEMPTS = 5
"""Times that guilty sites are left out and the rest is tried again; the last time with all that they were built on."""


def prove(claim: Claim, experiment: Experiment, progress: Progress) -> Proved:
    """Compare the fused model with the original; leave out the guilty fusions if that is wanted.

    Raises what `Oracle` does."""
    steadied = alike(claim)
    comparison = Comparisons(steadied, experiment, progress)
    proved = _proved(comparison, experiment)
    if proved.validation.verdict != "equal":
        return proved
    said = (
        proved.validation.note,
        ALIKE if steadied is not claim else "",
        namesakes.note(proved.fused.apart),
        namesakes.hint(comparison.namesakes) if proved.left_out and not experiment.rename_dims else "",
    )
    return proved._replace(validation=replace(proved.validation, note="; ".join(filter(None, said))))


def _proved(comparison: Comparisons, experiment: Experiment) -> Proved:
    proved, final = _by_cuts(comparison)
    if final:
        return proved
    remedies = [_unsimplified]
    if experiment.bisecting:
        remedies += [_without_vanished, _without_guilty]
    for remedy in remedies:
        if proved.validation.verdict != "mismatch":
            break
        proved = remedy(comparison, proved)
    return proved


def _by_cuts(comparison: Comparisons) -> tuple[Proved, bool]:
    """Leave out what cuts that differ tell of.  Also whether there is nothing else to try."""
    fused, blame = comparison.claim.fused, Blame()
    if not comparison.whole.oracle.cases:
        return Proved(fused, comparison.outputs(fused), []), True
    fused, unreached = _without_unreached(comparison, fused)
    for attempt in range(ATTEMPTS):
        comparison.progress(FUSED, 1, STEPS)
        verdict = comparison.outputs(fused)
        if not attempt and verdict.verdict == "mismatch":
            fused, verdict = comparison.told_apart(fused, verdict)
        guilty = comparison.suspects(fused)
        if not guilty:
            verdict = comparison.with_sites(verdict)
            break
        if guilty.sites and not comparison.experiment.bisecting:
            site, reason = guilty.sites[0]
            note = f"{site.matches[-1].rule.name} at {site.node.name}: {reason}"
            return Proved(fused, replace(verdict, verdict="mismatch", note=note), []), True
        fused = comparison.claim.rebuild(blame.lay(guilty, fused.banned, verdict, whole=attempt == ATTEMPTS - 1))
    else:
        verdict = comparison.outputs(fused)
    return Proved(fused, verdict, [*unreached, *blame.left_out]), False


def _without_unreached(comparison: Comparisons, fused: Fused) -> tuple[Fused, list[LeftOut]]:
    """Without what is fused in branches that cannot be run, and that."""
    reasons = comparison.unreached(fused)
    if not reasons:
        return fused, []
    nothing = Validation("not validated")
    told = [left_out(site, nothing, reasons[site.scope]) for site in fused.sites if site.scope in reasons]
    return comparison.claim.rebuild(fused.banned | {(scope, EVERY, "") for scope in reasons}), told


def _unsimplified(comparison: Comparisons, proved: Proved) -> Proved:
    """Nothing is computed anew but what rules ask for; the verdict says what that costs, and what it is for."""
    if not proved.fused.simplified:
        return proved
    fused = comparison.claim.rebuild(proved.fused.banned | proved.fused.simplified)
    verdict = comparison.outputs(fused)
    more = count_nodes(fused.model) - count_nodes(proved.fused.model)
    if verdict.verdict == "equal" and more > 0:
        nodes = "one more node" if more == 1 else f"{more} more nodes"
        lost = f"{nodes} could go but for {_shortened(proved.validation.note)}"
        verdict = replace(verdict, note="; ".join(filter(None, (verdict.note, lost))))
    return proved._replace(fused=fused, validation=verdict)


def _shortened(note: str) -> str:
    """Why a model differs, and what to do where that is the sizes of inputs alone."""
    before, _, said = note.partition(f"{NOT_RUN} at ")
    place = said.partition(": ")[0]
    if before or not place:
        return f"this: {note}"
    return f"inputs such as {place}, which the original runs: if yours are never so, fix their sizes with --shape"


def _without_vanished(comparison: Comparisons, proved: Proved) -> Proved:
    """Without those of its matches that left no node and are to blame; as it was, if that does not help."""
    fused, rebuild = proved.fused, comparison.claim.rebuild

    def without(gone: Iterable[Vanished]) -> Fused:
        return rebuild(fused.banned.union(*(one.keys for one in gone)))

    def good(kept: frozenset[int]) -> bool:
        rest = (one for number, one in enumerate(fused.vanished) if number not in kept)
        return comparison.outputs(without(rest)).verdict != "mismatch"

    if not fused.vanished or not good(frozenset()):
        return proved
    wrong = [fused.vanished[number] for number in sorted(bisect(range(len(fused.vanished)), good))]
    if not wrong:
        return proved
    left = without(wrong)
    told = [*proved.left_out, *(left_out_vanished(one, proved.validation) for one in wrong)]
    return Proved(left, comparison.outputs(left), told)


def _without_guilty(comparison: Comparisons, proved: Proved) -> Proved:
    """Without the fusions that a bisection finds."""
    whole, verdict = proved.fused, proved.validation
    numbers = range(len(whole.sites))
    if not numbers:
        return proved

    rest = _Rest(comparison.claim, whole)
    last: tuple[frozenset[int], Fused, Validation] | None = None

    def good(kept: frozenset[int]) -> bool:
        nonlocal last
        comparison.progress("bisect", len(kept), len(numbers))
        gone = frozenset(numbers) - kept
        fused = rest.without(gone)
        validation = comparison.outputs(fused)
        if validation.verdict == "mismatch":
            return False
        last = gone, fused, validation
        return True

    guilty = bisect(numbers, good)
    told = [left_out(whole.sites[number], verdict, verdict.note) for number in sorted(guilty)]
    if last is not None and last[0] == guilty:  # as it nearly always is: what a search ends with has been tried
        _, left, validation = last
    else:
        left = rest.without(guilty)
        validation = comparison.outputs(left)
    return Proved(left, validation, [*proved.left_out, *told])


class _Rest:
    """Fused models without some of the sites of one, and without what has only become possible without them."""

    def __init__(self, claim: Claim, whole: Fused) -> None:
        self._claim, self._whole = claim, whole
        self._keys = [frozenset(keys(site, site.matches)) for site in whole.sites]
        self._new: Banned = frozenset()
        """What has become possible in some try: in the next it need not be found anew."""

    def without(self, numbers: frozenset[int]) -> Fused:
        """Without the sites of these numbers."""
        empty: Banned = frozenset()
        kept = empty.union(*(made for number, made in enumerate(self._keys) if number not in numbers))
        out = empty.union(*(self._keys[number] for number in numbers)) | (self._new - kept)
        while True:
            fused = self._claim.rebuild(self._whole.banned | out)
            made = empty.union(*(keys(site, site.matches) for site in fused.sites)) | fused.simplified
            if made <= kept | out:
                return fused
            out |= made - kept
            self._new |= made - kept
