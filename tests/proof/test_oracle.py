"""The proof: what is equal passes, what is not is seen and named, and the guilty one is found."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

import onnxfuse
from onnxfuse.errors import DependencyError
from onnxfuse.proof.oracle import Oracle
from tests.exports import MODELS


def parse(graph: str, opset: int = 18, tail: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}, "own": 1]>\n{graph}\n{tail}')


NORM = """g (float[n, 8] x) => (float[n, 8] y, float[n, 1] m) <float eps = {1e-5}, int64[1] last = {-1}> {
    m = ReduceMean(x, last)
    d = Sub(x, m)
    s = Mul(d, d)
    v = ReduceMean(s, last)
    e = Add(v, eps)
    r = Sqrt(e)
    y = Div(d, r)
}"""
FUSED = """g (float[n, 8] x) => (float[n, 8] y, float[n, 1] m)
    <float[8] one = {1, 1, 1, 1, 1, 1, 1, 1}, int64[1] last = {-1}> {
    m = ReduceMean(x, last)
    y = LayerNormalization<axis = -1, epsilon = 1e-5>(x, one)
}"""


def test_a_true_fusion_is_equal() -> None:
    verdict = Oracle(parse(NORM)).compare(parse(FUSED))
    assert verdict.verdict == "equal"
    assert verdict.cases == 4  # two sizes, one without a row, and one with a row of zeros and a large one
    assert verdict.max_error is not None
    assert 0 < verdict.max_error < 1e-6
    assert (verdict.rtol, verdict.note) == (1e-4, "")


@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        ("epsilon = 1e-5", "epsilon = 1e-3", "output 'y' differs by"),
        ("{1, 1,", "{1, 1.001,", "output 'y' differs by"),
        ("m = ReduceMean", "m = ReduceMax", "output 'm' differs by"),
        ("y, float[n, 1] m", "m, float[n, 1] y", "output 'y' has shape [3, 1] instead of [3, 8]"),
        ("ReduceMean(x, last)", "ReduceMean<keepdims = 0>(x, last)", "output 'm' has shape [3] instead of [3, 1]"),
        (", float[n, 1] m)", ")", "1 outputs instead of 2"),
        ("(x, one)", "(x, last)", "the fused model does not run: "),
        ("y = LayerNormalization", "y = own.Unheard", "the fused model does not run: "),
    ],
)
def test_a_mutant_is_seen(old: str, new: str, note: str) -> None:
    assert old in FUSED
    verdict = Oracle(parse(NORM)).compare(_mutant(old, new))
    assert verdict.verdict == "mismatch"
    assert note in verdict.note
    assert "\n" not in verdict.note


def _mutant(old: str, new: str) -> onnx.ModelProto:
    model = parse(FUSED.replace(old, new, 1))
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def test_a_case_that_does_not_run_is_named() -> None:
    verdict = Oracle(parse("g (float[n] x) => (float[n] y) { y = Identity(x) }")).compare(
        parse("g (float[n] x) => (float[n] y) <int64[1] three = {3}> { y = Reshape(x, three) }")
    )
    assert verdict.note.startswith("the fused model does not run at n=1: ")


def test_a_difference_names_the_case_and_the_size() -> None:
    verdict = Oracle(parse("g (float[n] x) => (float[n] y) { y = Identity(x) }")).compare(
        parse("g (float[n] x) => (float[n] y) <float k = {1.01}> { y = Mul(x, k) }")
    )
    assert verdict.note == "output 'y' differs by 1.0e-02 (1e-04 allowed) at n=3"
    assert verdict.max_error == pytest.approx(0.01, rel=1e-3)


def test_the_users_tolerances_hold() -> None:
    oracle = Oracle(parse("g (float[n] x) => (float[n] y) { y = Identity(x) }"))
    scaled = parse("g (float[n] x) => (float[n] y) <float k = {1.01}> { y = Mul(x, k) }")
    assert oracle.compare(scaled, rtol=0.02).verdict == "equal"
    assert oracle.compare(scaled, atol=1.0).verdict == "equal"
    assert oracle.compare(scaled, rtol=0.005).verdict == "mismatch"


def test_a_nan_in_the_fused_model_alone_is_a_mismatch() -> None:
    oracle = Oracle(parse("g (float[64] x) => (float[64] y) { a = Abs(x) y = Sqrt(a) }"))
    verdict = oracle.compare(parse("g (float[64] x) => (float[64] y) { y = Sqrt(x) }"))
    assert verdict.verdict == "mismatch"
    assert "has NaN at" in verdict.note


def test_a_nan_in_both_is_noted() -> None:
    half = parse("g (float[n] x) => (float[n] y) <float[7] k = {1, -1, 1, 1, 1, 1, 1}> { s = Sqrt(k) y = Mul(x, s) }")
    verdict = Oracle(half).compare(half)
    assert verdict.verdict == "equal"
    assert "the original has 1 NaN in output" in verdict.note


def test_nothing_but_nan_proves_nothing() -> None:
    model = parse("g (float[n] x) => (float[n] y) <float k = {-1}> { s = Sqrt(k) y = Mul(x, s) }")
    verdict = Oracle(model).compare(model)
    assert verdict.verdict == "not validated"
    assert "no finite element" in verdict.note


def test_integers_must_be_identical() -> None:
    oracle = Oracle(parse("g (float[9] x) => (int64 y) { y = ArgMax<keepdims = 0>(x) }"))
    verdict = oracle.compare(parse("g (float[9] x) => (int64 y) { y = ArgMin<keepdims = 0>(x) }"))
    assert verdict.verdict == "mismatch"
    assert "must be identical" in verdict.note


def test_the_tolerance_that_is_told_is_that_of_numbers_which_may_differ() -> None:
    model = parse("g (float[9] x) => (int64 i, float[9] y) { i = ArgMax<keepdims = 0>(x)  y = Neg(x) }")
    verdict = Oracle(model).compare(model)
    assert (verdict.verdict, verdict.max_error, verdict.rtol) == ("equal", 0, 1e-4)


def test_an_original_that_cannot_run_is_not_validated() -> None:
    model = parse("g (float[n] x) => (y) { y = own.Unheard(x) }")
    verdict = Oracle(model).compare(model)
    assert verdict.verdict == "not validated"
    assert verdict.note.startswith("the original does not run: ")
    assert "Unheard" in verdict.note
    assert verdict.max_error is None


def test_random_numbers_are_not_validated() -> None:
    model = parse("g (float[n] x) => (y) { r = RandomNormalLike(x) y = Add(x, r) }")
    assert "random" in Oracle(model).compare(model).note
    seeded = parse("g (float[n] x) => (y) { d, k = Dropout(x) y = Identity(d) }")
    assert Oracle(seeded).compare(seeded).verdict == "equal"


def test_the_function_body_of_an_unregistered_op_runs() -> None:
    fused = parse(
        "g (float[n] x) => (float[n] y) { y = own.Twice(x) }",
        tail='<domain: "own", opset_import: ["": 18]> Twice (a) => (b) { b = Add(a, a) }',
    )
    assert Oracle(parse("g (float[n] x) => (float[n] y) { y = Add(x, x) }")).compare(fused).verdict == "equal"


@pytest.mark.parametrize("dtype", ["float16", "double", "bfloat16"])
def test_other_float_dtypes(dtype: str) -> None:
    wide = "a = Cast<to = 1>(x)"
    original = parse(f"g ({dtype}[n] x) => ({dtype}[n] y) {{ {wide} b = Add(a, a) y = CastLike(b, x) }}")
    wrong = parse(f"g ({dtype}[n] x) => ({dtype}[n] y) {{ {wide} b = Mul(a, a) y = CastLike(b, x) }}")
    oracle = Oracle(original)
    if dtype == "bfloat16":
        assert oracle.cases[0].inputs["x"].dtype == ml_dtypes.bfloat16
    assert oracle.compare(original).verdict == "equal"
    assert oracle.compare(wrong).verdict == "mismatch"


def test_sequences_and_strings_are_compared() -> None:
    split = "g (float[6] x) => (seq(float) s) { s = SplitToSequence(x) }"
    oracle = Oracle(parse(split))
    assert oracle.compare(parse(split)).verdict == "equal"
    other = oracle.compare(parse("g (float[6] x) => (seq(float) s) <int64 k = {2}> { s = SplitToSequence(x, k) }"))
    assert "has 3 elements instead of 6" in other.note
    oracle = Oracle(parse("g (string[n] x) => (string[n] y) { y = Identity(x) }"))
    assert oracle.compare(parse("g (string[n] x) => (string[n] y) { y = Identity(x) }")).verdict == "equal"
    loud = parse('g (string[n] x) => (string[n] y) { y = StringNormalizer<case_change_action = "UPPER">(x) }')
    assert oracle.compare(loud).verdict == "mismatch"


def test_rounding_in_the_maps_of_zipmap_is_no_mismatch() -> None:
    """What a classifier of skl2onnx gives: its numbers are float32, though onnxruntime gives them as Python's."""

    def model(exponentials: str) -> onnx.ModelProto:
        text = f"""<ir_version: 9, opset_import: ["": 18, "ai.onnx.ml": 1]>
        g (float[n, 3] x) => (seq(map(int64, float)) m) <int64[1] last = {{-1}}> {{ {exponentials}
            m = ai.onnx.ml.ZipMap<classlabels_int64s = [0, 1, 2]>(y) }}"""
        return onnx.parser.parse_model(text)

    oracle = Oracle(model("s = ReduceLogSumExp(x, last) d = Sub(x, s) y = Exp(d)"))
    verdict = oracle.compare(model("y = Softmax(x)"))
    assert (verdict.verdict, verdict.rtol) == ("equal", 1e-4)
    assert verdict.max_error is not None
    assert oracle.compare(model("z = Add(x, x) y = Softmax(z)")).note.startswith("output 'm' differs by")


