"""Proof of a fused model, and the search for the fusions that break it.

Two tests, since each sees what the other does not: the outputs of the whole model on generated inputs, and every value
that is computed anew, cut out with its neighbourhood and fed with unit normals.  A fusion that fails the second is left
out by name; what only the first sees is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from onnxfuse.reporting.records import Fusion, LeftOut, Validation
from onnxfuse.rewriting.provenance import keys

from .cut_proof import compare_sites
from .oracle import Oracle, bisect

if TYPE_CHECKING:
    from onnxfuse.fusing.fused import Banned, Fused, Progress
    from onnxfuse.rewriting.provenance import Site, Vanished

    from .cut_proof import Compared

ATTEMPTS = 5
"""Times that guilty sites are left out and the rest is tried again; the last time with all that they were built on."""
ORIGINAL, FUSED = "run the original", "run the fused model"
SEARCH = "find what to leave out"
"""Steps of the proof: the last begins where the fused model is known to differ."""
OTHERWISE = "onnxruntime's optimizer changes what the original computes; both ran without it"


def prove(
    original: ModelProto,
    fused: Fused,
    rebuild: Callable[[Banned], Fused],
    *,
    runs: Callable[[ModelProto], ModelProto],
    bisecting: bool,
    reference: bool,
    emulate: bool,
    rules: Sequence[Path],
    options: Mapping[str, Any],
    base_dir: Path | None,
    progress: Progress,
) -> tuple[Fused, Validation, list[LeftOut]]:
    """Compare the fused model with the original; leave out the guilty fusions if `bisecting`.

    `runs` makes of a fused model what the proof can run (`stand_in`).  Returns the model that passed (or the last one
    that did not), the verdict on it, and what was left out.
    """
    progress(ORIGINAL, 0, 3)
    kernels: dict[str, Any] = {"emulate": emulate, "rules": rules}
    tolerances = {"rtol": options["rtol"], "atol": options["atol"]}
    oracle = Oracle(
        original,
        seed=options["seed"],
        shapes=options["shapes"],
        given=options["given"],
        base_dir=base_dir,
        reference=reference,
        **kernels,
    )
    blamed: dict[Banned, tuple[Banned, LeftOut]] = {}
    banned: Banned = frozenset()
    candidate = fused
    optimized = True

    def compare(model: ModelProto) -> Validation:
        """The verdict on a model; without onnxruntime's optimizer where that alone makes the original differ."""
        nonlocal optimized
        verdict = oracle.compare(runs(model), optimize=optimized, **tolerances)
        if verdict.verdict == "mismatch":
            progress(SEARCH, 1, 3)
        if optimized and verdict.verdict == "mismatch":
            optimized = oracle.compare(original, **tolerances).verdict != "mismatch"
            return verdict if optimized else compare(model)
        if not optimized and verdict.verdict == "equal":
            return replace(verdict, note="; ".join(filter(None, (verdict.note, OTHERWISE))))
        return verdict

    for attempt in range(ATTEMPTS):
        progress(FUSED, 1, 3)
        verdict = compare(candidate.model)
        if not oracle.cases:
            return candidate, verdict, []
        progress("compare site by site", 2, 3)
        tested = runs(candidate.model)
        compared = compare_sites(
            original, tested, oracle.cases, base_dir=base_dir, seed=options["seed"], **tolerances, **kernels
        )
        if compared.wrong:
            progress(SEARCH, 2, 3)
        guilty, unsimple = _blamed(candidate, tested, compared)
        if not guilty and not unsimple:
            break
        if guilty and not bisecting:
            site, reason = guilty[0]
            reason = f"{site.matches[-1].rule.name} at {site.node.name}: {reason}"
            return candidate, replace(verdict, verdict="mismatch", note=reason), []
        for site, reason in guilty:
            # The last rule first: what it was built on may be right.  If that is wrong, it is to blame alone.
            chain = frozenset(keys(site, site.matches))
            last = frozenset(keys(site, site.matches[-1:])) if attempt < ATTEMPTS - 1 else chain
            for cleared in [key for key, (below, _) in blamed.items() if last & below - key]:
                banned -= cleared
                del blamed[cleared]
            blamed[last] = chain, _left_out(site, verdict, reason)
            banned |= last
        banned |= unsimple
        candidate = rebuild(banned)
    else:
        verdict = compare(candidate.model)
    left_out = [left for _, left in blamed.values()]
    if verdict.verdict == "mismatch" and candidate.simplified:
        banned |= candidate.simplified
        candidate = rebuild(banned)
        verdict = compare(candidate.model)
    if verdict.verdict == "mismatch" and not optimized and oracle.judge_by_float64(original, **tolerances):
        verdict = compare(candidate.model)
    if verdict.verdict == "mismatch" and bisecting and candidate.vanished:
        candidate, gone = _without_vanished(candidate, banned, rebuild, lambda one: compare(one.model))
        if gone:
            banned, left_out = candidate.banned, [*left_out, *(_gone(one, verdict) for one in gone)]
            verdict = compare(candidate.model)
    if verdict.verdict != "mismatch" or not bisecting or not candidate.sites:
        return candidate, verdict, left_out
    suspects, held = candidate, banned

    def without(sites: frozenset[int]) -> Fused:
        """The rest of the suspects, and nothing that has only become possible without these."""
        kept = {key for i, site in enumerate(suspects.sites) if i not in sites for key in keys(site, site.matches)}
        out = {key for i in sites for key in keys(suspects.sites[i], suspects.sites[i].matches)}
        while True:
            result = rebuild(held | out)
            made = {key for site in result.sites for key in keys(site, site.matches)} | result.simplified
            if made <= kept | out:
                return result
            out |= made - kept

    def good(kept: frozenset[int]) -> bool:
        progress("bisect", len(kept), len(suspects.sites))
        rest = frozenset(range(len(suspects.sites))) - kept
        return compare(without(rest).model).verdict != "mismatch"

    found = bisect(range(len(suspects.sites)), good)
    left_out += [_left_out(suspects.sites[i], verdict, verdict.note) for i in sorted(found)]
    candidate = without(found)
    return candidate, compare(candidate.model), left_out


