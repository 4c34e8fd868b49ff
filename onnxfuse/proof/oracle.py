"""The proof: original and fused model on the same inputs in onnxruntime.

oracle = Oracle(original, base_dir=folder)      # runs the original once, before anything edits it
verdict = oracle.compare(fused)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfuse.errors import ModelError
from onnxfuse.lifting.effects import draws
from onnxfuse.model.element_flow import HALF, coarser
from onnxfuse.model.walk import nodes_of
from onnxfuse.proof import float64, inputs, numerics
from onnxfuse.proof.inputs import Case
from onnxfuse.reporting.records import Validation
from onnxfuse.runtime.quiet import Session, SessionError, first_line, onnxruntime
from onnxfuse.system.isolation import Tell, TookTooLongError, isolated

from .bfloat16 import emulated
from .draws import Distance
from .inside import Inside, Told
from .precision import dtype_of, precisions
from .quantizers import Boundaries
from .roundings import Roundings
from .ties import Ties

NOT_RUN = "the fused model does not run"
TIED = "some indices are of other numbers, which are equal but for rounding"
EMPTY_SECONDS = 60
"""What a run on tensors without elements may take."""


class CrashError(SessionError):
    """A run that took its process down, or had to be stopped."""


class Oracle:
    """A model's own answers, with every optimization of onnxruntime off, for others to be compared with.

    Inputs are generated (`inputs.generate`), or `given` by name; `shapes` fixes dims by input name.  External data is
    read by onnxruntime from `base_dir` and never enters Python, except with `reference`, which converts the model to
    float64 and costs twice its size.  With `emulate`, fused ops run the CUDA source of their kernels; `rules` are those
    that define ops besides the catalogue.  The original runs in the constructor; what it is in float64 is asked later.

    In unusual cases (`Case.unusual`) a number that is off by more than the tolerance may still be as near to float64 as
    the original's: a fill of -1e4 leaves scores four digits.  Where the original has NaN there, it has no answer that
    could be wrong, and in half precision, in which a fill swallows scores that float32 would keep, only that numbers
    are numbers counts.

    Where `precision` names a type, models are compared that compute in it what the original does in a finer one.  What
    an output is worth is the precision of the coarsest computation behind it in the original (`precisions`), and
    bfloat16, for which the CPU provider has no kernels, is computed in float32 and rounded (`bfloat16`).  What `rtol`
    allows is the tolerance then, where none is asked for.

    Raises UsageError where `shapes` or `given` do not fit, DependencyError where no onnxruntime is installed.
    """

    cases: list[Case]
    """What the original ran on; empty where it cannot run."""
    swallowing = False
    """Whether the models that are compared add masks in half precision, though the original does not."""
    stepped = False
    """Did the last model that was compared need what values between two steps of a quantizer are allowed?"""
    tied = False
    """Did it give indices of other numbers, which are equal but for rounding?"""
    rounded: dict[str, float]
    """The outputs that are equal but for what rounding does to them, and how far they were off."""
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
        precision: int = 0,
        rtol: float | None = None,
        inside: Inside | None = None,
    ) -> None:
        self._base_dir, self._inside = base_dir, inside or Inside(original, base_dir)
        self._kernels: dict[str, Any] = {"emulate": emulate, "rules": rules}
        self._outputs = [output.name for output in original.graph.output]
        self._expected: list[list[Any]] = []
        self._exact: list[list[Any]] = []
        self._exact_note = ""
        self._original = original
        self._precisions = precisions(original, self._outputs)
        self._least, self._rtol = precision, rtol
        self._truths: dict[str, list[Any] | None] = {}
        self.rounded = {}
        self._boundaries = Boundaries(original, base_dir)
        self._roundings = Roundings(original, base_dir)
        self._ties = Ties(original, base_dir, precision)
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
        session: Told | None = None
        refusal = ""
        try:
            session = Told(original, self._base_dir, self._inside)
        except SessionError as error:
            refusal = str(error)

        def runs(case: Case) -> str:
            if session is None:
                return refusal
            try:
                self._expected.append(
                    self._alone(original, case, self._base_dir, optimize=False) if case.empty else session.run(case)
                )
            except SessionError as error:
                return str(error)
            return ""

        cases, reason = inputs.generate(original, runs, seed=seed, shapes=shapes, given=given)
        if not cases:
            return [], f"the original does not run: {reason}"
        if session is not None and any(map(draws, nodes_of(original))):
            again = session.run(cases[0])
            if any(numerics.compare(a, b).reason for a, b in zip(again, self._expected[0], strict=True)):
                return [], "the original draws random numbers and never gives the same outputs twice"
        if given is None:
            # Lengths of 0, drawn by chance, mask rows throughout: a softmax has NaN alone then, and so no answer.
            known = [
                case.unusual or numerics.unknown(*values) for case, values in zip(cases, self._expected, strict=True)
            ]
            cases = [replace(case, unusual=unusual) for case, unusual in zip(cases, known, strict=True)]
        return cases, ""

    def _measure_exactly(self, original: onnx.ModelProto) -> None:
        try:
            evaluator = float64.Evaluator(float64.to_float64(original, self._base_dir), self._base_dir)
            self._exact = [self._exactly(evaluator, *case) for case in zip(self.cases, self._expected, strict=True)]
        except Exception as error:  # the reference evaluator raises whatever its operators raise
            self._exact_note = f"no float64 reference: {first_line(error)}"

    def _exactly(self, evaluator: float64.Evaluator, case: Case, expected: list[Any]) -> list[Any]:
        """What a case gives in float64; an unusual one that only onnxruntime runs, as it is: it tells nothing then."""
        try:
            return evaluator.run(case.inputs)
        except Exception:
            if not case.unusual:
                raise
            return expected

    def drop(self, unwanted: Callable[[Case], bool]) -> None:
        """Leave out these cases, unless they are all."""
        kept = [number for number, case in enumerate(self.cases) if not unwanted(case)]
        if kept:
            self.cases = [self.cases[number] for number in kept]
            self._expected = [self._expected[number] for number in kept]
            self._exact = [self._exact[number] for number in kept] if self._exact else []

    def compare(
        self,
        fused: onnx.ModelProto,
        *,
        optimize: bool = True,
        rtol: float | None = None,
        atol: float | None = None,
        base_dir: Path | None = None,
    ) -> Validation:
        """Runs `fused` on the oracle's cases, with every optimization of onnxruntime on, or off unless `optimize`;
        tolerances default by dtype (`numerics`).  Its external data is in `base_dir`, by default the original's.

        The verdict is "mismatch" also where onnxruntime refuses what it accepted of the original, and where float64
        shows that precision was lost; it is "not validated" where the original cannot run or has only NaN to show.
        Tensors without elements may be refused, which the note says: nobody takes an error for numbers, and several
        kernels of onnxruntime, such as that of Attention, have no such tensors.
        """
        if not self.cases:
            return Validation("not validated", note=self.reason)
        place, folder = "", base_dir or self._base_dir
        try:
            session = Session(emulated(fused), folder, optimize=optimize, **self._kernels)
            usual: dict[int, list[Any]] = {}
            for n, case in enumerate(self.cases):
                place = f" at {case.name}"
                usual |= {} if case.empty else {n: session.run(case.inputs)}
            place = ""
            served = session.served
            del session  # and the weights that it holds, before another process has them
            ran = [
                usual[n] if n in usual else self._emptied(fused, c, folder, optimize) for n, c in enumerate(self.cases)
            ]
        except SessionError as error:
            return Validation("mismatch", note=f"{NOT_RUN}{place}: {error}")
        refused = [case.name for case, outputs in zip(self.cases, ran, strict=True) if outputs is None]
        # What is refused is compared with itself.
        actual = [want if got is None else got for want, got in zip(self._expected, ran, strict=True)]
        if len(actual[0]) != len(self._outputs):
            note = f"the fused model has {len(actual[0])} outputs instead of {len(self._outputs)}"
            return Validation("mismatch", note=note, cases=len(self.cases))
        self.stepped, self.tied, self.rounded = False, False, {}
        asked, rtol = rtol is not None or atol is not None, self._rtol if rtol is None else rtol
        differences = list(self._differences(actual, rtol, atol, asked))
        judged = self._judge(differences, rtol, atol)
        if self.stepped and judged.verdict == "equal":
            judged = _noted(judged, self._boundaries.note)
        if self.tied and judged.verdict == "equal":
            judged = _noted(judged, TIED)
        if self.rounded and judged.verdict == "equal":
            judged = _noted(judged, _but_for_rounding(self.rounded))
        judged = _noted(judged, self._boundaries.unknown)
        if refused:
            told = f"{', '.join(refused)}: onnxruntime refuses the fused model, and runs the original"
            judged = _noted(replace(judged, cases=judged.cases - len(refused)), told)
        return self._precision(replace(judged, kernels=tuple(sorted(served.sources))), actual)

    def _emptied(self, fused: onnx.ModelProto, case: Case, folder: Path | None, optimize: bool) -> list[Any] | None:
        """The outputs of the fused model; None where it refuses tensors without elements."""
        try:
            return self._alone(fused, case, folder, optimize=optimize, **self._kernels)
        except CrashError:
            raise
        except SessionError:
            return None

    def _alone(self, model: onnx.ModelProto, case: Case, folder: Path | None, **options: Any) -> list[Any]:
        """The outputs on tensors without elements, in a process of its own: several kernels of onnxruntime crash on
        these.  Raises SessionError."""
        try:
            run = partial(_run_once, emulated(model), folder, case.inputs, options)
            return isolated(run, EMPTY_SECONDS, silent=True)
        except (ModelError, TookTooLongError) as error:
            raise CrashError(str(error)) from None

    def _differences(
        self, actual: list[list[Any]], rtol: float | None, atol: float | None, asked: bool
    ) -> Iterator[tuple[str, Case, Any, numerics.Difference]]:
        for case, got, wanted in zip(self.cases, actual, self._expected, strict=True):
            for index, (name, a, b) in enumerate(zip(self._outputs, got, wanted, strict=True)):
                precision = self._precision_of(index, b)
                difference = numerics.compare(a, b, rtol, atol, known=case.unusual, precision=precision)
                if difference.reason and case.unusual and self._forgiven(case, index, a, b, difference):
                    difference = replace(difference, error=None, reason="")
                if difference.reason and self._ties.explain(case, name, b, a, rtol, atol):
                    difference, self.tied = replace(difference, error=None, reason=""), True
                if difference.reason and not asked and difference.error is not None:
                    stepped = self._boundaries.explain(case, wanted, index, a)
                    difference = replace(difference, reason="" if stepped else difference.reason)
                    self.stepped |= stepped
                if difference.reason and not asked and difference.error is not None:
                    difference = self._but_for_rounding(case, wanted, index, a, difference)
                yield name, case, b, difference

    def _but_for_rounding(
        self, case: Case, wanted: list[Any], index: int, got: Any, difference: numerics.Difference
    ) -> numerics.Difference:
        """A difference, or none where rounding alone moves the original as far; its error is relative to that then."""
        if not isinstance(got, np.ndarray):
            return difference
        off, allowed = Distance.of(got, wanted[index]), self._rounding(case, wanted, index)
        if not off <= allowed:
            return difference
        name = self._outputs[index]
        self.rounded[name] = max(off.most, self.rounded.get(name, 0.0))
        usual, _ = numerics.tolerance(self._precision_of(index, got))
        return replace(difference, error=off.most / allowed.most * (self._rtol or usual), reason="")

    def _rounding(self, case: Case, wanted: list[Any], index: int) -> Distance:
        """How far rounding alone moves an output; of a quantized model `Boundaries` knows."""
        if case.empty or not self._boundaries.none:
            return Distance()
        return self._roundings.allow(case.name, case.inputs, wanted, index)

    def _forgiven(self, case: Case, index: int, got: Any, wanted: Any, difference: numerics.Difference) -> bool:
        """Is a difference in an unusual case what rounding makes of it?"""
        if not (isinstance(wanted, np.ndarray) and numerics.is_float(wanted.dtype)):
            return False
        if self._precisions[index] in HALF or self.swallowing:
            return difference.error is not None
        if case.name not in self._truths:
            try:
                evaluator = float64.Evaluator(float64.to_float64(self._original, self._base_dir), self._base_dir)
                self._truths[case.name] = evaluator.run(case.inputs)
            except Exception:  # the reference evaluator raises whatever its operators raise
                self._truths[case.name] = None
        truth = self._truths[case.name]
        exact = None if truth is None else truth[index]
        if not isinstance(exact, np.ndarray) or exact.shape != wanted.shape:
            return False
        return numerics.is_rounding(got, wanted, exact, known=True, precision=self._precision_of(index, wanted))

    def _precision_of(self, index: int, value: Any) -> np.dtype[Any]:
        """Of the coarsest computation behind an output."""
        dtype = numerics.dtype_of(value)
        least = self._least if numerics.is_float(dtype) else 0
        return dtype_of(coarser(least, self._precisions[index])) or dtype

    def _judge(
        self,
        differences: list[tuple[str, Case, Any, numerics.Difference]],
        rtol: float | None,
        atol: float | None,
    ) -> Validation:
        errors = [d.error for *_, d in differences if d.error is not None]
        kinds = [self._precision_of(self._outputs.index(name), wanted) for name, _, wanted, _ in differences]
        told = [(d.error or 0.0, numerics.tolerance(kind)) for (*_, d), kind in zip(differences, kinds, strict=True)]
        default = max(told, default=(0.0, (0.0, 0.0)))[1]  # the worst's; of equal ones the widest
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
            if not any(d.proves for output, case, _, d in differences if output == name and not case.unusual):
                note = f"output {name!r} of the original has no finite element, which proves nothing"
                return replace(result, verdict="not validated", note=note)
        if nan := next(((name, case, d) for name, case, _, d in differences if d.nans and not case.unusual), None):
            output, case, found = nan
            note = f"the original has {found.nans} NaN in output {output!r} at {case.name}, and so has the fused model"
            return replace(result, note=note)
        return result

    def _precision(self, result: Validation, actual: list[list[Any]]) -> Validation:
        """Adds the distances from float64 to `result`, and a mismatch where the fused model's is much the larger."""
        if self._exact_note:
            return _noted(result, self._exact_note)
        if not self._exact or result.verdict != "equal":
            return result
        worst, lost = (0.0, 0.0), ""
        for case, exact, wanted, got in zip(self.cases, self._exact, self._expected, actual, strict=True):
            for index, (name, e, w, a) in enumerate(zip(self._outputs, exact, wanted, got, strict=True)):
                if case.unusual and self._precisions[index] in HALF:
                    continue
                if not (isinstance(w, np.ndarray) and numerics.is_float(w.dtype) and np.shape(e) == w.shape):
                    continue
                before, after = numerics.relative_error(w, e), numerics.relative_error(a, e)
                worst = max(worst[0], before), max(worst[1], after)
                least = numerics.LOSS * before + 4 * numerics.epsilon(self._precision_of(index, w))
                if after <= least or Distance.of(a, w) <= self._rounding(case, wanted, index):
                    continue
                if after > least + self._boundaries.allow(case, wanted, index):
                    told = f"output {name!r} lost precision at {case.name}: {before:.1e} → {after:.1e} from float64"
                    lost = lost or told
        result = replace(result, reference_error=worst)
        return replace(result, verdict="mismatch", note=lost) if lost else result


def _run_once(
    model: onnx.ModelProto, base_dir: Path | None, feeds: Mapping[str, Any], options: dict[str, Any], tell: Tell
) -> list[Any]:
    return Session(model, base_dir, threads=1, **options).run(feeds)


def _but_for_rounding(outputs: Mapping[str, float]) -> str:
    """What there is to say of outputs that rounding alone moves as far."""
    worst = max(outputs, key=lambda name: outputs[name])
    more = f" and {len(outputs) - 1} more" if len(outputs) > 1 else ""
    return f"rounding alone moves output {worst!r}{more} as far: by {outputs[worst]:.1e}"


def _noted(result: Validation, note: str) -> Validation:
    """A verdict with a note more, if there is one."""
    return replace(result, note="; ".join(filter(None, (result.note, note))))
