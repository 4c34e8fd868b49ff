"""Each site of a fused model against the original's: equations in float64, and what onnxruntime makes of them.

A site is run four times on the same inputs: both models' nodes in their own precision, and both in float64.  Equations
that are the same agree in float64 but for what rounding the constants did; what remains in the models' own precision is
rounding, of which the fused model may do a few times as much as the original.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfuse.runtime.quiet import Session, SessionError

from . import cuts, float64, numerics
from .cuts import Site
from .input_values import Case

_SITES = 250
"""Sites that are compared in one session: onnxruntime's time to load grows faster than its nodes."""
_BYTES = 1 << 28
"""Initializers of the sites of one session, which float64 doubles."""
_EQUATION = 4
"""How far equations may be apart in float64, in units of the last place of the model's own precision: constants are
rounded to it, and where they are folded, anew.  Where that is amplified (`_shaken`), as far as it goes."""
_ROUNDING = 16
"""The same for what only runs in its own precision, and is rounded at every step."""
_SHAKES = 4
_PLAUSIBLE = 0.05
"""How far the original may be from itself in float64 on unit normals."""
STYLES = ("plain", "rows", "samples")
"""What sites are fed, see `cuts.feed`."""


@dataclass(slots=True)
class Compared:
    """What became of the sites."""

    count: int = 0
    exactly: int = 0
    """Of these, those whose equations were compared in float64."""
    error: float = 0.0
    """The largest error of an equation, beyond what rounding does, relative to its row."""
    right: set[str] = field(default_factory=set)
    """Values that are what they were."""
    wrong: dict[Site, str] = field(default_factory=dict)
    """Sites that differ, and how; none that merely contains another."""


@dataclass(frozen=True, slots=True)
class _Models:
    """What sites are cut from, and how they are run."""

    original: onnx.ModelProto
    fused: onnx.ModelProto
    base_dir: Path | None
    kernels: Mapping[str, Any]


def compare_sites(
    original: onnx.ModelProto,
    fused: onnx.ModelProto,
    cases: Sequence[Case],
    *,
    base_dir: Path | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    **kernels: Any,
) -> Compared:
    """Compares the values that the two models compute differently, one by one, on numbers of several sizes (`sites`).

    Of `cases`, which are the oracle's, the first gives shapes, and the last unusual one masks as well.  Nothing is
    compared where nothing can be cut out, or no cutting runs.
    """
    models = _Models(original, fused, base_dir, kernels)
    found = cuts.find(original, fused)
    usual = cases[0]
    # An empty case shows nothing.
    padded = next((c for c in cases[::-1] if c.unusual and _filled(c)), usual)
    try:
        real = _observe(original, found, (usual, padded), base_dir) if found else []
    except SessionError:
        return Compared()
    arrays = [{name for name, value in values.items() if isinstance(value, np.ndarray)} for values in real]
    found = [s for s in found if all({*s.stops, *s.observed} <= names for names in arrays)]
    result = Compared()
    wrong: dict[Site, str] = {}
    pending = list(_parts(models, found))
    while pending:
        part = pending.pop()
        try:
            differences = _compare_part(models, part, real, seed, (rtol, atol), result)
        except SessionError:
            # One that does not run alone must not silence the others.
            middle = len(part) // 2
            pending += [part[middle:], part[:middle]] if middle else []
            continue
        result.count += len(part)
        wrong |= differences
        result.right |= {site.output for site in part if site not in differences}
    result.wrong = {site: wrong[site] for site in found if site in wrong and not _explained(site, wrong, fused)}
    return result


def _filled(case: Case) -> bool:
    return all(value.size for value in case.inputs.values() if isinstance(value, np.ndarray))


def _explained(site: Site, wrong: Mapping[Site, str], fused: onnx.ModelProto) -> bool:
    """Does the site contain another that is wrong by itself?"""
    nodes = set(site.fused)
    return any(other is not site and set(other.fused) < nodes for other in wrong)


def _parts(models: _Models, found: Sequence[Site]) -> Iterator[list[Site]]:
    """Sites that run in one session: alike in who runs them in float64, and not too many or too large."""
    sizes = {tensor.name: tensor.ByteSize() for tensor in models.original.graph.initializer}
    groups: dict[tuple[bool, ...], list[Site]] = {}
    for site in found:
        before, after = (
            float64.operators([model.graph.node[i] for i in cone], model.functions)
            for model, cone in ((models.original, site.original), (models.fused, site.fused))
        )
        runs = [bool(float64.lacks_double(ops)) for ops in (before, after)]
        known = [bool(float64.lacks_double(ops) and float64.lacks_reference(ops)) for ops in (before, after)]
        groups.setdefault((*runs, *known), []).append(site)
    for group in groups.values():
        part: list[Site] = []
        weight = 0
        for site in group:
            read = {name for i in site.original for name in models.original.graph.node[i].input}
            size = sum(sizes.get(name, 0) for name in read)
            if part and (len(part) >= _SITES or weight + size > _BYTES):
                yield part
                part, weight = [], 0
            part.append(site)
            weight += size
        yield part


