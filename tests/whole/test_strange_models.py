"""Models that are valid but strange go through the real engine: what can be fused is, and the rest stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxfuse import optimize
from onnxfuse.cli.main import main
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from tests import broken

CATALOGUE = catalogue.load()

Optimize: TypeAlias = Callable[[onnx.ModelProto | bytes], tuple[str, onnx.ModelProto]]


@pytest.fixture
def optimized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Optimize:
    """Runs `onnxfuse optimize` on a model; returns (what it printed, the model it wrote)."""

    def run(model: onnx.ModelProto | bytes) -> tuple[str, onnx.ModelProto]:
        path = tmp_path / "model.onnx"
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
        assert main(["optimize", str(path)]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out, onnx.load(path.with_name("model.fused.onnx"))

    return run


def ops(model: onnx.ModelProto) -> list[str]:
    return [family_of(node) for node in model.graph.node]


def test_an_unknown_op_in_the_middle_is_kept_and_both_its_sides_are_fused(optimized: Optimize) -> None:
    before = broken.custom_op_in_the_middle()
    out, after = optimized(before)
    assert ops(after) == ["LayerNormalization", "Mystery", "LayerNormalization"]
    mystery = next(node for node in before.graph.node if family_of(node) == "Mystery")
    assert after.graph.node[1].SerializeToString() == mystery.SerializeToString()
    assert "not validated: the original does not run" in out
    assert "Mystery" in out


def behind_mystery(*nodes: onnx.NodeProto, **constants: float | list[float]) -> onnx.ModelProto:
    """y of x, by an op of unknown result and then `nodes`, from b to y."""
    middle = helper.make_node("Mystery", ["x"], ["b"], "/mystery", domain="com.example")
    tensors = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in constants.items()]
    return broken.model([middle, *nodes], initializers=tensors, opsets={"": 17, "com.example": 1})


def test_what_follows_a_value_of_unknown_type_and_rank_is_fused_where_no_rank_is_needed() -> None:
    node = helper.make_node
    gelu = behind_mystery(
        node("Div", ["b", "root"], ["z"]),
        node("Erf", ["z"], ["e"]),
        node("Add", ["e", "one"], ["s"]),
        node("Mul", ["b", "s"], ["p"]),
        node("Mul", ["p", "half"], ["y"]),
        root=2**0.5,
        one=1,
        half=0.5,
    )
    softmax = behind_mystery(
        node("Exp", ["b"], ["e"]),
        node("Mul", ["e", "one"], ["n"]),
        node("ReduceSum", ["n", "axis"], ["s"]),
        node("Div", ["n", "s"], ["y"]),
        one=1,
    )
    softmax.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "axis"))
    for model, op in ((gelu, "Gelu"), (softmax, "Softmax")):
        assert ops(fuse(model, CATALOGUE).model) == ["Mystery", op]


def test_axes_that_count_from_the_front_are_not_the_last_ones_of_an_unknown_rank() -> None:
    nodes = broken.layer_norm("b", "y", "/norm/")
    for reduction in nodes:
        for attribute in reduction.attribute:
            if attribute.name == "axes":
                attribute.ints[:] = [1]
    model = behind_mystery(*nodes)
    model.graph.initializer.extend(broken.norm_constants())
    assert "LayerNormalization" not in ops(fuse(model, CATALOGUE).model)


@pytest.mark.parametrize("name", ["two", "eps"])
def test_a_number_with_axes_may_widen_a_value_of_unknown_rank(name: str) -> None:
    model = behind_mystery(*broken.layer_norm("b", "y", "/norm/"))
    for tensor in broken.norm_constants():
        if tensor.name == name:
            tensor.dims[:] = [1, 1, 1]
        model.graph.initializer.append(tensor)
    assert "LayerNormalization" not in ops(fuse(model, CATALOGUE).model)


def test_an_element_type_that_nothing_tells_stops_nothing() -> None:
    node = helper.make_node
    model = behind_mystery(node("Sigmoid", ["b"], ["s"]), node("Mul", ["b", "s"], ["p"]), node("Hide", ["p"], ["y"]))
    model.graph.node[-1].domain = "com.example"
    after = fuse(model, CATALOGUE).model
    assert ops(after)[0] == "Mystery"
    assert ops(after)[-1] == "Hide"
    onnx.checker.check_model(after)


def test_weights_that_are_nan_prove_nothing(optimized: Optimize) -> None:
    out, after = optimized(broken.nan_weights())
    assert "not validated" in out
    assert "no finite element, which proves nothing" in out
    assert ops(after) == ["LayerNormalization"]


def test_a_batch_of_no_rows(optimized: Optimize) -> None:
    out, after = optimized(broken.zero_sized())
    assert "same numbers in onnxruntime" in out
    assert ops(after) == ops(broken.zero_sized()), "there is nothing to compute"


def test_nothing_to_fuse_is_written_unchanged_and_said(optimized: Optimize) -> None:
    out, after = optimized(broken.good())
    assert "nothing to fuse: 2 nodes, unchanged" in out
    assert after == broken.good()


@pytest.mark.parametrize("depth", [1, 31])
def test_ifs_within_ifs(depth: int, optimized: Optimize) -> None:
    before = broken.nested_ifs(depth)
    out, after = optimized(before)
    assert f"nothing to fuse: {2 * depth + 1} nodes, unchanged" in out
    assert after == onnx.ModelProto.FromString(before)


def test_a_fusion_below_ten_ifs_is_found() -> None:
    model = onnx.ModelProto.FromString(broken.nested_ifs(10))
    body = model.graph
    for _ in range(10):
        body = body.node[0].attribute[0].g
    del body.node[:]
    body.node.add(op_type="Sigmoid", input=["x"], output=["s"])
    body.node.add(op_type="Mul", input=["s", "x"], output=[body.output[0].name])
    result = optimize(model)
    assert result.report.census == {"Swish": 1}
    assert result.report.validation.verdict == "equal"


@pytest.mark.parametrize(
    "body",
    [
        "q = Softmax <axis = -1> (x) t = Transpose <perm = [0, 2, 1]> (q) a = MatMul (q, t) "
        "p = Softmax <axis = -2> (a) y = MatMul (p, q)",
        "t = Transpose <perm = [0, 2, 1]> (x) a = MatMul (t, x) p = Softmax <axis = -2> (a) y = MatMul (x, p)",
        "t = Transpose <perm = [0, 2, 1]> (x) n = Neg (x) a = MatMul (t, n) p = Softmax <axis = -2> (a) "
        "y = MatMul (n, p)",
        "q = Softmax <axis = -2> (x) t = Transpose <perm = [0, 2, 1]> (q) a = MatMul (q, t) "
        "s = Transpose <perm = [0, 2, 1]> (a) p = Softmax <axis = -1> (s) y = MatMul (p, q)",
    ],
)
def test_weights_of_attention_on_both_sides_of_a_product_find_a_place(body: str) -> None:
    """Weights stand on the left of values; where both factors are weights, either order would be turned again."""
    graph = f'<ir_version: 9, opset_import: ["": 18]> g (float[b,s,8] x) => (float[b,c,d] y) {{ {body} }}'
    for target in ("onnxfuse", "onnx", "ort"):
        assert optimize(onnx.parser.parse_model(graph), target=target).report.validation.verdict == "equal"


@pytest.mark.parametrize(("opset", "folded"), [(13, False), (14, True)])
def test_a_rectifier_of_integers_is_one_where_the_opset_has_it(opset: int, folded: bool) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 7, opset_import: ["": {opset}]> g (int32[3] x) => (int32[3] y) <int32 zero = {{0}}> {{
            below = Less (x, zero)
            y = Where (below, zero, x)
        }}"""
    )
    fused = fuse(model, CATALOGUE).model
    onnx.checker.check_model(fused, full_check=True)
    assert ({node.op_type for node in fused.graph.node} == {"Relu"}) == folded


