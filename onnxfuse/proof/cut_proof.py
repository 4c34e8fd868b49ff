"""Each site of a fused model against the original's: equations in float64, and what onnxruntime makes of them.

A site is run four times on the same inputs: both models' nodes in their own precision, and both in float64.  Equations
that are the same agree in float64 but for what rounding the constants did (`cut_tolerance`); what remains in the
models' own precision is rounding, of which the fused model may do a few times as much as the original.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx
from threadpoolctl import threadpool_limits

from onnxfuse.model.validity import ITEM_BYTES
from onnxfuse.runtime.quiet import Session, SessionError

from . import cut_feeds, cuts, float64, numerics
from .bfloat16 import emulated
from .cut_moves import Models, apart, both, evaluator, run, weights
from .cut_tolerance import Equation
from .cuts import Cut
from .input_values import Case
from .inside import Inside
from .kinds import Kinds
from .lengths import Lengths
from .observed import telling
from .outlines import is_stood_for
from .pictures import smaller
from .precision import dtype_of, precisions
from .quantizers import QUANTIZERS
from .reshaped import Values, candidates, with_fused_values
from .roundings import Roundings
from .seen import Seen

Tell: TypeAlias = Callable[[int, int], None]

_SITES = 250
"""Sites that are compared in one session: onnxruntime's time to load grows faster than its nodes."""
_BYTES = 1 << 26
"""Initializers of the sites of one session, which float64 doubles, and of which onnxruntime makes copies for both."""
_FED = 1 << 25
"""Bytes that these sites are fed.  Around ten times as much is held at a time: both models' results in two precisions,
what is allowed to differ, and what moves."""
STYLES = ("plain", "rows", "samples")
"""What sites are fed, see `cut_feeds.feed`."""


@dataclass(slots=True)
class Compared:
    """What became of the sites."""

    count: int = 0
    """Sites of which it is known."""
    judged: int = 0
    """Of these, those that were run; each stands for the others of its kind (`kinds`) if it is right."""
    exactly: set[str] = field(default_factory=set)
    """The values of those that were run whose equations were compared in float64."""
    error: float = 0.0
    """The largest error of an equation, beyond what rounding does, relative to the number that is wrong; infinite where
    that showed in the models' own precision already."""
    right: set[str] = field(default_factory=set)
    """Values that are what they were."""
    wrong: dict[Cut, str] = field(default_factory=dict)
    """Sites that differ, and how; none that merely contains another."""


def compare_sites(
    original: onnx.ModelProto,
    fused: onnx.ModelProto,
    cases: Sequence[Case],
    *,
    scope: str = "",
    inside: Inside | None = None,
    base_dir: Path | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    optimize: bool = True,
    tell: Tell = lambda done, total: None,
    **kernels: Any,
) -> Compared:
    """Compares the values that the two models compute differently, one by one, on numbers of several sizes (`sites`).
    Only those whose names begin with `scope`.  What is `inside` the original may be known already.

    Of `cases`, which are the oracle's, the first gives shapes, and the last unusual one masks as well.  Nothing is
    compared where nothing can be cut out, or no cutting runs.  onnxruntime optimizes cuts of the fused model, if
    `optimize` is set.  `tell` is told how many are done, and of how many.
    """
    found = _within(scope, original, fused)
    if not found:
        return Compared()
    inside = Inside(original, base_dir) if inside is None else inside
    asked = wanted(original, fused, found)
    try:
        inside.outlines(asked.names, telling(cases), asked.exact)
    except SessionError:
        return Compared()

    def values(names: set[str], exact: set[str]) -> list[dict[str, Any]]:
        return inside.values(names, telling(cases), exact)

    def compared(original: onnx.ModelProto, found: Sequence[Cut], values: Values) -> Compared:
        models = Models(original, fused, base_dir, kernels, optimize)
        try:
            real = values(behind(found), _exact(found)) if found else []
        except SessionError:
            return Compared()
        # NumPy's products of these sizes take ten times as long where threads share and wait for them.
        with threadpool_limits(1, user_api="blas"):
            return compare_found(models, found, real, values, seed=seed, rtol=rtol, atol=atol, tell=tell)

    if views := with_fused_values(original, fused, found, cases, inside):
        result = compared(views.model, _within(scope, views.model, fused), views.known(values))
        if views.names <= result.right and not result.wrong:
            return result
    return compared(original, found, values)


class Wanted(NamedTuple):
    """What may be asked of the values inside an original."""

    names: set[str]
    exact: set[str]
    """Those that noise does not stand in for."""


def wanted(original: onnx.ModelProto, fused: onnx.ModelProto, found: Sequence[Cut] | None = None) -> Wanted:
    """What comparing two models will ask of the original, nearly always; the cuts are those that were `found`."""
    found = cuts.find(original, fused) if found is None else found
    return Wanted(behind(found).union(candidates(original, fused, found)), _exact(found))


def _within(scope: str, original: onnx.ModelProto, fused: onnx.ModelProto) -> list[Cut]:
    return [site for site in cuts.find(original, fused) if site.output.startswith(scope)]


