"""The functions that a rule may call beside ops: the only ones there are.

Each is registered where it is defined: its name and arguments are those of the Python function.  What checks, evaluates
and lists them takes them from `BUILTINS`.  Each takes the `Scope` of a match, or if it is of `meaning` any `Facts`, and
values.  One that cannot answer raises UndecidedError, which refuses the match.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from onnx import TensorProto

from onnxfuse.model import dims as symbolic
from onnxfuse.model.broadcast import broadcast
from onnxfuse.model.dims import Dim, Shape, Sym, product
from onnxfuse.terms.analysis import fills, masks
from onnxfuse.terms.analysis.lengths import lengths_of, window_of
from onnxfuse.terms.analysis.slices import along, part, rows
from onnxfuse.terms.normal.normal import expand, slice_axis
from onnxfuse.terms.normal.pad import lengthened
from onnxfuse.terms.normal.ranges import all_moderate, every
from onnxfuse.terms.term import HALF, Term, is_number, same_shape

from .registry import Builtin, Facts, registering
from .variadic import Each

if TYPE_CHECKING:
    from .evaluate import Scope

Value: TypeAlias = Any
"""What a name in a rule may stand for: Term, int, float, Sym, str, bool, tuple of these, or None (not given)."""


class UndecidedError(Exception):
    """A condition that depends on something unknown, or a step that does not apply; says which."""


BUILTINS: dict[str, Builtin] = {}
"""By name, in the order in which they are defined."""

builtin = registering(BUILTINS)

# ------------------------------------------------------------------------------------- shapes and dimensions


@builtin(shapes=True)
def _shape(scope: Facts, x: Value) -> Shape:
    """The dimensions of a tensor; a number has none."""
    return scope.shape(x)


@builtin(meaning=True, shapes=True)
def _rank(scope: Facts, x: Value) -> int:
    """How many dimensions a tensor has."""
    return len(scope.shape(x))


@builtin(meaning=True, shapes=True)
def _dim(scope: Facts, x: Value, axis: int) -> Dim:
    """One dimension; beyond the rank they are 1."""
    shape = scope.shape(x)
    return shape[axis] if -len(shape) <= axis < len(shape) else 1


@builtin(shapes=True)
def _size(scope: Facts, x: Value, axes: Value = None) -> Dim:
    """How many elements a tensor has, or one of its dimensions along some axes."""
    shape = scope.shape(x)
    return product(shape if axes is None else [shape[a] for a in axes])


@builtin()
def _broadcasts(scope: Scope, x: Value, shape: Value, rows: Value = None) -> bool:
    """Does x broadcast to `shape` without widening it?  Where the result is multiplied by a matrix of `rows` rows, it
    cannot have other columns than those: a run in which `shape` has others fails here or there."""
    wide, shape = broadcast(scope.shape(x), tuple(shape)), tuple(shape)
    if rows is not None and shape and symbolic.equal(rows, shape[-1]) is not False:
        wide = (*wide[:-1], shape[-1])
    return same_shape(wide, shape)


@builtin()
def _floor(scope: Scope, a: Value, b: Value) -> Dim:
    """How often b goes into a, two dimensions, as integers are divided."""
    return symbolic.floor_divide(a, b)


@builtin()
def _same(scope: Scope, a: Value, b: Value) -> bool:
    """Are two dimensions equal for every input?  Where that depends on the input, the answer is no."""
    return bool(a == b)


@builtin()
def _atmost(scope: Scope, a: Value, b: Value) -> bool:
    """Is a dimension never above another?  Where that depends on the input, the answer is no."""
    return symbolic.at_least(b, a)


@builtin(meaning=True)
def _trailing(scope: Facts, axis: Value) -> tuple[int, ...]:
    """The axes from `axis` (negative) to the last."""
    if not isinstance(axis, int) or axis >= 0:
        raise UndecidedError(f"axis {axis} does not count from the end")
    return tuple(range(axis, 0))


@builtin(meaning=True, shapes=True)
def _leading(scope: Facts, x: Value, axis: Value) -> tuple[int, ...]:
    """The axes of a tensor before `axis` (negative), counted from the end."""
    if not isinstance(axis, int) or axis >= 0:
        raise UndecidedError(f"axis {axis} does not count from the end")
    return tuple(range(-len(scope.shape(x)), axis))


# ------------------------------------------------------------------------------------- what a value is


@builtin(meaning=True)
def _given(scope: Facts, x: Value) -> bool:
    """Is it a tensor that was not left out?"""
    return scope.given(x)


@builtin(meaning=True, shapes=True)
def _isbool(scope: Facts, x: Value) -> bool:
    """Is it a tensor of booleans?"""
    return scope.boolean(x)


@builtin(meaning=True)
def _isint(scope: Facts, d: Value) -> bool:
    """Is a dimension known?"""
    return isinstance(d, int)


@builtin()
def _isconst(scope: Scope, x: Value) -> bool:
    """Is it a number or a constant?"""
    return not isinstance(x, Term) or x.constant


@builtin()
def _isnumber(scope: Scope, x: Value) -> bool:
    """Is it a number or a constant of one element?"""
    return not isinstance(x, Term) or x.scalar is not None


@builtin()
def _isinput(scope: Scope, x: Value) -> bool:
    """Is it an input of the graph?"""
    return isinstance(x, Term) and x.op == "Input"


@builtin()
def _isvalue(scope: Scope, x: Value) -> bool:
    """Is it a value of the model?  The product inside a Gemm is none."""
    return isinstance(x, Term) and x.id in scope.context.named


@builtin()
def _half(scope: Scope, x: Value) -> bool:
    """Is it in half precision?"""
    return isinstance(x, Term) and x.dtype in HALF


@builtin()
def _double(scope: Scope, x: Value) -> bool:
    """Is it in double precision?"""
    return isinstance(x, Term) and x.dtype == TensorProto.DOUBLE


@builtin()
def _reused(scope: Scope, x: Value) -> bool:
    """May something beside the match need it, too?"""
    return isinstance(x, Term) and x.id in scope.context.reused


@builtin()
def _free(scope: Scope, x: Value) -> bool:
    """Is no data moved on top of x (no Transpose, Expand or Repeat left), but for what is repeated for a batch?"""
    while isinstance(x, Term) and (x.op in ("Reshape", "Slice") or _for_batch(x)):
        x = x.args[0]
    return isinstance(x, Term) and x.op not in ("Transpose", "Expand", "Repeat")


def _for_batch(x: Term) -> bool:
    """Does it repeat something along the first axis, and no other?"""
    inner = x.args[0].shape if x.op == "Expand" and len(x.args) == 1 else None
    return inner is not None and x.shape is not None and inner[1:] == x.shape[1:] and len(inner) == len(x.shape)


@builtin()
def _every(scope: Scope, x: Value, number: Value) -> bool:
    """Is x this number throughout: a constant, or one that is expanded?"""
    return every(x, number) if isinstance(x, Term) else bool(x == number)


@builtin()
def _moderate(scope: Scope, x: Value) -> bool:
    """Is each element of a constant 0, NaN, or between 2^-24 and 2^24 in size?  Others leave the range elsewhere."""
    return isinstance(x, Term) and all_moderate(x)


@builtin()
def _mayhold(scope: Scope, x: Value, low: Value) -> bool:
    """May an element be as low as `low`, or -inf if that is?"""
    return isinstance(x, Term) and fills.may_hold(x, low)


# ------------------------------------------------------------------------------------- masks


@builtin()
def _causal(scope: Scope, mask: Value, queries: Value, keys: Value, offset: Value) -> bool:
    """Does query i see exactly the keys j <= i + offset?"""
    return isinstance(mask, Term) and masks.is_causal(mask, queries, keys, offset)


@builtin()
def _window(scope: Scope, mask: Value, queries: Value, keys: Value, offset: Value) -> tuple[int, int]:
    """How far a mask lets queries see before and behind their own positions."""
    find = window_of if isinstance(offset, Term) else masks.window
    found = find(mask, queries, keys, offset) if isinstance(mask, Term) else None
    if found is None:
        raise UndecidedError(f"{mask} is no window")
    return found


@builtin()
def _apart(scope: Scope, mask: Value) -> tuple[Term, Term]:
    """A mask of booleans as a condition on positions and another on everything else."""
    found = masks.apart(scope.terms, mask) if isinstance(mask, Term) else None
    if found is None:
        raise UndecidedError(f"{mask} is no conjunction of positions and others")
    return found


@builtin()
def _hides(scope: Scope, mask: Value) -> bool:
    """Does a mask hide by -inf what it hides?"""
    return isinstance(mask, Term) and masks.hides(mask)


@builtin()
def _lengths(scope: Scope, mask: Value, batch: Value, keys: Value, queries: Value = None) -> Term:
    """The lengths of sequences behind which a mask hides keys."""
    found = lengths_of(mask, batch, keys, queries) if isinstance(mask, Term) else None
    if found is None:
        raise UndecidedError(f"{mask} is no mask of lengths")
    return found


@builtin()
def _blended(scope: Scope, keep: Value, fill: Value) -> float:
    """What a mask of 0 and 1 has in place of a score."""
    low = masks.blended(keep, fill) if isinstance(keep, Term) and isinstance(fill, Term) else None
    if low is None:
        raise UndecidedError(f"{fill} is not 0 where {keep} is 1, and one number where it is 0")
    return low


# ------------------------------------------------------------------------------------- tensors out of tensors


@builtin()
def _filled(scope: Scope, value: Value, x: Value, axes: Value) -> Value:
    """`value` if it has several elements, else it or a constant of x's dims along `axes`, which no op makes of one."""
    number = value.scalar if isinstance(value, Term) else value
    if isinstance(value, Term) and value.op != "Absent" and not is_number(value):
        if value.shape is None or product(value.shape) != 1:
            return value
        return expand(scope.terms, value, tuple(_dim(scope, x, a) for a in axes))
    dims = [_dim(scope, x, a) for a in axes]
    if number is None or any(isinstance(d, Sym) for d in dims):
        raise UndecidedError(f"the size of {x} along {axes} is unknown")
    return scope.terms.constant(np.full([int(d) for d in dims if isinstance(d, int)], float(number)), scope.like.dtype)


