"""A model whose nodes are all a little wrong, as good as at random: what rounding may do to it shows in a few of these.

Monte Carlo arithmetic (Parker 1997): where results spread as far as a difference, the difference says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, inliner, numpy_helper

from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import attribute_graphs

from .feeds import Feed, exponentials

Array = NDArray[Any]
NOISE = {"float16": 2.0**-10, "float32": 2.0**-22}
"""How far the result of a node may be off, relatively."""
TAIL = 1e-7
"""How far a quotient may be off where exponentials are written out: onnxruntime's Sigmoid is 0 from -18 on or so."""
REAL = (TensorProto.FLOAT, TensorProto.FLOAT16)
SHARED = "noise"
"""What names of values begin with that all noise of a model has."""
_QUOTIENTS = ("Div", "Reciprocal")
PHASE = f"{SHARED}/phase"
"""The input of a noisy model that makes one noise of another."""
NUMBERS = {
    "zero": 0,
    "one": 1,
    "whole": np.float32(1),
    "often": np.float32(78.233),
    "half": np.float32(NOISE["float16"]),
    "float": np.float32(NOISE["float32"]),
    "tail": np.float32(TAIL),
}
"""Constants of a model's noise: initializers, since onnxruntime takes long to load thousands of Constant nodes."""


def shaken(feed: Feed, seed: int) -> dict[str, Array]:
    """Inputs that are off by some ulps, so that what cancels inside a product of matrices shows, and the phase."""
    rng = np.random.default_rng(seed)
    inputs = {name: _shake(rng, a) if a.dtype.kind == "f" else a for name, a in feed.inputs.items()}
    return inputs | {PHASE: np.array(1000.0 * seed, np.float32)}


def _shake(rng: np.random.Generator, array: Array) -> Array:
    noise = NOISE[array.dtype.name]
    with np.errstate(all="ignore"):
        return np.asarray(array * (1 + rng.uniform(-noise, noise, array.shape))).astype(array.dtype)


def parity(model: onnx.ModelProto, seed: int) -> int:
    """Which of its noisy models takes the seed: there are two where exponentials are written out."""
    return seed % 2 if exponentials(model) else 0


def noisy(model: onnx.ModelProto, odd: int) -> onnx.ModelProto:
    """The model with a factor near 1 on each element of each real result, as good as random, for seeds of a parity.

    A session of it takes a while to make: it serves all those seeds."""
    inferred = onnx.shape_inference.infer_shapes(inliner.inline_local_functions(model))
    opset = max((entry.version for entry in inferred.opset_import if entry.domain in STANDARD), default=1)
    constants = _Constants({f"{SHARED}/{name}": value for name, value in NUMBERS.items()}, opset)
    inferred.graph.input.append(helper.make_tensor_value_info(PHASE, TensorProto.FLOAT, []))
    _shake_nodes(inferred.graph, constants, (-TAIL if odd else TAIL) * exponentials(model))
    tensors = (numpy_helper.from_array(np.array(value), name) for name, value in constants.values.items())
    inferred.graph.initializer.extend(tensors)
    return inferred


@dataclass
class _Constants:
    """What the main graph is to have of constants, by name; the model's opset; and numbers, for each result another."""

    values: dict[str, Any]
    opset: int
    own: Iterator[int] = field(default_factory=partial(count, 1))

    def add(self, value: Any) -> str:
        """The name of one more."""
        name = f"{SHARED}/{len(self.values)}"
        self.values[name] = value
        return name


def _shake_nodes(graph: onnx.GraphProto, constants: _Constants, tail: float) -> None:
    """The same of one graph, and of the bodies in it."""
    known = {v.name: v.type.tensor_type for v in (*graph.value_info, *graph.output)}
    types = {name: kind.elem_type for name, kind in known.items() if not _is_empty(kind)}
    makers = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    own: dict[str, np.float32] = {}
    alike: dict[object, list[str]] = {}
    for maker in makers:
        for _, body in attribute_graphs(maker):
            _shake_nodes(body, constants, tail)
        real = [name for name in maker.output if types.get(name) in REAL]
        for name in real if maker.op_type not in ("Constant", "Identity", "If") else ():
            own[name] = np.float32(17.0 * next(constants.own))
            plain = maker.op_type not in ("Sign", *(_QUOTIENTS if tail else ()))
            alike.setdefault((types[name], _size(known[name])) if plain else name, []).append(name)
    # Factors of results of one size are made together: a session takes its time for each node.
    together = {name: names for names in alike.values() if len(names) > 1 and _size(known[names[0]]) for name in names}
    nodes = list[onnx.NodeProto]()
    places: dict[object, str] = {}
    for maker in makers:
        nodes.append(maker)
        for i, name in enumerate(maker.output):
            if name not in own:
                continue
            maker.output[i] = f"{name}/exact"
            if maker.op_type == "Sign":
                nodes.append(helper.make_node("IsNaN", [maker.input[0]], [f"{name}/unknown"]))
            size = _size(known[name]) or name
            if size not in places:
                places[size] = name
                nodes += _places(name)
            place, half = places[size], types[name] == TensorProto.FLOAT16
            if names := together.get(name):
                if name == names[0]:
                    numbers = np.array([[own[other]] for other in names])
                    nodes += _factors(names, place, numbers, len(size), half, constants)
                nodes.append(helper.make_node("Mul", [f"{name}/exact", f"{name}/factor"], [name]))
            else:
                ends = tail * (maker.op_type in _QUOTIENTS)
                nodes += _factor(name, place, constants.add(own[name]), half, maker.op_type, ends)
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]


