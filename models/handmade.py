"""Models with what today's exporters no longer write, authored with onnx-graphsurgeon.

Each function here is one model of models/, and states in `blocks` what can be fused in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from models.sketch import Sketch


@dataclass(frozen=True)
class Handmade:
    """How a hand-made model is built, what can be fused in it, and whether its weights lie in a file of their own."""

    build: Callable[[], onnx.ModelProto]
    blocks: dict[str, int]
    external: bool = False


HANDMADE: dict[str, Handmade] = {}


def model(external: bool = False, **blocks: int) -> Callable[[Callable[[], onnx.ModelProto]], None]:
    """Registers the decorated function as the model of its name, with what can be fused in it."""

    def register(build: Callable[[], onnx.ModelProto]) -> None:
        HANDMADE[build.__name__] = Handmade(build, dict(sorted(blocks.items())), external)

    return register


# ---- Blocks


def batch_norm(g: Sketch, x: gs.Variable, channels: int) -> gs.Variable:
    """BatchNormalization in inference form, with statistics that are not 0 and 1."""
    scale, bias = g.weight(channels, center=1, spread=0.2), g.weight(channels, spread=0.3)
    mean, variance = g.weight(channels, spread=0.3), g.weight(channels, center=1, spread=0.2)
    return g.op("BatchNormalization", x, scale, bias, mean, variance, epsilon=1e-5)


def conv(g: Sketch, x: gs.Variable, inputs: int, outputs: int, size: int, bias: bool, **attributes: Any) -> gs.Variable:
    """Conv with square kernels of `size`; `group` and the like go into `attributes`."""
    group = attributes.get("group", 1)
    fan_in = inputs // group * size**2
    weights = [g.weight(outputs, inputs // group, size, size, spread=fan_in**-0.5)]
    if bias:
        weights.append(g.weight(outputs, spread=0.3))
    return g.op("Conv", x, *weights, **attributes)


def conv_transpose(
    g: Sketch, x: gs.Variable, inputs: int, outputs: int, size: int, bias: bool, **attributes: Any
) -> gs.Variable:
    """ConvTranspose with square kernels of `size`."""
    group = attributes.get("group", 1)
    weights = [g.weight(inputs, outputs // group, size, size, spread=(inputs // group * size) ** -0.5)]
    if bias:
        weights.append(g.weight(outputs, spread=0.3))
    return g.op("ConvTranspose", x, *weights, **attributes)


def linear(g: Sketch, x: gs.Variable, inputs: int, outputs: int) -> gs.Variable:
    """MatMul and a bias."""
    product = g.op("MatMul", x, g.weight(inputs, outputs, spread=inputs**-0.5))
    return g.op("Add", product, g.weight(outputs, spread=0.2))


def layer_norm(g: Sketch, x: gs.Variable, width: int) -> gs.Variable:
    """Layer normalization over the last axis, as PyTorch's exporter wrote it before operator set 17."""
    centered = g.op("Sub", x, g.op("ReduceMean", x, axes=[-1]))
    variance = g.op("ReduceMean", g.op("Pow", centered, 2), axes=[-1])
    normal = g.op("Div", centered, g.op("Sqrt", g.op("Add", variance, 1e-5)))
    return g.op("Add", g.op("Mul", normal, g.weight(width, center=1, spread=0.2)), g.weight(width, spread=0.2))


def gelu(g: Sketch, x: gs.Variable) -> gs.Variable:
    """GELU by the error function, as PyTorch's exporter wrote it before operator set 20."""
    phi = g.op("Add", g.op("Erf", g.op("Div", x, 2**0.5)), 1)
    return g.op("Mul", g.op("Mul", x, phi), 0.5)


# ---- Batch normalization that nobody folded

# Input channels, output channels, kernel size, whether it has a bias, attributes.
Layer = tuple[int, int, int, bool, dict[str, Any]]