def external(folder: Path) -> onnx.ModelProto:
    """y = x·W with W outside the proto, in folder/weights.bin."""
    weight = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    (folder / "weights.bin").write_bytes(weight.tobytes())
    model = parse("g (float[n, 8] x) => (float[n, 8] y) { y = MatMul(x, w) }")
    tensor = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[8, 8])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    return model


def test_external_data_is_read_where_it_lies(tmp_path: Path) -> None:
    model = external(tmp_path)
    before = model.SerializeToString()
    oracle = Oracle(model, base_dir=tmp_path, reference=True)
    verdict = oracle.compare(model)
    assert (verdict.verdict, verdict.max_error) == ("equal", 0.0)
    assert verdict.reference_error is not None
    assert model.SerializeToString() == before
    x = oracle.cases[0].inputs["x"]
    weight = np.fromfile(tmp_path / "weights.bin", np.float32).reshape(8, 8)
    given = Oracle(parse("g (float[n, 8] x) => (float[n, 8] y) { y = Identity(x) }"), given={"x": x @ weight})
    assert given.compare(parse("g (float[n, 8] x) => (float[n, 8] y) { y = Neg(x) }")).verdict == "mismatch"


def test_missing_external_data_is_not_validated(tmp_path: Path) -> None:
    model = external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    verdict = Oracle(model, base_dir=tmp_path).compare(model)
    assert verdict.verdict == "not validated"
    assert "weights.bin" in verdict.note


