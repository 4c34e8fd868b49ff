"""Large values inside a model, as it runs, of which little is kept.

A model of pictures has gigabytes of values on its way.  Of most the proof wants to know the shape, whether noise may
stand in for them and of which sign, and a few elements.  So where all of them together are too many to hold, the model
itself reduces them to that, one after another, and only what has a meaning is seen whole, in a second run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.model.graph import Names, opset_of, skeleton
from onnxfuse.runtime.quiet import Session

from .bfloat16 import emulated
from .cut_feeds import sign_of
from .dataflow import inferred
from .input_values import Case
from .observed import Asked

SAMPLE = 256
"""Elements by which a value is told from others."""
_LARGE = 1 << 18
"""Elements that are more than there is to keep of them."""
_HELD = 1 << 27
"""Bytes of large values that are held at a time."""
_SLICE = 10
"""The first opset whose Slice has steps."""
_END = (1 << 63) - 1
_BYTES: dict[int, int] = {TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2}


class Outline(NamedTuple):
    """What is kept of a large value."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    least: float
    most: float
    """Its least and its largest element, both NaN if one is or their sum is out of range."""
    sample: np.ndarray
    """Some of its elements, in row-major order."""


class _Type(NamedTuple):
    kind: int
    """Of onnx.TensorProto.DataType."""
    elements: int


class _Parts(NamedTuple):
    """Names of what a value is reduced to."""

    shape: str
    least: str
    most: str
    sum: str
    sample: str


class Watched:
    """Values inside a model of which a session of it tells besides its outputs: an `Outline` of those that are large
    and not to be `exact`, if all of them together, at the given `sizes` of inputs, are too much to hold."""

    def __init__(
        self,
        model: onnx.ModelProto,
        names: Iterable[str],
        sizes: Mapping[str, Sequence[int]],
        exact: Collection[str] = (),
    ) -> None:
        self._model, self._names = model, set(names).difference(value.name for value in model.graph.input)
        self._large = _large(model, self._names.difference(exact), sizes)

    @contextmanager
    def asked(self) -> Iterator[None]:
        """The model gives them, for the time of serializing."""
        with _reduced(self._model, self._large) as self._reduced:
            self._parts = {part for own in self._reduced.values() for part in own}
            self._asked = Asked(self._model, (self._names - self._large.keys()) | self._parts)
            with self._asked.added():
                yield

    def told(self, values: Sequence[Any]) -> dict[str, Any]:
        """By name, of all that a run has given."""
        found = self._asked.told(values)
        told = {name: value for name, value in found.items() if name not in self._parts}
        return told | {name: _outline(own, self._large[name].kind, found) for name, own in self._reduced.items()}


def outlines(
    model: onnx.ModelProto,
    names: Iterable[str],
    cases: Sequence[Case],
    base_dir: Path | None = None,
    exact: Collection[str] = (),
) -> Iterator[dict[str, Any]]:
    """What `observe` gives, as far as it is `Watched`.

    Raises SessionError where the model does not run."""
    watched = Watched(model, names, sizes_of(cases[0]), exact)
    with watched.asked():
        session = Session(emulated(model), base_dir, optimize=False)
    for case in cases:
        yield dict(case.inputs) | watched.told(session.run(case.inputs))


def sizes_of(case: Case) -> dict[str, Sequence[int]]:
    """The shapes of a case's inputs; of a sequence nothing is said."""
    return {name: getattr(value, "shape", ()) for name, value in case.inputs.items()}


def is_stood_for(value: Any) -> bool:
    """Is this in the place of a large value of the same shape and sign?"""
    return isinstance(value, np.ndarray) and value.size > 1 and not any(value.strides)


def _large(model: onnx.ModelProto, names: Collection[str], sizes: Mapping[str, Sequence[int]]) -> dict[str, _Type]:
    """Those that are large, as onnx infers it, in the order of computing them; none where all can be held."""
    if opset_of(model) < _SLICE:
        return {}
    bare = skeleton(model)
    for info in bare.graph.input:
        for dim, size in zip(info.type.tensor_type.shape.dim, sizes.get(info.name, ()), strict=False):
            dim.dim_value = size
    values = inferred(bare, data_prop=True)
    types = {info.name: _type(info.type.tensor_type) for info in values if info.name in names}
    order = [name for node in model.graph.node for name in node.output]
    found = {name: made for name in order if (made := types.get(name)) and made.elements > _LARGE}
    return found if sum(made.elements * _BYTES[made.kind] for made in found.values()) > _HELD else {}


def _type(kind: onnx.TypeProto.Tensor) -> _Type | None:
    dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
    sizes = [size for size in dims if size is not None]
    known = kind.HasField("shape") and kind.elem_type in _BYTES and len(sizes) == len(dims)
    return _Type(kind.elem_type, math.prod(sizes)) if known else None


@contextmanager
def _reduced(model: onnx.ModelProto, large: dict[str, _Type]) -> Iterator[dict[str, _Parts]]:
    """The parts of values that `large` ones are reduced to, by the model itself meanwhile.

    onnxruntime runs first what is needed for the last of the results that nobody reads: so the last value's parts are
    the first of the nodes, and a value is gone before the next is computed."""
    graph = model.graph
    nodes, constants = len(graph.node), len(graph.initializer)
    given = {value.name for value in (*graph.input, *graph.initializer)}
    taken = Names(given.union(*(node.output for node in graph.node)))
    found = {name: _Parts(*(taken.unique(f"{name}/{part}") for part in _Parts._fields)) for name in large}

    def constant(name: str, *numbers: int) -> str:
        graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    try:
        if large:
            flat, zero, end = (constant(taken.unique(f"outline/{n}"), n) for n in (-1, 0, _END))
        for name in reversed(large):
            own = found[name]
            wide, row = taken.unique(f"{name}/wide"), taken.unique(f"{name}/row")
            step = constant(taken.unique(f"{name}/step"), large[name].elements // SAMPLE)
            graph.node.add().CopyFrom(helper.make_node("Cast", [name], [wide], to=TensorProto.FLOAT))
            for op, output in (("ReduceMin", own.least), ("ReduceMax", own.most), ("ReduceSum", own.sum)):
                graph.node.add().CopyFrom(helper.make_node(op, [wide], [output], keepdims=0))
            graph.node.add().CopyFrom(helper.make_node("Reshape", [wide, flat], [row]))
            graph.node.add().CopyFrom(helper.make_node("Slice", [row, zero, end, zero, step], [own.sample]))
            graph.node.add().CopyFrom(helper.make_node("Shape", [name], [own.shape]))
        yield found
    finally:
        del graph.node[nodes:]
        del graph.initializer[constants:]


def _outline(parts: _Parts, kind: int, values: Mapping[str, Any]) -> Outline:
    least, most = float(values[parts.least]), float(values[parts.most])
    # onnxruntime's least and most may be other elements where one is NaN; the sum is NaN then.
    known = math.isfinite(float(values[parts.sum]))
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    low, high = (least, most) if known else (math.nan, math.nan)
    return Outline(tuple(values[parts.shape].tolist()), dtype, low, high, values[parts.sample])


def kept(value: Outline) -> np.ndarray | None:
    """A value of its shape that the same stands in for, in no memory; None where its elements have a meaning."""
    if value.least == value.most:
        number = value.least
    elif not (sign := sign_of(value.least, value.most)) or {value.least, value.most} <= {0.0, 1.0}:
        return None
    else:
        number = 0.5 if sign == "unsigned" else -0.5
    return np.broadcast_to(np.asarray(number, value.dtype), value.shape)