def _without_vanished(
    fused: Fused, banned: Banned, rebuild: Callable[[Banned], Fused], compare: Callable[[Fused], Validation]
) -> tuple[Fused, list[Vanished]]:
    """The model without those of its matches that left no node and are to blame, and which they are; `fused` itself
    and none if that does not help."""

    def without(gone: Iterable[Vanished]) -> Fused:
        return rebuild(banned.union(*(v.keys for v in gone)))

    if compare(without(fused.vanished)).verdict == "mismatch":
        return fused, []
    numbers = range(len(fused.vanished))
    guilty = bisect(
        numbers,
        lambda kept: compare(without(fused.vanished[i] for i in numbers if i not in kept)).verdict != "mismatch",
    )
    wrong = [fused.vanished[i] for i in sorted(guilty)]
    return without(wrong), wrong


def _gone(vanished: Vanished, verdict: Validation) -> LeftOut:
    """What a match would have been that left no node."""
    rule, at = vanished.match.rule, min(vanished.match.values, default="")
    return LeftOut(Fusion(rule.name, rule.op, vanished.scope, at, (), (), 0, 0), verdict.max_error, verdict.note)


def _blamed(fused: Fused, tested: ModelProto, compared: Compared) -> tuple[list[tuple[Site, str]], Banned]:
    """The fusions that wrong values tell of, each with the reason, and what must not be simplified.

    A value that no fusion is named after is computed through some: those inside its cut are to blame, unless their own
    value is right.  `tested` is what was compared of the fused model."""
    guilty: dict[int, tuple[Site, str]] = {}
    unsimple: set[tuple[str, str, str]] = set()
    for cut, reason in compared.wrong.items():
        inside = {name for index in cut.fused for name in tested.graph.node[index].output}
        for names in ({cut.output}, inside - compared.right, inside):
            own = [site for site in fused.sites if not site.scope]
            found = {id(site): (site, reason) for site in own if names & {site.value, *site.node.output}}
            simplified = {key for key in fused.simplified if not key[0] and key[2] in names}
            if found or simplified:
                guilty |= found
                unsimple |= simplified
                break
    return list(guilty.values()), frozenset(unsimple)


def _left_out(site: Site, verdict: Validation, reason: str) -> LeftOut:
    from onnxfuse.reporting.tell import fusion

    return LeftOut(fusion(site), verdict.max_error, reason)
