"""A rule that says something wrong never gets into a file: it is found, named and left out, and the rest stays."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from onnxfuse import optimize
from onnxfuse.cli.main import main
from onnxfuse.errors import NumericsError
from onnxfuse.model.graph import family_of
from onnxfuse.pipeline import Optimized
from onnxfuse.proof import inside, prove
from onnxfuse.proof.claim import Proved
from onnxfuse.proof.prove import ATTEMPTS
from onnxfuse.reporting.records import Validation
from tests import broken, exports
from tests.spellings.mutants import run

WRONG = {
    "another constant": """
# Quick GELU for 1.6, where 1.702 stands.
Sloppy(X)

match:  Y = X * Sigmoid(1.702 * X)
emit:   Y = QuickGelu(X, alpha=1.6)
""",
    "operands swapped": """
# A gate whose operands are mixed up.
Sloppy(A, B)

match:    Y = A * Cos(B)
emit:     Y = Sloppy(B, A)
meaning:  Y = A * Cos(B)
""",
    "an operand forgotten": """
# A gate that forgets one side.
Sloppy(A, B)

match:  Y = Sin(A * Cos(B))
emit:   Y = Sin(A)
""",
    "another result": """
# Cosine taken for sine.
Sloppy(X)

match:    Y = X * Cos(X)
emit:     Y = Sloppy(X)
meaning:  Y = X * Sin(X)
""",
}

MIDDLE = {
    "another constant": [("Mul", "a", "k", "m"), ("Sigmoid", "m", "s"), ("Mul", "a", "s", "b")],
    "operands swapped": [("Cos", "x", "c"), ("Mul", "a", "c", "b")],
    "an operand forgotten": [("Cos", "x", "c"), ("Mul", "a", "c", "s"), ("Sin", "s", "b")],
    "another result": [("Cos", "a", "c"), ("Mul", "a", "c", "b")],
}
"""What each wrong rule matches, from a and x to b."""


def between(what: str) -> onnx.ModelProto:
    """Layer normalization, what the wrong rule matches, layer normalization."""
    nodes = [helper.make_node(op, names[:-1], [names[-1]], f"/middle/{op}_{names[-1]}") for op, *names in MIDDLE[what]]
    everything = [*broken.layer_norm("x", "a", "/first/"), *nodes, *broken.layer_norm("b", "y", "/second/")]
    constant = numpy_helper.from_array(np.array(1.702, np.float32), "k")
    return broken.model(everything, initializers=[*broken.norm_constants(), constant])


@pytest.fixture(params=WRONG)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[onnx.ModelProto, Path]:
    """A model and a folder with the rule that gets it wrong."""
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "sloppy.rule").write_text(WRONG[request.param].lstrip())
    return between(request.param), folder


def fused(model: onnx.ModelProto, folder: Path, **options: str | int) -> Optimized:
    return optimize(model, rules=[folder], ignore=["QuickGelu", "GLU"], **options)  # type: ignore[arg-type]


def test_without_proof_the_wrong_rule_is_believed(case: tuple[onnx.ModelProto, Path]) -> None:
    """What the other tests rest on: the rule does match, and it is wrong."""
    model, folder = case
    result = fused(model, folder, validate="off")
    assert result.report.census - Counter(Region=1) == {"LayerNormalization": 2, "Sloppy": 1}
    assert result.report.validation.verdict == "not validated"
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    (got,), (want,) = run(result.model, {"x": x}), run(model, {"x": x})
    assert np.abs(got - want).max() > 1e-3


def test_a_wrong_rule_is_left_out_by_name_and_the_rest_stays(case: tuple[onnx.ModelProto, Path]) -> None:
    model, folder = case
    report = (result := fused(model, folder)).report
    assert [left.fusion.rule for left in report.left_out] == ["Sloppy"]
    assert report.left_out[0].fusion.scope == "/middle"
    assert report.census - Counter(Region=1) == {"LayerNormalization": 2}
    assert report.validation.verdict == "equal"
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    (got,), (want,) = run(result.model, {"x": x}), run(model, {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_wrong_rule_is_an_error_if_it_is_to_fail(case: tuple[onnx.ModelProto, Path]) -> None:
    model, folder = case
    with pytest.raises(NumericsError, match=r"computes something else: (Sloppy at /middle/|output 'y' differs)"):
        fused(model, folder, on_mismatch="fail", level=1)


def test_at_the_command_line_a_mismatch_exits_with_3_and_writes_nothing(
    case: tuple[onnx.ModelProto, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, folder = case
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    options = ["--rules", str(folder), "--ignore", "QuickGelu", "--ignore", "GLU"]

    assert main(["optimize", str(path), *options, "--on-mismatch", "fail"]) == 3
    out, err = capsys.readouterr()
    assert "computes something else" in err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in out + err
    assert not path.with_name("model.fused.onnx").exists()

    assert main(["optimize", str(path), *options]) == 0
    assert "Sloppy" in capsys.readouterr().out
    assert path.with_name("model.fused.onnx").exists()


@pytest.mark.parametrize("name", ["bert.ts", "llama.dynamo"])
def test_a_wrong_attention_is_left_out_wherever_its_views_went(name: str, tmp_path: Path) -> None:
    """The rule for the core matches before heads and masks are absorbed: what is banned is where it matched."""
    (tmp_path / "sloppy.rule").write_text(
        "# Attention without its scale.\nSloppy(Q, K, V, mask=None, *, scale=1, softcap=0, is_causal=0)\n\n"
        "match:  Y = Attention(Q, K, V, mask, scale=scale, **rest)\n"
        "emit:   Y = Attention(Q, K, V, mask, scale=scale * 3, **rest)\n"
    )
    model = onnx.load(Path(__file__).parents[2] / "models" / f"{name}.onnx")
    report = optimize(model, rules=[tmp_path]).report
    assert report.validation.verdict == "equal"
    assert all("Sloppy" in (left.fusion.rule, *left.fusion.absorbed) for left in report.left_out)


LINEAR = """<ir_version: 9, opset_import: ["": 17]>
g (float[n, 4, 2] x, float[n, 4, 2] r) => (float[n, 4, 2] y) <float[2, 2] w = {1, 2, -3, 4}, float[2] b = {1, -1}> {
    p = MatMul (x, w) s = Add (p, b) a = Relu (s) y = Add (a, r)
}"""
TOO_LARGE = """
# A linear layer that is a percent too large, or a further one.
Sloppy(A, B, bias)

