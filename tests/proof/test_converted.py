"""A model in half precision against float32: the numbers that it has to hold, and what it computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, numpy_helper

import onnxfuse
from onnxfuse import pipeline
from onnxfuse.errors import NumericsError, UsageError
from onnxfuse.fusing.build import Build
from onnxfuse.language.catalogue import RULES
from onnxfuse.model.walk import attribute_graphs
from onnxfuse.precision.convert import convert
from onnxfuse.precision.wanted import Name, Precision
from onnxfuse.proof.converted import ranges, with_types_of
from onnxfuse.proof.oracle import Oracle
from onnxfuse.reporting.conversion import Conversion
from onnxfuse.targets import runtimes
from onnxfuse.targets.target import Target
from tests.exports import MODELS

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
    plain = pipeline.optimize(parse(), Build(level=RULES)).report
    assert report.nodes_after == plain.nodes_after + len(report.conversion.casts)
    assert report.after.bytes < plain.after.bytes


def layers(ops: str, times: int = 1, branches: int = 1, **factors: float) -> onnx.ModelProto:
    """A model of one op after another, in branches side by side; those that are no ops are products with a weight of
    that name."""
    starts = ("Sin", "Cos", "Tanh")[:branches]
    nodes = [f"v{k}_0 = {op}(x)" for k, op in enumerate(starts)]
    every = ops.split() * times
    for number, op in enumerate(every):
        for k in range(branches):
            read, made = f"v{k}_{number}", f"v{k}_{number + 1}"
            nodes.append(f"{made} = MatMul({read}, {op})" if op in factors else f"{made} = {op}({read})")
    outputs = ", ".join(f"float[n, 4] v{k}_{len(every)}" for k in range(branches))
    text = f'<ir_version: 9, opset_import: ["": 17]> g (float[n, 4] x) => ({outputs}) {{ {" ".join(nodes)} }}'
    model = onnx.parser.parse_model(text)
    for name, factor in factors.items():
        weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32) * np.float32(factor)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


def told(model: onnx.ModelProto, name: Name) -> Conversion:
    report = pipeline.optimize(model, precision=Precision(name)).report
    assert report.validation.verdict == "equal"
    assert report.conversion is not None
    return report.conversion


def test_an_overflow_stays_in_float32_where_two_casts_do_and_with_mixed_where_more_are_needed() -> None:
    once = told(layers("big Sin small", big=2.7e4, small=0.1), "fp16")
    assert (once.half, once.float32, len(once.inner)) == (1, 3, 1)
    assert "numbers up to" in once.inner[0].reason
    assert "numbers up to" in once.inner[0].reason
    thrice = layers("big Sin small", branches=3, big=2.7e4, small=0.1)
    with pytest.raises(
        NumericsError, match=r"'v0_1' reaches .*e\+0., and 2 more nodes: float16 ends at 65504: --precision mixed"
    ):
        pipeline.optimize(thrice, precision=Precision("fp16"))
    assert len(told(thrice, "mixed").inner) == 3


@pytest.mark.parametrize("name", ["fp16", "mixed"])
def test_what_is_rounded_too_early_stays_in_float32_as_few_nodes_as_it_takes(name: Name) -> None:
    """Twenty layers that make more of what the first of them round."""
    found = told(layers("w Sin", 20, w=1), name)
    assert 0 < found.float32 < found.half
    assert [cast.reason for cast in found.inner] == ["what float16 rounds here is too much in the end"]


def test_what_would_be_float32_for_the_most_part_is_refused() -> None:
    model = layers("w Sin", 20, w=2)
    with pytest.raises(NumericsError, match=r"\(3e-03 allowed\).*: try mixed"):
        pipeline.optimize(model, precision=Precision("fp16"))
    found = told(model, "mixed")
    assert 0 < found.half < found.float32


def test_what_cannot_be_mended_with_two_casts_is_refused() -> None:
    """Three branches side by side: wherever they are divided, there are three Casts."""
    model = layers("w Sin", 20, branches=3, w=1)
    with pytest.raises(NumericsError, match=r"\(3e-03 allowed\).*: try mixed"):
        pipeline.optimize(model, precision=Precision("fp16"))
    assert len(told(model, "mixed").inner) == 3


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


def test_what_the_cuda_provider_lacks_in_the_type_stays_in_float32() -> None:
    build, model = Build(Target("ort", "cuda")), layers("w Ceil w", w=0.3)
    told = pipeline.report(model, build, precision=Precision("bf16")).conversion
    assert told is not None
    assert {cast.node: cast.reason for cast in told.inner} == {
        "v0_0": "Sin of opset 17 has no bfloat16: --opset 22 has",
        "v0_2": "the CUDA provider has no Ceil of opset 17 in bfloat16",
    }
    told = pipeline.report(model, build, precision=Precision("fp16")).conversion
    assert told is not None
    assert not told.inner


def test_a_runtime_without_the_type_is_refused_before_anything_is_run() -> None:
    build = Build(Target("onnx", runtime=runtimes.of("1.23")))
    with pytest.raises(UsageError, match=r"--precision bf16: onnxruntime 1\.23 does not run bfloat16 on a CPU"):
        pipeline.optimize(layers("w Sin", w=0.3), build, precision=Precision("bf16"))
    assert pipeline.optimize(layers("w Sin", w=0.3), build, precision=Precision("fp16")).report.runs is not None


def test_what_stands_in_functions_is_fused_before_it_is_converted() -> None:
    """A normalization whose epsilon only the caller of its function knows."""
    model = onnx.load(MODELS / "function_attribute.onnx")
    plain = pipeline.optimize(model).report
    done = pipeline.optimize(model, precision=Precision("fp16")).report
    assert done.validation.verdict == "equal"
    assert done.census["LayerNormalization"] == 2 > plain.census["LayerNormalization"]
    assert done.nodes_before == plain.nodes_before
    assert done.conversion is not None
    assert not done.conversion.inner


BRANCHES = """<ir_version: 9, opset_import: ["": 17]> g (float[n, 4] x, bool c) => (float[n, 4] y) { y = If(c) <
    then_branch = t () => (float[n, 4] p) { a = MatMul(x, w) b = Mul(a, big) d = Sin(b) p = MatMul(d, w) },
    else_branch = e () => (float[n, 4] q) { a = MatMul(x, w) q = MatMul(a, w) }> }"""


@pytest.mark.parametrize(("big", "right"), [(0.01, True), (1e3, False)])
def test_branches_are_converted_where_each_is_right_by_itself(big: float, right: bool) -> None:
    """The condition is false in some of the cases, or in all: each branch is run as if it were always taken."""
    model = onnx.parser.parse_model(BRANCHES)
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    for name, value in (("w", weight), ("big", np.float32(big))):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    oracle = Oracle(model, precision=TensorProto.FLOAT16)
    oracle.drop(lambda case: bool(case.inputs["c"]))
    assert oracle.compare(convert(model, Precision("fp16")).model, rtol=3e-3).verdict == "equal", "one alone"
    assert (told(model, "fp16").half > 0) == right


FINE = """y = If(c) < then_branch = t () => (float[n, 4] p) { a = MatMul(x, w) p = MatMul(a, w) },
    else_branch = e () => (float[n, 4] q) { q = MatMul(x, w) }>"""


def test_a_loop_whose_first_step_cannot_be_run_alone_keeps_no_branch_from_being_converted() -> None:
    """The loop stays as it is: it is not proved."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]> g (float[n, 4] x, bool c) => (float[n, 4] y, float[n, 4] z) {{
        {FINE} z = Loop(none, , x) < body = b (int64 i, bool go, float[n, 4] s) => (bool on, float[n, 4] r) {{
            on = Identity(go) r = Gather(s, far) }}> }}"""
    )
    given = {"w": np.eye(4, dtype=np.float32), "none": np.int64(0), "far": np.array([10**9])}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in given.items())
    assert told(model, "fp16").half >= 3


LOOP = """l, z = Loop(k, c, x) <body = b (int64 i, bool go, float[n, 4] s) => (bool on, float[n, 4] r, float[n, 4] t) {
    on = Identity(go) p = MatMul(s, w) q = Mul(p, big) r = Sin(q) t = MatMul(r, w) }>"""
SCAN = """l, z = Scan(x, x3) <num_scan_inputs = 1, body = b (float[n, 4] s, float[n, 4] e) =>
    (float[n, 4] r, float[n, 4] t) { m = MatMul(s, w) p = Add(m, e) q = Mul(p, big) r = Sin(q) t = MatMul(r, w) }>"""


def repeated(nodes: str, big: float) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]> g (float[n, 4] x, float[t, n, 4] x3, bool c, int64 k)
        => (float[n, 4] y, float[n, 4] l, float[steps, n, 4] z) {{ {FINE} {nodes} }}"""
    )
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32) * np.float32(0.5)
    for name, value in (("w", weight), ("big", np.float32(big))):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