VARIANCE = """g (float[4, 64] a) => (float[4, 1] y) <float far = {300}, int64[1] last = {-1}> {
    x = Add(a, far) m = ReduceMean(x, last) d = Sub(x, m) s = Mul(d, d) y = ReduceMean(s, last) }"""
UNSTABLE = """g (float[4, 64] a) => (float[4, 1] y) <float far = {300}, int64[1] last = {-1}> {
    x = Add(a, far) m = ReduceMean(x, last) q = Mul(m, m) s = Mul(x, x) e = ReduceMean(s, last) y = Sub(e, q) }"""


def test_float64_shows_a_loss_of_precision_that_a_wide_tolerance_hides() -> None:
    stable, unstable = parse(VARIANCE), parse(UNSTABLE)
    assert Oracle(stable).compare(unstable, rtol=0.1).verdict == "equal"
    verdict = Oracle(stable, reference=True).compare(unstable, rtol=0.1)
    assert verdict.verdict == "mismatch"
    assert verdict.note.startswith("output 'y' lost precision")
    original, fused = verdict.reference_error or (0.0, 0.0)
    assert original < 1e-5 < 1e-3 < fused


def test_a_gain_of_precision_is_no_mismatch() -> None:
    verdict = Oracle(parse(UNSTABLE), reference=True).compare(parse(VARIANCE), rtol=0.1)
    assert verdict.verdict == "equal"


CANCELLING = """g (float[1, 1, n] x) => (float[1, 1, n] y)
    <float[1, 1, 1] w = {1}, float[1] b = {30000}, float[1] scale = {SCALE}, float[1] shift = {0}, float[1] one = {1}> {
    c = Conv(x, w, b) y = BatchNormalization(c, scale, shift, b, one) }"""


