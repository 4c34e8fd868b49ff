"""Views: ops that move elements, as maps from coordinates of their result to coordinates of their operand.

An axis, a shape or a bound is an attribute or an input that must be constant, as the opset has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from onnxfuse.errors import KernelError

from .index import (
    ZERO,
    Coordinates,
    Guard,
    Index,
    Read,
    Valid,
    below,
    coordinates,
    divide,
    flat,
    guarded,
    number,
    total,
    within,
)
from .scalars import LONG, Scalar, Scalars
from .values import At, Shape, Value, aligned, broadcast, computed_type, size


@dataclass(frozen=True)
class Call:
    """One node: its operands (None where left out) and attributes."""

    scalars: Scalars
    op: str
    inputs: tuple[Value | None, ...]
    attributes: Mapping[str, Any]
    outputs: int
    coarse: Callable[[], bool] = bool
    """Whether its result needs no more digits than 16 bits keep; not to be asked before all nodes are read."""

    @property
    def x(self) -> Value:
        return self.operand(0)

    def operand(self, position: int) -> Value:
        found = self.inputs[position] if position < len(self.inputs) else None
        if found is None:
            raise KernelError(f"{self.op} lacks input {position}")
        return found

    def given(self, position: int) -> bool:
        return position < len(self.inputs) and self.inputs[position] is not None

    def integers(self, position: int, name: str) -> list[int] | None:
        """An attribute, or the constant input at this position; None if there is neither."""
        if name in self.attributes:
            return [int(v) for v in self.attributes[name]]
        if not self.given(position):
            return None
        constant = self.operand(position).constant
        if constant is None:
            raise KernelError(f"the {name} of {self.op} must be known before it runs")
        return [int(v) for v in constant.reshape(-1)]

    def axis(self, default: int, rank: int | None = None) -> int:
        rank = len(self.x.shape) if rank is None else rank
        axis = int(self.attributes.get("axis", default))
        return axis + rank if axis < 0 else axis


Move: TypeAlias = Callable[[Call], list[Value]]
MOVES: dict[str, Move] = {}


def _move(*ops: str) -> Callable[[Move], Move]:
    def register(function: Move) -> Move:
        for op in ops:
            MOVES[op] = function
        return function

    return register


def _like(x: Value, shape: Shape, at: At) -> list[Value]:
    return [Value(shape, x.dtype, at)]


def _reshaped(x: Value, shape: Shape) -> list[Value]:
    def at(c: Coordinates, guard: Guard) -> Scalar:
        return x.at(coordinates(flat(c, shape), x.shape), guard)

    if size(shape) != x.size:
        raise KernelError(f"a tensor of shape {x.shape} cannot be reshaped to {shape}")
    return _like(x, shape, at)


@_move("Reshape")
def _reshape(call: Call) -> list[Value]:
    x, shape = call.x, call.integers(1, "shape") or []
    if not call.attributes.get("allowzero"):
        if 0 in shape[len(x.shape) :]:
            raise KernelError(f"a tensor of shape {x.shape} has no dimension that {shape} could copy")
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    if -1 in shape:
        rest = size(tuple(n for n in shape if n != -1))
        shape[shape.index(-1)] = x.size // rest if rest else 0
    return _reshaped(x, tuple(shape))


@_move("Flatten")
def _flatten(call: Call) -> list[Value]:
    x, axis = call.x, call.axis(1)
    return _reshaped(x, (size(x.shape[:axis]), size(x.shape[axis:])))


@_move("Squeeze")
def _squeeze(call: Call) -> list[Value]:
    x, axes = call.x, call.integers(1, "axes")
    dropped = {a % len(x.shape) for a in axes} if axes is not None else {i for i, n in enumerate(x.shape) if n == 1}
    return _reshaped(x, tuple(n for i, n in enumerate(x.shape) if i not in dropped))


@_move("Unsqueeze")
def _unsqueeze(call: Call) -> list[Value]:
    x, axes = call.x, call.integers(1, "axes") or []
    rank = len(x.shape) + len(axes)
    added, rest = {a % rank for a in axes}, iter(x.shape)
    return _reshaped(x, tuple(1 if i in added else next(rest) for i in range(rank)))


@_move("Transpose")
def _transpose(call: Call) -> list[Value]:
    x = call.x
    perm = [int(p) for p in call.attributes.get("perm", range(len(x.shape))[::-1])]

    def at(c: Coordinates, guard: Guard) -> Scalar:
        moved = [ZERO] * len(perm)
        for i, p in enumerate(perm):
            moved[p] = c[i]
        return x.at(tuple(moved), guard)

    return _like(x, tuple(x.shape[p] for p in perm), at)


@_move("Expand")
def _expand(call: Call) -> list[Value]:
    x = call.x
    return _like(
        x, broadcast([x.shape, tuple(call.integers(1, "shape") or ())]), lambda c, g: x.at(aligned(c, x.shape), g)
    )


@_move("Tile")
def _tile(call: Call) -> list[Value]:
    x, repeats = call.x, call.integers(1, "repeats") or []

    def at(c: Coordinates, guard: Guard) -> Scalar:
        return x.at(tuple(divide(k, n)[1] for k, n in zip(c, x.shape, strict=True)), guard)

    return _like(x, tuple(n * r for n, r in zip(x.shape, repeats, strict=True)), at)


@_move("Slice")
def _slice(call: Call) -> list[Value]:
    x = call.x
    starts, ends = call.integers(1, "starts") or [], call.integers(2, "ends") or []
    axes, steps = call.integers(3, "axes") or list(range(len(starts))), call.integers(4, "steps") or [1] * len(starts)
    shape, first, by = list(x.shape), [0] * len(x.shape), [1] * len(x.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        taken = _taken(start, end, step, x.shape[axis])
        shape[axis], first[axis % len(shape)], by[axis % len(shape)] = len(taken), taken.start, step
    return _sliced(x, tuple(shape), first, by)


def _taken(start: int, end: int, step: int, extent: int) -> range:
    """What a Slice takes of an axis: backwards it begins inside, where Python takes nothing."""
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    start, end = (at + extent if at < 0 else at for at in (start, end))
    return range(min(max(start, 0), high), min(max(end, low), high), step)


def _sliced(x: Value, shape: Shape, first: Sequence[int], by: Sequence[int]) -> list[Value]:
    def at(c: Coordinates, guard: Guard) -> Scalar:
        return x.at(tuple(k * s + f for k, f, s in zip(c, first, by, strict=True)), guard)

    return _like(x, shape, at)


@_move("Split")
def _split(call: Call) -> list[Value]:
    x, axis, sizes = call.x, call.axis(0), call.integers(1, "split")
    if sizes is None:
        each = -(-x.shape[axis] // call.outputs)
        sizes = [max(0, min(each, x.shape[axis] - i * each)) for i in range(call.outputs)]
    if sum(sizes) != x.shape[axis]:
        raise KernelError(f"axis {axis} of a tensor of shape {x.shape} has no parts of {sizes}")
    found, start = [], 0
    for n in sizes:
        first = [start if i == axis else 0 for i in range(len(x.shape))]
        found += _sliced(x, (*x.shape[:axis], n, *x.shape[axis + 1 :]), first, [1] * len(x.shape))
        start += n
    return found


@_move("Concat")
def _concat(call: Call) -> list[Value]:
    axis = call.axis(0)
    parts = [p for p in call.inputs if p is not None]
    shape = (*call.x.shape[:axis], sum(p.shape[axis] for p in parts), *call.x.shape[axis + 1 :])
    if any((*p.shape[:axis], *p.shape[axis + 1 :]) != (*shape[:axis], *shape[axis + 1 :]) for p in parts):
        raise KernelError(f"tensors of shapes {[p.shape for p in parts]} cannot be joined along axis {axis}")
    parts = [p for p in parts if p.shape[axis]] or parts[:1]

    def at(c: Coordinates, guard: Guard) -> Scalar:
        return part(c, guard, 0, 0)

    def part(c: Coordinates, guard: Guard, i: int, start: int) -> Scalar:
        """The element, known to lie in part i, which begins at `start`, or behind it."""
        own = parts[i]
        moved = (*c[:axis], within(c[axis] + -start, own.shape[axis]), *c[axis + 1 :])
        if i + 1 == len(parts):
            return own.at(moved, guard)
        end = start + own.shape[axis]
        here = below(c[axis], end)
        if here is True:
            return own.at(moved, guard)
        behind = part(c, guarded(guard, here, False), i + 1, end)
        return behind if here is False else call.scalars.select(here, own.at(moved, guarded(guard, here)), behind)

    return _like(call.x, shape, at)


@_move("Pad")
def _pad(call: Call) -> list[Value]:
    x, pads = call.x, call.integers(1, "pads") or []
    rank = len(x.shape)
    axes = [a % rank for a in call.integers(3, "axes") or range(rank)]
    mode = call.attributes.get("mode", "constant")
    if mode != "constant" or min(pads, default=0) < 0:
        raise KernelError(f"Pad with mode {mode} and pads {pads} has no kernel")
    before, after = [0] * rank, [0] * rank
    for i, a in enumerate(axes):
        before[a], after[a] = pads[i], pads[i + len(axes)]
    type = computed_type(x.dtype)
    default = call.scalars.literal(float(call.attributes.get("value", 0.0)), type)

    def at(c: Coordinates, guard: Guard) -> Scalar:
        filler = call.operand(2).at((ZERO,) * len(call.operand(2).shape), guard) if call.given(2) else default
        conditions = []
        if x.size == 0:
            return filler
        for k, n, start in zip(c, x.shape, before, strict=True):
            conditions += [(below(k, start), False), (below(k, start + n), True)]
        if any(isinstance(bound, bool) and bound != wanted for bound, wanted in conditions):
            return filler
        inner = guard
        for bound, wanted in conditions:
            inner = guarded(inner, bound, wanted)
        result = x.at(tuple(within(k + -b, n) for k, b, n in zip(c, before, x.shape, strict=True)), inner)
        for bound, wanted in conditions:
            result = call.scalars.select(bound, *((result, filler) if wanted else (filler, result)))
        return result

    return _like(x, tuple(n + b + a for n, b, a in zip(x.shape, before, after, strict=True)), at)


@_move("Gather")
def _gather(call: Call) -> list[Value]:
    x, indices, axis = call.x, call.operand(1), call.axis(0)
    rank = len(indices.shape)

    def at(c: Coordinates, guard: Guard) -> Scalar:
        index, inner = _index(call, indices.at(c[axis : axis + rank], guard), x.shape[axis], guard)
        return x.at((*c[:axis], index, *c[axis + rank :]), inner)

    return _like(x, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), at)


@_move("GatherElements")
def _gather_elements(call: Call) -> list[Value]:
    x, indices, axis = call.x, call.operand(1), call.axis(0)
    if any(n > x.shape[i] for i, n in enumerate(indices.shape) if i != axis):
        raise KernelError(f"indices of shape {indices.shape} lead outside a tensor of shape {x.shape}")

    def at(c: Coordinates, guard: Guard) -> Scalar:
        index, inner = _index(call, indices.at(c, guard), x.shape[axis], guard)
        return x.at((*c[:axis], index, *c[axis + 1 :]), inner)

    return _like(x, indices.shape, at)


def _index(call: Call, element: Scalar, extent: int, guard: Guard) -> tuple[Index, Guard]:
    """An element of an index tensor as a coordinate, and the guard under which it is one.

    What lies outside the axis reads as 0, as onnxruntime's CUDA kernels have it."""
    known = call.scalars.index(element)
    if known is not None and known.high < 0:
        known = known + extent
    if known is not None and known.low >= 0 and known.high < extent:
        return known, guard
    read = Read(element, extent)
    return Index(0, {read: 1}), guarded(guard, Valid(read))


