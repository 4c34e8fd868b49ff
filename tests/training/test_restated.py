"""Batch normalization by its own statistics, as a loop over elements."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxfuse
from onnxfuse.language.catalogue import load
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.runtime.quiet import Session
from onnxfuse.training.restated import restated, restates
from tests.training.steps import HEAD
from tests.whole.test_gradients_convolution import TRAINING, of_batch


def normalized() -> Lifted:
    """A BatchNormInternal and its gradient."""
    given = onnx.parser.parse_model(of_batch(TRAINING, 3))
    return Lifted.of(onnxfuse.optimize(given, validate="off", level=1).model, None, load())


def test_it_is_where_its_statistics_are_kept() -> None:
    view = normalized().views[0]
    node = next(node for node in view.graph.nodes if node.op_type.startswith("BatchNormInternal"))
    assert restates(view, node, node.output[1:])
    assert not restates(view, node, node.output[1:2])
    other = next(node for node in view.graph.nodes if node.op_type.startswith("BatchNormalizationGrad"))
    assert not restates(view, other, list(other.output))


@pytest.mark.parametrize("positions", [(), (6,), (6, 5)])
def test_the_loop_has_the_numbers_of_the_op(positions: tuple[int, ...]) -> None:
    dims = ",".join(map(str, (3, 4, *positions)))
    given = f"float[{dims}] x, float[4] w, float[4] b, float[4] m, float[4] r"
    model = onnx.parser.parse_model(HEAD + f"g ({given}) => (float[{dims}] y) {{ y = Neg(x) }}")
    node = helper.make_node("BatchNormInternal", ["x", "w", "b"], ["z", "m", "r"], domain="onnxfuse")
    names = iter(f"v{i}" for i in range(20))
    made, result = restated(Lifted.of(model, None, load()).views[0], node, ["x", "w", "b"], lambda base: next(names))
    model.graph.node.extend(made)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(result, TensorProto.FLOAT, None))
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, 4, *positions)).astype(np.float32)
    w, b, m, r = (rng.standard_normal(4).astype(np.float32) for _ in range(4))
    (got,) = Session(model, None, optimize=False).run({"x": x, "w": w, "b": b, "m": m, "r": r})
    w, b, m, r = (each.reshape(4, *(1 for _ in positions)) for each in (w, b, m, r))
    np.testing.assert_array_equal(got, (x - m) * (r * w) + b)