def behind(sites: Iterable[Cut]) -> set[str]:
    """The values of the original that sites are fed, or whose likes."""
    return {name for site in sites for name in (*site.stops, *site.observed)}


def _exact(sites: Iterable[Cut]) -> set[str]:
    """Those of them that they are fed as they are."""
    return {name for site in sites for name in (*(site.stops if site.entangled else ()), *site.observed)}


def compare_found(
    models: Models,
    found: Sequence[Cut],
    real: Sequence[Mapping[str, Any]],
    values: Values | None = None,
    *,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    tell: Tell = lambda done, total: None,
) -> Compared:
    """`compare_sites` of some sites alone, with their values in `real` runs; `values` tells more of those of which only
    shape and sign are known."""
    original, fused = models.original, models.fused
    arrays = [{name for name, value in values.items() if isinstance(value, np.ndarray)} for values in real]
    known = set.intersection(*arrays) if arrays else set()
    found = [s for s in found if {*s.stops, *s.observed} <= known]
    result = Compared()
    lengths = Lengths(original, fused, real)
    groups = Kinds(original, fused, real, models.base_dir).grouped(found)

    def compared(
        sites: Sequence[Cut], result: Compared = result, real: Sequence[Mapping[str, Any]] = real
    ) -> dict[Cut, str]:
        done = partial(_compared, models, real=real, seed=seed, tolerances=(rtol, atol))
        trial = Compared()
        for small in zip_longest(*(_small(site, original, real, lengths) for site in sites)):
            own = [site for site in small if site is not None and site.output not in trial.right]
            done(own, result=trial, tell=lambda count: tell(result.count + count, len(found)))
        result.right |= trial.right
        result.exactly |= trial.exactly & trial.right
        result.count += len(trial.right)
        left = [site for site in sites if site.output not in trial.right]
        return done(left, result=result, tell=lambda count: tell(count, len(found)))

    wrong = compared([group[0] for group in groups])
    # Where the first of a kind is not right, or does not run, the others have to speak for themselves.
    wrong |= compared([site for group in groups if group[0].output not in result.right for site in group[1:]])
    made = cuts.bound(original, fused, wrong, known).values() if wrong else ()
    again = list(made)
    if faint := {name for site in again if site.entangled for name in site.stops if _is_faint(name, real)}:
        if values is None:
            again = [site for site in again if not (site.entangled and faint.intersection(site.stops))]
        else:
            real = [{**run, **own} for run, own in zip(real, values(faint, faint), strict=True)]
    if again:
        bound = Compared()
        compared(again, bound, real)
        wrong = {site: reason for site, reason in wrong.items() if site.output not in bound.right}
        result.right |= bound.right
        result.error = result.error if wrong else bound.error
    stood_for = [site.output for group in groups if group[0].output in result.right for site in group[1:]]
    result.right.update(stood_for)
    result.judged, result.count = result.count, result.count + len(stood_for)
    result.wrong = {site: wrong[site] for site in found if site in wrong and not _explained(site, wrong, fused)}
    return result


def _small(site: Cut, original: onnx.ModelProto, real: Sequence[Mapping[str, Any]], lengths: Lengths) -> list[Cut]:
    """Smaller ones in which a site is tried, one after another."""
    picture = smaller(original, site, real)
    return [picture] if picture is not None else lengths.shorter(site)


def _is_faint(name: str, real: Sequence[Mapping[str, Any]]) -> bool:
    """Is a value known by its shape and sign alone?"""
    return any(is_stood_for(values[name]) for values in real)


def _compared(
    models: Models,
    sites: Sequence[Cut],
    *,
    real: Sequence[Mapping[str, Any]],
    seed: int,
    tolerances: tuple[float | None, float | None],
    result: Compared,
    tell: Callable[[int], None],
) -> dict[Cut, str]:
    """Why sites differ, each run by itself; `result` is told of them."""
    wrong: dict[Cut, str] = {}
    pending = list(_parts(models, sites, real[0] if real else {}))
    while pending:
        part = pending.pop()
        tell(result.count)
        try:
            differences = _compare_part(models, part, real, seed, tolerances, result)
        except SessionError:
            # One that does not run alone must not silence the others.
            middle = len(part) // 2
            pending += [part[middle:], part[:middle]] if middle else []
            continue
        result.count += len(part)
        wrong |= differences
        result.right |= {site.output for site in part if site not in differences}
    return wrong


def _explained(site: Cut, wrong: Mapping[Cut, str], fused: onnx.ModelProto) -> bool:
    """Does the site contain another that is wrong by itself?"""
    nodes = set(site.fused)
    return any(other is not site and set(other.fused) < nodes for other in wrong)


