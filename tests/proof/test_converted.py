"""A model in half precision against float32: the numbers that it has to hold, and what it computes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from onnxfuse import pipeline
from onnxfuse.errors import NumericsError
from onnxfuse.precision.convert import convert
from onnxfuse.precision.wanted import Name, Precision
from onnxfuse.proof.converted import ranges, with_types_of
from onnxfuse.proof.oracle import Oracle

MLP = """<ir_version: 9, opset_import: ["": 17]>
    g (float[n, 4] x) => (float[n, 4] y) { a = MatMul(x, v) b = Tanh(a) c = Add(b, a) y = MatMul(c, w) }"""


def parse(factor: float = 1.5) -> onnx.ModelProto:
    """A model whose weights grow by a factor and shrink again."""
    model = onnx.parser.parse_model(MLP)
    weight = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    for name, scale in (("v", factor), ("w", 1e-3)):
        model.graph.initializer.append(numpy_helper.from_array(weight * np.float32(scale), name))
    return model


def test_ranges_are_the_largest_finite_numbers_of_usual_cases() -> None:
    model = parse()
    cases = Oracle(model).cases
    found = ranges(model, cases)
    assert list(found) == ["a", "b", "c", "y"]
    assert found["b"] == pytest.approx(np.tanh(found["a"]))
    assert [output.name for output in model.graph.output] == ["y"], "what was asked for besides is taken back"
    broken = parse()
    broken.graph.node[0].op_type = "Unheard"
    assert ranges(broken, cases) == {}


@pytest.mark.parametrize("name", ["fp16", "bf16", "mixed"])
@pytest.mark.parametrize("io", [False, True])
def test_a_conversion_is_proved(name: Name, io: bool) -> None:
    done = pipeline.optimize(parse(), precision=Precision(name, io=io))
    report = done.report
    assert (report.validation.verdict, report.validation.rtol) == ("equal", Precision(name).rtol)
    assert report.validation.max_error is not None
    assert report.validation.max_error > 1e-5, "nothing was in half precision"
    assert report.conversion is not None
    assert len(report.conversion.casts) == (0 if io else 2)
    plain = pipeline.optimize(parse()).report
    assert report.nodes_after == plain.nodes_after + len(report.conversion.casts)
    assert report.after.bytes < plain.after.bytes


def test_an_overflow_names_its_node_and_mixed_keeps_it_in_float32() -> None:
    with pytest.raises(NumericsError, match=r"'.*' reaches .*e\+0.: float16 ends at 65504: --precision mixed"):
        pipeline.optimize(parse(6e4), precision=Precision("fp16"))
    done = pipeline.optimize(parse(6e4), precision=Precision("mixed")).report
    assert done.validation.verdict == "equal"
    assert done.conversion is not None
    assert done.conversion.float32 > 0
    assert pipeline.optimize(parse(6e4), precision=Precision("bf16")).report.validation.verdict == "equal"


def test_mixed_leaves_the_first_nodes_in_float32_as_few_as_it_takes() -> None:
    """Twenty layers whose norms keep what the first of them rounds."""
    graph, last = "", "x"
    for layer in range(20):
        graph += f"p{layer} = MatMul({last}, w) q{layer} = Sin(p{layer}) "
        last = f"q{layer}"
    text = f'<ir_version: 9, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] {last}) {{ {graph} }}'
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32) * 2
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    with pytest.raises(NumericsError, match=r"\(3e-03 allowed\).*: try mixed"):
        pipeline.optimize(model, precision=Precision("fp16"))
    done = pipeline.optimize(model, precision=Precision("mixed")).report
    assert done.validation.verdict == "equal"
    assert done.conversion is not None
    assert done.conversion.half > 0
    assert done.conversion.float32 > 0
    assert [cast.reason for cast in done.conversion.inner] == ["what float16 rounds here is too much in the end"]


def test_numbers_that_are_wrong_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxfuse.proof import converted

    def wrong(*args: object, **options: object) -> object:
        made = convert(*args, **options)  # type: ignore[arg-type]
        weight = next(t for t in made.model.graph.initializer if t.name == "w")
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float16(1.01), "w"))
        return made

    monkeypatch.setattr(converted, "convert", wrong)
    with pytest.raises(
        NumericsError, match=r"in float16 the model computes something else: output 'y' differs by .*try mixed"
    ):
        pipeline.optimize(parse(), precision=Precision("fp16"))


def test_without_a_proof_nothing_is_run() -> None:
    from onnxfuse.proof.claim import Experiment

    done = pipeline.optimize(parse(6e4), experiment=Experiment(validate="off"), precision=Precision("fp16"))
    assert done.report.validation.verdict == "not validated"
    assert done.report.conversion is not None


def test_a_report_tells_of_casts_and_runs_nothing() -> None:
    told = pipeline.report(parse(), precision=Precision("fp16")).conversion
    assert told is not None
    assert (told.half, told.float32, len(told.casts), told.inner) == (4, 0, 2, [])


def test_types_are_taken_back_for_the_comparison() -> None:
    model = parse()
    half = convert(model, Precision("fp16", io=True)).model
    wide = with_types_of(model, half)
    onnx.checker.check_model(wide, full_check=True)
    assert Oracle(model, precision=10).compare(wide, rtol=3e-3).verdict == "equal"
    assert Oracle(model, precision=10).compare(half, rtol=3e-3).verdict == "mismatch"


def test_bfloat16_raises_the_opset_where_ops_lack_it() -> None:
    graph = "g (float[n, 2, 8, 8] x) => (float[n, 3, 6, 6] y) { y = Conv(x, k) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
    kernel = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(kernel, "k"))
    for name, opset in (("bf16", 22), ("fp16", 17)):
        done = pipeline.optimize(model, precision=Precision(name))  # type: ignore[arg-type]
        assert done.model.opset_import[0].version == opset
        assert done.report.validation.verdict == "equal"
        assert done.report.conversion is not None
        assert (done.report.conversion.half, done.report.conversion.float32) == (1, 0)
    from onnxfuse.fusing.build import Build

    kept = pipeline.optimize(model, Build(opset=17), precision=Precision("bf16")).report.conversion
    assert kept is not None
    assert (kept.half, kept.float32, kept.casts) == (0, 1, [])
