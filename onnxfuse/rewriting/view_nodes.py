"""Views as nodes: Reshape with the targets that say it without a Shape, Expand, Transpose, Slice, Concat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxfuse.model.broadcast import broadcast_dim, broadcast_of
from onnxfuse.model.dims import END, Dim, Shape, Sym, product, viewed
from onnxfuse.terms.term import Term, Terms

from .operators import op_node
from .plan import Plan
from .shape_sources import without_ones
from .shape_vectors import dims_of, told


def reshape(plan: Plan, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
    if len(inputs) > 1:
        return op_node(plan, "Reshape", inputs, attrs, term.dtype, limit, name)
    target, source = attrs["shape"], term.args[0].shape or ()
    dims: list[Dim] = [
        0 if i < len(source) and d == source[i] and isinstance(d, Sym) else d for i, d in enumerate(target)
    ]
    # A 0 copies the dimension of the input, which is no 0 where only another one is.
    open_dims = [i for i, d in enumerate(dims) if isinstance(d, Sym) or (target[i] == 0 and source[i : i + 1] != (0,))]
    symbols = {i for i, d in enumerate(target) if isinstance(d, Sym)}
    copying = {i for i in symbols if _copies_zero(target[i], source[i : i + 1])}
    decided = False
    # The rest of the elements; beside other symbols only what nothing else tells.
    for i in open_dims:
        rest = product(d for j, d in enumerate(target) if j != i)
        # Before opset 14 a 0 copies another dimension, which leaves the rest decided if that is none.
        decided = plan.draft.opset < 14 and bool(symbols - {i}) and not copying - {i}
        alone = len(open_dims) == 1 or decided
        if viewed(product(source), rest) == target[i] and (alone or not told(plan, target[i], limit)):
            dims[i], target = -1, (*target[:i], -1, *target[i + 1 :])
            open_dims.remove(i)
            break
    computed = any(isinstance(dims[i], Sym) for i in open_dims)
    undecided = -1 in dims and any(isinstance(d, Sym) for d in target)
    # A file whose sizes are changed by hand, as that of a batch is, stays right where a view names none of them.
    for op, short, long in (("Unsqueeze", source, attrs["shape"]), ("Squeeze", attrs["shape"], source)):
        if axes := _ones(short, long):
            return op_node(plan, op, inputs, {"axes": axes}, term.dtype, limit, name)
    if computed or undecided:
        # A dimension that is 0 in a run leaves -1 undecided: dims of 1 that move need neither.
        moved = _moved_ones(source, attrs["shape"])
        if moved is not None:
            return plan.node("Transpose", inputs, {"perm": moved}, limit, name)
        gone, come = ([i for i, d in enumerate(dims) if d == 1] for dims in (source, attrs["shape"]))
        if without_ones(source) == without_ones(attrs["shape"]):
            bare = op_node(plan, "Squeeze", inputs, {"axes": tuple(gone)}, term.dtype, limit, "")
            return op_node(plan, "Unsqueeze", [bare], {"axes": tuple(come)}, term.dtype, limit, name)
        if (axis := _flattened(source, attrs["shape"])) is not None:
            return plan.node("Flatten", inputs, {"axis": axis}, limit, name)
    if undecided and not decided and all(told(plan, d, limit) for d in attrs["shape"]):
        target, computed = attrs["shape"], True
    if not computed:
        shape = plan.integers([d for d in dims if not isinstance(d, Sym)])
        return plan.node("Reshape", [inputs[0], shape], {}, limit, name)
    # A dimension that is computed may be 0 in a run, and means it.
    meant = {"allowzero": 1} if plan.draft.opset >= 14 and -1 not in target else {}
    return plan.node("Reshape", [inputs[0], dims_of(plan, target, limit)], meant, limit, name)


def _flattened(source: Shape, target: Shape) -> int | None:
    """The axis before and after which Flatten makes one dimension of all; None if the Reshape is no such."""
    if len(target) != 2:
        return None
    axes = range(len(source) + 1)
    return next((i for i in axes if (product(source[:i]), product(source[i:])) == tuple(target)), None)


def _copies_zero(dim: Dim, copied: Shape) -> bool:
    """Is the dimension that a size of 0 stands for in Reshape-13, the one of the input in its place, 0 as well?"""
    if not isinstance(dim, Sym):
        return True
    factors = [{name for monomial, _ in d.terms for name in monomial} for d in copied if isinstance(d, Sym)]
    return len(dim.terms) == 1 and any(set(dim.terms[0][0]) <= known for known in factors)


def expand(plan: Plan, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
    if len(inputs) > 1:
        return op_node(plan, "Expand", inputs, attrs, term.dtype, limit, name)
    target, source = attrs["shape"], term.args[0].shape or ()
    offset = len(target) - len(source)
    dims = [_wider(d, source[i - offset]) if i >= offset else d for i, d in enumerate(target)]
    return plan.node("Expand", [inputs[0], dims_of(plan, dims, limit)], {}, limit, name)


def _wider(dim: Dim, source: Dim) -> Dim:
    """What a dimension is broadcast with to become another; 1 where it is that one already."""
    parts = broadcast_of(dim)
    others = [part for part in parts if part not in broadcast_of(source)]
    if len(others) == 1 and len(parts) > 1 and broadcast_dim(source, others[0]) == dim:
        return others[0]
    return 1 if dim == source else dim


def transpose(plan: Plan, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
    return plan.node("Transpose", inputs, {"perm": attrs["perm"]} if "perm" in attrs else {}, limit, name)


def slice_(plan: Plan, cuts: Sequence[Term], inputs: list[str], limit: float, name: str) -> str:
    """One node for slices of slices along as many axes, the outermost first."""
    inner = cuts[::-1]
    axes, starts = [cut.attr("axis") for cut in inner], [cut.attr("start") for cut in inner]
    stops = [END if cut.attr("stop") is None else cut.attr("stop") for cut in inner]
    if plan.draft.opset < 10:
        plain = {"starts": tuple(starts), "ends": tuple(stops), "axes": tuple(axes)}
        return plan.node("Slice", inputs, plain, limit, name)
    vectors = [dims_of(plan, bounds, limit) for bounds in (starts, stops)]
    steps = [cut.attr("step") for cut in inner]
    paces = [plan.integers(steps)] if any(step != 1 for step in steps) else []
    return plan.node("Slice", [*inputs, *vectors, plan.integers(axes), *paces], {}, limit, name)


def concat(plan: Plan, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
    axis = attrs["axis"]
    if axis < 0 and plan.draft.opset < 11 and term.shape is not None:
        axis += len(term.shape)
    return plan.node("Concat", inputs, {"axis": axis}, limit, name)


def as_reshape(terms: Terms, x: Term, shape: Shape) -> Term:
    """The Reshape of a term as it stands, even where the normal form has none."""
    return terms.raw("Reshape", [x], (("shape", shape),), shape=shape, dtype=x.dtype)


def _ones(short: Sequence[Dim], long: Sequence[Dim]) -> tuple[int, ...] | None:
    """The axes of 1 that the longer shape has beyond the shorter; None if that is not all."""
    axes, i = list[int](), 0
    for axis, dim in enumerate(long):
        if i < len(short) and short[i] == dim:
            i += 1
        elif dim == 1:
            axes.append(axis)
        else:
            return None
    return tuple(axes) if i == len(short) else None


def _moved_ones(source: Sequence[Dim], target: Sequence[Dim]) -> tuple[int, ...] | None:
    """The permutation that a Reshape is which moves dims of 1 alone; None for any other."""
    rest, ones = ([i for i, d in enumerate(source) if (d == 1) is one] for one in (False, True))
    if without_ones(source) != without_ones(target) or len(source) != len(target):
        return None
    return tuple(ones.pop(0) if d == 1 else rest.pop(0) for d in target)
