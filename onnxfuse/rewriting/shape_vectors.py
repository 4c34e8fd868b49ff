"""Vectors of dimensions as nodes: constants where all are known, else what Shapes of existing values have of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from onnxfuse.model.dims import Dim, Sym
from onnxfuse.terms.term import Array, Term

from .plan import Plan, UnrealisableError
from .shape_sources import Numbers, Part, Run


def shape_vector(plan: Plan, term: Term, limit: float, name: str) -> str:
    """A tensor of dimensions, of any rank."""
    assert term.data is not None
    vector = dims_of(plan, list(term.data.ravel()), limit)
    if term.dtype != TensorProto.INT64:
        vector = plan.node("Cast", [vector], {"to": term.dtype}, limit, "" if term.data.ndim != 1 else name)
    if term.data.ndim == 0:
        return plan.node("Squeeze", [vector], {}, limit, name)
    if term.data.ndim > 1:
        return plan.node("Reshape", [vector, plan.integers(list(term.data.shape))], {}, limit, name)
    return vector


def dims_of(plan: Plan, dims: Sequence[Dim], limit: float) -> str:
    """A vector of dimensions: a constant where all are known, else from shapes of existing values."""
    term = plan.draft.view.terms.integers(_vector(dims))
    if term.constant:
        return plan.integers([int(d) for d in dims if not isinstance(d, Sym)])
    known = plan.find(term, term.dtype, limit)
    if known is not None:
        return known[0]
    parts = plan.available.parts(dims, limit)
    if parts is None:
        raise UnrealisableError(f"dimensions {list(dims)} are not those of any value at this place")
    written = [_part(plan, part, limit) for part in parts]
    vector = written[0] if len(written) == 1 else plan.node("Concat", written, {"axis": 0}, limit)
    plan.register(term, limit - 0.5, vector, term.dtype)
    return vector


def told(plan: Plan, dim: Dim, limit: float) -> bool:
    """Can a dimension be had from the values before a place?"""
    return plan.available.parts([dim], limit) is not None


def _part(plan: Plan, part: Part, limit: float) -> str:
    """One part of a vector of dimensions."""
    if isinstance(part, Numbers):
        return plan.integers(part.dims)
    if isinstance(part, Run):
        return _run(plan, part, limit)
    total = ""
    for runs, coefficient in part.terms:
        factors = [_run(plan, run, limit) for run in runs]
        if coefficient != 1 or not factors:
            factors.append(plan.integers([coefficient]))
        value = factors[0]
        for factor in factors[1:]:
            value = plan.node("Mul", [value, factor], {}, limit)
        total = plan.node("Add", [total, value], {}, limit) if total else value
    return total


def _run(plan: Plan, run: Run, limit: float) -> str:
    """Some dimensions of a value, as a vector."""
    shape = plan.draft.view.terms_of[run.value].shape if run.value in plan.draft.view.terms_of else None
    term = None if shape is None else plan.draft.view.terms.integers(_vector(shape[run.start : run.stop]))
    known = plan.find(term, term.dtype, limit) if term is not None else None
    if known is not None:
        return known[0]
    value = plan.draft.alias.get(run.value, run.value)
    if run.whole or plan.draft.opset >= 15:
        bounds = {} if run.whole else {"start": run.start, "end": run.stop}
        name = plan.node("Shape", [value], bounds, limit)
    else:
        whole = plan.node("Shape", [value], {}, limit)
        axes = list(range(run.start, run.stop))
        name = plan.node("Gather", [whole, plan.integers(axes)], {"axis": 0}, limit)
    if term is not None:
        plan.register(term, limit - 0.5, name, term.dtype)
    return name


def _vector(dims: Sequence[Dim]) -> Array:
    array = np.empty(len(dims), object)
    array[:] = dims
    return array
