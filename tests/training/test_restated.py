"""A normalization as what is left of it where something that it gives besides is kept."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

import onnxfuse
from onnxfuse.language.catalogue import load
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.runtime.quiet import Session
from onnxfuse.training.restated import Restated, restated
from tests.training.steps import HEAD
from tests.whole.test_gradients_convolution import TRAINING, of_batch


def left(model: ModelProto, op: str, kept: Collection[int]) -> Restated | None:
    """What is left of the first node of an op where these of its results are kept."""
    view = Lifted.of(model, None, load()).views[0]
    node = next(node for node in view.graph.nodes if node.op_type.startswith(op))
    return restated(view, node, [node.output[at] for at in kept])


def with_outputs(model: ModelProto, op: str, kept: Collection[int]) -> ModelProto:
    """The model with all results of that node for outputs, and behind these its first one from what is kept."""
    found = left(model, op, kept)
    assert found is not None
    names = iter(f"v{i}" for i in range(40))
    made, result = found.nodes("again", str, lambda base: next(names))
    node = next(node for node in model.graph.node if node.op_type.startswith(op))
    del model.graph.output[:]
    model.graph.node.extend(made)
    for name in (*node.output, result):
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return model


def results(model: ModelProto, shift: float = 0.0) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Random operands and what the model makes of them."""
    rng = np.random.default_rng(2)
    feeds = {
        value.name: (rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim]) + shift).astype("f4")
        for value in model.graph.input
    }
    return feeds, list(Session(model, None, optimize=False).run(feeds))


@pytest.mark.parametrize("dims", ["3,4", "3,4,6", "3,4,6,5"])
def test_batch_normalization_is_the_loop_of_its_body(dims: str) -> None:
    step = onnx.parser.parse_model(of_batch(TRAINING, dims.count(",") + 1))
    fused = onnxfuse.optimize(step, validate="off", level=1).model
    found = left(fused, "BatchNormInternal", [1, 2])
    assert found is not None
    assert not any(node.op_type.startswith("Reduce") for node in found.steps)
    _, (y, _, _, again) = results(with_outputs(fused, "BatchNormInternal", [1, 2]))
    np.testing.assert_array_equal(again, y)


@pytest.mark.parametrize(("bias", "axis"), [("", -1), (", b", -1), (", b", -2)])
def test_layer_normalization_is_a_loop(bias: str, axis: int) -> None:
    tail = "6" if axis == -1 else "5,6"
    given = f"float[3,5,6] x, float[{tail}] w, float[{tail}] b"
    node = f"y, m, r = LayerNormalization<axis = {axis}>(x, w{bias})"
    made = with_outputs(onnx.parser.parse_model(HEAD + f"g ({given}) => (float y) {{ {node} }}"), "Layer", [1, 2])
    assert [node.op_type for node in made.graph.node[1:]] == ["Sub", "Mul", "Mul", *(["Add"] if bias else [])]
    feeds, (y, m, r, again) = results(made, 3.0)
    np.testing.assert_array_equal(again, (feeds["x"] - m) * r * feeds["w"] + (feeds["b"] if bias else 0))
    np.testing.assert_allclose(again, y, rtol=1e-5, atol=1e-5)


SKIPPED = """g (float[3,5,8] a, float[3,5,8] c, float[8] w) => (float[3,5,8] y, float[3,5,8] s)
<float e = {1e-5}, float p = {2}, int64[1] l = {-1}>
{ s = Add(a, c) q = Pow(s, p) t = ReduceMean(q, l) u = Add(t, e) v = Sqrt(u) n = Div(s, v) y = Mul(n, w) }"""


def test_behind_a_sum_that_is_kept_its_terms_are_not_read() -> None:
    fused = onnxfuse.optimize(onnx.parser.parse_model(HEAD + SKIPPED), validate="off", level=1).model
    op, (node,) = "SkipSimplifiedLayerNormalization", fused.graph.node
    sums = [at for at, name in enumerate(node.output) if name == "s"]
    found = left(fused, op, sums)
    assert found is not None
    assert sorted(found.reads.values()) == ["s", "w"]
    _, (*given, again) = results(with_outputs(fused, op, sums))
    np.testing.assert_allclose(again, given[0], rtol=1e-6)


def test_others_are_not_restated() -> None:
    text = "g (float[3,6] x, float[6] w) => (float y) { y, m, r = LayerNormalization(x, w) z, i = TopK(y, k) }"
    model = onnx.parser.parse_model(HEAD + text.replace("float[6] w)", "float[6] w, int64[1] k)"))
    assert left(model, "LayerNormalization", []) is None
    assert left(model, "LayerNormalization", [1]) is not None
    assert left(model, "TopK", [1]) is None
