"""A model whose nodes are all a little wrong, as good as at random: what rounding may do to it shows in a few of these.

Monte Carlo arithmetic (Parker 1997): where results spread as far as a difference, the difference says nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, inliner, numpy_helper

from .feeds import Feed, exponentials

Array = NDArray[Any]
NOISE = {"float16": 2.0**-10, "float32": 2.0**-22}
"""How far the result of a node may be off, relatively."""
TAIL = 1e-7
"""How far a quotient may be off where exponentials are written out: onnxruntime's Sigmoid is 0 from -18 on or so."""
REAL = (TensorProto.FLOAT, TensorProto.FLOAT16)


def shaken(feed: Feed, seed: int) -> dict[str, Array]:
    """Inputs that are off by some ulps: what cancels inside a product of matrices shows."""
    rng = np.random.default_rng(seed)
    return {name: _shake(rng, a) if a.dtype.kind == "f" else a for name, a in feed.inputs.items()}


def _shake(rng: np.random.Generator, array: Array) -> Array:
    noise = NOISE[array.dtype.name]
    with np.errstate(all="ignore"):
        return np.asarray(array * (1 + rng.uniform(-noise, noise, array.shape))).astype(array.dtype)


def noisy(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with a factor near 1 on each element of each real result, as good as random."""
    inferred = onnx.shape_inference.infer_shapes(inliner.inline_local_functions(model))
    known = {v.name: v.type.tensor_type for v in (*inferred.graph.value_info, *inferred.graph.output)}
    types = {name: kind.elem_type for name, kind in known.items() if not _is_empty(kind)}
    nodes, count = list[onnx.NodeProto](), 0
    for node in inferred.graph.node:
        maker = onnx.NodeProto.FromString(node.SerializeToString())
        nodes.append(maker)
        for i, name in enumerate(node.output):
            if types.get(name) in REAL and node.op_type not in ("Constant", "Identity"):
                count += 1
                maker.output[i] = f"{name}/exact"
                tail = (-TAIL if seed % 2 else TAIL) * (node.op_type in ("Div", "Reciprocal") and exponentials(model))
                nodes += _factor(name, types[name], 1000.0 * seed + 17 * count, tail)
    del inferred.graph.node[:]
    inferred.graph.node.extend(nodes)
    del inferred.graph.value_info[:]
    return inferred


def _is_empty(kind: onnx.TypeProto.Tensor) -> bool:
    return any(d.HasField("dim_value") and not d.dim_value for d in kind.shape.dim)


def _factor(name: str, dtype: int, phase: float, tail: float) -> list[onnx.NodeProto]:
    """name = name/exact * (1 + noise * wave) + tail * wave, wave = sin(phase + 78 * place): onnxruntime lacks random
    numbers in some opsets.  A negative tail makes 0 of what is smaller, instead."""

    def number(text: str, value: Any) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [f"{name}/{text}"], value=numpy_helper.from_array(np.array(value)))

    def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, [f"{name}/{i}" for i in inputs.split()], [f"{name}/{output}"], **attributes)

    noise = NOISE["float16" if dtype == TensorProto.FLOAT16 else "float32"]
    constants = [
        number("zero", 0),
        number("one", 1),
        number("often", np.float32(78.233)),
        number("whole", np.float32(1)),
    ]
    nodes = [
        *constants,
        number("phase", np.float32(phase)),
        number("noise", np.float32(noise)),
        node("Shape", "exact", "shape"),
        node("Equal", "shape zero", "none"),
        node("Where", "none one shape", "room"),  # a Reshape takes 0 for the dimension of its input
        node("ReduceProd", "room", "size", keepdims=0),
        node("Range", "zero size one", "place"),
        node("Cast", "place", "real", to=TensorProto.FLOAT),
        node("Mul", "real often", "angle"),
        node("Add", "angle phase", "turned"),
        node("Sin", "turned", "wave"),
        node("Mul", "wave noise", "small"),
        node("Add", "small whole", "near"),
        node("Reshape", "near room", "shaped"),
        node("Cast", "shaped", "factor", to=dtype),
        helper.make_node("Mul", [f"{name}/exact", f"{name}/factor"], [f"{name}/shaken" if tail else name]),
    ]
    if tail > 0:
        nodes += [
            number("tail", np.float32(tail)),
            node("Mul", "wave tail", "end"),
            node("Reshape", "end room", "ends"),
            node("Cast", "ends", "last", to=dtype),
            helper.make_node("Add", [f"{name}/shaken", f"{name}/last"], [name]),
        ]
    elif tail:
        nodes += [
            number("tail", np.float32(-tail)),
            node("Abs", "shaken", "absolute"),
            node("Cast", "absolute", "wide", to=TensorProto.FLOAT),
            node("Greater", "wide tail", "counts"),
            node("Cast", "counts", "kept", to=dtype),
            helper.make_node("Mul", [f"{name}/shaken", f"{name}/kept"], [name]),
        ]
    return nodes
