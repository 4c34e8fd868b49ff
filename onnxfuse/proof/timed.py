"""The proof in a process of its own, each of whose steps may take so long."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from onnxfuse.reporting.records import LeftOut, Validation
from onnxfuse.system.isolation import TookTooLongError, isolated

from .prove import FUSED, SEARCH, prove

if TYPE_CHECKING:
    from onnxfuse.fusing.fused import Banned, Fused, Progress


def proved(
    original: ModelProto,
    fused: Fused,
    rebuild: Callable[[Banned], Fused],
    *,
    timeout: float | None,
    progress: Progress,
    **options: Any,
) -> tuple[Fused, Validation, list[LeftOut]]:
    """`prove`, with a `timeout` in a child process each of whose steps may take so many seconds.

    An original that takes longer proves nothing.  A fused model that does, or that is known to differ when the time is
    up, is a mismatch.
    """
    if timeout is None:
        return prove(original, fused, rebuild, progress=progress, **options)

    def work(tell: Progress) -> tuple[Banned, Validation, list[LeftOut]]:
        candidate, validation, left_out = prove(original, fused, rebuild, progress=tell, **options)
        return candidate.banned, validation, left_out

    try:
        banned, validation, left_out = isolated(work, timeout, progress)
    except TookTooLongError as error:
        wrong = SEARCH in error.steps or error.steps[-1:] == [FUSED]
        note = f"{error}: give it more with --timeout" if wrong else str(error)
        return fused, Validation("mismatch" if wrong else "not validated", note=note), []
    return fused if banned == fused.banned else rebuild(banned), validation, left_out
