"""The proof: original and fused model on the same inputs in onnxruntime, and the search for a guilty fusion.

oracle = Oracle(original, base_dir=folder)      # runs the original once, before anything edits it
verdict = oracle.compare(fused)
guilty = bisect(range(n), lambda kept: oracle.compare(build(kept)).verdict == "equal")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfuse import float64, inputs, numerics, sites
from onnxfuse.inputs import Case
from onnxfuse.records import Validation
from onnxfuse.runtime.quiet import Session, SessionError, first_line, onnxruntime

_RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout")
)
_SITES = 250
"""Sites that are compared in one session: onnxruntime's time to load grows faster than its nodes."""
_LOSS = 4.0
"""A fused model may be this many times farther from float64 than the original: summing in another order can be."""


class Oracle:
    """A model's own answers, with every optimization of onnxruntime off, for others to be compared with.

    Inputs are generated (`inputs.generate`), or `given` by name; `shapes` fixes dims by input name.  External data is
    read by onnxruntime from `base_dir` and never enters Python, except with `reference`, which converts the model to
    float64 and costs twice its size.  With `emulate`, fused ops run the CUDA source of their kernels; `rules` are those
    that define ops besides the catalogue.  The original runs in the constructor and is not held afterwards.

    Raises UsageError where `shapes` or `given` do not fit, DependencyError where no onnxruntime is installed.
    """

    cases: list[Case]
    """What the original ran on; empty where it cannot run."""
    reason: str
    """Why there are no cases, or none that could prove anything; "" where there are."""

    def __init__(
        self,
        original: onnx.ModelProto,
        *,
        seed: int = 0,
        shapes: Mapping[str, Sequence[int]] | None = None,
        given: Mapping[str, np.ndarray] | None = None,
        base_dir: Path | None = None,
        reference: bool = False,
        emulate: bool = False,
        rules: Sequence[Path] = (),
    ) -> None:
        self._base_dir = base_dir
        self._kernels: dict[str, Any] = {"emulate": emulate, "rules": rules}
        self._outputs = [output.name for output in original.graph.output]
        self._expected: list[list[Any]] = []
        self._exact: list[list[Any]] = []
        self._exact_note = ""
        self._sensitive = ""
        self.cases, self.reason = self._run(original, seed, shapes, given)
        if reference and self.cases and not self.reason:
            self._measure_exactly(original)

    def _run(
        self,
        original: onnx.ModelProto,
        seed: int,
        shapes: Mapping[str, Sequence[int]] | None,
        given: Mapping[str, np.ndarray] | None,
    ) -> tuple[list[Case], str]:
        onnxruntime()  # a missing package is no fault of the model
        session: Session | None = None
        refusal = ""
        try:
            session = Session(original, self._base_dir, optimize=False)
        except SessionError as error:
            refusal = str(error)

        def runs(case: Case) -> str:
            if session is None:
                return refusal
            try:
                self._expected.append(session.run(case.inputs))
            except SessionError as error:
                return str(error)
            return ""

        cases, reason = inputs.generate(original, runs, seed=seed, shapes=shapes, given=given)
        if not cases:
            return [], f"the original does not run: {reason}"
        if session is not None and any(node.op_type in _RANDOM for node in _nodes(original)):
            again = session.run(cases[0].inputs)
            if any(numerics.compare(a, b).reason for a, b in zip(again, self._expected[0], strict=True)):
                return [], "the original draws random numbers and never gives the same outputs twice"
        return cases, ""

    def _measure_exactly(self, original: onnx.ModelProto) -> None:
        feeds = [{name: _widen(value) for name, value in case.inputs.items()} for case in self.cases]
        try:
            self._exact = _run_float64(float64.to_float64(original, self._base_dir), feeds)
        except Exception as error:  # the reference evaluator raises whatever its operators raise
            self._exact_note = f"no float64 reference: {first_line(error)}"

    def compare(
        self, fused: onnx.ModelProto, *, optimize: bool = True, rtol: float | None = None, atol: float | None = None
    ) -> Validation:
        """Runs `fused` on the oracle's cases, with every optimization of onnxruntime on, or off unless `optimize`;
        tolerances default by dtype (`numerics`).

        The verdict is "mismatch" also where onnxruntime refuses what it accepted of the original, and where float64
        shows that precision was lost; it is "not validated" where the original cannot run or has only NaN to show.
        """
        if not self.cases:
            return Validation("not validated", note=self.reason)
        try:
            session = Session(fused, self._base_dir, optimize=optimize, **self._kernels)
            actual = [session.run(case.inputs) for case in self.cases]
        except SessionError as error:
            return Validation("mismatch", note=f"the fused model does not run: {error}")
        if len(actual[0]) != len(self._outputs):
            note = f"the fused model has {len(actual[0])} outputs instead of {len(self._outputs)}"
            return Validation("mismatch", note=note, cases=len(self.cases))
        differences = list(self._differences(actual, rtol, atol))
        judged = self._judge(differences, rtol, atol)
        if self._sensitive and all(d.error is not None for *_, d in differences):
            judged = replace(judged, verdict="equal", note=self._sensitive)  # unless float64 says otherwise
        return self._precision(replace(judged, kernels=tuple(sorted(session.served.sources))), actual)

    def judge_by_float64(
        self, original: onnx.ModelProto, *, rtol: float | None = None, atol: float | None = None
    ) -> bool:
        """Whether rounding alone, by onnxruntime's own optimizations of `original`, goes beyond the tolerances.

        From then on `compare` judges numbers by float64: the fused model may be as far from it as the original, a few
        times over.  False, and nothing changes, where the original is steady or float64 cannot be had.
        """
        changed = self.compare(original, rtol=rtol, atol=atol)
        if changed.verdict != "mismatch" or changed.max_error is None:
            return False
        if not self._exact:
            self._measure_exactly(original)
        if self._exact_note:
            self._exact_note = ""
            return False
        self._sensitive = f"its outputs are as sensitive as {changed.max_error:.1e} to rounding: judged by float64"
        return True

    def _differences(
        self, actual: list[list[Any]], rtol: float | None, atol: float | None
    ) -> Iterator[tuple[str, Case, Any, numerics.Difference]]:
        for case, got, wanted in zip(self.cases, actual, self._expected, strict=True):
            for name, a, b in zip(self._outputs, got, wanted, strict=True):
                yield name, case, b, numerics.compare(a, b, rtol, atol)

    def _judge(
        self,
        differences: list[tuple[str, Case, Any, numerics.Difference]],
        rtol: float | None,
        atol: float | None,
    ) -> Validation:
        errors = [d.error for *_, d in differences if d.error is not None]
        worst = max(differences, key=lambda entry: entry[3].error or 0.0, default=None)
        default = numerics.tolerance(_dtype(worst[2])) if worst else (0.0, 0.0)
        result = Validation(
            "equal",
            max(errors, default=None),
            default[0] if rtol is None else rtol,
            default[1] if atol is None else atol,
            len(self.cases),
        )
        wrong = [entry for entry in differences if entry[3].reason]
        if wrong:
            # No number is worse than a large one: a shape, a dtype or a NaN that differs is named first.
            name, case, _, difference = max(wrong, key=lambda entry: (entry[3].error is None, entry[3].error or 0.0))
            return replace(result, verdict="mismatch", note=f"output {name!r} {difference.reason} at {case.name}")
        for name in self._outputs:
            if not any(d.proves for output, *_, d in differences if output == name):
                note = f"output {name!r} of the original has no finite element, which proves nothing"
                return replace(result, verdict="not validated", note=note)
        if nan := next(((name, case, d) for name, case, _, d in differences if d.nans), None):
            note = f"output {nan[0]!r} has {nan[2].nans} NaN at {nan[1].name}, in the original as in the fused model"
            return replace(result, note=note)
        return result

    def _precision(self, result: Validation, actual: list[list[Any]]) -> Validation:
        """Adds the distances from float64 to `result`, and a mismatch where the fused model's is much the larger."""
        if self._exact_note:
            return replace(result, note="; ".join(filter(None, (result.note, self._exact_note))))
        if not self._exact or result.verdict != "equal":
            return result
        worst, lost = (0.0, 0.0), ""
        for case, exact, wanted, got in zip(self.cases, self._exact, self._expected, actual, strict=True):
            for name, e, w, a in zip(self._outputs, exact, wanted, got, strict=True):
                if not (isinstance(w, np.ndarray) and numerics.is_float(w.dtype) and np.shape(e) == w.shape):
                    continue
                before, after = numerics.relative_error(w, e), numerics.relative_error(a, e)
                worst = max(worst[0], before), max(worst[1], after)
                if after > _LOSS * before + 4 * numerics.epsilon(w.dtype):
                    lost = (
                        lost
                        or f"output {name!r} lost precision at {case.name}: {before:.1e} → {after:.1e} from float64"
                    )
        result = replace(result, reference_error=worst)
        return replace(result, verdict="mismatch", note=lost) if lost else result


