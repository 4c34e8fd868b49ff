"""The functions that a rule may call in `let`, `where` and `emit`, beside ops: the only ones there are.

Each takes the `Scope` of a match and values.  One that cannot answer raises UndecidedError, which refuses the match.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from onnx import TensorProto

from onnxfuse.model import dims as symbolic
from onnxfuse.model.dims import Dim, Shape, Sym, broadcast, product
from onnxfuse.terms.analysis import fills, masks
from onnxfuse.terms.analysis.lengths import lengths_of, window_of
from onnxfuse.terms.analysis.slices import along, part, rows
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.normal.pad import lengthened
from onnxfuse.terms.term import HALF, Term, is_number, same_shape

if TYPE_CHECKING:
    from .evaluate import Scope

Value: TypeAlias = Any
"""What a name in a rule may stand for: Term, int, float, Sym, str, bool, tuple of these, or None (not given)."""


class UndecidedError(Exception):
    """A condition that depends on something unknown, or a step that does not apply; says which."""


def _shape(scope: Scope, x: Value) -> Shape:
    if x is None:
        return ()
    if isinstance(x, int | float):
        return ()
    if not isinstance(x, Term) or x.shape is None:
        raise UndecidedError(f"the shape of {x!r} is unknown")
    return x.shape


def _rank(scope: Scope, x: Value) -> int:
    if x is None or isinstance(x, int | float):
        return 0
    if not isinstance(x, Term) or x.shape is None:
        raise UndecidedError(f"the rank of {x!r} is unknown")
    return len(x.shape)


def _dim(scope: Scope, x: Value, axis: int) -> Dim:
    shape = _shape(scope, x)
    return shape[axis] if -len(shape) <= axis < len(shape) else 1


def _size(scope: Scope, x: Value, axes: Value = None) -> Dim:
    shape = _shape(scope, x)
    return product(shape if axes is None else [shape[a] for a in axes])


def _free(scope: Scope, x: Value) -> bool:
    """Is no data moved on top of x (no Transpose, Expand or Repeat left after views cancelled)?"""
    while isinstance(x, Term) and x.op in ("Reshape", "Slice"):
        x = x.args[0]
    return isinstance(x, Term) and x.op not in ("Transpose", "Expand", "Repeat")


def _trailing(scope: Scope, axis: Value) -> tuple[int, ...]:
    """The axes from `axis` (negative) to the last."""
    if not isinstance(axis, int) or axis >= 0:
        raise UndecidedError(f"axis {axis} does not count from the end")
    return tuple(range(axis, 0))


def _has(scope: Scope, op: str, *features: str) -> bool:
    """Does the target have a standard op in the element type of the result, at this opset or one that is worth raising
    the model to?  `features` are what it must do rightly."""
    target, dtype = scope.ops.target, scope.like.dtype
    return target.may_have(op, scope.context.opset, dtype, features, raising=scope.context.raisable)


def _filled(scope: Scope, value: Value, x: Value, axes: Value) -> Value:
    """`value` if it is a tensor, else a constant of x's dims along `axes`: for ops whose input is not optional."""
    if isinstance(value, Term) and value.op != "Absent" and not (is_number(value) and not value.rank):
        return value
    number = value.scalar if isinstance(value, Term) else value
    dims = [_dim(scope, x, a) for a in axes]
    if number is None or any(isinstance(d, Sym) for d in dims):
        raise UndecidedError(f"the size of {x!r} along {axes} is unknown")
    return scope.terms.constant(np.full([int(d) for d in dims if isinstance(d, int)], float(number)), scope.like.dtype)


def _broadcasts(scope: Scope, x: Value, shape: Value, rows: Value = None) -> bool:
    """Does x broadcast to `shape` without widening it?  Where the result is multiplied by a matrix of `rows` rows, it
    cannot have other columns than those."""
    wide, shape = broadcast(_shape(scope, x), tuple(shape)), tuple(shape)
    if rows is not None and shape and rows == shape[-1]:
        wide = (*wide[:-1], rows)
    return same_shape(wide, shape)


def _same(scope: Scope, a: Value, b: Value) -> bool:
    """Are two dimensions equal for every input?  Where that depends on the input, the answer is no."""
    return bool(a == b)


def _at_most(scope: Scope, a: Value, b: Value) -> bool:
    """Is a dimension never above another?  Where that depends on the input, the answer is no."""
    return symbolic.at_least(b, a)


def _window(scope: Scope, mask: Value, queries: Value, keys: Value, offset: Value) -> tuple[int, int]:
    """How far a mask lets queries see before and behind their own positions."""
    find = window_of if isinstance(offset, Term) else masks.window
    found = find(mask, queries, keys, offset) if isinstance(mask, Term) else None
    if found is None:
        raise UndecidedError(f"{mask!r} is no window")
    return found


def _lengthened(scope: Scope, x: Value, number: Value) -> Term:
    """What a Pad lengthens by a number behind the last axis."""
    found = lengthened(x, number) if isinstance(x, Term) else None
    if found is None:
        raise UndecidedError(f"{x!r} is not padded by {number} behind its last axis")
    return found


