"""onnxruntime's sums with a norm are rows of a region, with the product before them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import onnxfuse

from .written import calls, run

LAYER = "com.microsoft.SkipLayerNormalization <epsilon = 0.01> (p, skip, gamma, beta, bias)"
ROOT = "com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.01> (p, skip, gamma, bias)"
PLAIN = "com.microsoft.SkipLayerNormalization (p, skip, gamma)"
BLOCK = """<ir_version: 8, opset_import: ["": OPSET, "com.microsoft": 1]>
g (TYPE[2,3,8] x, TYPE[2,3,6] skip, TYPE[6] gamma, TYPE[6] beta, TYPE[6] bias) => (TYPE[2,3,6] y, TYPE[2,3,6] h)
{ p = MatMul (x, w)  OUTPUTS = NORM }"""


def block(norm: str, *, kind: str = "float", opset: int = 20, outputs: str = "y, mean, inverse, h") -> onnx.ModelProto:
    """A block whose sum is read elsewhere; nothing declares what its statistics are.  Of one size: onnxruntime's op
    runs on skips of another batch than its input, too, which no sum does."""
    text = BLOCK.replace("NORM", norm).replace("OPSET", str(opset)).replace("OUTPUTS", outputs)
    model = parser.parse_model(text.replace("TYPE", kind))
    weight = np.random.default_rng(3).standard_normal((8, 6)).astype(np.float16 if kind == "float16" else np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def feeds(kind: type[np.generic] = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    sizes = {"x": (2, 3, 8), "skip": (2, 3, 6), "gamma": (6,), "beta": (6,), "bias": (6,)}
    return {name: rng.standard_normal(size).astype(kind) for name, size in sizes.items()}


def same(made: onnx.ModelProto, model: onnx.ModelProto, given: dict[str, np.ndarray], near: float = 1e-5) -> None:
    given = {info.name: given[info.name] for info in model.graph.input}
    for got, wanted in zip(run(made, given), run(model, given), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=near, atol=near)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("norm", [LAYER, ROOT, PLAIN])
def test_a_product_is_one_launch_with_the_sum_and_the_norm_behind_it(norm: str, opset: int) -> None:
    model = block(norm, opset=opset)
    made = onnxfuse.optimize(model, validate="kernels" if opset == 20 else "onnxruntime")
    assert calls(made.model) == ["Region"]
    onnx.checker.check_model(made.model)
    assert made.report.validation is not None
    assert made.report.validation.verdict == "equal"
    same(made.model, model, feeds())


@pytest.mark.parametrize("norm", [LAYER, ROOT])
def test_in_half_precision_too(norm: str) -> None:
    model = block(norm, kind="float16")
    made = onnxfuse.optimize(model)
    assert calls(made.model) == ["Region"]
    assert made.report.validation is not None
    assert made.report.validation.verdict == "equal"
    same(made.model, model, feeds(np.float16), 5e-3)


def test_a_norm_by_itself_stays_onnxruntimes_own() -> None:
    model = block(LAYER)
    model.graph.input.append(helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, [2, 3, 6]))
    norm = model.graph.node[1]
    del model.graph.node[0], model.graph.initializer[:], model.graph.input[0]
    assert list(onnxfuse.optimize(model).model.graph.node) == [norm]


def test_statistics_that_are_asked_for_are_left_to_onnxruntime() -> None:
    model = block(ROOT)
    model.graph.output.append(helper.make_tensor_value_info("inverse", onnx.TensorProto.FLOAT, [2, 3, 1]))
    made = onnxfuse.optimize(model, validate="off")
    assert "SkipSimplifiedLayerNormalization" in [node.op_type for node in made.model.graph.node]
