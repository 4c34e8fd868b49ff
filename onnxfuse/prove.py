"""Proof of a fused model, and the search for the fusions that break it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from .report import LeftOut, Validation

if TYPE_CHECKING:
    from .pipeline import Banned, Fused, Progress


def prove(
    original: ModelProto,
    fused: Fused,
    rebuild: Callable[[Banned], Fused],
    *,
    bisecting: bool,
    reference: bool,
    options: Mapping[str, Any],
    base_dir: Path | None,
    progress: Progress | None,
) -> tuple[Fused, Validation, list[LeftOut]]:
    """Compare the fused model with the original; on a mismatch leave out the guilty fusions, if `bisecting`."""
    from .inputs import generate
    from .pipeline import fusion
    from .validate import bisect, compare

    def check(candidate: Fused) -> Validation:
        return compare(
            original,
            candidate.model,
            cases,
            rtol=options["rtol"],
            atol=options["atol"],
            base_dir=base_dir,
            reference=reference,
        )

    cases = generate(
        original, seed=options["seed"], shapes=options["shapes"], given=options["given"], base_dir=base_dir
    )
    if progress is not None:
        progress("validate", 0, 1)
    verdict = check(fused)
    if verdict.verdict != "mismatch" or not bisecting or not fused.sites:
        return fused, verdict, []
    first = verdict
    keys = [(s.scope, s.matches[-1].rule.name, s.value) for s in fused.sites]

    def good(kept: frozenset[int]) -> bool:
        if progress is not None:
            progress("bisect", len(kept), len(keys))
        banned = frozenset(k for i, k in enumerate(keys) if i not in kept)
        return check(rebuild(banned)).verdict != "mismatch"

    guilty = bisect(range(len(keys)), good)
    repaired = rebuild(frozenset(keys[i] for i in guilty))
    left_out = [LeftOut(fusion(fused.sites[i]), first.max_error or 0.0) for i in sorted(guilty)]
    return repaired, check(repaired), left_out