def compare_sites(
    original: onnx.ModelProto,
    fused: onnx.ModelProto,
    case: Case,
    *,
    base_dir: Path | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    emulate: bool = False,
    rules: Sequence[Path] = (),
) -> tuple[int, dict[str, str]]:
    """Compares the values that the two models compute differently, one by one, on unit normals (`sites`).

    `case` is one of the oracle's: a run of `original` on it gives the shapes.  Returns how many values were compared,
    and by name of value why it differs; (0, {}) where nothing could be cut out, or no cutting runs.
    """
    found = sites.find(original, fused)
    try:
        real = _observe(original, found, case, base_dir) if found else {}
    except SessionError:
        return 0, {}
    found = [s for s in found if all(isinstance(real[name], np.ndarray) for name in (*s.stops, *s.observed))]
    pending = [found[start : start + _SITES] for start in range(0, len(found), _SITES)]
    differences: dict[str, numerics.Difference] = {}
    while pending:
        part = pending.pop()
        try:
            feeds = sites.feed(part, real, seed)
            wanted, got = _run_sites(original, fused, part, feeds, base_dir, emulate=emulate, rules=rules)
        except SessionError:
            # One that does not run alone must not silence the others.
            middle = len(part) // 2
            pending += [part[middle:], part[:middle]] if middle else []
            continue
        for site, a, b in zip(part, got, wanted, strict=True):
            differences[site.output] = numerics.compare(a, b, rtol, atol)
    wrong = {s.output: d.reason for s in found if (d := differences.get(s.output)) and d.reason}
    return len(differences), wrong


