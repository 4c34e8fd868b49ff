"""Models of many blocks, with what real ones have of it: caches, masks, several runs, blocks unlike the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

WIDTH = 8


@dataclass
class Build:
    """A graph under construction; weights differ from each other, constants are shared."""

    nodes: list[NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    inputs: list[ValueInfoProto] = field(default_factory=list)
    outputs: list[ValueInfoProto] = field(default_factory=list)
    named: bool = True
    """Do nodes have names?"""
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def node(self, op: str, *inputs: str, scope: str = "", outputs: int = 1, **attributes: Any) -> str:
        name = f"{scope}/{op}_{len(self.nodes)}" if self.named else ""
        made = [f"v{len(self.nodes)}_{slot}" for slot in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, made, name=name, **attributes))
        return made[0]

    def constant(self, name: str, array: Any) -> str:
        if name not in {tensor.name for tensor in self.initializers}:
            self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(f"number {value:g}", np.float32(value))

    def weight(self, scope: str, *dims: int) -> str:
        return self.constant(f"{scope} w{len(self.initializers)}", self.rng.standard_normal(dims, np.float32))

    def input(self, name: str, dims: Sequence[str | int]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
        return name

    def output(self, value: str, dims: Sequence[str | int] = ("batch", "seq", WIDTH)) -> str:
        self.outputs.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, dims))
        return value

    def model(self) -> ModelProto:
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model

    # ------------------------------------------------------------------------------------- parts of blocks

    def norm(self, x: str, scope: str, epsilon: float = 1e-5) -> str:
        """A layer normalization of nine nodes."""
        centred = self.node("Sub", x, self.node("ReduceMean", x, axes=[-1], scope=scope), scope=scope)
        square = self.node("Pow", centred, self.number(2), scope=scope)
        variance = self.node("ReduceMean", square, axes=[-1], scope=scope)
        root = self.node("Sqrt", self.node("Add", variance, self.number(epsilon), scope=scope), scope=scope)
        normal = self.node("Mul", self.node("Div", centred, root, scope=scope), self.weight(scope, WIDTH), scope=scope)
        return self.node("Add", normal, self.weight(scope, WIDTH), scope=scope)

    def linear(self, x: str, scope: str, rows: int = WIDTH, columns: int = WIDTH) -> str:
        product = self.node("MatMul", x, self.weight(scope, rows, columns), scope=scope)
        return self.node("Add", product, self.weight(scope, columns), scope=scope)

    def gelu(self, x: str, scope: str) -> str:
        erf = self.node("Erf", self.node("Div", x, self.number(2**0.5), scope=scope), scope=scope)
        whole = self.node("Mul", x, self.node("Add", erf, self.number(1), scope=scope), scope=scope)
        return self.node("Mul", whole, self.number(0.5), scope=scope)

    def attention(self, x: str, scope: str, mask: str = "", keys: str = "", cache: str = "") -> str:
        """One head; keys and values may be another's, and may lie behind a cache, which becomes an output."""
        query, key, value = (self.linear(each, scope) for each in (x, keys or x, keys or x))
        if cache:
            past = self.input(f"past.{cache}", ["batch", "past", WIDTH])
            key = self.output(self.node("Concat", past, key, axis=1, scope=scope), ["batch", "total", WIDTH])
        turned = self.node("Transpose", key, perm=[0, 2, 1], scope=scope)
        scores = self.node("Div", self.node("MatMul", query, turned, scope=scope), self.number(8**0.5), scope=scope)
        if mask:
            scores = self.node("Add", scores, mask, scope=scope)
        weights = self.node("Softmax", scores, axis=-1, scope=scope)
        return self.node("MatMul", weights, value if not cache else key, scope=scope)

    def experts(self, x: str, scope: str) -> str:
        """A mixture of two experts."""
        gate = self.node("Softmax", self.linear(x, scope, columns=2), axis=-1, scope=scope)
        parts = []
        for expert in range(2):
            index = self.constant(f"expert {expert}", np.array([expert], np.int64))
            share = self.node("Gather", gate, index, axis=-1, scope=scope)
            parts.append(self.node("Mul", self.gelu(self.linear(x, scope), scope), share, scope=scope))
        return self.node("Add", *parts, scope=scope)


Block = Callable[[Build, str, int], str]


def mlp(build: Build, x: str, number: int, epsilon: float = 1e-5) -> str:
    """A residual block with a GELU."""
    scope = f"/layer.{number}/mlp"
    inner = build.gelu(build.linear(build.norm(x, scope, epsilon), scope), scope)
    return build.node("Add", build.linear(inner, scope), x, scope=scope)


def chain(count: int, block: Block = mlp, *, build: Build | None = None) -> ModelProto:
    """`count` blocks, one after another."""
    build = build or Build()
    x = build.input("x", ["batch", "seq", WIDTH])
    for number in range(count):
        x = block(build, x, number)
    build.output(build.node("Relu", x))
    return build.model()