def _parts(models: Models, found: Sequence[Cut], real: Mapping[str, Any]) -> Iterator[list[Cut]]:
    """Sites that run in one session: alike in who runs them in float64 and in whether they round to steps, and not too
    many or too large."""
    sizes = {tensor.name: _bytes(tensor) for tensor in models.original.graph.initializer}
    groups: dict[tuple[bool, ...], list[Cut]] = {}
    for site in found:
        before, after = (
            float64.operators([model.graph.node[i] for i in cone], model.functions)
            for model, cone in ((models.original, site.original), (models.fused, site.fused))
        )
        runs = [bool(float64.lacks_double(ops)) for ops in (before, after)]
        known = [bool(float64.lacks_double(ops) and float64.lacks_reference(ops)) for ops in (before, after)]
        groups.setdefault((*runs, *known, bool(before & QUANTIZERS)), []).append(site)
    for group in groups.values():
        part: list[Cut] = []
        weight = fed = 0
        for site in group:
            read = {name for i in site.original for name in models.original.graph.node[i].input}
            size = sum(sizes.get(name, 0) for name in read)
            own = sum(math.prod(shape) * real[name].itemsize for name, shape in site.shapes(real).items())
            if part and (len(part) >= _SITES or weight + size > _BYTES or fed + own > _FED):
                yield part
                part, weight, fed = [], 0, 0
            part.append(site)
            weight, fed = weight + size, fed + own
        yield part


def _bytes(tensor: onnx.TensorProto) -> int:
    """The size of a tensor, wherever its numbers are."""
    return int(math.prod(tensor.dims)) * ITEM_BYTES.get(tensor.data_type, 1)


def _compare_part(
    models: Models,
    part: list[Cut],
    real: Sequence[Mapping[str, Any]],
    seed: int,
    tolerances: tuple[float | None, float | None],
    result: Compared,
) -> dict[Cut, str]:
    """Why sites differ that run in one session.  Raises SessionError where one of them does not run."""
    loose = cut_feeds.loose(models.original, models.fused, part)
    feeds = [cut_feeds.feed(part, values, seed, loose=loose) for values in real]
    before, after = both(models, part, feeds)
    # Widened once for all that is fed; nothing else is in float64 for longer than it is needed.
    wide = weights(models, part, float64.widened)
    double = both(models, part, [feed | wide for feed in feeds]) if wide else (before, after)
    del feeds
    # Sites are small: threads would wait for each other.
    original = Session(emulated(before), models.base_dir, optimize=False, threads=1)
    # Between quantizers the optimizer takes other kernels, and with their last digits other steps.
    optimize = models.optimize and not any(node.op_type in QUANTIZERS for node in before.graph.node)
    fused = Session(emulated(after), models.base_dir, optimize=optimize, threads=1, **models.kernels)
    worth = precisions(before, [output.name for output in before.graph.output])
    exact, again = (evaluator(model, models.base_dir) for model in double)
    roundings = Roundings(before, models.base_dir)
    wrong: dict[Cut, str] = {}
    trusted = [True] * len(part)
    for style in STYLES:
        given = cut_feeds.feed(part, real[style == "rows"], seed, style, loose)
        fed = cut_feeds.given(before, given)
        wanted, got = original.run(fed), fused.run(cut_feeds.given(after, given))
        own = given | wide
        truth, same = (run(e, cut_feeds.given(m, own)) for e, m in zip((exact, again), double, strict=True))
        stored: list[Any] = []
        open_: dict[int, Equation] = {}
        for number, site in enumerate(part):
            if site in wrong:
                continue
            true = truth[number] if truth is not None and trusted[number] else None
            masked = style == "rows"
            seen = Seen(wanted[number], got[number], true, same and same[number], masked, dtype_of(worth[number]))
            if style == STYLES[0]:
                trusted[number] = seen.plausible
                if seen.plausible and seen.same is not None:
                    result.exactly.add(site.output)
                if not trusted[number]:
                    seen = replace(seen, truth=None)
            if masked and seen.precision == np.float16 and seen.reason(*tolerances):
                stored = stored or _stored(before, models.base_dir, fed)
                seen = replace(seen, wanted=numerics.nearer(seen.got, seen.wanted, stored[number]))
            seen = replace(seen, rounding=partial(roundings.allow, style, fed, wanted, number))
            if reason := seen.reason(*tolerances):
                wrong[site], result.error = reason, float("inf")
            elif (equation := seen.equation) is not None and not equation.holds:
                open_[number] = equation
        for number in apart(models, part, open_, given):
            error, allowed = open_[number].worst()
            result.error = max(result.error, open_[number].error)
            wrong[part[number]] = f"differs by {error:.1e} from float64 ({allowed:.0e} allowed)"
    return wrong


def _stored(model: onnx.ModelProto, base_dir: Path | None, feeds: Mapping[str, Any]) -> list[Any]:
    """What the original gives with each result rounded to float16: weights of rows that are masked throughout hang on
    it.  Nothing for each where that does not run, which excuses nothing."""
    try:
        return Session(emulated(model, onnx.TensorProto.FLOAT16), base_dir, optimize=False, threads=1).run(feeds)
    except SessionError:
        return [None] * len(model.graph.output)
