"""Random nodes that move elements: views, slices, gathers, and what puts them together again."""

from __future__ import annotations

import numpy as np

from .build import BOOL, FLOAT, HALF, INT64, ONE, REAL, Builder, Dim, Dims, Value


def transpose(b: Builder) -> bool:
    x = b.real(2)
    if x is None:
        return False
    perm, rest = list[int](), list(range(x.rank))
    while rest:
        perm.append(rest.pop(b.integer(0, len(rest) - 1)))
    b.transpose(x, perm)
    return True


def merge(b: Builder) -> bool:
    """Neighbouring axes become one."""
    x = b.real(2)
    if x is None:
        return False
    i = b.integer(0, x.rank - 2)
    dims = (*x.dims[:i], x.dims[i].times(x.dims[i + 1]), *x.dims[i + 2 :])
    b.reshape(x, dims, [*range(i), None, *range(i + 2, x.rank)])
    return True


def split_axis(b: Builder) -> bool:
    """A static axis becomes two."""
    x = b.value(
        lambda v: v.dtype in REAL and v.rank < 5 and any(d.static and d.size % 2 == 0 and d.size for d in v.dims)
    )
    if x is None:
        return False
    i = b.pick([i for i, d in enumerate(x.dims) if d.static and d.size % 2 == 0 and d.size])
    size = x.dims[i].size
    parts = (Dim(2), Dim(size // 2)) if b.chance(2) else (Dim(size // 2), Dim(2))
    dims = (*x.dims[:i], *parts, *x.dims[i + 1 :])
    b.reshape(x, dims, [*range(i), None, None, *range(i + 1, x.rank)])
    return True


def flatten(b: Builder) -> bool:
    x = b.real(1)
    if x is None:
        return False
    axis, one = b.integer(0, x.rank), Dim(1)
    first = second = one
    for d in x.dims[:axis]:
        first = first.times(d)
    for d in x.dims[axis:]:
        second = second.times(d)
    if b.chance(3):
        b.add("Reshape", x, b.integers(-1), dims=(first.times(second),))
    else:
        b.add("Flatten", x, dims=(first, second), axis=axis)
    return True


def unsqueeze(b: Builder) -> bool:
    x = b.real(0, 4)
    if x is None:
        return False
    axis = b.integer(0, x.rank)
    b.with_axes("Unsqueeze", x, [axis if not b.chance(2) else axis - x.rank - 1], (*x.dims[:axis], ONE, *x.dims[axis:]))
    return True


def squeeze(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype in REAL and ONE in v.dims)
    if x is None:
        return False
    axis = b.pick([i for i, d in enumerate(x.dims) if d == ONE])
    dims = (*x.dims[:axis], *x.dims[axis + 1 :])
    if b.chance(3) and x.dims.count(ONE) == 1 and all(d.static for d in x.dims):
        b.add("Squeeze", x, dims=dims)
    else:
        b.with_axes("Squeeze", x, [axis if not b.chance(2) else axis - x.rank], dims)
    return True


def slice_axis(b: Builder) -> bool:
    x = b.real(1)
    if x is None:
        return False
    axis = b.integer(0, x.rank - 1)
    d, step = x.dims[axis], b.pick((1, 1, 2, -1))
    start = b.pick((0, 1, -1, -2, 2))
    stop = b.pick((2**63 - 1, 2, -1, 1, 3, 1000))
    if step < 0:
        start, stop = b.pick(((-1, -(2**63)), (-1, 0), (2, -(2**63))))
    length = len(range(d.size)[slice(start, None if stop <= -(2**62) else stop, step)])
    after = d if (start, step, stop >= 1000) == (0, 1, True) else d.made(length, f"{start}:{stop}:{step}")
    dims = (*x.dims[:axis], after, *x.dims[axis + 1 :])
    named = axis if not b.chance(2) else axis - x.rank
    b.add("Slice", x, *(b.integers(n) for n in (start, stop, named, step)), dims=dims)
    return True


def split(b: Builder) -> bool:
    """Equal parts, each of which may be used, and put together again."""
    x = b.value(lambda v: v.dtype in REAL and any(d.static and d.size % 2 == 0 and d.size for d in v.dims))
    if x is None:
        return False
    parts = halves(b, x, b.pick([i for i, d in enumerate(x.dims) if d.static and d.size % 2 == 0 and d.size]))
    b.values += parts
    return True


def halves(b: Builder, x: Value, axis: int) -> list[Value]:
    """Both halves of an axis."""
    half = x.dims[axis].size // 2
    dims = (*x.dims[:axis], Dim(half), *x.dims[axis + 1 :])
    if b.opset < 13:
        names = b.node("Split", [x], 2, axis=axis, split=[half, half])
    elif b.opset >= 18 and b.chance(2):
        names = b.node("Split", [x], 2, axis=axis, num_outputs=2)
    else:
        names = b.node("Split", [x, b.integers(half, half)], 2, axis=axis)
    return [Value(name, x.dtype, dims) for name in names]


def concat(b: Builder) -> bool:
    x = b.real(1)
    if x is None:
        return False
    axis = b.integer(0, x.rank - 1)

    def fits(v: Value) -> bool:
        return v.dtype == x.dtype and v.rank == x.rank and all(
            p == q for i, (p, q) in enumerate(zip(v.dims, x.dims, strict=True)) if i != axis
        )  # fmt: skip

    parts = [x, *(p for _ in range(b.integer(1, 2)) if (p := b.value(fits)) is not None)]
    b.add("Concat", *parts, dims=_end_to_end(parts, axis), axis=axis if not b.chance(2) else axis - x.rank)
    return True


def _end_to_end(parts: list[Value], axis: int) -> Dims:
    """The dimensions of tensors put one behind another."""
    x, total = parts[0], sum(p.dims[axis].size for p in parts)
    joined = Dim(total)
    if not all(p.dims[axis].static for p in parts):
        joined = Dim(total, ("+".join("*".join((*p.dims[axis].names, str(p.dims[axis].size))) for p in parts),))
    return (*x.dims[:axis], joined, *x.dims[axis + 1 :])


def apart_and_together(b: Builder) -> bool:
    """Two halves, each computed alike, end to end."""
    x = b.value(lambda v: v.dtype in REAL and any(d.static and d.size % 2 == 0 and d.size for d in v.dims))
    if x is None:
        return False
    axis = b.pick([i for i, d in enumerate(x.dims) if d.static and d.size % 2 == 0 and d.size])
    op = b.pick(("Sigmoid", "Relu", "Exp", "Neg", "Softmax", "Identity"))
    parts = [b.add(op, p, axis=-1) if op == "Softmax" else b.add(op, p) for p in halves(b, x, axis)]
    b.add("Concat", *parts, dims=x.dims, axis=axis)
    return True


def gather(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype in REAL and any(d.size > 1 for d in v.dims))
    if x is None:
        return False
    axes = [i for i, d in enumerate(x.dims) if d.size > 1 and d.static]
    axis = b.pick(axes) if axes and not b.chance(3) else b.integer(0, x.rank - 1)
    index = b.pick(
        ([0], [-1], [0, 0], [-1, 0])
        if not x.dims[axis].static or x.dims[axis].size < 3
        else ([0], [1, 2], [-2], [2, 0])
    )
    if b.chance(3):
        b.add("Gather", x, b.array(np.array(index[0], np.int64)), dims=(*x.dims[:axis], *x.dims[axis + 1 :]), axis=axis)
    else:
        dims = (*x.dims[:axis], Dim(len(index)), *x.dims[axis + 1 :])
        b.add("Gather", x, b.integers(*index), dims=dims, axis=axis)
    return True


def look_up(b: Builder) -> bool:
    """Rows of a table, by ids."""
    ids = b.value(lambda v: v.dtype == INT64 and 0 < v.bound <= 4 and v.rank in (1, 2))
    if ids is None:
        return False
    b.add("Gather", b.normal((4, 8)), ids, dims=(*ids.dims, Dim(8)), dtype=FLOAT)
    return True


def gather_nd(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == FLOAT and v.rank >= 2)
    if x is None:
        return False
    index = b.array(np.array([[0], [-1]] if b.chance(2) else [[0]], np.int64))
    b.add("GatherND", x, index, dims=(index.dims[0], *x.dims[1:]))
    return True


def gather_elements(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == FLOAT and v.rank >= 1 and v.dims[-1].static and v.dims[-1].size > 1)
    if x is None:
        return False
    index = b.array(np.array([0, 1] if b.chance(2) else [1], np.int64).reshape((1,) * (x.rank - 1) + (-1,)))
    b.add("GatherElements", x, index, dims=index.dims, axis=-1)
    return True


def expand(b: Builder) -> bool:
    """Dimensions of 1 become longer, by a constant or by the shape of another."""
    x = b.value(lambda v: v.dtype in REAL and 1 <= v.rank <= 4)
    if x is None:
        return False
    if b.chance(2):
        longer = tuple(Dim(2) if d == ONE and b.chance(2) else d for d in x.dims)
        b.add(
            "Expand",
            x,
            b.integers(*(d.size if d != e else 1 for d, e in zip(longer, x.dims, strict=True))),
            dims=longer,
        )
    else:
        times = [b.pick((1, 2)) for _ in x.dims]
        dims = tuple(
            d if n == 1 else Dim(d.size * n) if d.static else d.made(d.size * n, f"x{n}")
            for d, n in zip(x.dims, times, strict=True)
        )
        b.add("Tile", x, b.integers(*times), dims=dims)
    return True


def pad(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == FLOAT and 1 <= v.rank <= 4)
    if x is None:
        return False
    around = [0] * (2 * x.rank)
    around[b.integer(0, 2 * x.rank - 1)] = b.pick((1, 0, 2))
    dims = tuple(
        d if not (n := around[i] + around[i + x.rank]) else Dim(d.size + n) if d.static else d.made(d.size + n, f"+{n}")
        for i, d in enumerate(x.dims)
    )
    filler = b.pick((None, 0.0, 1.0, float("-inf")))
    b.add("Pad", x, b.integers(*around), None if filler is None else b.number(filler), dims=dims)
    return True


def triangle(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == FLOAT and v.rank >= 2)
    if x is None or b.opset < 14:
        return False
    b.add("Trilu", x, upper=b.integer(0, 1))
    return True


def running_sum(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == FLOAT and v.rank >= 1)
    if x is None:
        return False
    b.add("CumSum", x, b.array(np.array(b.integer(0, x.rank - 1), np.int64)))
    return True


def scatter_nd(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == FLOAT and v.rank >= 2 and all(d.static for d in v.dims))
    if x is None:
        return False
    b.add("ScatterND", x, b.array(np.array([[0]], np.int64)), b.normal((1, *x.sizes[1:])))
    return True


def size_as_number(b: Builder) -> bool:
    """The length of an axis as a real factor, as exporters of means write it."""
    x = b.real(1)
    if x is None:
        return False
    shape = b.add("Shape", x, dims=(Dim(x.rank),), dtype=INT64)
    axis = b.integer(0, x.rank - 1)
    length = b.add("Gather", shape, b.array(np.array(axis, np.int64)), dims=(), axis=0)
    number = b.add("Cast", length, dtype=x.dtype, to=x.dtype)
    total = b.reduce("ReduceSum", x, [axis])
    b.joined("Div", total, number)
    return True


def mask_as_number(b: Builder) -> bool:
    """1 - mask times a large negative number, as exporters write a padding mask."""
    m = b.value(lambda v: v.dtype == BOOL or (v.dtype == INT64 and v.bound == 2))
    if m is None:
        return False
    kind = FLOAT if not b.chance(6) else HALF
    number = b.add("Cast", m, dtype=kind, to=kind)
    inverse = b.joined("Sub", b.number(1.0, kind), number)
    b.joined("Mul", inverse, b.number(b.pick((-1e9, -1e4, -3.4028235e38, -1.0, float("-inf"))), kind))
    return True