@pytest.mark.parametrize("nodes", [LOOP, SCAN])
@pytest.mark.parametrize(("big", "halved"), [(0.01, {"If", "Loop", "Scan"}), (2e3, {"If"})])
def test_what_repeats_is_converted_where_its_steps_are_right(nodes: str, big: float, halved: set[str]) -> None:
    """Where a step is not, the branches of an If beside it are converted all the same."""
    done = pipeline.optimize(repeated(nodes, big), precision=Precision("fp16"))
    assert done.report.validation.verdict == "equal"
    seen = set()
    for node in done.model.graph.node:
        kinds = {info.type.tensor_type.elem_type for _, body in attribute_graphs(node) for info in body.output}
        seen |= {node.op_type} if TensorProto.FLOAT16 in kinds else set()
    assert seen == halved & {node.op_type for node in done.model.graph.node}


def test_a_loop_that_is_never_run_is_proved_by_its_steps() -> None:
    """The whole model shows nothing of it."""
    for big, right in ((0.01, True), (2e3, False)):
        model = repeated(LOOP.replace("Loop(k", "Loop(none"), big)
        model.graph.initializer.append(numpy_helper.from_array(np.int64(0), "none"))
        oracle = Oracle(model, precision=TensorProto.FLOAT16)
        assert oracle.compare(convert(model, Precision("fp16")).model, rtol=3e-3).verdict == "equal", "as a whole"
        done = pipeline.optimize(model, precision=Precision("fp16"))
        (loop,) = (node for node in done.model.graph.node if node.op_type == "Loop")
        carried = dict(attribute_graphs(loop))["body"].input[2].type.tensor_type.elem_type
        assert carried == (TensorProto.FLOAT16 if right else TensorProto.FLOAT)


