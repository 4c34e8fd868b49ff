"""Indices of numbers that rounding alone tells apart: which of two equal ones is the largest, its last digit decides.

An output that ArgMax, ArgMin or TopK gives, seen in another shape at most, is looked up where it points: in what the
original itself compares.  With x the numbers along the axis, i the original's index and j the fused model's,

    |x_i - x_j| <= max(atol, rtol max|x|)

says that either may come first, where rtol and atol are what the numbers are allowed themselves, and max|x| leaves out
what fills a mask, unless one of the two is that.  Indices of TopK differ from one another, as they must.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from onnxfuse.model.element_flow import coarser
from onnxfuse.model.op_traits import CASTS, RESHAPES
from onnxfuse.runtime.quiet import Session, SessionError

from . import numerics
from .bfloat16 import emulated
from .input_values import Case
from .precision import dtype_of, precisions

AXES = {"ArgMax": 0, "ArgMin": 0, "TopK": -1}
"""Ops that give indices of their first input → the axis that they count along where they do not say."""
_HUGE = 1e4
"""A float of this size fills a mask."""


@dataclass(frozen=True)
class _Source:
    """What an output points into."""

    numbers: str
    axis: int
    precision: int


class Ties:
    """Of one model, which indices say the same as its own; it runs when it is first asked of a case."""

    def __init__(self, model: ModelProto, base_dir: Path | None, least: int = 0) -> None:
        self._model, self._base_dir, self._least = model, base_dir, least
        self._sources = _sources(model)
        self._known: dict[str, Mapping[str, Any]] = {}

    def explain(
        self, case: Case, name: str, expected: Any, actual: Any, rtol: float | None = None, atol: float | None = None
    ) -> bool:
        """Does an output give indices of other numbers that are equal but for rounding?"""
        source = self._sources.get(name)
        if source is None or case.empty or not all(isinstance(a, np.ndarray) for a in (actual, expected)):
            return False
        if (actual.dtype, actual.shape) != (expected.dtype, expected.shape) or actual.dtype.kind not in "iu":
            return False
        numbers = self._numbers(case).get(source.numbers)
        if not isinstance(numbers, np.ndarray) or not numerics.is_float(numbers.dtype) or not numbers.ndim:
            return False
        precision = dtype_of(coarser(self._least, source.precision)) or numbers.dtype
        default = numerics.tolerance(precision)
        allowed = default[0] if rtol is None else rtol, default[1] if atol is None else atol
        return _alike(numbers, source.axis, expected, actual, *allowed)

    def _numbers(self, case: Case) -> Mapping[str, Any]:
        """What the original compares in a case; nothing where it does not run with that as outputs."""
        if case.name not in self._known:
            try:
                self._known[case.name] = self._run(sorted({s.numbers for s in self._sources.values()}), case)
            except SessionError:
                self._known[case.name] = {}
        return self._known[case.name]

    def _run(self, names: Sequence[str], case: Case) -> Mapping[str, Any]:
        fed = {name: case.inputs[name] for name in names if name in case.inputs}
        outputs = [output.name for output in self._model.graph.output]
        extra = [name for name in names if name not in fed and name not in outputs]
        count = len(outputs)
        try:  # in place, for the time of serializing: a copy would hold all weights twice
            self._model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
            session = Session(emulated(self._model), self._base_dir, optimize=False)
        finally:
            del self._model.graph.output[count:]
        return fed | dict(zip([*outputs, *extra], session.run(case.inputs), strict=True))


def _sources(model: ModelProto) -> dict[str, _Source]:
    """Output → what it points into, where it is an index."""
    producers = {name: node for node in model.graph.node for name in node.output if name}
    found: dict[str, tuple[str, int]] = {}
    for output in model.graph.output:
        name = output.name
        while (node := producers.get(name)) is not None and node.op_type in RESHAPES | CASTS and not node.domain:
            name = node.input[0]
        if node is not None and node.op_type in AXES and not node.domain and name == node.output[-1]:
            found[output.name] = node.input[0], _axis(node)
    worth = precisions(model, [numbers for numbers, _ in found.values()]) if found else []
    return {name: _Source(*where, kind) for (name, where), kind in zip(found.items(), worth, strict=True)}


def _axis(node: NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "axis"), AXES[node.op_type])


def _alike(numbers: Any, axis: int, expected: Any, actual: Any, rtol: float, atol: float) -> bool:
    """Do two arrays of indices along an axis point at numbers that are equal but for rounding?"""
    numbers = np.moveaxis(numbers.astype(np.float64), axis, -1)
    kept = numbers.shape[:-1]
    each = expected.size // max(int(np.prod(kept)), 1)
    # As the op gives them, whatever shape they are seen in: with an axis of one, or of as many as are asked for.
    shape = _as_given(numbers.shape, axis, each)
    if int(np.prod(shape)) != expected.size:
        return False
    own, other = (np.moveaxis(a.astype(np.int64).reshape(shape), axis, -1) for a in (expected, actual))
    if not ((other >= 0) & (other < numbers.shape[-1])).all() or (np.diff(np.sort(other, -1), axis=-1) == 0).any():
        return False
    first, second = (np.take_along_axis(numbers, index, -1) for index in (own, other))
    usual = np.where(np.abs(numbers) < _HUGE, np.abs(numbers), 0).max(-1, keepdims=True, initial=0)
    with np.errstate(invalid="ignore"):  # of two infinities, or NaN
        scale = np.maximum(usual, np.maximum(np.abs(first), np.abs(second)))
        near = np.abs(first - second) <= np.maximum(atol, rtol * scale)
    return bool(((own == other) | (first == second) | (near & np.isfinite(first) & np.isfinite(second))).all())


def _as_given(moved: tuple[int, ...], axis: int, each: int) -> tuple[int, ...]:
    """The shape of indices, of which there are `each` along the axis that stands last in a `moved` shape."""
    rest = list(moved[:-1])
    rest.insert(axis % len(moved), each)
    return tuple(rest)
