"""The proof in a process of its own, each of whose steps may take so long."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from onnxfuse.errors import CrashedError
from onnxfuse.reporting.records import LeftOut, Validation
from onnxfuse.system.isolation import TookTooLongError, isolated

from .claim import Claim, Experiment, Proved
from .comparison import CUTS, FUSED, SEARCH
from .prove import prove

if TYPE_CHECKING:
    from onnxfuse.fusing.fused import Banned, Progress
    from onnxfuse.rewriting.dims_apart import DimNames


def proved(claim: Claim, experiment: Experiment, progress: Progress) -> Proved:
    """`prove`, with a `timeout` in a child process each of whose steps may take so many seconds.

    An original that takes longer proves nothing.  A fused model that does, or that is known to differ when the time is
    up, is a mismatch.  Where onnxruntime crashes on a cut, its optimizer is kept from cuts, and the proof begins anew:
    of several cuts in a session, it has crashed (1.32) on one that is constant, which the model itself survives.

    Raises CrashedError where it crashes elsewhere, or without its optimizer, too.
    """
    fused, timeout = claim.fused, experiment.timeout
    if timeout is None:
        return prove(claim, experiment, progress)
    step = ""

    def told(name: str, done: int, total: int) -> None:
        nonlocal step
        step = name
        progress(name, done, total)

    def work(tell: Progress) -> tuple[Banned, DimNames, Validation, list[LeftOut]]:
        candidate, validation, left_out = prove(claim, experiment, tell)
        return candidate.banned, candidate.apart, validation, left_out

    try:
        banned, apart, validation, left_out = isolated(work, timeout, told)
    except TookTooLongError as error:
        wrong = SEARCH in error.steps or error.steps[-1:] == [FUSED]
        note = f"{error}: give it more with --timeout" if wrong else str(error)
        return Proved(fused, Validation("mismatch" if wrong else "not validated", note=note), [])
    except CrashedError:
        if step != CUTS or not experiment.optimizing:
            raise
        return proved(claim, replace(experiment, optimizing=False), progress)
    same = banned == fused.banned and not apart
    return Proved(fused if same else claim.rebuild(banned, apart), validation, left_out)