def _run_sites(
    original: onnx.ModelProto,
    fused: onnx.ModelProto,
    part: list[sites.Site],
    feeds: dict[str, Any],
    base_dir: Path | None,
    **kernels: Any,
) -> tuple[list[Any], list[Any]]:
    """The outputs of the sites, as the original computes them and as the fused model does."""
    before = sites.cut(original, part, [site.original for site in part], feeds)
    wanted = Session(before, base_dir, optimize=False).run(feeds)
    bare = [replace(site, observed=()) for site in part]
    feeds = {f"{i}/{name}": feeds[f"{i}/{name}"] for i, site in enumerate(bare) for name in site.stops}
    after = sites.cut(fused, bare, [site.fused for site in bare], feeds)
    return wanted, Session(after, base_dir, optimize=True, **kernels).run(feeds)


def _observe(
    original: onnx.ModelProto, found: Sequence[sites.Site], case: Case, base_dir: Path | None
) -> dict[str, Any]:
    """The values of the original on `case` that the sites rest on."""
    wanted = sorted({name for site in found for name in (*site.stops, *site.observed)} - case.inputs.keys())
    outputs = {output.name: index for index, output in enumerate(original.graph.output)}
    extra = [name for name in wanted if name not in outputs]
    count = len(outputs)
    try:
        # The outputs are added in place, for the time of serializing: a copy would hold all weights twice.
        original.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
        session = Session(original, base_dir, optimize=False)
    finally:
        del original.graph.output[count:]
    values = session.run(case.inputs)
    order = outputs | {name: count + index for index, name in enumerate(extra)}
    return dict(case.inputs) | {name: values[order[name]] for name in wanted}


def bisect(candidates: Sequence[int], is_good: Callable[[frozenset[int]], bool], most: int = 200) -> frozenset[int]:
    """The candidates to leave out so that `is_good` holds of the rest.

    A binary search finds a bad prefix that is good without its last member.  That one is guilty, the rest of the prefix
    is kept, and the search goes on behind it: about 2 + k (log2 n + 1) calls for k guilty ones among n.  Of two that
    are bad only together, the later is left out.  What is kept has passed `is_good`, unless nothing is kept; after
    `most` calls, all that has not passed is left out.  (The general problem: Zeller and Hildebrandt, Simplifying and
    Isolating Failure-Inducing Input, IEEE TSE 28, 2002.)
    """
    calls = 0

    def good(kept: list[int]) -> bool:
        nonlocal calls
        calls += 1
        return is_good(frozenset(kept))

    kept: list[int] = []
    guilty: list[int] = []
    rest = list(candidates)
    while rest and not good(kept + rest):
        if not kept and not guilty and not good([]):
            return frozenset(candidates)
        low, high = 0, len(rest)  # kept + rest[:low] is good, kept + rest[:high] is not
        while high - low > 1 and calls < most:
            middle = (low + high) // 2
            low, high = (middle, high) if good(kept + rest[:middle]) else (low, middle)
        kept += rest[:low]
        if calls >= most:
            return frozenset(guilty + rest[low:])
        guilty.append(rest[low])
        rest = rest[high:]
    return frozenset(guilty)


def _run_float64(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Outputs of a float64 model: by onnxruntime where it has the kernels, else by the ONNX reference evaluator."""
    try:
        session = Session(model, None, optimize=False)
        return [session.run(feed) for feed in feeds]
    except SessionError:
        return float64.evaluate(model, feeds)


def _widen(value: Any) -> Any:
    if isinstance(value, list):
        return [_widen(item) for item in value]
    return value.astype(np.float64) if numerics.is_float(value.dtype) and value.dtype.kind != "c" else value


def _dtype(value: Any) -> np.dtype[Any]:
    if isinstance(value, list):
        return _dtype(value[0]) if value else np.dtype(bool)
    return value.dtype if isinstance(value, np.ndarray) else np.dtype(bool)


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    pending = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            pending += (inner for body in (attribute.g, *attribute.graphs) for inner in body.node)