def _compare_part(
    models: _Models,
    part: list[Site],
    real: Sequence[Mapping[str, Any]],
    seed: int,
    tolerances: tuple[float | None, float | None],
    result: Compared,
) -> dict[Site, str]:
    """Why sites differ that run in one session.  Raises SessionError where one of them does not run."""
    loose = cuts.loose(models.original, models.fused, part)
    feeds = cuts.feed(part, real[0], seed, loose=loose)
    before = cuts.cut(models.original, part, [site.original for site in part], feeds)
    bare = [replace(site, observed=()) for site in part]
    after = cuts.cut(models.fused, bare, [site.fused for site in part], feeds)
    original = Session(before, models.base_dir, optimize=False)
    fused = Session(after, models.base_dir, optimize=True, **models.kernels)
    exact, again = _evaluator(before, models.base_dir), _evaluator(after, models.base_dir)
    wrong: dict[Site, str] = {}
    trusted = [True] * len(part)
    for style in STYLES:
        feeds = cuts.feed(part, real[style == "rows"], seed, style, loose)
        wanted, got = original.run(cuts.given(before, feeds)), fused.run(cuts.given(after, feeds))
        truth, same = (_run(e, cuts.given(m, feeds)) for e, m in ((exact, before), (again, after)))
        for number, site in enumerate(part):
            true = truth[number] if truth is not None and trusted[number] else None
            seen = _Seen(wanted[number], got[number], true, same and same[number], style == "rows")
            if style == STYLES[0]:
                trusted[number] = seen.plausible
                result.exactly += seen.plausible and seen.same is not None
                if not trusted[number]:
                    seen = replace(seen, truth=None)
            error = seen.error()
            if error > seen.allowed and site not in wrong:
                error = seen.error(_shaken(models, site, number, feeds, numerics.epsilon(seen.wanted.dtype)))
            result.error = max(result.error, error)
            if site not in wrong and (reason := seen.reason(error, *tolerances)):
                wrong[site] = reason
    return wrong


def _shaken(models: _Models, site: Site, number: int, feeds: Mapping[str, Any], epsilon: float) -> list[np.ndarray]:
    """What a site of the original gives in float64 with other last digits of its constants."""
    own = {f"0/{name}": feeds[f"{number}/{name}"] for name in (*site.stops, *site.observed)}
    loose = {name: value for name, value in feeds.items() if "/" not in name or name.split("/")[0] != str(number)}
    model = cuts.cut(models.original, [site], [site.original], loose | own)
    wide = float64.to_float64(model, models.base_dir)
    runs = []
    for seed in range(_SHAKES):
        outputs = _run(float64.Evaluator(float64.shaken(wide, epsilon, seed)), cuts.given(model, loose | own))
        runs += [outputs[0]] if outputs else []
    return runs


def _evaluator(model: onnx.ModelProto, base_dir: Path | None) -> float64.Evaluator | None:
    try:
        return float64.Evaluator(float64.to_float64(model, base_dir))
    except Exception:  # the reference evaluator raises whatever its operators raise
        return None


def _run(evaluator: float64.Evaluator | None, feeds: Mapping[str, Any]) -> list[Any] | None:
    """The outputs in float64, or None where some op has no such kernel."""
    if evaluator is None:
        return None
    try:
        return evaluator.run({name: numerics.widen(value) for name, value in feeds.items()})
    except Exception:  # as above
        return None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one site gave on one set of inputs."""

    wanted: Any
    got: Any
    truth: Any
    """The original in float64, None where that was not to be had."""
    same: Any
    """The fused model in float64, or None."""
    masked: bool
    """Rows are masked throughout: where the original has NaN, there is nothing to compare."""

    @property
    def comparable(self) -> bool:
        """Is there a truth that says how large an error is?"""
        real = isinstance(self.wanted, np.ndarray) and numerics.is_float(self.wanted.dtype)
        return real and isinstance(self.truth, np.ndarray) and self.truth.shape == self.wanted.shape

    @property
    def plausible(self) -> bool:
        """Is the truth what the original is near?  A kernel in float64 may have a mistake of its own."""
        return self.comparable and numerics.relative_error(self.wanted, self.truth) <= _PLAUSIBLE

    @property
    def allowed(self) -> float:
        """The largest error of an equation that is none."""
        if not self.comparable:
            return 0.0
        return (_EQUATION if self.same is not None else _ROUNDING) * numerics.epsilon(self.wanted.dtype)

    def error(self, shaken: Sequence[np.ndarray] = ()) -> float:
        """How far the equations are apart, in float64 where both can be run in it."""
        if not self.comparable:
            return 0.0
        return numerics.equation_error(self.got if self.same is None else self.same, self.truth, self.wanted, shaken)

    def reason(self, error: float, rtol: float | None, atol: float | None) -> str:
        """Why the fused site, whose `error` this is, is not what the original is; "" if it is."""
        difference = numerics.compare(self.got, self.wanted, rtol, atol, known=self.masked)
        if not self.comparable:
            return difference.reason
        if difference.reason and not numerics.is_rounding(self.got, self.wanted, self.truth, known=self.masked):
            return difference.reason
        return "" if error <= self.allowed else f"differs by {error:.1e} from float64 ({self.allowed:.0e} allowed)"


def _observe(
    original: onnx.ModelProto, found: Sequence[Site], cases: Sequence[Case], base_dir: Path | None
) -> list[dict[str, Any]]:
    """The values of the original on each of `cases` that the sites rest on."""
    needed = {name for site in found for name in (*site.stops, *site.observed)}
    wanted = sorted(needed - cases[0].inputs.keys())
    outputs = {output.name: index for index, output in enumerate(original.graph.output)}
    extra = [name for name in wanted if name not in outputs]
    count = len(outputs)
    try:
        # The outputs are added in place, for the time of serializing: a copy would hold all weights twice.
        original.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
        session = Session(original, base_dir, optimize=False)
    finally:
        del original.graph.output[count:]
    order = outputs | {name: count + index for index, name in enumerate(extra)}
    runs = [session.run(case.inputs) for case in cases]
    return [
        dict(case.inputs) | {name: values[order[name]] for name in wanted}
        for case, values in zip(cases, runs, strict=True)
    ]
