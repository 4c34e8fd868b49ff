"""Local functions, before and after their nodes stand for their calls."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxfuse
from onnxfuse.rewriting.convert_opset import convert, raisable
from onnxfuse.rewriting.inline_functions import inlinable, inlined
from tests.spellings.mutants import run

X = np.array([[1, -2, 3], [0.5, 4, -1]], np.float32)

NESTED = """<ir_version: 9, opset_import: ["": 17, "own": 1]>
g (float[n,3] x, bool c) => (float[n,3] y) {
    [first] a = own.Twice <slope = 0.25> (x)
    b = If (c) <then_branch = t () => (p) { p = own.Twice (a) }, else_branch = e () => (q) { q = Exp (a) }>
    [last] y = own.Twice <slope = 0.5> (b)
}
<opset_import: ["": 17, "own": 1], domain: "own"> Twice <slope: float = 0.125> (v) => (w) {
    once = own.Once <slope: float = @slope> (v)  w = Add (once, once)
}
<opset_import: ["": 17], domain: "own"> Once <slope> (v) => (w) { w = LeakyRelu <alpha: float = @slope> (v) }
"""


def nested() -> onnx.ModelProto:
    return parser.parse_model(NESTED)


def test_functions_in_functions_and_in_bodies_are_their_nodes() -> None:
    before = nested()
    stored = before.SerializeToString(deterministic=True)
    after = inlined(before)
    assert before.SerializeToString(deterministic=True) == stored
    onnx.checker.check_model(after, full_check=True)
    assert [(entry.domain, entry.version) for entry in after.opset_import] == [("", 17)]
    assert len(after.functions) == 0
    ops = [node.op_type for node in after.graph.node if node.op_type != "Identity"]
    assert ops == ["LeakyRelu", "Add", "If", "LeakyRelu", "Add"]
    assert {name for node in after.graph.node for name in node.output} > {"first/once", "last/once", "b", "y"}
    for chosen in (True, False):
        feeds = {"x": X, "c": np.array(chosen)}
        np.testing.assert_array_equal(run(before, feeds)[0], run(after, feeds)[0])


def test_a_model_without_functions_is_itself() -> None:
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 17]> g (float[n] x) => (y) { y = Neg (x) }')
    assert inlined(model) is model
    assert inlinable(model)


def test_a_function_of_another_opset_stays() -> None:
    model = nested()
    model.functions[1].opset_import[0].version = 16
    assert inlined(model) is model
    assert not inlinable(model)
    assert not raisable(model)
    with pytest.raises(onnxfuse.OnnxfuseError, match="its local function own:Twice is of an opset of its own"):
        convert(model, 21)


def test_a_model_with_functions_is_converted() -> None:
    after = convert(nested(), 21)
    assert [entry.version for entry in after.opset_import if not entry.domain] == [21]
    feeds = {"x": X, "c": np.array(True)}
    np.testing.assert_array_equal(run(nested(), feeds)[0], run(after, feeds)[0])


BLOCK = """<ir_version: 9, opset_import: ["": 17, "own": 1]>
g (float[b,2,s,8] q, float[b,2,t,8] k, float[b,2,t,8] v) => (float[b,2,s,8] y) { y = own.Block (q, k, v) }
<opset_import: ["": 17], domain: "own"> Block (q, k, v) => (y) {
    r = Transpose <perm = [0, 1, 3, 2]> (k)  scale = Constant <value_float = 0.35355338> ()
    s = MatMul (q, r)  t = Mul (s, scale)  w = Softmax <axis = -1> (t)  y = MatMul (w, v)
}
"""


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_attention_in_a_function_is_written_where_the_opset_has_it(target: str) -> None:
    """It was left as it is: the opset of a model with functions was never raised."""
    made = onnxfuse.optimize(parser.parse_model(BLOCK), target=target)  # type: ignore[arg-type]
    assert made.report.census["Attention"] == 1
    assert [function.domain for function in made.model.functions] == []
    assert [node.op_type for node in made.model.graph.node if node.op_type not in ("Reshape", "Transpose")] == [
        "Attention"
    ]
