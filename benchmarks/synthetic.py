"""Models for measuring scale, made locally from random weights.

python -m benchmarks.synthetic blocks blocks.onnx    58,800 nodes, small shared weights
python -m benchmarks.synthetic huge huge.onnx        6.4 GB of external weights, which take no room on disk
python -m benchmarks.synthetic bert bert.onnx        BERT-base: 109 million parameters in one file
python -m benchmarks.synthetic unlike unlike.onnx    100,000 nodes of which no stretch is like another
python -m benchmarks.synthetic decoder decoder.onnx  8 layers of a decoder: 2.2 GB of external weights
python -m benchmarks.synthetic mlp mlp.onnx          4 layers of two products: 2.1 GB of external weights
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.model import protobuf

OPSET = 17
_PAGE = 4096
NODES_PER_BLOCK = 49


@dataclass(slots=True)
class _Writer:
    """A graph under construction; names carry the module path, as exporters write them."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    scope: str = ""

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{self.scope}/{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_output_0"], name=name, **attributes))
        return f"{name}_output_0"

    def weight(self, name: str, value: NDArray[Any]) -> str:
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def scalar(self, name: str, value: float) -> str:
        return self.weight(name, np.array(value, np.float32))

    def layer_norm(self, x: str, scale: str, bias: str) -> str:
        """Nine nodes."""
        centred = self.node("Sub", x, self.node("ReduceMean", x, axes=[-1]))
        variance = self.node("ReduceMean", self.node("Pow", centred, "two"), axes=[-1])
        normal = self.node("Div", centred, self.node("Sqrt", self.node("Add", variance, "epsilon")))
        return self.node("Add", self.node("Mul", normal, scale), bias)

    def rms_norm(self, x: str, scale: str) -> str:
        """Six nodes."""
        variance = self.node("ReduceMean", self.node("Pow", x, "two"), axes=[-1])
        size = self.node("Sqrt", self.node("Add", variance, "epsilon"))
        return self.node("Mul", self.node("Div", x, size), scale)

    def split(self, x: str, sizes: str) -> list[str]:
        """Two parts along the last axis."""
        first = self.node("Split", x, sizes, axis=-1)
        self.nodes[-1].output.append(f"{first}_2")
        return list(self.nodes[-1].output)

    def gelu(self, x: str) -> str:
        """Five nodes."""
        erf = self.node("Erf", self.node("Div", x, "sqrt_two"))
        return self.node("Mul", self.node("Mul", x, self.node("Add", erf, "one")), "half")

    def linear(self, x: str, weight: str, bias: str) -> str:
        """Two nodes."""
        return self.node("Add", self.node("MatMul", x, weight), bias)

    def save(self, path: Path, inputs: list[onnx.ValueInfoProto], output: onnx.ValueInfoProto) -> None:
        opsets = [helper.make_opsetid("", OPSET)]
        graph = helper.make_graph(self.nodes, path.stem, inputs, [output])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))
        self.initializers.reverse()
        while self.initializers:  # each is there once
            model.graph.initializer.append(self.initializers.pop())
        with path.open("wb") as file:
            file.writelines(protobuf.pieces(model)[1])


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes of a transformer."""

    hidden: int
    heads: int
    inner: int


def blocks(path: Path, count: int = 1200) -> None:
    """`count` transformer blocks of 49 nodes each, every block with the same weights: 1,200 make 58,800 nodes.

    Normalisation and GELU are decomposed, attention runs over 4-D heads; input and output are float32
    ["batch", "seq", 16].
    """
    shape = _Shape(hidden=16, heads=2, inner=32)
    writer = _Writer()
    _constants(writer, shape)
    weights = _block_weights(writer, shape, "shared", np.random.default_rng(0))
    x = "x"
    for layer in range(count):
        x = _block(writer, x, weights, f"/encoder/layer.{layer}")
    dims = ["batch", "seq", shape.hidden]
    _name_output(writer, "y")
    writer.save(path, [_float("x", dims)], _float("y", dims))


def bert_base(path: Path) -> None:
    """BERT-base: 12 layers, hidden 768, 12 heads, vocabulary 30,522; 109 million random parameters, 0.44 GB.

    Inputs: int64 `input_ids` and `attention_mask`, each ["batch", 128].  Output: float32 ["batch", 128, 768].
    """
    shape, length, vocabulary = _Shape(hidden=768, heads=12, inner=3072), 128, 30522
    writer, rng = _Writer(), np.random.default_rng(0)
    _constants(writer, shape)
    writer.scope = "/embeddings"
    words = writer.weight("word_embeddings", _random(rng, vocabulary, shape.hidden))
    positions = writer.weight("position_embeddings", _random(rng, length, shape.hidden))
    embedded = writer.node("Add", writer.node("Gather", words, "input_ids"), positions)
    scale, bias = _norm_weights(writer, shape, "embeddings.norm")
    x = writer.layer_norm(embedded, scale, bias)
    axes = writer.weight("mask_axes", np.array([1, 2], np.int64))
    mask = writer.node("Cast", writer.node("Unsqueeze", "attention_mask", axes), to=TensorProto.FLOAT)
    lowest = writer.scalar("lowest", float(np.finfo(np.float32).min))
    mask = writer.node("Mul", writer.node("Sub", "one", mask), lowest)
    for layer in range(12):
        weights = _block_weights(writer, shape, f"encoder.layer.{layer}", rng)
        x = _block(writer, x, weights, f"/encoder/layer.{layer}", mask)
    _name_output(writer, "last_hidden_state")
    ids = [
        helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", length]) for n in ("input_ids", "attention_mask")
    ]
    writer.save(path, ids, _float("last_hidden_state", ["batch", length, shape.hidden]))


def huge(path: Path, layers: int = 24, hidden: int = 8192) -> None:
    """`layers` times MatMul and a decomposed LayerNormalization: 24 square matrices of 8192 make 6.4 GB.

    The weights are `path` + ".data", a sparse file of zeros: its length is real, its blocks are never written.
    """
    writer = _Writer()
    shape = _Shape(hidden, 1, hidden)
    _constants(writer, shape)
    scale, bias = _norm_weights(writer, shape, "norm")
    data, size = path.with_name(path.name + ".data"), hidden * hidden * 4
    x = "x"
    for layer in range(layers):
        writer.scope = f"/layers.{layer}"
        weight = TensorProto(name=f"layers.{layer}.weight", data_type=TensorProto.FLOAT, dims=[hidden, hidden])
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", data.name), ("offset", layer * size), ("length", size)):
            weight.external_data.add(key=key, value=str(value))
        writer.initializers.append(weight)
        x = writer.layer_norm(writer.node("MatMul", x, weight.name), scale, bias)
    with data.open("wb") as file:
        file.truncate(layers * size)
    _name_output(writer, "y")
    dims = ["batch", hidden]
    writer.save(path, [_float("x", dims)], _float("y", dims))


def unlike(path: Path, count: int = 100_000, weights: int = 1) -> None:
    """`count` nodes in which nothing repeats: each op is drawn, and reads the value before it, now and then one of the
    twenty before that, and, every second one, `weights` vectors of its own.

    Input and output are float32 ["batch", 8].
    """
    writer, rng = _Writer(), np.random.default_rng(0)
    values = ["x"]
    for index in range(count):
        before, other = values[-1], values[-1 - int(rng.integers(min(len(values), 20)))]
        if index % 2:
            own = [writer.weight(f"weight_{index}_{i}", _random(rng, 8)) for i in range(weights)]
            op = ("Add", "Mul", "Sub")[rng.integers(3)] if weights == 1 else ("Max", "Min", "Sum")[rng.integers(3)]
            values.append(writer.node(op, before, *own))
        elif rng.random() < 0.5:
            values.append(writer.node(("Add", "Mul", "Max", "Min")[rng.integers(4)], before, other))
        elif rng.random() < 0.8:
            values.append(writer.node(("Tanh", "Sigmoid", "Relu", "Abs", "Neg", "Erf", "Sin")[rng.integers(7)], before))
        else:
            values.append(writer.node("Softmax", before, axis=-1))
        values = values[-20:]
    _name_output(writer, "y")
    writer.save(path, [_float("x", ["batch", 8])], _float("y", ["batch", 8]))


def decoder(path: Path, layers: int = 8, hidden: int = 2048, vocabulary: int = 32000, length: int = 64) -> None:
    """A decoder as Llama has it: RMSNorm, rotary positions, a causal mask and SwiGLU, all decomposed; 2.2 GB.

    Input: int64 `input_ids` ["batch", `length`].  Output: float32 `logits` ["batch", `length`, `vocabulary`].  The
    weights, random ones, are `path` + ".data", written one after the other.
    """
    shape, rng = _Shape(hidden, hidden // 64, 11 * hidden // 4), np.random.default_rng(0)
    data = path.with_name(path.name + ".data")
    with data.open("wb") as file:
        writer = _ExternalWriter(file=file, location=data.name)
        _constants(writer, shape)
        _rotary_constants(writer, length)
        x = writer.node("Gather", writer.weight("embed_tokens", _random(rng, vocabulary, hidden)), "input_ids")
        for layer in range(layers):
            writer.scope = f"/layers.{layer}"
            x = _decoder_block(writer, x, shape, f"layers.{layer}", rng)
        writer.scope = ""
        x = writer.rms_norm(x, writer.weight("norm", np.ones(hidden, np.float32)))
        writer.node("MatMul", x, writer.weight("lm_head", _random(rng, hidden, vocabulary)))
    _name_output(writer, "logits")
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", length])
    writer.save(path, [ids], _float("logits", ["batch", length, vocabulary]))


def mlp(path: Path, layers: int = 4, hidden: int = 4064, *, inside: bool = False) -> None:
    """`layers` of LayerNormalization, product, GELU, product and sum, all decomposed and four times as wide inside.

    Input and output are float32 ["batch", `hidden`].  The weights, random ones of 2.1 GB, are `path` + ".data", or
    `inside` the file, which protobuf ends at 2 GiB.
    """
    shape, rng = _Shape(hidden, 1, 4 * hidden), np.random.default_rng(0)
    if inside:
        _mlp(path, _Writer(), layers, shape, rng)
        return
    data = path.with_name(path.name + ".data")
    with data.open("wb") as file:
        _mlp(path, _ExternalWriter(file=file, location=data.name), layers, shape, rng)


def _mlp(path: Path, writer: _Writer, layers: int, shape: _Shape, rng: np.random.Generator) -> None:
    _constants(writer, shape)
    x = "x"
    for layer in range(layers):
        writer.scope, prefix = f"/layers.{layer}", f"layers.{layer}"

        def linear(value: str, part: str, rows: int, columns: int, prefix: str = prefix) -> str:
            weight = writer.weight(f"{prefix}.{part}.weight", _random(rng, rows, columns))
            return writer.linear(value, weight, writer.weight(f"{prefix}.{part}.bias", _random(rng, columns)))

        normal = writer.layer_norm(x, *_norm_weights(writer, shape, f"{prefix}.norm"))
        inner = writer.gelu(linear(normal, "up", shape.hidden, shape.inner))
        x = writer.node("Add", linear(inner, "down", shape.inner, shape.hidden), x)
    _name_output(writer, "y")
    writer.save(path, [_float("x", ["batch", shape.hidden])], _float("y", ["batch", shape.hidden]))


@dataclass(slots=True, kw_only=True)
class _ExternalWriter(_Writer):
    """One whose large weights go to a file, at page boundaries."""

    file: BinaryIO
    location: str

    def weight(self, name: str, value: NDArray[Any]) -> str:
        if value.nbytes < _PAGE:
            return _Writer.weight(self, name, value)
        self.file.write(bytes(-self.file.tell() % _PAGE))
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(value.dtype), dims=value.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, said in (("location", self.location), ("offset", self.file.tell()), ("length", value.nbytes)):
            tensor.external_data.add(key=key, value=str(said))
        self.file.write(value.data)
        self.initializers.append(tensor)
        return name


def _rotary_constants(writer: _Writer, length: int, head: int = 64) -> None:
    angles = np.outer(np.arange(length), 1e4 ** (-np.arange(0, head, 2) / head))
    both = np.concatenate([angles, angles], axis=-1)
    writer.weight("cos", np.cos(both).astype(np.float32))
    writer.weight("sin", np.sin(both).astype(np.float32))
    writer.weight("causal", np.triu(np.full((length, length), np.finfo(np.float32).min, np.float32), 1))
    writer.weight("halves", np.array([head // 2, head // 2], np.int64))


def _decoder_block(writer: _Writer, x: str, shape: _Shape, prefix: str, rng: np.random.Generator) -> str:
    """A pre-norm block."""

    def linear(value: str, part: str, rows: int, columns: int) -> str:
        return writer.node("MatMul", value, writer.weight(f"{prefix}.{part}", _random(rng, rows, columns)))

    def heads(value: str, part: str) -> str:
        split = writer.node("Reshape", linear(value, part, shape.hidden, shape.hidden), "split_heads")
        return writer.node("Transpose", split, perm=[0, 2, 1, 3])

    def rotary(value: str) -> str:
        first, second = writer.split(value, "halves")
        turned = writer.node("Concat", writer.node("Neg", second), first, axis=-1)
        return writer.node("Add", writer.node("Mul", value, "cos"), writer.node("Mul", turned, "sin"))

    normal = writer.rms_norm(x, writer.weight(f"{prefix}.input_norm", np.ones(shape.hidden, np.float32)))
    query, key, value = rotary(heads(normal, "q")), rotary(heads(normal, "k")), heads(normal, "v")
    scores = writer.node("MatMul", query, writer.node("Transpose", key, perm=[0, 1, 3, 2]))
    scores = writer.node("Add", writer.node("Div", scores, "sqrt_head"), "causal")
    context = writer.node("MatMul", writer.node("Softmax", scores, axis=-1), value)
    merged = writer.node("Reshape", writer.node("Transpose", context, perm=[0, 2, 1, 3]), "merge_heads")
    x = writer.node("Add", x, linear(merged, "o", shape.hidden, shape.hidden))
    normal = writer.rms_norm(x, writer.weight(f"{prefix}.post_norm", np.ones(shape.hidden, np.float32)))
    gate = linear(normal, "gate", shape.hidden, shape.inner)
    gated = writer.node("Mul", gate, writer.node("Sigmoid", gate))
    inner = writer.node("Mul", gated, linear(normal, "up", shape.hidden, shape.inner))
    return writer.node("Add", x, linear(inner, "down", shape.inner, shape.hidden))


def _constants(writer: _Writer, shape: _Shape) -> None:
    head = shape.hidden // shape.heads
    for name, value in (("one", 1.0), ("two", 2.0), ("half", 0.5), ("epsilon", 1e-5), ("sqrt_two", math.sqrt(2))):
        writer.scalar(name, value)
    writer.scalar("sqrt_head", math.sqrt(head))
    writer.weight("split_heads", np.array([0, 0, shape.heads, head], np.int64))
    writer.weight("merge_heads", np.array([0, 0, shape.hidden], np.int64))


def _random(rng: np.random.Generator, *dims: int) -> NDArray[np.float32]:
    return rng.standard_normal(dims, np.float32) * np.float32(0.02)


def _norm_weights(writer: _Writer, shape: _Shape, prefix: str) -> tuple[str, str]:
    scale = writer.weight(f"{prefix}.weight", np.ones(shape.hidden, np.float32))
    return scale, writer.weight(f"{prefix}.bias", np.zeros(shape.hidden, np.float32))


def _block_weights(writer: _Writer, shape: _Shape, prefix: str, rng: np.random.Generator) -> dict[str, tuple[str, str]]:
    """Names of the weight and bias of each part of a block."""
    square, wide = (shape.hidden, shape.hidden), (shape.hidden, shape.inner)
    sizes = {"query": square, "key": square, "value": square, "output": square, "up": wide, "down": wide[::-1]}
    names = {}
    for part, (rows, columns) in sizes.items():
        weight = writer.weight(f"{prefix}.{part}.weight", _random(rng, rows, columns))
        names[part] = weight, writer.weight(f"{prefix}.{part}.bias", _random(rng, columns))
    for part in ("attention.norm", "mlp.norm"):
        names[part] = _norm_weights(writer, shape, f"{prefix}.{part}")
    return names


def _block(writer: _Writer, x: str, weights: dict[str, tuple[str, str]], scope: str, mask: str | None = None) -> str:
    """A post-norm transformer block: 49 nodes, and one more with a mask."""
    writer.scope = f"{scope}/attention"

    def heads(part: str, perm: list[int]) -> str:
        split = writer.node("Reshape", writer.linear(x, *weights[part]), "split_heads")
        return writer.node("Transpose", split, perm=perm)

    query, key, value = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
    scores = writer.node("Div", writer.node("MatMul", query, key), "sqrt_head")
    if mask is not None:
        scores = writer.node("Add", scores, mask)
    context = writer.node("MatMul", writer.node("Softmax", scores, axis=-1), value)
    merged = writer.node("Reshape", writer.node("Transpose", context, perm=[0, 2, 1, 3]), "merge_heads")
    x = writer.node("Add", writer.linear(merged, *weights["output"]), x)
    x = writer.layer_norm(x, *weights["attention.norm"])
    writer.scope = f"{scope}/mlp"
    inner = writer.gelu(writer.linear(x, *weights["up"]))
    x = writer.node("Add", writer.linear(inner, *weights["down"]), x)
    return writer.layer_norm(x, *weights["mlp.norm"])


def _name_output(writer: _Writer, name: str) -> None:
    writer.nodes[-1].output[0] = name


def _float(name: str, dims: list[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


MODELS: dict[str, Callable[[Path], None]] = {
    "blocks": blocks,
    "huge": huge,
    "bert": bert_base,
    "unlike": unlike,
    "decoder": decoder,
    "mlp": mlp,
}


def main() -> None:
    """Write one of the models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    MODELS[arguments.model](arguments.path)


if __name__ == "__main__":
    main()