def test_a_norm_of_channels_of_unknown_positions_is_written_out_in_a_type_that_the_op_lacks() -> None:
    """ai.onnx has InstanceNormalization in bfloat16 from opset 22 on."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 21]>
        g (bfloat16[n, 4, 6, h] x, bfloat16[4] s, bfloat16[4] b) => (bfloat16[n, 4, 6, h] y) {
            number = Constant <value = float {0.0001}> ()
            small = Cast <to = 16> (number)
            axes = Constant <value_ints = [2, 3]> ()
            outer = Constant <value_ints = [1, 2]> ()
            mean = ReduceMean (x, axes)
            d = Sub (x, mean)
            dd = Mul (d, d)
            var = ReduceMean (dd, axes)
            v = Add (var, small)
            r = Sqrt (v)
            e = Div (d, r)
            scale = Unsqueeze (s, outer)
            bias = Unsqueeze (b, outer)
            scaled = Mul (e, scale)
            y = Add (scaled, bias)
        }"""
    )
    fused = fuse(model, CATALOGUE).model
    onnx.checker.check_model(fused)
    assert "InstanceNormalization" in {family_of(node) for node in fused.graph.node}


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
@pytest.mark.parametrize("mask", ["float m", "float[1] m", "float[6] m"])
def test_a_mask_of_fewer_dimensions_than_the_scores_is_given_rows_and_columns(mask: str, target: Any) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[2, 3, 4, 8] q, float[2, 3, 8, 6] k, float[2, 3, 6, 8] v, {mask}) => (float[2, 3, 4, 8] y)
            <float zero = {{0}}> {{
            s = MatMul (q, k)  a = Add (s, m)  w = Softmax <axis = -1> (a)
            n = IsNaN (w)  g = Where (n, zero, w)  y = MatMul (g, v)
        }}"""
    )
    report = optimize(model, target=target).report
    assert (report.census["Attention"], report.validation.verdict) == (1, "equal")


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_a_norm_with_its_small_number_beside_the_root_is_0_where_all_elements_are_equal(target: Any) -> None:
    """onnxruntime's kernel of ai.onnx MeanVarianceNormalization adds no such number, and gives NaN."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17]>
        g (float[b, 6, 4, w] x) => (float[b, 6, 4, w] y) <float e = {1e-9}, float two = {2.0}> {
            mean = ReduceMean<axes = [0, 2, 3]>(x)
            d = Sub(x, mean)
            square = Pow(d, two)
            variance = ReduceMean<axes = [0, 2, 3]>(square)
            deviation = Sqrt(variance)
            most = Add(deviation, e)
            y = Div(d, most)
        }"""
    )
    fused = optimize(model, target=target).model
    assert (len(fused.graph.node) == 1) == (target == "onnxfuse")
    feeds = {"x": np.full((2, 6, 4, 5), 0.25, np.float32)}
    np.testing.assert_array_equal(ReferenceEvaluator(fused).run(None, feeds)[0], 0)
    session = onnxruntime.InferenceSession(fused.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, feeds)[0], 0)
