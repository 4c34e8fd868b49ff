"""Small quantized models in ONNX's textual syntax."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper


def quantized(
    nodes: str, *, inputs: str = "float[b,t,8] x", output: str = "y", opset: int = 20, constants: str = ""
) -> onnx.ModelProto:
    """A graph whose one output is `output`.

    Its constants: s, s2, s3 and z, z2 are scales and zero points of a tensor, ss scales of 8 columns; w (8×8), v (8), k
    (4×2×3×3) are bytes, m a matrix of 8×8 numbers, g and h vectors of 8."""
    own = "float s = {0.03}, float s2 = {0.05}, float s3 = {0.01}, uint8 z = {120}, uint8 z2 = {128}"
    text = f"""<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        g ({inputs}) => () <{own}{", " if constants else ""}{constants}> {{ {nodes} }}"""
    made = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    read = {name for node in made.graph.node for name in node.input}
    read -= {name for node in made.graph.node for name in node.output}
    drawn = {name: rng.integers(60, 200, shape, np.uint8) for name, shape in _BYTES.items()}
    drawn |= {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in _NUMBERS.items()}
    drawn["ss"] = rng.uniform(0.01, 0.05, 8).astype(np.float32)
    made.graph.initializer.extend(numpy_helper.from_array(drawn[name], name) for name in sorted(read & drawn.keys()))
    made.graph.output.append(onnx.ValueInfoProto(name=output))
    return onnx.shape_inference.infer_shapes(made)


_BYTES = {"w": (8, 8), "v": (8,), "k": (4, 2, 3, 3)}
_NUMBERS = {"m": (8, 8), "g": (8,), "h": (8,)}


def counts(model: onnx.ModelProto) -> Counter[str]:
    """The ops of a model's nodes; fused ops by their family."""
    from onnxfuse.model.graph import family_of

    return Counter(family_of(node) for node in model.graph.node)
