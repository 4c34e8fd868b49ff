"""Where two models differ, cut out: each changed value with the nodes that compute it from values both models share.

The outputs of a whole model hide a local error: a residual stream carries it away, and softmax over small scores hardly
sees a wrong scale.  Cut out and fed with unit normals, the same error is plain, and it names its fusion.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.model.graph import captured_names
from onnxfuse.model.op_traits import MOVEMENT, RANDOM, SHAPE_QUERIES
from onnxfuse.model.walk import called_by, has_bodies, key_of

_LARGEST_CONE = 500
_RANK = 16
"""Dims that a shape has at most."""
_STEPS = 8
"""Times that a cut is moved further back."""
_CUTTABLE = 1 << 30
"""Initializers are copied into the cut model: above this size in bytes the whole model's outputs must do."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One value that the two models compute differently.  `observed` are the values to feed it with, beside `stops`."""

    output: str
    stops: tuple[str, ...]
    """The nearest values behind it that both models have: tensors of any content will do, unless it is `entangled`."""
    observed: tuple[str, ...]
    """Shapes taken of other values of the original, which must be what they were in a real run."""
    original: tuple[int, ...]
    """Indices of the nodes of the original that compute it."""
    fused: tuple[int, ...]
    entangled: bool = False
    """One model computes again what the other takes from a stop: the values must be those of a real run."""
    computed: tuple[str, ...] = ()
    """Stops that the original is not fed: what the fused model asks the shape of is on the original's way."""
    pictures: tuple[tuple[int, ...], ...] = ()
    """The spatial sizes that stops have in place of their own, if they are to be smaller (`pictures`)."""
    length: tuple[int, int] | None = None
    """A size, and what stands for it in that and its multiples, of stops and among constants (`lengths`)."""

    channels: frozenset[int] = frozenset()
    """Sizes that stay at the end of a shape, or behind its first axis if `channels_first`, as do those that together
    are such a size: heads and their width."""
    channels_first: bool = False

    def resized(self, size: int) -> int:
        """What stands for a size; for that of a square, the square."""
        made = 1
        while self.length and size and size % self.length[0] == 0:
            size, made = size // self.length[0], made * self.length[1]
        return size * made

    def resized_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """What stands for the sizes of a shape."""
        if self.channels_first:
            places = (range(1, end) for end in range(len(shape), 1, -1))
        else:
            places = (range(start, len(shape)) for start in range(len(shape)))
        stay = next((own for own in places if math.prod(shape[axis] for axis in own) in self.channels), ())
        return tuple(size if axis in stay else self.resized(size) for axis, size in enumerate(shape))

    def resized_all(self, sizes: np.ndarray) -> np.ndarray:
        """What stands for sizes that are elements, a shape or one of them."""
        if self.length is None:
            return sizes
        return np.reshape(self.resized_shape(sizes.ravel().tolist()), sizes.shape).astype(sizes.dtype)

    def shapes(self, values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """What shape each stop is fed in, given what it is in a real run."""
        own = {name: self.resized_shape(values[name].shape) for name in self.stops}
        smaller = zip(own.items(), self.pictures, strict=True) if self.pictures else ()
        return own | {name: (*shape[:2], *sizes) for (name, shape), sizes in smaller}

    def of_original(self) -> Cut:
        """What the original is fed."""
        return replace(self, stops=tuple(name for name in self.stops if name not in self.computed), pictures=())

    def of_fused(self) -> Cut:
        """What the fused model is fed."""
        return replace(self, observed=())


@dataclass(slots=True)
class _Cone:
    """The nodes behind a value, what they rest on, and the shapes they take of anything else."""

    nodes: set[int] = field(default_factory=set)
    stops: set[str] = field(default_factory=set)
    observed: set[str] = field(default_factory=set)
    measured: set[str] = field(default_factory=set)
    """Stops of which nothing but the shape is asked, or what another result of a node needs."""


class _Graph:
    """A top-level graph by value name."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.nodes = list(graph.node)
        self.functions = {key_of(function): function for function in model.functions}
        self.producers = {name: index for index, node in enumerate(self.nodes) for name in node.output if name}
        self.constants = {tensor.name for tensor in graph.initializer}
        self.inputs = {info.name for info in graph.input} - self.constants
        self.fixed = set(self.constants)
        """Values that are the same whatever the model is fed: other numbers may have been made of them."""
        self._add_computed(self.fixed)

    @cached_property
    def sized(self) -> set[str]:
        """Values that are the same for all that has the same shapes."""
        asked = {name for node in self.nodes if node.op_type in SHAPE_QUERIES for name in node.output}
        found = self.constants | asked
        self._add_computed(found)
        return found

    def _add_computed(self, known: set[str]) -> None:
        """Add what nodes compute of these values alone."""
        for node in self.nodes:
            if node.op_type not in RANDOM and known.issuperset(filter(None, node.input)) and not has_bodies(node):
                known.update(node.output)

    def cone(self, output: str, stop: Callable[[str], bool], shapes: bool, known: Collection[str] = ()) -> _Cone | None:
        """What is behind `output` up to inputs and stops, with `shapes` up to shapes taken of anything else, and behind
        what other results of nodes need up to what is `known` and not computed here.

        None where the nodes are too many, or have bodies."""
        cone = _Cone()
        asked: set[str] = set()
        seen: set[tuple[str, bool, bool]] = set()
        pending = deque([(output, False, False)])
        while pending:
            name, measured, idle = entry = pending.pop()
            if name in self.constants or not name or entry in seen:
                continue
            seen.add(entry)
            given = idle and name in known and self.producers.get(name) not in cone.nodes
            if name != output and (stop(name) or name in self.inputs or given):
                cone.stops.add(name)
                asked |= set() if measured or idle else {name}
                continue
            index = self.producers.get(name)
            if index is None or len(cone.nodes) > _LARGEST_CONE:
                return None
            node = self.nodes[index]
            measures = node.op_type in SHAPE_QUERIES
            if shapes and measures and not stop(node.input[0]):
                cone.observed.add(name)
                continue
            if has_bodies(node):
                return None
            cone.nodes.add(index)
            used = self.used(node, name)
            for at, read in enumerate(node.input):
                # All that is asked of anything comes first: what is computed for it is not given.
                unasked = idle or at not in used
                (pending.appendleft if unasked else pending.append)((read, measures, unasked))
        cone.measured = cone.stops - asked
        return cone

    def used(self, node: onnx.NodeProto, output: str) -> Collection[int]:
        """The inputs that one of a node's outputs is computed from: of a function with several, those that its nodes
        lead from."""
        function = self.functions.get(called_by(node))
        if function is None or len(node.output) < 2:
            return range(len(node.input))
        behind = {function.output[list(node.output).index(output)]}
        for inner in reversed(function.node):
            if not behind.isdisjoint(inner.output):
                behind.update(inner.input)
                behind.update(captured_names(inner) if has_bodies(inner) else ())
        return [at for at, name in enumerate(function.input) if name in behind]

    def stepped(self) -> set[str]:
        """Values that a quantizer has left few: a number in between, such as noise is, it would round again."""
        found: set[str] = set()
        for node in self.nodes:
            source = node.input[0] if node.input else ""
            dequantized = node.op_type == "DequantizeLinear" and source not in self.constants
            if dequantized or (source in found and node.op_type in MOVEMENT):
                found.update(node.output)
        return found


def find(original: onnx.ModelProto, fused: onnx.ModelProto) -> list[Cut]:
    """Every value of both graphs that they compute differently from common values, in the order of `fused`.

    Left out is what cannot be cut: values in bodies and functions, constants, and values behind too many nodes.
    """
    if max(original.ByteSize(), fused.ByteSize()) > _CUTTABLE:
        return []
    before, after = _Graph(original), _Graph(fused)
    shared = (before.inputs | before.producers.keys()) & (after.inputs | after.producers.keys()) - before.fixed
    shared -= before.stepped() | after.stepped()
    sites = []
    for node in after.nodes:
        for output in node.output:
            if output not in before.producers or _same(before.nodes[before.producers[output]], node):
                continue
            site = _site(before, after, output, shared)
            if site is not None:
                sites.append(site)
    return sites


def _site(before: _Graph, after: _Graph, output: str, shared: set[str], known: Collection[str] = ()) -> Cut | None:
    """The site of a value: where one model rests on what the other computes anew, the cut moves behind that."""
    opened, nearest = set[str](), set[str]()
    new, old = _Cone(), _Cone()
    for _ in range(_STEPS):
        own = after.cone(output, (shared - opened).__contains__, shapes=False, known=known)
        # Where the way from the same values is too long, from the nearest ones: that is how an operand is missed.
        ways = (own.stops - own.measured, own.stops, shared) if own else ()
        cones = (before.cone(output, stops.__contains__, shapes=True) for stops in ways)
        other = next((cone for cone in cones if cone), None)
        if not own or not other:
            return None
        new, old = own, other
        # What one asks the shape of alone is no number of the other's.
        further = new.stops - new.measured - (old.stops - old.measured) - after.inputs
        if not further:
            break
        nearest = nearest or new.stops | old.stops
        opened |= further
    # Where one rests on more than the other, two values are equal by nature: not under noise.
    entangled = bool(old.stops ^ (new.stops - new.measured))
    if entangled and nearest:
        kept = _sources(before, after, nearest, known, shapes=True)
        nearer = _site(before, after, output, kept, known) if len(kept) < len(nearest) else None
        if nearer is not None and not nearer.entangled:
            return nearer
    stops, observed = tuple(sorted(new.stops | old.stops)), tuple(sorted(old.observed))
    computed = tuple(sorted(new.measured - old.stops))
    return Cut(output, stops, observed, tuple(sorted(old.nodes)), tuple(sorted(new.nodes)), entangled, computed)


def _sources(
    before: _Graph, after: _Graph, stops: Collection[str], known: Collection[str], *, shapes: bool = False
) -> set[str]:
    """Those of some values from which both models compute the others, with `shapes` of the original given."""
    kept = set(stops)
    for name in sorted(kept, key=lambda name: before.producers.get(name, -1), reverse=True):
        others = kept - {name}
        cones = [graph.cone(name, others.__contains__, shapes and graph is before, known) for graph in (before, after)]
        if all(cone is not None and cone.nodes and cone.stops - cone.measured <= others for cone in cones):
            kept = others
    return kept


def bound(
    original: onnx.ModelProto, fused: onnx.ModelProto, sites: Iterable[Cut], known: Collection[str]
) -> dict[Cut, Cut]:
    """Of sites with stops that both models compute from their other stops, such as a root mean square beside what it is
    of, or from constants and shapes, such as queries that are learned and repeated: the same with these computed, since
    a model may do that again.  Under noise they are two numbers, and of a real run one has the digits of the models'
    own precision where the other is computed in float64.

    Only values that are `known` are fed."""
    before, after = _Graph(original), _Graph(fused)
    found: dict[Cut, Cut] = {}
    for site in sites:
        kept = _sources(before, after, site.stops, known) - (before.sized & after.sized)
        made = _site(before, after, site.output, kept, known) if len(kept) < len(site.stops) else None
        if made is not None and {*made.stops, *made.observed} <= set(known):
            found[site] = made
    return found


def _same(a: onnx.NodeProto, b: onnx.NodeProto) -> bool:
    return (a.op_type, a.domain, a.input, a.output, a.attribute) == (
        b.op_type,
        b.domain,
        b.input,
        b.output,
        b.attribute,
    )


def cut(
    model: onnx.ModelProto, sites: Sequence[Cut], cones: Sequence[tuple[int, ...]], *feeds: Mapping[str, Any]
) -> onnx.ModelProto:
    """A model of disjoint copies of the `cones` of `sites`; values of site i are called ``i/name``.

    Its inputs have the types of `feeds` and the sizes that all of these agree on, and are those of them that the cones
    read; initializers are inputs if they are among them, and sizes among them are those that the site is to have."""
    result = onnx.ModelProto(ir_version=model.ir_version)
    result.opset_import.extend(model.opset_import)
    result.functions.extend(called(model, {index for cone in cones for index in cone}))
    graph = result.graph
    graph.name = "sites"
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    used: set[str] = set()
    for number, (site, cone) in enumerate(zip(sites, cones, strict=True)):
        read = {name for index in cone for name in model.graph.node[index].input}
        shared = {name for name in read if name in tensors}
        for name in sorted(shared):
            if made := _resized(site, tensors[name]):
                made.name = f"{number}/{name}"
                graph.initializer.append(made)
                shared.remove(name)
        used |= shared
        for index in cone:
            node = graph.node.add()
            node.CopyFrom(model.graph.node[index])
            node.name = ""
            for attribute in node.attribute:
                if attribute.HasField("t") and (made := _resized(site, attribute.t)):
                    attribute.t.CopyFrom(made)
            node.input[:] = [name if name in shared or not name else f"{number}/{name}" for name in node.input]
            # Of a node with several outputs one may be a stop, which is fed.
            fed = (*site.stops, *site.observed)
            node.output[:] = [name and f"{number}/{name}" + "/unused" * (name in fed) for name in node.output]
        for name in (*site.stops, *site.observed):
            if name in read:
                graph.input.append(_input(f"{number}/{name}", [given[f"{number}/{name}"] for given in feeds]))
        graph.output.add(name=f"{number}/{site.output}")
    for name in sorted(used):
        if name in feeds[0]:
            graph.input.append(helper.make_tensor_value_info(name, tensors[name].data_type, feeds[0][name].shape))
        else:
            graph.initializer.append(tensors[name])
    return result


def _resized(site: Cut, tensor: onnx.TensorProto) -> onnx.TensorProto | None:
    """A constant with the sizes of a site in place of its own; None where none of its elements is one of these."""
    if site.length is None or not is_size(tensor):
        return None
    own = numpy_helper.to_array(tensor)
    made = site.resized_all(own)
    return None if (made == own).all() else numpy_helper.from_array(made, tensor.name)


def is_size(tensor: onnx.TensorProto) -> bool:
    """May the elements of a constant be sizes, of which a shape has a few?"""
    integer = tensor.data_type in (TensorProto.INT64, TensorProto.INT32)
    return integer and len(tensor.dims) <= 1 and sum(tensor.dims) <= _RANK


def _input(name: str, values: Sequence[np.ndarray]) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(values[0].dtype)
    sizes = zip(*(value.shape for value in values), strict=True)
    return helper.make_tensor_value_info(name, kind, [one[0] if len(set(one)) == 1 else None for one in sizes])


def called(model: onnx.ModelProto, nodes: Iterable[int]) -> list[onnx.FunctionProto]:
    """The functions that nodes need, in the model's order."""
    known = {key_of(f): f for f in model.functions}
    pending = [called_by(model.graph.node[index]) for index in nodes]
    wanted = set()
    while pending:
        key = pending.pop()
        if key in known and key not in wanted:
            wanted.add(key)
            pending += [called_by(node) for node in known[key].node]
    return [function for key, function in known.items() if key in wanted]