def _is_empty(kind: onnx.TypeProto.Tensor) -> bool:
    return any(d.HasField("dim_value") and not d.dim_value for d in kind.shape.dim)


def _size(kind: onnx.TypeProto.Tensor) -> tuple[int | str, ...] | None:
    """What two tensors of one size have in common, where it is known: they count their places once."""
    dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in kind.shape.dim)
    return dims if kind.HasField("shape") and "" not in dims else None


def _maker(name: str) -> Callable[..., onnx.NodeProto]:
    """Of nodes whose values are called after one value; a name with _ in front is shared."""

    def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
        read = [f"{SHARED}/{i[1:]}" if i[0] == "_" else f"{name}/{i}" for i in inputs.split()]
        return helper.make_node(op, read, [f"{name}/{output}"], **attributes)

    return node


def _places(name: str) -> list[onnx.NodeProto]:
    """name/far = 78 * place of each element, in a row; name/room, the shape of that; for all values of one size."""
    node = _maker(name)
    return [
        node("Shape", "exact", "shape"),
        node("Equal", "shape _zero", "none"),
        node("Where", "none _one shape", "room"),  # a Reshape takes 0 for the dimension of its input
        node("ReduceProd", "room", "size"),
        node("ConstantOfShape", "size", "ones", value=helper.make_tensor("value", TensorProto.INT64, [1], [1])),
        node("NonZero", "ones", "place"),  # Range is of opset 11
        node("Cast", "place", "real", to=TensorProto.FLOAT),
        node("Mul", "real _often", "far"),
    ]


def _factors(
    names: Sequence[str], place: str, own: Array, rank: int, half: bool, constants: _Constants
) -> list[onnx.NodeProto]:
    """name/factor = 1 + noise * wave of each of some values, which have the places of one and a number each, in one."""
    node, first = _maker(names[0]), f"{names[0]}/"
    times = constants.add(np.array([len(names)] + [1] * (rank - 1)))
    split: dict[str, Any] = {"num_outputs": len(names)} if constants.opset >= 18 else {}
    return [
        helper.make_node("Add", [PHASE, constants.add(own)], [f"{first}phase"]),
        helper.make_node("Add", [f"{place}/far", f"{first}phase"], [f"{first}turned"]),
        node("Sin", "turned", "wave"),
        node("Mul", "wave _half" if half else "wave _float", "small"),
        node("Add", "small _whole", "near"),
        *([node("Cast", "near", "cast", to=TensorProto.FLOAT16)] if half else []),
        helper.make_node("Mul", [f"{place}/room", times], [f"{first}rooms"]),
        node("Reshape", "cast rooms" if half else "near rooms", "stacked"),
        helper.make_node("Split", [f"{first}stacked"], [f"{name}/factor" for name in names], axis=0, **split),
    ]


def _factor(name: str, place: str, own: str, half: bool, op: str, tail: float) -> list[onnx.NodeProto]:
    """name = name/exact * (1 + noise * wave) + tail * wave, wave = sin(phase + own + 78 * place): onnxruntime lacks
    random numbers in some opsets.  A negative tail makes 0 of what is smaller, instead.  The sign of NaN is any:
    onnxruntime (1.31) gives one or another, by the place of the number in its tensor."""
    node, dtype = _maker(name), TensorProto.FLOAT16 if half else TensorProto.FLOAT
    nodes = [
        helper.make_node("Reshape", [f"{place}/far", f"{place}/room"], [f"{name}/angle"]),
        helper.make_node("Add", [PHASE, own], [f"{name}/phase"]),
        node("Add", "angle phase", "turned"),
        node("Sin", "turned", "wave"),
        node("Mul", "wave _half" if half else "wave _float", "small"),
        node("Add", "small _whole", "near"),
        *([node("Cast", "near", "factor", to=dtype)] if half else []),
        node("Mul", "exact factor" if half else "exact near", "shaken"),
    ]
    if not tail:
        nodes[-1].output[0] = name
    if op == "Sign":
        nodes[-1].output[0] = f"{name}/signed"
        nodes += [
            node("Sign", "wave", "side"),
            node("Cast", "side", "any", to=dtype),
            helper.make_node("Where", [f"{name}/unknown", f"{name}/any", f"{name}/signed"], [name]),
        ]
    elif tail > 0:
        nodes += [
            node("Mul", "wave _tail", "end"),
            node("Cast", "end", "last", to=dtype),
            helper.make_node("Add", [f"{name}/shaken", f"{name}/last"], [name]),
        ]
    elif tail:
        nodes += [
            node("Abs", "shaken", "absolute"),
            node("Cast", "absolute", "wide", to=TensorProto.FLOAT),
            node("Greater", "wide _tail", "counts"),
            node("Cast", "counts", "kept", to=dtype),
            helper.make_node("Mul", [f"{name}/shaken", f"{name}/kept"], [name]),
        ]
    return nodes