def _apart(scope: Scope, mask: Value) -> tuple[Term, Term]:
    """A mask of booleans as a condition on positions and another on everything else."""
    found = masks.apart(scope.terms, mask) if isinstance(mask, Term) else None
    if found is None:
        raise UndecidedError(f"{mask!r} is no conjunction of positions and others")
    return found


def _lengths(scope: Scope, mask: Value, *sizes: Value) -> Term:
    """The lengths of sequences behind which a mask hides keys."""
    found = lengths_of(mask, *sizes) if isinstance(mask, Term) else None
    if found is None:
        raise UndecidedError(f"{mask!r} is no mask of lengths")
    return found


def _blended(scope: Scope, keep: Value, fill: Value) -> float:
    """What a mask of 0 and 1 has in place of a score."""
    low = masks.blended(keep, fill) if isinstance(keep, Term) and isinstance(fill, Term) else None
    if low is None:
        raise UndecidedError(f"{fill!r} is not 0 where {keep!r} is 1, and one number where it is 0")
    return low


def _every(scope: Scope, x: Value, number: Value) -> bool:
    """Is x a constant, all of whose elements are this number?"""
    if not isinstance(x, Term):
        return bool(x == number)
    return x.constant and bool(np.all(value_of(x) == number))


def _along(scope: Scope, x: Value, axis: int) -> Term:
    """The vector that x repeats along all axes but one."""
    vector = along(scope.terms, x, axis) if isinstance(x, Term) else None
    if vector is None:
        raise UndecidedError(f"{x!r} differs along an axis other than {axis}")
    return vector


def _rows(scope: Scope, x: Value, count: Value) -> Term:
    """The matrix of which x repeats the first rows, or the only one, along its leading axes."""
    matrix = rows(scope.terms, x, count) if isinstance(x, Term) else None
    if matrix is None:
        raise UndecidedError(f"{x!r} has no rows that are the same along its leading axes")
    return matrix


def _part(scope: Scope, x: Value, start: Value, stop: Value, step: int = 1) -> Term:
    """x[..., start:stop:step], computed inside what computes x."""
    piece = part(scope.terms, x, start, stop, step) if isinstance(x, Term) and isinstance(stop, int) else None
    if piece is None:
        raise UndecidedError(f"the last dimension of {x!r} is no {stop}")
    return piece


def _attribute(scope: Scope, captured: Value, name: str, default: Value) -> Value:
    """An attribute among those that `**name` captured; `default` where the node does not give it."""
    return dict(captured).get(name, default)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "rank": _rank,
    "dim": _dim,
    "shape": _shape,
    "size": _size,
    "isconst": lambda scope, x: not isinstance(x, Term) or x.constant,
    "isnumber": lambda scope, x: not isinstance(x, Term) or x.scalar is not None,
    "isint": lambda scope, x: isinstance(x, int),
    "isinput": lambda scope, x: isinstance(x, Term) and x.op == "Input",
    "given": lambda scope, x: isinstance(x, Term) and x.op != "Absent",
    "free": _free,
    "causal": lambda scope, x, *sizes: isinstance(x, Term) and masks.is_causal(x, *sizes),
    "window": _window,
    "apart": _apart,
    "lengthened": _lengthened,
    "atmost": _at_most,
    "isbool": lambda scope, x: isinstance(x, Term) and x.dtype == TensorProto.BOOL,
    "target": lambda scope: scope.ops.target.name,
    "provider": lambda scope: scope.ops.target.provider,
    "hides": lambda scope, x: isinstance(x, Term) and masks.hides(x),
    "lengths": _lengths,
    "blended": _blended,
    "half": lambda scope, x: isinstance(x, Term) and x.dtype in HALF,
    "double": lambda scope, x: isinstance(x, Term) and x.dtype == TensorProto.DOUBLE,
    "has": _has,
    "infunction": lambda scope: scope.context.in_function,
    "reused": lambda scope, x: isinstance(x, Term) and x.id in scope.context.reused,
    "isvalue": lambda scope, x: isinstance(x, Term) and x.id in scope.context.named,
    "lowest": lambda scope, x: isinstance(scope.number(x), int | float) and scope.number(x) <= -1e4,
    "mayhold": lambda scope, x, low: isinstance(x, Term) and fills.may_hold(x, low),
    "holds": lambda scope, op: op in scope.context.held,
    "len": lambda scope, x: len(x),
    "abs": lambda scope, x: abs(scope.number(x)),
    "min": lambda scope, *x: min(*x),
    "max": lambda scope, *x: max(*x),
    "trailing": _trailing,
    "filled": _filled,
    "opset": lambda scope: scope.context.opset,
    "broadcasts": _broadcasts,
    "same": _same,
    "attribute": _attribute,
    "along": _along,
    "part": _part,
    "rows": _rows,
    "every": _every,
}
