"""Where two models differ, cut out: each changed value with the nodes that compute it from values both models share.

The outputs of a whole model hide a local error: a residual stream carries it away, and softmax over small scores hardly
sees a wrong scale.  Cut out and fed with unit normals, the same error is plain, and it names its fusion.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfuse.model.graph import captured_names
from onnxfuse.model.op_traits import MOVEMENT, RANDOM, SHAPE_QUERIES
from onnxfuse.model.walk import called_by, has_bodies, key_of
from onnxfuse.proof import numerics

_LARGEST_CONE = 500
_STEPS = 8
"""Times that a cut is moved further back."""
_CUTTABLE = 1 << 30
"""Initializers are copied into the cut model: above this size in bytes the whole model's outputs must do."""
_HUGE = 1e4
"""A float of this size fills a mask."""
_FACTORS = {"rows": (1.0, 1e-6, 16.0, 1e-3, 1.0, 3e-3, 0.1), "samples": (1e-6, 16.0, 1e-3, 1.0, 0.1, 1.0, 3e-3)}
"""Sizes of rows or samples: a variance is to meet any epsilon, and an exponential a large number."""
_LARGE_HALF = 4.0
"""The largest of them in half precision, of whose range a product of two rows of 16 would be out."""
_SMALL = 1e-5
"""What loose tables are multiplied by; loose shifts are 0."""
_LOOSE = 1 << 22
"""Elements of the largest that are."""
_PERIOD = 11
"""Rows after which constant and zero ones come again; prime to the number of sizes."""


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

    def of_original(self) -> Cut:
        """What the original is fed."""
        return replace(self, stops=tuple(name for name in self.stops if name not in self.computed))

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
        for node in self.nodes:
            if node.op_type not in RANDOM and self.fixed.issuperset(filter(None, node.input)) and not has_bodies(node):
                self.fixed.update(node.output)

    def cone(self, output: str, stop: Callable[[str], bool], shapes: bool) -> _Cone | None:
        """What is behind `output` up to inputs and stops, and with `shapes` up to shapes taken of anything else.

        None where the nodes are too many, or have bodies."""
        cone = _Cone()
        asked: set[str] = set()
        seen: set[tuple[str, bool, bool]] = set()
        pending = [(output, False, False)]
        while pending:
            name, measured, idle = entry = pending.pop()
            if name in self.constants or not name or entry in seen:
                continue
            seen.add(entry)
            if name != output and (stop(name) or name in self.inputs):
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
            pending += [(given, measures, idle or at not in used) for at, given in enumerate(node.input)]
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


def _site(before: _Graph, after: _Graph, output: str, shared: set[str]) -> Cut | None:
    """The site of a value: where one model rests on what the other computes anew, the cut moves behind that."""
    opened: set[str] = set()
    new, old = _Cone(), _Cone()
    for _ in range(_STEPS):
        own = after.cone(output, (shared - opened).__contains__, shapes=False)
        # Where the way from the same values is too long, from the nearest ones: that is how an operand is missed.
        ways = (own.stops - own.measured, own.stops, shared) if own else ()
        cones = (before.cone(output, stops.__contains__, shapes=True) for stops in ways)
        other = next((cone for cone in cones if cone), None)
        if not own or not other:
            return None
        new, old = own, other
        further = new.stops - new.measured - old.stops - after.inputs
        if not further:
            break
        opened |= further
    # Where one rests on more than the other, two values are equal by nature: not under noise.
    entangled = bool(old.stops ^ (new.stops - new.measured))
    stops, observed = tuple(sorted(new.stops | old.stops)), tuple(sorted(old.observed))
    computed = tuple(sorted(new.measured - old.stops))
    return Cut(output, stops, observed, tuple(sorted(old.nodes)), tuple(sorted(new.nodes)), entangled, computed)