match:  Y = FusedMatMul(A, B, bias, activation="Relu", alpha={})
emit:   Y = FusedMatMul(A, B, bias, activation="Relu", alpha={})
"""


@pytest.mark.parametrize("steps", [1, ATTEMPTS + 1])
def test_what_is_built_on_something_wrong_is_not_to_blame(steps: int, tmp_path: Path) -> None:
    """A residual joins the linear layer after that was made wrong, by one rule or by more than are tried in turn."""
    for step in range(steps):
        text = TOO_LARGE.format(1 + step / 100, 1 + (step + 1) / 100)
        (tmp_path / f"sloppy{step}.rule").write_text(text)
    before = onnx.parser.parse_model(LINEAR)
    optimized = optimize(before, rules=[tmp_path])
    assert optimized.report.validation.verdict == "equal"
    assert all("Sloppy" in (left.fusion.rule, *left.fusion.absorbed) for left in optimized.report.left_out)
    assert len(optimized.report.left_out) == 1
    if steps == 1:
        (node,) = optimized.model.graph.node
        assert (family_of(node), len(node.input)) == ("FusedMatMul", 4)
    feeds = {name: np.random.default_rng(0).standard_normal((3, 4, 2)).astype(np.float32) for name in "xr"}
    np.testing.assert_allclose(run(optimized.model, feeds)[0], run(before, feeds)[0], rtol=1e-5, atol=1e-5)


def test_without_the_guilty_nothing_new_is_fused() -> None:
    """A value is rounded on its way through float16, so that a last bit before it makes a large one after it."""
    layer = "/bert/encoder/layer.0"
    whole = exports.load(exports.MODELS / "bert_opset16.ts.onnx")
    model = exports.until(whole, f"{layer}/output/LayerNorm/Add_1_output_0")
    index = next(i for i, n in enumerate(model.graph.node) if n.name == f"{layer}/attention/output/Add")
    source = model.graph.node[index].input[1]
    for name, to, given in (
        ("rounded", onnx.TensorProto.FLOAT16, source),
        ("widened", onnx.TensorProto.FLOAT, "rounded"),
    ):
        model.graph.node.insert(index, helper.make_node("Cast", [given], [name], name, to=to))
        index += 1
    model.graph.node[index].input[1] = "widened"
    optimized = optimize(model, rtol=1e-4)  # of float32, whatever it was rounded to
    assert optimized.report.validation.verdict == "equal"
    # The sum that the norm leaves goes into the product before it, with other last bits again.
    assert "SkipLayerNormalization" in {left.fusion.rule for left in optimized.report.left_out}
    assert optimized.report.census["Attention"] == 1


@pytest.fixture
def careless_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime's optimizer as it was up to 1.31: it lets a MaxPool pad by itself where a Pad of zeros stood before
    it, which is no maximum of zeros beside negative values."""
    genuine = onnxruntime.InferenceSession

    def opened(source: bytes, options: Any, **given: Any) -> Any:
        model = onnx.load_from_string(source)
        pads = {pad.output[0]: pad for pad in model.graph.node if pad.op_type == "Pad"}
        if options.graph_optimization_level != onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL:
            for pool in (node for node in model.graph.node if node.op_type == "MaxPool" and node.input[0] in pads):
                pool.input[0] = pads[pool.input[0]].input[0]
                pool.attribute.append(helper.make_attribute("pads", [1, 1, 1, 1]))
        return genuine(model.SerializeToString(), options, **given)

    monkeypatch.setattr(onnxruntime, "InferenceSession", opened)


