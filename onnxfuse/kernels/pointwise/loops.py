"""Elementwise nodes and views as loops over the elements of their results: one launch for each size among them.

A loop is specialised on the pattern (what broadcasts, what divides into vectors, element types), and sizes are its
arguments; a new batch size is traced anew in a few milliseconds and finds the same source compiled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx import NodeProto

from onnxfuse.kernels.device.access import ACCESS
from onnxfuse.kernels.device.device import Array, Device, Launch, Source, TensorType

from . import staged_source
from .expressions import source
from .expressions.index import LANE, Index, coordinates, total, variable
from .expressions.scalars import Scalar, Scalars
from .expressions.source import Text
from .expressions.trace import trace
from .expressions.values import Value, size
from .expressions.values import source as array
from .staged import plan, turn
from .tiles import across, probe, tiles

WIDEST = 8
"""Most elements that one thread computes at a time."""
THREADS = 256
BLOCKS = 2048 // THREADS
"""On a multiprocessor at a time."""
HEADER = "pointwise.cuh"


class Single(ABC):
    """One launch: `inputs` and `outputs` are the numbers of the arrays that it takes, in order."""

    __slots__ = ()
    launches: ClassVar[int] = 1
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: tuple[np.generic, ...]

    @abstractmethod
    def launch(self, multiprocessors: int) -> Launch:
        """On a card with so many."""

    def run(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        """Launch it on the arrays of a node."""
        arrays = [*(inputs[k] for k in self.inputs), *(outputs[k] for k in self.outputs)]
        device.launch(self.launch(device.multiprocessors), [*arrays, *self.parameters])


@dataclass(frozen=True)
class Loop(Single):
    """One launch: `inputs` and `outputs` are the numbers of the arrays that it takes, in order."""

    source: Source
    entry: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: tuple[np.generic, ...]
    vectors: int
    read: int
    """Bytes."""
    flops: int
    text: Text

    def launch(self, multiprocessors: int) -> Launch:
        """On a card with so many: a thread walks over several vectors where there are more than the card has room
        for."""
        blocks = min(-(-self.vectors // THREADS), multiprocessors * BLOCKS)
        return Launch(self.source, self.entry, (blocks,), (THREADS,))


def loops(
    entry: str,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, TensorType],
    outputs: Sequence[str],
    aligned: bool = True,
) -> tuple[tuple[TensorType, ...], list[Loop]]:
    """The types of the outputs of some nodes, and the launches that compute them: one for each number of
    elements among them.

    Nodes are in topological order; an output named "" is not wanted.  `aligned` says that all arrays begin at multiples
    of 16 bytes.  Raises KernelError for nodes that are neither elementwise nor views.
    """
    values = traced(nodes, inputs, outputs)
    types = tuple(TensorType(v.dtype, v.shape) for v in values.values())
    return types, computed(entry, values, list(inputs.values()), aligned)


def loop_types(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]
) -> tuple[tuple[TensorType, ...], int]:
    """The types of the outputs, and the number of launches, of what `loops` would write: its elements are, its code is
    not.  Raises KernelError as that does."""
    values = traced(nodes, inputs, outputs)
    for value in values.values():
        if value.size:
            value.at(coordinates(variable("i", value.size), value.shape))
    return tuple(TensorType(v.dtype, v.shape) for v in values.values()), len({v.size for v in values.values()} - {0})


def computed(entry: str, values: Mapping[int, Value], inputs: Sequence[TensorType], aligned: bool = True) -> list[Loop]:
    """The launches that compute some outputs, by their numbers; none for what is empty."""
    groups: dict[int, list[int]] = {}
    for k, value in values.items():
        groups.setdefault(value.size, []).append(k)
    return [_loop(entry, inputs, {k: values[k] for k in members}, aligned) for size, members in groups.items() if size]


def traced(nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]) -> dict[int, Value]:
    """The outputs that are wanted, by their numbers, as functions of the coordinates at which they are asked.

    Raises KernelError as `loops` does."""
    scalars = Scalars()
    given = {name: array(scalars, k, t.shape, t.dtype) for k, (name, t) in enumerate(inputs.items())}
    wanted = [k for k, name in enumerate(outputs) if name]
    return dict(zip(wanted, trace(scalars, nodes, given, [outputs[k] for k in wanted]), strict=True))


def _loop(entry: str, inputs: Sequence[TensorType], values: Mapping[int, Value], aligned: bool) -> Loop:
    """Outputs of one number of elements, by their own: in vectors of 16 bytes, or the widest in which something is
    read."""
    first = next(iter(values.values()))
    count, narrowest = first.size, min(v.dtype.itemsize for v in values.values())
    width = min(WIDEST, ACCESS // narrowest) if aligned else 1
    if width > 1 and (found := _tiled(entry, inputs, values, width)):
        return found
    if aligned and (found := _staged(entry, inputs, values)):
        return found
    while True:
        while count < 2 * width and width > 1:
            width //= 2
        position = variable("i", count)
        if width > 1:
            position = total([(variable("j", count // width), width), (variable("v", width, LANE), 1)])
        elements = _elements(values, position)
        used = reached([s for _, s in elements])
        dtypes = _dtypes(inputs, used)
        rest = _elements(values, variable("i", count)) if count % width else ()
        text = source.kernel(entry, dtypes, elements, rest, count, width)
        if width == 1 or text.vectors or not dtypes:
            break
        width //= 2
    return _made(entry, inputs, values, used, text, count // width)


def _tiled(entry: str, inputs: Sequence[TensorType], values: Mapping[int, Value], width: int) -> Loop | None:
    """By squares of elements, where something is read along another axis than it is written."""
    shapes = {v.shape for v in values.values()}
    shape = next(iter(shapes))
    if len(shapes) > 1 or len(shape) < 2 or width < 2:
        return None
    axis = across(_loads([v.at(probe(shape)) for v in values.values()]), shape, width)
    if axis is None:
        return None
    count, places = size(shape), tiles(shape, axis, width)
    elements = [(v.dtype.name, v.at(places.coordinates)) for v in values.values()]
    used = reached([s for _, s in elements])
    text = source.kernel(entry, _dtypes(inputs, used), elements, (), count, width, square=places.place)
    return _made(entry, inputs, values, used, text, places.count)


def _staged(entry: str, inputs: Sequence[TensorType], values: Mapping[int, Value]) -> Loop | None:
    """By tiles that are turned in shared memory, where something is read along another axis than it is written."""
    shapes = {v.shape for v in values.values()}
    shape = next(iter(shapes))
    if len(shapes) > 1:
        return None
    turned = turn(shape, _loads([v.at(probe(shape)) for v in values.values()]))
    if turned is None:
        return None
    elements = [(v.dtype.name, v.at(turned.coordinates)) for v in values.values()]
    used = reached([s for _, s in elements])
    crossed = [s for s in _loads([s for _, s in elements]) if turned.turned(s)]
    sizes = [inputs[s.payload[0]].dtype.itemsize for s in crossed]
    tiles = plan(turned, shape, crossed, sizes, min(v.dtype.itemsize for v in values.values()))
    if not crossed or tiles is None:
        return None
    text = staged_source.text(entry, _dtypes(inputs, used), elements, used, tiles)
    return _made(entry, inputs, values, used, text, tiles.tiles * THREADS, staged_source.HEADER)


def _loads(results: Sequence[Scalar]) -> list[Scalar]:
    return [s for s in reached(results) if s.kind == "load"]


def _dtypes(inputs: Sequence[TensorType], used: Sequence[Scalar]) -> dict[int, str]:
    """The element types of the inputs that are read."""
    return {k: inputs[k].dtype.name for k in sorted({s.payload[0] for s in used if s.kind == "load"})}


def _made(
    entry: str,
    inputs: Sequence[TensorType],
    values: Mapping[int, Value],
    used: Sequence[Scalar],
    text: Text,
    n: int,
    header: str = HEADER,
) -> Loop:
    """The launch of a source whose loop has so many steps."""
    count = next(iter(values.values())).size
    return Loop(
        Source(entry, Source.file(header).text + text.body),
        entry,
        tuple(_dtypes(inputs, used)),
        tuple(values),
        text.parameters,
        n,
        bytes_read(used, inputs, count),
        count * sum(s.flops for s in used),
        text,
    )


def _elements(values: Mapping[int, Value], position: Index) -> list[tuple[str, Scalar]]:
    """The element type and the expression of each output, at a position of its contiguous memory."""
    return [(v.dtype.name, v.at(coordinates(position, v.shape))) for v in values.values()]


def reached(results: Sequence[Scalar]) -> list[Scalar]:
    """Everything that some elements are computed from, in the order in which it is met."""
    seen: dict[Scalar, None] = {}
    pending = list(results)
    while pending:
        s = pending.pop()
        if s not in seen:
            seen[s] = None
            pending += s.args
            for index in indices(s):
                pending += [a.value for a in index.reads()]
    return list(seen)


def indices(s: Scalar) -> Iterator[Index]:
    """The index expressions of an element itself."""
    match s.kind:
        case "position":
            yield s.payload
        case "load" | "table":
            yield s.payload[1]
        case "select":
            yield s.payload.index
    if s.kind in ("load", "table"):
        for condition in s.payload[2]:
            yield condition.index


def bytes_read(used: Sequence[Scalar], inputs: Sequence[TensorType], count: int) -> int:
    """Bytes read: of each input what it holds, or one element for each expression and element of the result."""
    loads: dict[int, int] = {}
    for s in used:
        if s.kind == "load":
            loads[s.payload[0]] = loads.get(s.payload[0], 0) + count
    return sum(min(n, size(inputs[k].shape)) * inputs[k].dtype.itemsize for k, n in loads.items())