def bound(original: onnx.ModelProto, fused: onnx.ModelProto, sites: Iterable[Cut]) -> dict[Cut, Cut]:
    """Of sites with stops that both models compute from their other stops, such as a root mean square beside what it is
    of: the same with these computed, since a fused op may do that again.  Under noise they are two numbers."""
    before, after = _Graph(original), _Graph(fused)
    found: dict[Cut, Cut] = {}
    for site in sites:
        kept = set(site.stops)
        for name in sorted(kept, key=lambda name: before.producers.get(name, -1), reverse=True):
            others = kept - {name}
            cones = [graph.cone(name, others.__contains__, shapes=False) for graph in (before, after)]
            if all(cone is not None and cone.nodes and cone.stops <= others for cone in cones):
                kept = others
        made = _site(before, after, site.output, kept) if len(kept) < len(site.stops) else None
        if made is not None and set(made.stops) <= kept and set(made.observed) <= set(site.observed):
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
    read; initializers are inputs if they are among them."""
    result = onnx.ModelProto(ir_version=model.ir_version)
    result.opset_import.extend(model.opset_import)
    result.functions.extend(_called(model, {index for cone in cones for index in cone}))
    graph = result.graph
    graph.name = "sites"
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    used: set[str] = set()
    for number, (site, cone) in enumerate(zip(sites, cones, strict=True)):
        read: set[str] = set()
        for index in cone:
            node = graph.node.add()
            node.CopyFrom(model.graph.node[index])
            node.name = ""
            used.update(tensors.keys() & set(node.input))
            read.update(node.input)
            node.input[:] = [name if name in tensors or not name else f"{number}/{name}" for name in node.input]
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


def _input(name: str, values: Sequence[np.ndarray]) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(values[0].dtype)
    sizes = zip(*(value.shape for value in values), strict=True)
    return helper.make_tensor_value_info(name, kind, [one[0] if len(set(one)) == 1 else None for one in sizes])


def _called(model: onnx.ModelProto, nodes: Iterable[int]) -> list[onnx.FunctionProto]:
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


def loose(original: onnx.ModelProto, fused: onnx.ModelProto, sites: Sequence[Cut]) -> dict[str, np.ndarray]:
    """Initializers that may have other values than they have, in both models alike: shifts and tables of rows.

    They hide what a small variance shows.  Left out are those that another constant was made of, large ones, and those
    in other files."""
    tensors = {tensor.name: tensor for tensor in original.graph.initializer}
    kept = {tensor.name: tensor for tensor in fused.graph.initializer}
    found: set[str] = set()
    fixed: set[str] = set()
    for site in sites:
        pairs = ((original, site.original), (fused, site.fused))
        cones = [[model.graph.node[i] for i in cone] for model, cone in pairs]
        read = [{name for node in cone for name in node.input if name in tensors} for cone in cones]
        fixed |= read[0] ^ read[1]
        for node in cones[0]:
            for position, name in enumerate(node.input):
                table = node.op_type == "Gather" and position == 0
                (found if node.op_type == "Add" or table else fixed).add(name)
    return {
        name: numpy_helper.to_array(tensors[name])
        for name in sorted(found & tensors.keys() & kept.keys() - fixed)
        if _is_loose(tensors[name]) and kept[name] == tensors[name]
    }


def _is_loose(tensor: onnx.TensorProto) -> bool:
    count = int(np.prod(tensor.dims))
    real = tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    return real and tensor.data_location != onnx.TensorProto.EXTERNAL and 1 < count <= _LOOSE


def given(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """What of `feeds` a cut model takes."""
    return {info.name: feeds[info.name] for info in model.graph.input}


def feed(
    sites: Sequence[Cut],
    real: Mapping[str, Any],
    seed: int,
    style: str = "plain",
    loose: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Inputs for `cut` models, of the shapes in `real`: that itself where its content has a meaning, else unit normals.

    In the style "rows", rows (along the last axis) are small, large, constant or zero, and of masks all hidden or all
    seen; in the style "samples", so are whole samples (along the first).  `loose` constants are (all but) 0 then.
    """
    feeds: dict[str, Any] = {}
    for name, value in (loose or {}).items():
        small = 1.0 if style == "plain" else 0.0 if value.ndim == 1 else _SMALL
        feeds[name] = (value * small).astype(value.dtype)
    for number, site in enumerate(sites):
        for name in site.observed:
            feeds[f"{number}/{name}"] = real[name]
        for name in site.stops:
            rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
            feeds[f"{number}/{name}"] = real[name] if site.entangled else _noise(real[name], rng, style)
    return feeds


def stand_in(value: np.ndarray) -> str:
    """What is fed in place of a value: noise, "signed" or "unsigned"; "" for what has a meaning and is fed as it is."""
    if not numerics.is_float(value.dtype) or value.dtype.kind == "c" or not value.size:
        return ""
    wide = value.astype(np.float64)
    if _is_mask(wide) or np.isin(wide, (0.0, 1.0)).all():
        return ""
    # What never is negative may be a variance, or a probability.
    return "unsigned" if wide.min() >= 0 else "signed"


def _is_mask(wide: np.ndarray) -> bool:
    return bool(not np.isfinite(wide).all() or np.abs(wide).max() > _HUGE)


def _noise(value: np.ndarray, rng: np.random.Generator, style: str) -> np.ndarray:
    if value.dtype == np.bool_:
        return _dead_rows(value, True, False) if style == "rows" else value
    instead = stand_in(value)
    if instead:
        largest = _LARGE_HALF if value.dtype == np.float16 else math.inf
        noise = _unusual(rng.standard_normal(value.shape), style, largest)
        return np.asarray(np.abs(noise) if instead == "unsigned" else noise).astype(value.dtype)
    real = numerics.is_float(value.dtype) and value.dtype.kind != "c" and value.size
    masks = real and style == "rows" and _is_mask(value.astype(np.float64))
    return _dead_rows(value, value.max(), value.min()) if masks else value


def _dead_rows(mask: np.ndarray, seen: Any, hidden: Any) -> np.ndarray:
    """The mask with a row that hides everything and one that hides nothing, whichever value does that."""
    if mask.ndim < 2 or mask.shape[-1] < 2:
        return mask
    made = mask.copy()
    rows = made.reshape(-1, made.shape[-1])
    rows[2 * len(rows) // 3] = seen
    rows[len(rows) // 3] = hidden
    return made


def _unusual(noise: np.ndarray, style: str, largest: float) -> np.ndarray:
    """Rows, or samples, of several sizes, one constant and one zero; all tensors have them at the same places."""
    if style == "plain" or noise.ndim < 2:
        return noise
    kept = noise.shape[:-1] if style == "rows" else noise.shape[:1]
    rows = noise.reshape(*kept, -1).reshape(int(np.prod(kept)), -1)
    factors = [min(factor, largest) for factor in _FACTORS[style]]
    scale = np.array([factors[i % len(factors)] for i in range(len(rows))])
    rows = rows * scale[:, None]
    constant = np.arange(len(rows)) % _PERIOD == 4
    rows[constant] = rows[constant][:, :1]
    rows[np.arange(len(rows)) % _PERIOD == 8] = 0
    return np.asarray(rows.reshape(noise.shape))
