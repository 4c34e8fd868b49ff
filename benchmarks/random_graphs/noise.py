"""A model whose nodes are all a little wrong, as good as at random: what rounding may do to it shows in a few of these.

Monte Carlo arithmetic (Parker 1997): where results spread as far as a difference, the difference says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, inliner, numpy_helper

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
    numbers: dict[str, Any] = {f"{SHARED}/{name}": value for name, value in NUMBERS.items()}
    inferred.graph.input.append(helper.make_tensor_value_info(PHASE, TensorProto.FLOAT, []))
    _shake_nodes(inferred.graph, numbers, (-TAIL if odd else TAIL) * exponentials(model))
    inferred.graph.initializer.extend(numpy_helper.from_array(np.array(x), name) for name, x in numbers.items())
    return inferred


def _shake_nodes(graph: onnx.GraphProto, numbers: dict[str, Any], tail: float) -> None:
    """The same of one graph, and of the bodies in it; `numbers` are constants that the main graph is to have."""
    known = {v.name: v.type.tensor_type for v in (*graph.value_info, *graph.output)}
    types = {name: kind.elem_type for name, kind in known.items() if not _is_empty(kind)}
    nodes = list[onnx.NodeProto]()
    places: dict[object, str] = {}
    for node in graph.node:
        maker = onnx.NodeProto.FromString(node.SerializeToString())
        nodes.append(maker)
        for _, body in attribute_graphs(maker):
            _shake_nodes(body, numbers, tail)
        for i, name in enumerate(node.output):
            if types.get(name) in REAL and node.op_type not in ("Constant", "Identity", "If"):
                maker.output[i] = f"{name}/exact"
                if node.op_type == "Sign":
                    nodes.append(helper.make_node("IsNaN", [node.input[0]], [f"{name}/unknown"]))
                size = _size(known[name]) or name
                if size not in places:
                    places[size] = f"{name}/angle"
                    nodes += _places(name)
                ends = tail * (node.op_type in ("Div", "Reciprocal"))
                nodes += _factor(name, places[size], types[name], node.op_type, ends)
                numbers[f"{name}/own"] = np.float32(17.0 * (len(numbers) - len(NUMBERS) + 1))
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
    """name/angle = 78 * place, of each element of a value, and of all others of its size."""
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
        node("Reshape", "far room", "angle"),
    ]


def _factor(name: str, angle: str, dtype: int, op: str, tail: float) -> list[onnx.NodeProto]:
    """name = name/exact * (1 + noise * wave) + tail * wave, wave = sin(phase + own + 78 * place): onnxruntime lacks
    random numbers in some opsets.  A negative tail makes 0 of what is smaller, instead.  The sign of NaN is any:
    onnxruntime (1.31) gives one or another, by the place of the number in its tensor."""
    node, half = _maker(name), dtype == TensorProto.FLOAT16
    nodes = [
        node("Add", "_phase own", "phase"),
        helper.make_node("Add", [angle, f"{name}/phase"], [f"{name}/turned"]),
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