@builtin()
def _lengthened(scope: Scope, x: Value, number: Value) -> Term:
    """What a Pad lengthens by a number behind the last axis."""
    found = lengthened(x, number) if isinstance(x, Term) else None
    if found is None:
        raise UndecidedError(f"{x} is not padded by {number} behind its last axis")
    return found


@builtin()
def _along(scope: Scope, x: Value, axis: int) -> Term:
    """The vector that x repeats along all axes but one."""
    vector = along(scope.terms, x, axis) if isinstance(x, Term) else None
    if vector is None:
        raise UndecidedError(f"{x} differs along an axis other than {axis}")
    return vector


@builtin()
def _rows(scope: Scope, x: Value, count: Value) -> Term:
    """The matrix of which x repeats the first rows, or the only one, along its leading axes."""
    matrix = rows(scope.terms, x, count) if isinstance(x, Term) else None
    if matrix is None:
        raise UndecidedError(f"{x} has no rows that are the same along its leading axes")
    return matrix


@builtin()
def _part(scope: Scope, x: Value, start: Value, stop: Value, step: int = 1) -> Term:
    """x[..., start:stop:step], computed inside what computes x."""
    piece = part(scope.terms, x, start, stop, step) if isinstance(x, Term) and isinstance(stop, int) else None
    if piece is None:
        raise UndecidedError(f"the last dimension of {x} is no {stop}")
    return piece


