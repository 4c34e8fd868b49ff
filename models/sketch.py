"""A few words on top of onnx-graphsurgeon, in which handmade.py writes its models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

# The IR version that came with each operator set; stated, so that a newer onnx package writes the same bytes.
IR_VERSIONS = {13: 7, 17: 8, 20: 9}


class Sketch:
    """A graph under construction: every call of `op` adds a node and returns its output.

    Weights come from one random stream per model, seeded by its name; the bodies of control flow share it
    (`parent`), so that no two weights of a model are alike.
    """

    def __init__(self, name: str, opset: int, parent: Sketch | None = None) -> None:
        self.graph = gs.Graph(name=name, opset=opset, producer_name="onnx-graphsurgeon", ir_version=IR_VERSIONS[opset])
        fresh = np.random.Generator(np.random.PCG64(list(name.encode())))
        self._random: np.random.Generator = parent._random if parent else fresh

    def input(self, name: str, shape: list[int | str], dtype: type[np.generic] = np.float32) -> gs.Variable:
        """A graph input of this shape; a string is a symbolic dimension."""
        value = gs.Variable(name, dtype=dtype, shape=shape)
        self.graph.inputs.append(value)
        return value

    def weight(self, *shape: int, center: float = 0.0, spread: float = 1.0) -> np.ndarray:
        """Uniform float32 numbers of standard deviation `spread` around `center`."""
        noise = (self._random.random(shape) - 0.5) * 12**0.5
        return np.asarray(center + spread * noise, dtype=np.float32)

    def op(self, op_type: str, *inputs: gs.Tensor | np.ndarray | float, **attributes: Any) -> gs.Variable:
        """Adds a node with one output; an array input becomes an initializer, a number a float32 scalar."""
        name = f"/{self.graph.name}/{op_type}_{len(self.graph.nodes)}"
        operands = [
            x
            if isinstance(x, gs.Tensor)
            else gs.Constant(f"{name}.{i}", np.asarray(x, getattr(x, "dtype", np.float32)))
            for i, x in enumerate(inputs)
        ]
        result = gs.Variable(f"{name}_output")
        domain = attributes.pop("domain", None)
        self.graph.nodes.append(gs.Node(op_type, name, attributes, operands, [result], domain=domain))
        return result

    def output(
        self, name: str, value: gs.Variable, shape: list[int | str], dtype: type[np.generic] = np.float32
    ) -> None:
        """Renames `value` to `name` and makes it a graph output of this shape."""
        value.name, value.shape, value.dtype = name, shape, dtype
        self.graph.outputs.append(value)

    def model(self) -> onnx.ModelProto:
        """The finished model."""
        model: onnx.ModelProto = gs.export_onnx(self.graph)
        return model
