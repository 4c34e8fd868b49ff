"""Files that onnxruntime saved: its own ops in ai.onnx, and what stands around those of com.microsoft."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, parser

import onnxfuse
from onnxfuse.cli.main import main
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.lifting.lift import lift
from onnxfuse.model import files, onnxruntime_ops
from onnxfuse.model.graph import roots
from onnxfuse.rewriting.convert_opset import convert
from onnxfuse.targets.target import Target
from tests.spellings.mutants import feeds, run

MODELS = Path(__file__).parents[2] / "models"
CATALOGUE = catalogue.load()
NORMS = ["LayerNormalization", "SimplifiedLayerNormalization"]


def model(op: str, opset: int = 14, attributes: str = "epsilon = 0.001") -> onnx.ModelProto:
    """A residual sum and its normalization; onnx has no schema for either op at opset 14, and no type for n."""
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[N, 7, 8] x, float[N, 7, 8] skip) => (float[N, 7, 8] y)
    <float[8] scale = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{
        s = Add (x, skip)
        n = {op} <{attributes}> (s, scale)
        t = Tanh (n)
        y = Add (s, t)
    }}""")


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def assert_equal(after: onnx.ModelProto, before: onnx.ModelProto) -> None:
    inputs = feeds(before)
    for got, want in zip(run(after, inputs), run(before, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", NORMS)
def test_a_file_with_an_op_that_onnx_lacks_is_read_as_it_is(op: str, tmp_path: Path) -> None:
    before = model(op)
    onnx.save(before, tmp_path / "m.onnx")
    with pytest.raises(onnx.checker.ValidationError, match="No Op registered"):
        onnx.checker.check_model(before)
    assert files.read(tmp_path / "m.onnx") == before


def test_other_ops_that_nobody_has_are_refused_still(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model("ComplicatedLayerNormalization"), tmp_path / "m.onnx")
    assert main(["report", str(tmp_path / "m.onnx")]) == 2
    assert "No Op registered for ComplicatedLayerNormalization" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("op", "target", "expected", "opset"),
    [
        ("SimplifiedLayerNormalization", "onnxfuse", "SkipSimplifiedLayerNormalization", 14),
        ("SimplifiedLayerNormalization", "onnx", "RMSNormalization", 23),
        ("SimplifiedLayerNormalization", "ort", "SimplifiedLayerNormalization", 14),
        ("LayerNormalization", "onnxfuse", "SkipLayerNormalization", 14),
        ("LayerNormalization", "onnx", "LayerNormalization", 17),
        ("LayerNormalization", "ort", "LayerNormalization", 14),
    ],
)
def test_it_is_what_it_computes_under_every_target(op: str, target: str, expected: str, opset: int) -> None:
    before = model(op)
    result = onnxfuse.optimize(before, target=target, level=1)  # type: ignore[arg-type]
    assert result.report.validation.verdict == "equal"
    assert any(name.startswith(expected) for name in ops(result.model))
    assert [entry.version for entry in result.model.opset_import if not entry.domain] == [opset]
    assert [entry.domain for entry in result.model.opset_import if entry.domain not in ("", "onnxfuse")] == []
    if target == "onnx":
        onnx.checker.check_model(result.model, full_check=True)
    assert_equal(result.model, before)


@pytest.mark.parametrize("opset", [14, 17, 23])
@pytest.mark.parametrize(
    "attributes", ["axis = -1", "axis = 2, epsilon = 0.01", "axis = 1, epsilon = 0.01, stash_type = 1"]
)
def test_its_attributes_mean_what_onnxruntime_takes_them_for(opset: int, attributes: str) -> None:
    before = model("SimplifiedLayerNormalization", opset, attributes)
    if "axis = 1" in attributes:
        before.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((7, 8), np.float32), "scale"))
    for target in ("onnxfuse", "onnx", "ort"):
        result = onnxfuse.optimize(before, target=target)  # type: ignore[arg-type]
        assert result.report.validation.verdict == "equal"
        assert ("SimplifiedLayerNormalization" in ops(result.model)) <= (target != "onnx")
        assert_equal(result.model, before)