@pytest.mark.usefixtures("careless_optimizer")
def test_what_onnxruntime_does_to_the_original_is_not_held_against_the_fused_model(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> pooled (float[1, 2, 6, 6] x) => (float[1, 2, 6, 6] y)
        <int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}, float bias = {-4}, float half = {0.5}, float one = {1},
         float root = {1.41421356}>
        {
            low = Add(x, bias)
            padded = Pad(low, pads)
            pooled = MaxPool<kernel_shape = [3, 3]>(padded)
            scaled = Div(pooled, root)
            error = Erf(scaled)
            above = Add(error, one)
            product = Mul(pooled, above)
            gelu = Mul(product, half)
            moved = Add(gelu, one)
            cosine = Cos(moved)
            y = Mul(moved, cosine)
        }"""
    )
    report = optimize(model, level=1).report
    assert report.validation.verdict == "equal"
    assert "onnxruntime's optimizer changes what the original computes" in report.validation.note
    assert report.census["Gelu"]
    (tmp_path / "sloppy.rule").write_text(WRONG["another result"])
    assert [left.fusion.rule for left in optimize(model, rules=[tmp_path]).report.left_out] == ["Sloppy"]


def test_what_is_not_simplified_for_inputs_of_two_lengths_is_told_with_what_to_do() -> None:
    """As of BERT for `onnx`: Attention refuses a mask that is longer than its keys, which the original cuts."""
    simplified, plain = broken.good(), broken.good()
    plain.graph.node.append(plain.graph.node[0])
    left = SimpleNamespace(model=plain)
    comparison: Any = SimpleNamespace(
        claim=SimpleNamespace(rebuild=lambda banned: left), outputs=lambda fused: Validation("equal", note="as before")
    )
    whole: Any = SimpleNamespace(model=simplified, banned=frozenset(), simplified=frozenset({("", "", "y")}))
    cases = {
        "the fused model does not run at t=7/13: FAIL: inconsistent": (
            "inputs such as t=7/13, which the original runs: if yours are never so, fix their sizes with --shape"
        ),
        "output 'y' differs by 1": "this: output 'y' differs by 1",
    }
    for note, told in cases.items():
        proved = prove._unsimplified(comparison, Proved(whole, Validation("mismatch", note=note), []))
        assert proved.validation.note == f"as before; one more node could go but for {told}"


@pytest.mark.parametrize(("rows", "runs"), [("4", 0), ("n", 1)])
def test_where_sizes_are_known_the_runs_for_the_outputs_tell_of_values_inside(
    rows: str, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float[{rows}, 8] x) => (float[{rows}, 8] y)
        <float root = {{1.4142135}}, float one = {{1}}, float half = {{0.5}}> {{
        a = Tanh(x) d = Div(a, root) e = Erf(d) p = Add(e, one) m = Mul(a, p) g = Mul(m, half) y = Cos(g) }}"""
    )
    made: list[object] = []
    given = inside.outlines
    monkeypatch.setattr(inside, "outlines", lambda *rest: made.append(rest) or given(*rest))
    validation = optimize(model, level=1).report.validation
    assert (validation.verdict, validation.sites, len(made)) == ("equal", 1, runs)
