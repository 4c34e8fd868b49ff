"""What a model does with each of its inputs: which tables it indexes, whether it is a mask, whether it counts.

Random integers make most models fail or say nothing: a token id must lie inside the embedding table, a mask must be
0 or 1, a trip count must be small.  `trace` follows every graph input forward, through whatever leaves its values
recognisable (casts, views, constant offsets), to the operators that give the values their meaning.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from onnxfuse.model.op_traits import CASTS, COMPARISONS, MOVEMENT, UNARY

from .dataflow import Dataflow, Dims, Value

_MASK_NAME = re.compile(r"(^|[_./])masks?($|[_./\d])")
_CARRIERS = {"Concat": None, "Where": (1, 2), "ScatterND": (0, 2), "ScatterElements": (0, 2), "Max": None}
"""Operators that pass on values of the inputs at these positions (None: of all), as views pass on those of input 0."""
_TABLES = {
    ("", "Gather"): {1: 0},
    ("", "GatherElements"): {1: 0},
    ("", "GatherND"): {1: 0},
    ("", "RotaryEmbedding"): {3: 1},
    ("com.microsoft", "RotaryEmbedding"): {1: 2},
    ("com.microsoft", "GatherBlockQuantized"): {1: 0},
    ("com.microsoft", "EmbedLayerNormalization"): {0: 2, 1: 4},
}
"""Input position of the indices → input position of the table they index."""
_SAME_SHAPE = UNARY | CASTS | {"Identity", "Add", "Sub", "Mul", "Div"}
"""Operators whose output has the sizes of an input that is not broadcast: axes keep their numbers."""
_COUNTS = {
    "Loop": (0,),
    "Range": (0, 1, 2),
    "TopK": (1,),
    "ConstantOfShape": (0,),
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "Slice": (1, 2),
    "OneHot": (1,),
    "Resize": (3,),
    "Div": (1,),
    "Mod": (1,),
}
"""Input positions that want a small positive integer: a trip count, a size, a divisor."""
_SEQUENCE_LENGTHS = {"RNN": 4, "GRU": 4, "LSTM": 4}
"""Input position of the lengths of the sequences of a batch."""
_ORDERS = {"Less", "LessOrEqual", "Greater", "GreaterOrEqual"}


@dataclass(slots=True)
class Usage:
    """What the graph does with one input."""

    limits: list[tuple[int, int, int | str]] = field(default_factory=list)
    """``(factor, offset, size)``: factor · input + offset indexes an axis of `size` (a symbol where it is dynamic)."""
    mask: bool = False
    hides: bool = False
    """Where the mask is 1, a Where puts what leaves a score no weight, as torch's key_padding_mask does."""
    switch: bool = False
    """The input decides which branch an If takes, as a merged decoder's `use_cache_branch` does."""
    count: bool = False
    positive: bool = False
    """The input goes into a Log or a Sqrt."""
    steps: list[int | str] = field(default_factory=list)
    """Sizes of axes whose first elements it counts, as the lengths of padded sequences do; 0 where one is unknown."""
    padding: int | None = None
    """A number that ids are compared with: where padding is told by its id, that one."""
    bounds: tuple[float, float] | None = None
    """Constants are compared with it, as the frequencies that a detector looks at are with the lowest and the highest
    that it is to find: between these numbers, some lie on each side, and most on the one that counts."""
    sizes: dict[int, int] = field(default_factory=dict)
    """What weights tell of the size of an axis: the channels of a Conv, the rows of a product's matrix."""

    def bound(self, sizes: dict[str, int]) -> int | None:
        """The number of values 0, 1, … that stay inside every table; None where no table is indexed."""
        bounds = []
        for factor, offset, size in self.limits:
            known = sizes.get(size, 1) if isinstance(size, str) else size
            room = (known - 1 - offset) // factor + 1
            # A path that leaves no room is the idiom `Where(i < 0, i + size, i)`: it is not taken for i >= 0.
            if room >= 1:
                bounds.append(room)
        return min(bounds, default=None)

    def longest(self, sizes: dict[str, int]) -> int:
        """The largest length that none of the axes is shorter than; where no size is known, the smallest of `sizes`."""
        known = [sizes.get(step, 0) if isinstance(step, str) else step for step in self.steps]
        return min(filter(None, known), default=min(filter(None, sizes.values()), default=2))