@model(batchnorm=8)
def conv_batchnorm() -> onnx.ModelProto:
    """Conv + BatchNormalization: plain, 1x1, grouped, depthwise, dilated, strided, with and without bias."""
    g = Sketch("conv_batchnorm", 13)
    x = g.input("image", ["batch", 6, 16, 16])
    layers: list[Layer] = [
        (6, 12, 3, False, {"pads": [1, 1, 1, 1]}),
        (12, 12, 3, True, {"pads": [1, 1, 1, 1]}),
        (12, 18, 1, False, {}),
        (18, 12, 3, True, {"group": 3, "pads": [1, 1, 1, 1]}),
        (12, 12, 3, False, {"group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        (12, 12, 5, True, {"group": 12, "auto_pad": "SAME_UPPER"}),
        (12, 24, 3, False, {"group": 12, "dilations": [2, 2], "pads": [2, 2, 2, 2]}),
        (24, 8, 1, True, {}),
    ]
    for inputs, outputs, size, bias, attributes in layers:
        x = g.op("Relu", batch_norm(g, conv(g, x, inputs, outputs, size, bias, **attributes), outputs))
    g.output("features", x, ["batch", 8, 8, 8])
    return g.model()


@model(batchnorm=4)
def conv_transpose_batchnorm() -> onnx.ModelProto:
    """ConvTranspose + BatchNormalization: its weights have the output channels second, and per group."""
    g = Sketch("conv_transpose_batchnorm", 13)
    x = g.input("latent", ["batch", 8, 4, 4])
    layers: list[Layer] = [
        (8, 12, 2, False, {"strides": [2, 2]}),
        (12, 8, 3, True, {"pads": [1, 1, 1, 1]}),
        (8, 12, 3, True, {"group": 4, "strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        (12, 12, 3, False, {"group": 12, "pads": [1, 1, 1, 1]}),
    ]
    for inputs, outputs, size, bias, attributes in layers:
        x = g.op("LeakyRelu", batch_norm(g, conv_transpose(g, x, inputs, outputs, size, bias, **attributes), outputs))
    g.output("image", x, ["batch", 12, 16, 16])
    return g.model()


@model(batchnorm=4)
def gemm_batchnorm() -> onnx.ModelProto:
    """Gemm and MatMul + BatchNormalization: transposed weights, alpha and beta, with and without bias."""
    g = Sketch("gemm_batchnorm", 13)
    x = g.input("features", ["batch", 10])
    x = g.op("Gemm", x, g.weight(16, 10, spread=0.3), g.weight(16, spread=0.3), transB=1)
    x = g.op("Relu", batch_norm(g, x, 16))
    x = g.op("Gemm", x, g.weight(16, 20, spread=0.3), g.weight(1, 20, spread=0.3), alpha=0.5, beta=2.0)
    x = g.op("Relu", batch_norm(g, x, 20))
    x = g.op("MatMul", x, g.weight(20, 12, spread=0.3))
    x = g.op("Relu", batch_norm(g, x, 12))
    x = batch_norm(g, linear(g, x, 12, 6), 6)
    g.output("logits", x, ["batch", 6])
    return g.model()


@model(batchnorm=4)
def batchnorm_first() -> onnx.ModelProto:
    """BatchNormalization before Conv, Gemm and MatMul.

    The third must stay and is not counted: its convolution pads with zeros, which a bias folded into the
    convolution would miss.
    """
    g = Sketch("batchnorm_first", 13)
    x = g.input("image", ["batch", 6, 8, 8])
    x = g.op("Relu", conv(g, batch_norm(g, x, 6), 6, 10, 3, True))
    x = g.op("Relu", conv(g, batch_norm(g, x, 10), 10, 10, 3, False, group=5))
    x = g.op("Relu", conv(g, batch_norm(g, x, 10), 10, 8, 3, True, pads=[1, 1, 1, 1]))
    x = g.op("Flatten", g.op("GlobalAveragePool", x))
    x = g.op("Relu", g.op("Gemm", batch_norm(g, x, 8), g.weight(8, 8, spread=0.4), g.weight(8, spread=0.3)))
    x = g.op("MatMul", batch_norm(g, x, 8), g.weight(8, 5, spread=0.4))
    g.output("logits", x, ["batch", 5])
    return g.model()


# ---- Other frameworks' spellings


@model(layernorm=3)
def layernorm_tensorflow() -> onnx.ModelProto:
    """TensorFlow's layer normalization, x*r + (beta - mean*r), with its three ways to write 1/sqrt."""
    g = Sketch("layernorm_tensorflow", 13)
    x = g.input("embeddings", ["batch", "sequence", 24])
    reciprocals: list[Callable[[gs.Variable], gs.Variable]] = [
        lambda variance: g.op("Reciprocal", g.op("Sqrt", variance)),
        lambda variance: g.op("Div", 1, g.op("Sqrt", variance)),
        lambda variance: g.op("Pow", variance, -0.5),
    ]
    for reciprocal in reciprocals:
        x = g.op("Add", x, linear(g, x, 24, 24))
        mean = g.op("ReduceMean", x, axes=[2], keepdims=1)
        difference = g.op("Sub", x, mean)
        variance = g.op("ReduceMean", g.op("Mul", difference, difference), axes=[2], keepdims=1)
        r = g.op("Mul", reciprocal(g.op("Add", variance, 1e-6)), g.weight(24, center=1, spread=0.2))
        shift = g.op("Sub", g.weight(24, spread=0.2), g.op("Mul", mean, r))
        x = g.op("Add", g.op("Mul", x, r), shift)
    g.output("hidden", x, ["batch", "sequence", 24])
    return g.model()


@model(gelu=2, layernorm=2)
def quick_gelu() -> onnx.ModelProto:
    """CLIP's feed-forward blocks: x * sigmoid(1.702 x), the factors in both orders."""
    g = Sketch("quick_gelu", 13)
    x = g.input("hidden", ["batch", "sequence", 20])
    for swapped in (False, True):
        inner = linear(g, layer_norm(g, x, 20), 20, 48)
        gate = g.op("Sigmoid", g.op("Mul", *((inner, 1.702) if swapped else (1.702, inner))))
        inner = g.op("Mul", *((gate, inner) if swapped else (inner, gate)))
        x = g.op("Add", x, linear(g, inner, 48, 20))
    g.output("output", x, ["batch", "sequence", 20])
    return g.model()


@model(elu=1, gelu=2, hardswish=1, mish=1, silu=2, softplus=1)
def activations() -> onnx.ModelProto:
    """One output per activation, each named after it and written out in primitives."""
    g = Sketch("activations", 13)
    x = g.input("x", ["batch", 32])
    cubic = g.op("Add", x, g.op("Mul", g.op("Pow", x, 3), 0.044715))
    outputs = {
        "elu": g.op("Where", g.op("Greater", x, 0), x, g.op("Sub", g.op("Exp", x), 1)),
        "gelu": gelu(g, x),
        "gelu_tanh": g.op("Mul", g.op("Mul", x, 0.5), g.op("Add", g.op("Tanh", g.op("Mul", cubic, 0.7978845608)), 1)),
        "hardswish": g.op("Mul", x, g.op("Div", g.op("Clip", g.op("Add", x, 3), 0, 6), 6)),
        "mish": g.op("Mul", x, g.op("Tanh", g.op("Softplus", x))),
        "silu": g.op("Mul", x, g.op("Sigmoid", x)),
        "silu_exp": g.op("Div", x, g.op("Add", g.op("Exp", g.op("Neg", x)), 1)),
        "softplus": g.op("Log", g.op("Add", g.op("Exp", x), 1)),
    }
    for name, value in outputs.items():
        g.output(name, value, ["batch", 32])
    return g.model()


@model(softmax=2, logsoftmax=2)
def softmax() -> onnx.ModelProto:
    """Softmax and LogSoftmax over the last axis from primitives, with and without the maximum subtracted."""
    g = Sketch("softmax", 17)
    x = g.input("x", ["batch", 5, 32])
    last = np.array([-1])
    plain = g.op("Exp", x)
    shifted = g.op("Sub", x, g.op("ReduceMax", x, axes=[-1]))
    stable = g.op("Exp", g.op("Sub", x, g.op("ReduceMax", x, axes=[-1])))
    total = g.op("ReduceSum", g.op("Exp", shifted), last)
    outputs = {
        "softmax": g.op("Div", plain, g.op("ReduceSum", plain, last)),
        "softmax_stable": g.op("Div", stable, g.op("ReduceSum", stable, last)),
        "logsoftmax": g.op("Sub", x, g.op("ReduceLogSumExp", x, axes=[-1])),
        "logsoftmax_stable": g.op("Sub", shifted, g.op("Log", total)),
    }
    for name, value in outputs.items():
        g.output(name, value, ["batch", 5, 32])
    return g.model()


# ---- Graphs inside graphs


@model(layernorm=1, gelu=1)
def control_if() -> onnx.ModelProto:
    """An If whose branches capture the same value: one normalizes it, the other activates it."""
    g = Sketch("control_if", 17)
    x = g.input("x", ["batch", "sequence", 16])
    flag = g.input("normalize", [], np.bool_)
    hidden = linear(g, x, 16, 16)
    then, other = Sketch("then", 17, g), Sketch("else", 17, g)
    then.output("then_result", layer_norm(then, hidden, 16), ["batch", "sequence", 16])
    other.output("else_result", gelu(other, hidden), ["batch", "sequence", 16])
    chosen = g.op("If", flag, then_branch=then.graph, else_branch=other.graph)
    g.output("y", linear(g, chosen, 16, 8), ["batch", "sequence", 8])
    return g.model()


@model(layernorm=1, gelu=1)
def control_loop() -> onnx.ModelProto:
    """A Loop that applies one block, LayerNorm, linear, GELU and a residual, as often as an input says."""
    g = Sketch("control_loop", 17)
    steps = g.input("steps", [], np.int64)
    x = g.input("x", ["batch", 16])
    body = Sketch("body", 17, g)
    body.input("step", [], np.int64)
    going = body.input("going", [], np.bool_)
    state = body.input("state", ["batch", 16])
    step = gelu(body, linear(body, layer_norm(body, state, 16), 16, 16))
    body.output("going_on", body.op("Identity", going), [], np.bool_)
    body.output("next_state", body.op("Add", state, step), ["batch", 16])
    final = g.op("Loop", steps, np.array(True), x, body=body.graph)
    g.output("y", linear(g, final, 16, 4), ["batch", 4])
    return g.model()


def layer_norm_function(epsilon: float | gs.Node.AttributeRef) -> gs.Function:
    """LayerNorm(x, scale, bias) as a local function; an attribute reference makes epsilon the caller's."""
    f = Sketch("LayerNorm", 17)
    x, scale, bias = (gs.Variable(name) for name in ("x", "scale", "bias"))
    attributes = {} if isinstance(epsilon, float) else {epsilon.name: None}
    small = epsilon if isinstance(epsilon, float) else f.op("Constant", value_float=epsilon)
    centered = f.op("Sub", x, f.op("ReduceMean", x, axes=[-1]))
    variance = f.op("ReduceMean", f.op("Mul", centered, centered), axes=[-1])
    normal = f.op("Div", centered, f.op("Sqrt", f.op("Add", variance, small)))
    y = f.op("Add", f.op("Mul", normal, scale), bias)
    return gs.Function(
        "LayerNorm",
        domain="torch.nn.modules.normalization",
        nodes=list(f.graph.nodes),
        inputs=[x, scale, bias],
        outputs=[y],
        opset=17,
        attrs=attributes,
    )


def call_layer_norm(name: str, function: gs.Function, calls: list[dict[str, float]]) -> onnx.ModelProto:
    """A model that calls the function once per element of `calls`, which holds the call's attributes."""
    g = Sketch(name, 17)
    g.graph.functions.append(function)
    x = g.input("x", ["batch", "sequence", 16])
    for attributes in calls:
        scale, bias = g.weight(16, center=1, spread=0.2), g.weight(16, spread=0.2)
        x = g.op("LayerNorm", linear(g, x, 16, 16), scale, bias, domain=function.domain, **attributes)
    g.output("y", x, ["batch", "sequence", 16])
    return g.model()


@model(layernorm=2)
def function_layernorm() -> onnx.ModelProto:
    """A local function with a decomposed LayerNorm, called twice."""
    return call_layer_norm("function_layernorm", layer_norm_function(1e-5), [{}, {}])


@model(layernorm=2)
def function_attribute() -> onnx.ModelProto:
    """A local function whose epsilon is its attribute, known only at each call; called twice, with two values."""
    function = layer_norm_function(gs.Node.AttributeRef("epsilon", float))
    return call_layer_norm("function_attribute", function, [{"epsilon": 1e-5}, {"epsilon": 1e-3}])


# ---- Weights in a file of their own


@model(external=True, layernorm=2, gelu=2)
def external_data() -> onnx.ModelProto:
    """Two feed-forward blocks; every weight of 1 kB or more lies in external_data.onnx.data."""
    g = Sketch("external_data", 17)
    x = g.input("hidden", ["batch", "sequence", 32])
    for _ in range(2):
        inner = gelu(g, linear(g, layer_norm(g, x, 32), 32, 64))
        x = g.op("Add", x, linear(g, inner, 64, 32))
    g.output("output", x, ["batch", "sequence", 32])
    return g.model()