def test_branches_inside_of_functions_are_proved_by_themselves_as_well() -> None:
    """Nothing that is fed takes the one whose product float16 cannot say."""
    nodes = """s = Abs(x) l = ReduceMax<keepdims = 0>(s) huge = Constant<value = float {1e30}>() d = Greater(l, huge)
        z = If(d) < then_branch = t () => (float[n, 4] p) {
            a = MatMul(x, w) b = Mul(a, big) k = Sin(b) p = MatMul(k, w) },
        else_branch = e () => (float[n, 4] q) { q = MatMul(x, w) }>"""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17, "own": 1]>
        g (float[n, 4] x, bool c) => (float[n, 4] y, float[n, 4] z) {{ {FINE} z = own.f(x, w, big) }}
        <domain: "own", opset_import: ["": 17]> f (x, w, big) => (z) {{ {nodes} }}"""
    )
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    for name, value in (("w", weight), ("big", np.float32(1e3))):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    casts = pipeline.optimize(model, precision=Precision("fp16")).report.conversion
    assert casts is not None
    assert casts.half == 0


def test_weights_of_attempts_that_were_given_up_are_not_written(tmp_path: Path) -> None:
    """The whole model in float32 is one of them."""
    model = layers("w Sin " * 20 + "v", w=1, v=1)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
    done = onnxfuse.optimize(tmp_path / "m.onnx", tmp_path / "half.onnx", precision="fp16")
    assert done.report.validation.verdict == "equal"
    read = {tuple(entry.value for entry in t.external_data) for t in done.model.graph.initializer if t.external_data}
    last = max(int(offset) for _, offset, _ in read)
    assert (tmp_path / "half.onnx.data").stat().st_size <= last + 4096
    assert last == 4096 * (len(read) - 1)
    assert Oracle(model, base_dir=tmp_path).compare(onnx.load(tmp_path / "half.onnx"), rtol=3e-3).verdict == "equal"