@dataclass(frozen=True, slots=True)
class _Path:
    """A value that is factor · input + offset, and at most `cap`."""

    factor: int = 1
    offset: int = 0
    cap: float = float("inf")
    share: bool = False
    """Is it less than that, as of a moment that an optimizer updates?  Only its sign is known then."""


def trace(model: onnx.ModelProto) -> dict[str, Usage]:
    """How each graph input is used, by name; initializers are not inputs here.  No weight is read."""
    index = Dataflow(model)
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in initializers]
    return {info.name: replace(_follow(index, info), sizes=_sizes(index, info)) for info in inputs}


def _follow(index: Dataflow, info: onnx.ValueInfoProto) -> Usage:
    usage = Usage()
    pending: list[tuple[Value, _Path]] = [(("", info.name), _Path())]
    seen: dict[Value, set[_Path]] = defaultdict(set)
    while pending:
        value, path = pending.pop()
        # Counters in loops would grow for ever; four paths to one value say all there is to say.
        if path in seen[value] or len(seen[value]) >= 4:
            continue
        seen[value].add(path)
        pending += ((alias, path) for alias in index.aliases[value])
        for node, position in index.consumers[value]:
            _note(usage, index, node, value[0], position, path)
            after = list(_step(index, node, value[0], position, path))
            pending += (((value[0], output), step) for output in node.output for step in after)
    indexes = any(not isinstance(size, int) or size > 2 for _, _, size in usage.limits)
    # A padding id is compared with a constant, too: what indexes a table of more than two rows is an id.
    usage.mask = not indexes and (usage.mask or bool(_MASK_NAME.search(info.name.lower())))
    return usage


def _note(usage: Usage, index: Dataflow, node: onnx.NodeProto, scope: str, position: int, path: _Path) -> None:
    """Records what `node` demands of a value that arrives at `position` by `path`."""
    usage.positive |= node.op_type in ("Log", "Sqrt")
    if path.share:
        return
    table = _TABLES.get((node.domain, node.op_type), {}).get(position)
    if table is not None and table < len(node.input):
        for size in _axes(node, index.dims_of((scope, node.input[table]))):
            if not isinstance(size, int) or path.cap >= size:
                usage.limits.append((path.factor, path.offset, size))
    usage.count |= position in _COUNTS.get(node.op_type, ())
    usage.switch |= node.op_type == "If"
    usage.steps += _steps(index, node, scope, position)
    if path.factor == 1 and path.offset == 0:
        other = None
        if node.op_type in COMPARISONS or (node.op_type == "Sub" and position == 1):
            other = index.constant((scope, node.input[1 - position]))
        flags = (1,) if node.op_type == "Sub" else (0, 1)
        to_bool = node.op_type == "Cast" and _attribute(node, "to") == onnx.TensorProto.BOOL
        usage.hides |= node.op_type == "Where" and position == 0 and index.fills_mask((scope, node.input[1]))
        usage.mask |= to_bool or (other is not None and bool(np.isin(other, flags).all()))
        scale = index.scale((scope, node.input[1 - position])) if node.op_type in _ORDERS else None
        if scale is not None and scale.size > 1:
            lowest = (position == 1) == node.op_type.startswith("Greater")  # what is above it counts
            low, high = np.quantile(scale, (0, 0.25) if lowest else (0.75, 1))
            usage.bounds = float(low), float(high)
        if node.op_type in COMPARISONS and other is not None and other.size == 1 and float(other.item()).is_integer():
            usage.padding = int(other.item())


def _steps(index: Dataflow, node: onnx.NodeProto, scope: str, position: int) -> Iterator[int | str]:
    """The sizes of axes of which a value that arrives at `position` says how many elements count."""
    if _SEQUENCE_LENGTHS.get(node.op_type) == position and not node.domain:
        dims = index.dims_of((scope, node.input[0]))
        yield dims[_attribute(node, "layout")] if len(dims) == 3 else 0
    elif node.op_type in _ORDERS and len(node.input) == 2:
        size = index.positions((scope, node.input[1 - position]))
        if size is not None:
            yield size