@pytest.mark.parametrize("attributes", ["stash_type = 10", "epsilon = 0.01"])
def test_where_it_is_not_the_op_of_the_standard_it_stays(attributes: str) -> None:
    """A sum in half precision, or a scale of another type than the input, which the result takes on."""
    before = model("SimplifiedLayerNormalization", 17, attributes)
    if attributes == "epsilon = 0.01":
        before.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones(8, np.float16), "scale"))
    for target in ("onnxfuse", "onnx", "ort"):
        after = fuse(before, CATALOGUE.serving(Target(target))).model
        assert after.graph.node[1] == before.graph.node[1]


def test_what_follows_it_has_a_type() -> None:
    view = lift(next(roots(model("SimplifiedLayerNormalization"))), None)
    assert view.dtypes["n"] == view.dtypes["t"] == TensorProto.FLOAT
    assert view.term("t").shape == view.term("x").shape
    graph = next(roots(model("SimplifiedLayerNormalization")))
    assert graph.type_of("t")[0] == TensorProto.FLOAT  # as onnx infers it


def test_a_converted_model_keeps_it() -> None:
    before = model("SimplifiedLayerNormalization", 13)
    after = convert(before, 18)
    assert after.graph.node[1].attribute == before.graph.node[1].attribute
    assert [(node.op_type, node.domain) for node in after.graph.node][1] == ("SimplifiedLayerNormalization", "")
    assert [entry.domain for entry in after.opset_import] == [""]
    assert onnxruntime_ops.ELSEWHERE not in str(after)


def test_in_bodies_and_functions_too(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[2, 8] x, float[2, 8] skip, bool c) => (float[2, 8] y)
    <float[8] scale = {1, 2, 3, 4, 5, 6, 7, 8}> {
        z = If (c) <
            then_branch = t () => (float[2, 8] a) { s = Add (x, skip) a = SimplifiedLayerNormalization (s, scale) },
            else_branch = f () => (float[2, 8] b) { b = Relu (x) }
        >
        w = local.Normed (x, skip, scale)
        y = Add (z, w)
    }
    <domain: "local", opset_import: ["" : 17]> Normed (p, q, w) => (r)
        { t = Add (p, q) u = SimplifiedLayerNormalization (t, w) r = Tanh (u) }
    """
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    assert onnxfuse.report(tmp_path / "m.onnx", level=1).census == {"SkipSimplifiedLayerNormalization": 2}


@pytest.mark.parametrize("name", ["bert.ts", "llama.ts", "gpt2.dynamo", "resnet.ts", "t5_encoder.ts"])
@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_what_onnxruntime_saved_is_read_and_computes_the_same(name: str, target: str, tmp_path: Path) -> None:
    """With all that its optimizer makes: SkipLayerNormalization, SimplifiedLayerNormalization, QuickGelu and others."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    ort.InferenceSession(MODELS / f"{name}.onnx", options, providers=["CPUExecutionProvider"])
    saved = files.read(tmp_path / "saved.onnx")
    result = onnxfuse.optimize(saved, target=target)  # type: ignore[arg-type]
    assert result.report.validation.verdict == "equal"
    assert not result.report.left_out


def test_types_flow_through_ops_of_com_microsoft() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float16[N, 7, 8] x, float16[N, 7, 8] skip, uint8[16, 1, 4] packed, float16[16] scales) => (float16[N, 7, 16] y)
    <float16[8] scale = {1, 2, 3, 4, 5, 6, 7, 8}> {
        n, mean, inv, total = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.001> (x, skip, scale)
        y = com.microsoft.MatMulNBits <K = 8, N = 16, bits = 4, block_size = 16> (n, packed, scales)
        z = com.microsoft.FusedMatMul <transB = 1> (n, n)
        u = com.microsoft.FusedMatMul <transBatchA = 1> (n, n)
    }"""
    view = lift(next(roots(parser.parse_model(text))), None)
    batch = (view.term("x").shape or ())[0]
    assert {view.dtypes[name] for name in "nyz"} == {TensorProto.FLOAT16}
    assert [view.term(name).shape for name in "nyz"] == [(batch, 7, 8), (batch, 7, 16), (batch, 7, 7)]
    assert view.term("u").shape is None
