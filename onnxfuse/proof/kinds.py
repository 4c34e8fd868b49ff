"""Which sites are one computation many times over: a model is one block many times, and so are its sites.

Two sites are of one *kind* where the nodes of both models, the values between them and what they are fed are the same
but for names.  What the one shows of the equations then holds for the other: what differs is what equations have
variables for.  In particular:

    nodes      op, attributes and what they read and give, by the order in which names first occur; a name that both
               models know is counted once, so that operands which are exchanged in one of them make another kind
    fed        element type and shape of each value, in all cases, and what stands in for it: noise, signed or not.
               What is fed as it is (masks, indices, shapes) is the same, element by element
    constants  numbers, integers, masks and tables of zeros and ones are the same, element by element.  Other weights
               may differ, if both models have them as they are, and the fused one reads what the original reads: what
               a weight was folded into, and what it has vanished into, is judged for each site by itself
    entangled  values of a real run are like no others
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2s
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfuse.model.external_data import is_external

from . import numerics
from .cut_feeds import stand_in
from .cuts import Cut

_READ = 1 << 22
"""Elements of the largest constant that is looked into; larger ones are weights."""
_FAR = 1 << 18
"""The same of float constants that are in other files.  Integers and truths have a meaning wherever they are."""

_Numbers: TypeAlias = dict[str, int]


class _Weight(NamedTuple):
    """A constant whose elements may be others; noise of which sign would stand for it, and its type and shape."""

    instead: str
    kind: tuple[int, ...]


class Kinds:
    """The kinds of the sites of two models, of which values were `observed` in one or more runs."""

    def __init__(
        self,
        original: onnx.ModelProto,
        fused: onnx.ModelProto,
        observed: Sequence[Mapping[str, Any]],
        base_dir: Path | None = None,
    ) -> None:
        self._models = original, fused
        self._nodes = tuple(list(model.graph.node) for model in self._models)
        self._tensors = tuple({tensor.name: tensor for tensor in model.graph.initializer} for model in self._models)
        self._observed = observed
        self._base_dir = base_dir or Path.cwd()
        self._constants: dict[str, Hashable | None] = {}
        self._values: dict[tuple[str, bool], Hashable] = {}

    def grouped(self, sites: Sequence[Cut]) -> list[list[Cut]]:
        """The sites, those of one kind together, in the order of their first ones."""
        groups: dict[Hashable, list[Cut]] = {}
        for number, site in enumerate(sites):
            kind = self._kind(site)
            groups.setdefault(("alone", number) if kind is None else kind, []).append(site)
        return list(groups.values())

    def _kind(self, site: Cut) -> Hashable | None:
        """What is the same of all sites of a kind; None for one that is like no other."""
        if site.entangled:
            return None
        numbers: _Numbers = {}
        read: list[set[str]] = []
        told: list[Hashable] = []
        for nodes, tensors, cone in zip(self._nodes, self._tensors, (site.original, site.fused), strict=True):
            own: set[str] = set()
            for index in cone:
                node = nodes[index]
                own.update(name for name in node.input if name in tensors)
                told.append(_said(node, numbers))
            told.append(len(cone))
            read.append(own)
        before, after = read
        for name in sorted(before | after, key=numbers.__getitem__):
            constant = self._constant(name, read=name in after)
            if constant is None:
                return None
            told.append((numbers[name], constant))
        for names, exact in ((site.stops, False), (site.observed, True)):
            fed = [(numbers.get(name, -1), self._value(name, exact=exact)) for name in names]
            told.append(tuple(sorted(fed, key=lambda entry: entry[0])))
        return (numbers[site.output], *told)

    def _constant(self, name: str, *, read: bool) -> Hashable | None:
        """What a constant has to be for sites with it to be of one kind, if the fused model has `read` it there; None
        if it is like no other."""
        if name not in self._constants:
            self._constants[name] = self._content(name)
        constant = self._constants[name]
        return constant if read or not isinstance(constant, _Weight) else None

    def _content(self, name: str) -> Hashable | None:
        first, second = (tensors.get(name) for tensors in self._tensors)
        tensor = first or second
        assert tensor is not None
        kind = (tensor.data_type, *tensor.dims)
        as_it_is = first == second
        count = int(np.prod(tensor.dims, dtype=np.int64))
        outside = is_external(tensor)
        real = numerics.is_float(helper.tensor_dtype_to_np_dtype(tensor.data_type))
        if count > (_FAR if outside and real else _READ):
            return _Weight("", kind) if as_it_is else None
        array = numpy_helper.to_array(tensor, str(self._base_dir))
        instead = stand_in(array) if array.size > 1 else ""
        if instead:
            return _Weight(instead, kind) if as_it_is else None
        return (*kind, _digest(array)) if as_it_is or None in (first, second) else None

    def _value(self, name: str, *, exact: bool) -> Hashable:
        """What a value is in all runs, as far as sites are fed it; `exact` if its elements are."""
        if (name, exact) not in self._values:
            seen: list[Hashable] = []
            for run in self._observed:
                value = run[name]
                instead = "" if exact else stand_in(value)
                seen.append((value.dtype.name, value.shape, instead or _digest(value)))
            self._values[name, exact] = tuple(seen)
        return self._values[name, exact]


def _said(node: onnx.NodeProto, numbers: _Numbers) -> Hashable:
    """What a node says; names are given `numbers` in the order in which they occur."""
    names = [numbers.setdefault(name, len(numbers)) if name else -1 for name in (*node.input, *node.output)]
    attributes = tuple(sorted(a.SerializeToString(deterministic=True) for a in node.attribute))
    return node.domain, node.op_type, node.overload, attributes, len(node.input), tuple(names)


def _digest(array: np.ndarray) -> bytes:
    if array.dtype == object:
        return repr(array.tolist()).encode()
    return blake2s(np.ascontiguousarray(array).tobytes()).digest()