@builtin()
def _parts(scope: Scope, x: Value, counts: Value) -> Each:
    """x cut along its first axis: a list of pieces, of so many each, which are all there is of it."""
    counted = isinstance(counts, tuple) and all(isinstance(count, int) for count in counts)
    if not isinstance(x, Term) or not x.shape or not counted or symbolic.equal(x.shape[0], sum(counts)) is not True:
        raise UndecidedError(f"{x} has not as many elements as {counts}")
    ends = list(accumulate(counts))
    return Each(slice_axis(scope.terms, x, 0, end - count, end, 1) for count, end in zip(counts, ends, strict=True))


# ------------------------------------------------------------------------------------- the model and the target


@builtin()
def _target(scope: Scope) -> str:
    """The name of the target."""
    return scope.ops.target.name


@builtin()
def _provider(scope: Scope) -> str:
    """The execution provider of the target, if it is one's."""
    return scope.ops.target.provider


@builtin()
def _has(scope: Scope, op: str, *feature: str) -> bool:
    """Does the target have a standard op in the element type of the result, at this opset or one that is worth raising
    the model to?  `feature` is what it must do rightly."""
    target, dtype = scope.ops.target, scope.like.dtype
    return target.may_have(op, scope.context.opset, dtype, feature, raising=scope.context.raisable)


@builtin()
def _opset(scope: Scope) -> int:
    """The opset of the model."""
    return scope.context.opset


@builtin()
def _holds(scope: Scope, op: str) -> bool:
    """Had the graph a node of this standard op when it was read?"""
    return op in scope.context.held


@builtin()
def _infunction(scope: Scope) -> bool:
    """Is the match in a local function of the model?"""
    return scope.context.in_function


# ------------------------------------------------------------------------------------- numbers, lists and attributes


@builtin()
def _abs(scope: Scope, x: Value) -> Value:
    """The absolute value of a number."""
    return abs(scope.number(x))


@builtin()
def _min(scope: Scope, a: Value, *b: Value) -> Value:
    """The least number of several, or of a list."""
    return min(a, *b)


@builtin()
def _max(scope: Scope, a: Value, *b: Value) -> Value:
    """The largest number of several, or of a list."""
    return max(a, *b)


@builtin(meaning=True)
def _len(scope: Facts, items: Value) -> int:
    """How many items a list has."""
    return len(items)


@builtin()
def _attribute(scope: Scope, a: Value, name: str, default: Value) -> Value:
    """An attribute among those that `**name` captured; `default` where the node does not give it."""
    return dict(a).get(name, default)