@pytest.mark.parametrize("shift", ["30000", "3000000"])
def test_what_rounding_alone_does_is_no_mismatch_and_what_it_does_not_is_one(shift: str) -> None:
    """Folded by onnxruntime the shift is gone before it is added: of 3,000,000 no digit is left behind the point."""
    original = CANCELLING.replace("30000", shift)
    oracle = Oracle(parse(original.replace("SCALE", "1")))
    verdict = oracle.compare(parse(original.replace("SCALE", "1")))
    assert verdict.verdict == "equal"
    assert verdict.note.startswith("rounding alone moves output 'y' as far: by ")
    assert (verdict.max_error or 1) <= (verdict.rtol or 0), "relative to what rounding does"
    wrong = oracle.compare(parse(original.replace("SCALE", "1.5")))
    assert wrong.verdict == "mismatch"
    assert wrong.note.startswith("output 'y' differs by ")


def test_what_rounding_alone_does_is_none_in_half_precision_either_unless_a_tolerance_is_asked_for() -> None:
    original = parse(CANCELLING.replace("30000", "3000000").replace("SCALE", "1"))
    oracle = Oracle(original, precision=onnx.TensorProto.FLOAT16, rtol=3e-3)
    verdict = oracle.compare(original)
    assert (verdict.verdict, verdict.rtol) == ("equal", 3e-3)
    assert verdict.note.startswith("rounding alone moves output 'y' as far: by ")
    assert oracle.compare(original, rtol=3e-3).verdict == "mismatch"
    wrong = oracle.compare(parse(CANCELLING.replace("30000", "3000000").replace("SCALE", "1.5")))
    assert wrong.verdict == "mismatch"


def test_no_float64_reference_is_said() -> None:
    node = 'com.microsoft.FusedGemm <activation: string = "Relu"> (x, x, x)'
    graph = f"g (float[3, 3] x) => (float[3, 3] y) {{ y = {node} }}"
    text = f'<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]> {graph}'
    model = onnx.parser.parse_model(text)
    verdict = Oracle(model, reference=True).compare(model)
    assert verdict.verdict == "equal"
    assert verdict.note.startswith("no float64 reference: ")


def test_without_onnxruntime_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DependencyError, match=r"pip install 'onnxfuse\[cpu\]'") as caught:
        Oracle(parse(NORM))
    assert "\n" not in str(caught.value)


def test_onnxruntime_stays_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    Oracle(parse("g (float[n] x) => (y) { y = own.Unheard(x) }"))
    Oracle(parse("g (float[n] x) => (y) <int64[1] s = {5}> { y = Reshape(x, s) }"))
    Oracle(parse(NORM)).compare(_mutant("(x, one)", "(x, last)"))
    assert capfd.readouterr() == ("", "")


def test_tensors_without_elements_may_be_refused_and_the_note_says_so() -> None:
    """onnxruntime's Attention takes no batch of 0, and says so in an error, which nobody takes for numbers."""
    result = onnxfuse.optimize(MODELS / "vit.dynamo.onnx", target="ort")
    validation = result.report.validation
    assert (validation.verdict, result.report.left_out) == ("equal", [])
    assert validation.note == "batch=0: onnxruntime refuses the fused model, and runs the original"
    assert result.report.census["Attention"] == 3


def test_a_generated_case_that_is_nan_throughout_is_no_answer() -> None:
    """As the Softmax of a row that a length of 0 masks throughout: what was drawn by chance binds nobody."""
    head = "g (float[b, 4] x) => (float[b, 4] y) <int64[1] one = {1}, int64[1] z = {0}, float nan = {0}>"
    original = parse(f"{head} {{ n = Shape(x) b = Gather(n, z) c = Equal(b, one) y = Where(c, nan, x) }}")
    original.graph.initializer[2].CopyFrom(onnx.numpy_helper.from_array(np.array(np.nan, np.float32), "nan"))
    fused = parse("g (float[b, 4] x) => (float[b, 4] y) { y = Identity(x) }")
    assert any(case.inputs["x"].shape[0] == 1 for case in Oracle(original).cases)
    assert Oracle(original).compare(fused).verdict == "equal"
    given = {"x": np.ones((1, 4), np.float32)}
    assert Oracle(original, given=given).compare(fused).verdict == "mismatch"
    assert Oracle(original).compare(parse("g (float[b, 4] x) => (float[b, 4] y) { y = Neg(x) }")).verdict == "mismatch"
