"""Regions of `-O2` that the checks run: a product whose rows are reduced, several reductions of a row, sums of columns.

Each is a function body; what it computes in float64 are its nodes, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper, parser

from onnxfuse import kernels
from onnxfuse.kernels.device.kernel import Kernel
from onnxfuse.kernels.rows.samples import BATCH_NORM, BATCH_NORM_GRADIENT, CHANNELS, GRADIENT, SOFTMAX
from tests import kernel_runs
from tests.row_cases import Wanted

Values = NDArray[Any]
Sizes = Callable[[Sequence[Values], Mapping[str, Values]], Sequence[Values | float]]
OPSET = 20
_BATCH = (0, 2, 3)
"""The axes of a batch of images, but for the channels."""


class Region(NamedTuple):
    """A body; `sizes` are those of the terms that its outputs are sums of, given the inputs and the outputs in float64,
    `product` whether it has one of its first two inputs."""

    text: str
    sizes: Sizes
    product: bool = False

    @property
    def body(self) -> FunctionProto:
        return parser.parse_function(f'<opset_import: ["": {OPSET}], domain: "onnxfuse"> Region_1 {self.text}')


def _terms(given: Sequence[Values]) -> Values:
    """Of a product, with what is added to it: as of a FusedMatMul, and one in the unit of what was added."""
    a, b, *added = given
    return np.asarray(0.1 * (np.abs(a) @ np.abs(b)) + sum(np.abs(one) for one in added))


def _norm_of_product(given: Sequence[Values], made: Mapping[str, Values]) -> list[Values | float]:
    *terms, scale, bias = given
    size, total = _terms(terms), made["s"]
    normal = size.max(-1, keepdims=True) / total.std(-1, keepdims=True)
    return [(normal + np.abs(made["y"])) * np.abs(scale) + np.abs(bias), size + np.abs(total)]


def _softmax_of_product(given: Sequence[Values], made: Mapping[str, Values]) -> list[Values | float]:
    size = _terms(given)
    return [size.max(-1, keepdims=True) * made["y"], size + np.abs(made["s"])]


def _activated_product(given: Sequence[Values], made: Mapping[str, Values]) -> list[Values | float]:
    *terms, other = given
    size = 1.13 * _terms(terms) * np.abs(other) + np.abs(made["y"])  # the steepest that Gelu is
    return [size, size.T]


def _norm_of_channels(given: Sequence[Values], made: Mapping[str, Values]) -> list[Values | float]:
    return [3.0 * (np.abs(made["y"]) + np.abs(given[2]))]


def _turned_norm(given: Sequence[Values], made: Mapping[str, Values]) -> list[Values | float]:
    return [3.0 * (np.abs(made["y"]) + np.abs(given[3])[:, None]), 0.0]


def _norm_gradient(given: Sequence[Values], made: Mapping[str, Values]) -> list[Values | float]:
    dy, x, scale, mean, inverse = given
    g, normal = np.abs(dy * scale), np.abs((x - mean) * inverse)
    means = [each.mean(-1, keepdims=True) for each in (g, g * normal)]
    return [inverse * (g + means[0] + normal * means[1]), (np.abs(dy) * normal).sum(0), np.abs(dy).sum(0)]


def _norm_of_batch(given: Sequence[Values], made: Mapping[str, Values]) -> list[Values | float]:
    return [3.0 * (np.abs(made["y"]) + np.abs(given[2])), np.abs(given[0]).mean(_BATCH), 1.0]


def _norm_of_batch_gradient(given: Sequence[Values], made: Mapping[str, Values]) -> list[Values | float]:
    dy, x, scale, mean, inverse = (np.abs(one) for one in given)
    d = x + mean
    means = [each.mean(_BATCH, keepdims=True) for each in (dy, dy * d)]
    dx = inverse * scale * (dy + means[0] + d * inverse**2 * means[1])
    return [dx, (dy * d).sum(_BATCH) * inverse.ravel(), dy.sum(_BATCH)]


NORM = "Region of a product, bias, residual and norm"
OF_PRODUCT = "Region of a product and softmax"
ACTIVATED = "Region of a product, bias, Gelu and a further tensor"
IN_PARTS = "Region of softmax in parts"
OF_CHANNELS = "Region of a norm of channels"
GRADIENTS = "Region of the gradients of a norm"
OF_BATCH = "Region of a norm of a batch"
BATCH_GRADIENTS = "Region of the gradients of a norm of a batch"
TURNED_SOFTMAX = "Region of a softmax of a Transpose"
TURNED_NORM = "Region of a residual sum, a norm and a Transpose"
TURN = "Transpose<perm = [0, 2, 1]>"
REGIONS: Mapping[str, Region] = {
    NORM: Region(
        "(a, b, c, x, g, h) => (y, s) { p = MatMul(a, b) q = Add(p, c) s = Add(q, x) y = LayerNormalization(s, g, h) }",
        _norm_of_product,
        True,
    ),
    OF_PRODUCT: Region(
        "(a, b, c) => (y, s) { p = MatMul(a, b) s = Add(p, c) y = Softmax(s) }", _softmax_of_product, True
    ),
    ACTIVATED: Region(
        "(a, b, c, x) => (y, t) { p = MatMul(a, b) q = Add(p, c) g = Gelu(q) y = Mul(g, x) t = Transpose(y) }",
        _activated_product,
        True,
    ),
    IN_PARTS: Region(SOFTMAX, lambda given, made: [0.0]),
    OF_CHANNELS: Region(CHANNELS, _norm_of_channels),
    GRADIENTS: Region(GRADIENT, _norm_gradient),
    OF_BATCH: Region(BATCH_NORM, _norm_of_batch),
    BATCH_GRADIENTS: Region(BATCH_NORM_GRADIENT, _norm_of_batch_gradient),
    TURNED_SOFTMAX: Region(f"(x) => (y) {{ t = {TURN}(x) y = Softmax(t) }}", lambda given, made: [0.0]),
    TURNED_NORM: Region(
        f"(x, z, g, h) => (y, s) {{ s = Add(x, z) n = LayerNormalization(s, g, h) y = {TURN}(n) }}", _turned_norm
    ),
}
"""By what the checks call them."""


def kernel(name: str, dtype: str) -> Kernel:
    """The kernel of a region, all of whose tensors have this element type."""
    body = REGIONS[name].body
    made: Kernel = kernels.of_region(body, [dtype] * len(body.input), [dtype] * len(body.output))({})
    return made


def expected(name: str, inputs: Sequence[Values | None], rounded: float) -> list[Wanted]:
    """All outputs, in float64; `rounded` is the share of itself by which a product may be off that is rounded before
    the rest, in units of the tolerance."""
    region, given = REGIONS[name], [np.asarray(x).astype(np.float64) for x in inputs if x is not None]
    body = region.body
    feeds = dict(zip(body.input, given, strict=True))
    results = kernel_runs.evaluate([_doubled(node) for node in body.node], feeds, list(body.output), OPSET)
    made = dict(zip(body.output, results, strict=True))
    if region.product and rounded:
        given[2] = np.abs(given[2]) + rounded * np.abs(given[0] @ given[1])
    sizes = region.sizes(given, made)
    last = rounded if region.product else 0.0
    return [Wanted(made[n], s + last * np.abs(made[n])) for n, s in zip(body.output, sizes, strict=True)]


def _doubled(node: NodeProto) -> NodeProto:
    """A node whose constant, if it is a real number, is one of float64."""
    if node.op_type != "Constant" or node.attribute[0].t.data_type != TensorProto.FLOAT:
        return node
    number = numpy_helper.to_array(node.attribute[0].t).astype(np.float64)
    return helper.make_node("Constant", [], list(node.output), value=numpy_helper.from_array(number))