@_move("Trilu")
def _trilu(call: Call) -> list[Value]:
    x, upper = call.x, bool(call.attributes.get("upper", 1))
    k = (call.integers(1, "k") or [0])[0]
    zero = call.scalars.literal(0, computed_type(x.dtype))

    def at(c: Coordinates, guard: Guard) -> Scalar:
        outside = below(total([(c[-1], 1), (c[-2], -1)]), k if upper else k + 1)
        result = x.at(c, guarded(guard, outside, not upper))
        return call.scalars.select(outside, *((zero, result) if upper else (result, zero)))

    return _like(x, x.shape, at)


@_move("Range")
def _range(call: Call) -> list[Value]:
    bounds = [call.integers(i, "bounds") for i in range(3)]
    dtype = call.x.dtype
    if computed_type(dtype) != LONG:
        raise KernelError(f"Range of {dtype.name} has no kernel")
    start, stop, step = (b[0] if b else 0 for b in bounds)

    def at(c: Coordinates, guard: Guard) -> Scalar:
        return call.scalars.position(total([(c[0], step), (number(start), 1)]))

    return [Value((max(0, -(-(stop - start) // step)),), dtype, at)]


@_move("DepthToSpace", "SpaceToDepth")
def _blocks(call: Call) -> list[Value]:
    x, n = call.x, int(call.attributes["blocksize"])
    b, c, h, w = x.shape
    if call.op == "SpaceToDepth":
        split, perm, shape = (b, c, h // n, n, w // n, n), (0, 3, 5, 1, 2, 4), (b, c * n * n, h // n, w // n)
    elif call.attributes.get("mode", "DCR") == "DCR":
        split, perm, shape = (b, n, n, c // (n * n), h, w), (0, 3, 4, 1, 5, 2), (b, c // (n * n), h * n, w * n)
    else:
        split, perm, shape = (b, c // (n * n), n, n, h, w), (0, 1, 4, 2, 5, 3), (b, c // (n * n), h * n, w * n)
    (parted,) = _reshaped(x, split)
    (turned,) = _transpose(Call(call.scalars, call.op, (parted,), {"perm": perm}, 1))
    return _reshaped(turned, shape)