def _axes(node: onnx.NodeProto, dims: Dims) -> Iterator[int | str]:
    """The sizes of the axes of a table of `dims` that the indices of `node` run over; 0, unknown, is left out."""
    if node.op_type == "GatherND":
        # How many axes one index tuple names depends on another shape; the smallest of all is always safe.
        yield from (size for size in dims[_attribute(node, "batch_dims") :] if size)
    else:
        name = "gather_axis" if node.op_type == "GatherBlockQuantized" else "axis"
        axis = _attribute(node, name)
        if -len(dims) <= axis < len(dims) and dims[axis]:
            yield dims[axis]


def _step(index: Dataflow, node: onnx.NodeProto, scope: str, position: int, path: _Path) -> Iterator[_Path]:
    """The path of the outputs of `node`, if the input can still be recognised in them."""
    kind = node.op_type
    if kind in MOVEMENT:
        if position == 0:
            yield path
        return
    if kind in _CARRIERS:
        positions = _CARRIERS[kind]
        if positions is None or position in positions:
            yield path
        return
    if kind in ("Clip", "Min") and (kind == "Min" or position == 0):
        limits = [index.constant((scope, name)) for k, name in enumerate(node.input) if k != position and name]
        high = limits[1:] if kind == "Clip" and len(limits) == 2 else limits if kind == "Min" else []
        yield replace(path, cap=min([path.cap, *(float(c.max()) for c in high if c is not None)]))
    elif kind in ("Add", "Sub", "Mul") and len(node.input) == 2:
        other = index.constant((scope, node.input[1 - position]))
        if other is None:
            if kind == "Add":
                yield path
        elif kind == "Add":
            yield replace(path, offset=path.offset + int(other.max()))
        elif kind == "Sub" and position == 0:
            yield replace(path, offset=path.offset - int(other.min()))
        elif kind == "Mul" and other.max() >= 1 and other.min() >= 0:
            scale = int(other.max())
            yield replace(path, factor=path.factor * scale, offset=path.offset * scale)
        elif kind == "Mul" and other.min() > 0:
            yield replace(path, share=True)


def _sizes(index: Dataflow, info: onnx.ValueInfoProto) -> dict[int, int]:
    """Sizes of axes of an input that weights tell which it, or what is computed of its elements, meets."""
    rank = len(info.type.tensor_type.shape.dim)
    sizes: dict[int, int] = {}
    pending, seen = [("", info.name)], {("", info.name)}
    while pending:
        value = pending.pop()
        after = [*index.aliases[value]]
        for node, position in index.consumers[value]:
            if (told := _told_by_weight(index, node, value[0], position, rank)) is not None:
                sizes.setdefault(*told)
            others = (index.dims_of((value[0], name)) for name in node.input if (value[0], name) in index.constants)
            if node.op_type in _SAME_SHAPE and all(len(dims) <= rank for dims in others):
                after += ((value[0], output) for output in node.output)
        pending += (value for value in dict.fromkeys(after) if value not in seen)
        seen.update(after)
    return sizes


def _told_by_weight(
    index: Dataflow, node: onnx.NodeProto, scope: str, position: int, rank: int
) -> tuple[int, int] | None:
    """An axis of the tensor of this rank at `position` and its size, if the shape of a constant says it."""
    axis = {"Conv": 1, "MatMul": rank - 1, "Gemm": int(not _attribute(node, "transA"))}.get(node.op_type)
    if axis is None or position or rank < 2 or len(node.input) < 2 or (scope, node.input[1]) not in index.constants:
        return None
    dims = index.dims_of((scope, node.input[1]))
    if len(dims) < 2:
        return None
    row = dims[1] if node.op_type == "Conv" or _attribute(node, "transB") else dims[-2]
    groups = (_attribute(node, "group") or 1) if node.op_type == "Conv" else 1
    return (axis, row * groups) if isinstance(row, int) and row else None


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), 0)
