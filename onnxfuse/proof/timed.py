"""The proof in a process of its own, each of whose steps may take so long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxfuse.reporting.records import LeftOut, Validation
from onnxfuse.system.isolation import TookTooLongError, isolated

from .claim import Claim, Experiment, Proved
from .comparison import FUSED, SEARCH
from .prove import prove

if TYPE_CHECKING:
    from onnxfuse.fusing.fused import Banned, Progress


def proved(claim: Claim, experiment: Experiment, progress: Progress) -> Proved:
    """`prove`, with a `timeout` in a child process each of whose steps may take so many seconds.

    An original that takes longer proves nothing.  A fused model that does, or that is known to differ when the time is
    up, is a mismatch.
    """
    fused, timeout = claim.fused, experiment.timeout
    if timeout is None:
        return prove(claim, experiment, progress)

    def work(tell: Progress) -> tuple[Banned, Validation, list[LeftOut]]:
        candidate, validation, left_out = prove(claim, experiment, tell)
        return candidate.banned, validation, left_out

    try:
        banned, validation, left_out = isolated(work, timeout, progress)
    except TookTooLongError as error:
        wrong = SEARCH in error.steps or error.steps[-1:] == [FUSED]
        note = f"{error}: give it more with --timeout" if wrong else str(error)
        return Proved(fused, Validation("mismatch" if wrong else "not validated", note=note), [])
    return Proved(fused if banned == fused.banned else claim.rebuild(banned), validation, left_out)
