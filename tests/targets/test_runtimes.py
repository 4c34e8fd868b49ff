"""Versions of onnxruntime: what a file is held to, from which one on it runs, and what users are told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

import onnxfuse
from onnxfuse.cli.main import main
from onnxfuse.errors import UsageError
from onnxfuse.fusing.fuse import lower
from onnxfuse.language import catalogue
from onnxfuse.targets import runtimes
from onnxfuse.targets.compatibility import compatibility
from onnxfuse.targets.runtimes import Runtime
from onnxfuse.targets.target import Target

MODELS = Path(__file__).parents[2] / "models"
CATALOGUE = catalogue.load()
NEWEST = runtimes.known()[-1]


def model(graph: str, opset: int, ir_version: int = 8, domains: str = "", functions: str = "") -> onnx.ModelProto:
    head = f'<ir_version: {ir_version}, opset_import: ["" : {opset}{domains}]>\n'
    return parser.parse_model(f"{head}{graph}\n{functions}")


def lowered(before: onnx.ModelProto, target: str, version: str) -> onnx.ModelProto:
    return lower(before, CATALOGUE.serving(Target(target, runtime=runtimes.of(version))))[1].model


def ops(proto: onnx.ModelProto) -> set[str]:
    """The ops of a model and of its functions."""
    return {node.op_type for graph in (proto.graph, *proto.functions) for node in graph.node}


# ------------------------------------------------------------------------------------------------------ naming one


def test_a_version_is_named_as_pip_names_it() -> None:
    assert runtimes.given(None) is None
    assert runtimes.given("onnxruntime==1.23") == runtimes.given("onnxruntime == 1.23.2") == Runtime((1, 23))
    assert str(runtimes.of("1.23")) == "1.23"
    assert runtimes.of("1.9") < runtimes.of("1.23")


def test_the_installed_version_is_meant_where_none_is_given() -> None:
    installed = runtimes.of(onnxruntime.__version__)
    assert runtimes.given("onnxruntime") == min(installed, NEWEST)


@pytest.mark.parametrize("text", ["1.23", "onnxruntime>=1.23", "onnxruntime==1", "openvino", ""])
def test_what_names_no_version_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"write onnxruntime==X.Y, X.Y from 1\.\d+ to 1\.\d+, or onnxruntime$"):
        runtimes.given(text)


def test_a_version_that_is_too_old_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match=f"1.2 is not known: those from {runtimes.known()[0]} to {NEWEST} are"):
        runtimes.given("onnxruntime==1.2")


def test_a_newer_version_is_the_newest_that_is_known_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert runtimes.given("onnxruntime==99.0") == NEWEST
    assert main(["report", str(MODELS / "softmax.onnx"), "--runtime", "onnxruntime==99.0"]) == 0
    assert capsys.readouterr().err == f"onnxfuse: onnxruntime 99.0 is newer than is known: taken for {NEWEST}\n"
    assert runtimes.newer("onnxruntime==1.23") == runtimes.newer(None) == ""


# ---------------------------------------------------------------------------------------------------- what is known

TYPES = ("float", "float16", "bfloat16", "double", "int32", "bool")
CLAIMS = [
    (op, opset) for op in "Relu Erf Elu Mish Softplus Cos Trilu Neg Not Swish".split() for opset in (18, 22, 24, 25)
]


@pytest.mark.parametrize(("op", "opset"), CLAIMS, ids=str)
def test_the_table_says_what_the_installed_version_does(op: str, opset: int) -> None:
    here = runtimes.of(onnxruntime.__version__)
    if here not in runtimes.known():
        pytest.skip(f"onnxruntime {here} is newer than runtimes.json: run python -m benchmarks.ort_versions")
    for kind in TYPES if runtimes.since(op, opset) else ():
        values = [helper.make_tensor_value_info(n, TensorProto.DataType.Value(kind.upper()), [3, 3]) for n in "xy"]
        graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", values[:1], values[1:])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        said = runtimes.first(op, opset, frozenset({("T", kind)}))
        if onnx.defs.get_schema(op, opset).inputs[0].types & {f"tensor({kind})"}:
            runs = said is not None and said <= here and opset <= here.opset
            assert runs == loads(proto), f"{op} of opset {opset} in {kind}"


def loads(proto: onnx.ModelProto) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime's own classes, all derived from Exception
        return False
    return True


# ----------------------------------------------------------------------------------------------------- holding a file

GELU = (
    "g (float[2,3] x) => (float[2,3] y) { d = Div (x, r)  e = Erf (d)  a = Add (e, one)  m = Mul (x, a)  "
    "y = Mul (m, half) }"
)
CONSTANTS = {"r": 2**0.5, "one": 1.0, "half": 0.5}
CAPPED = (
    "g (float[2,4,5,8] q, float[2,4,5,8] k, float[2,4,5,8] v, float[2,1,5,5] mask) => (float[2,4,5,8] y) "
    "{ t = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, t)  u = Div (s, cap)  h = Tanh (u)  c = Mul (h, cap)  "
    "b = Add (c, mask)  w = Softmax <axis = -1> (b)  y = MatMul (w, v) }"
)


def with_constants(graph: str, opset: int, ir_version: int = 8, **constants: float) -> onnx.ModelProto:
    proto = model(graph, opset, ir_version)
    tensors = (onnx.numpy_helper.from_array(np.array(v, np.float32), name) for name, v in constants.items())
    proto.graph.initializer.extend(tensors)
    return proto


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_a_newer_opset_is_converted_down_and_the_ir_version_lowered(target: str) -> None:
    before = with_constants(GELU, 23, 11, **CONSTANTS)
    after = lowered(before, target, "1.20")
    assert after.opset_import[0].version == 21
    assert after.ir_version <= 10
    assert "Gelu" in "".join(ops(after))
    assert str(compatibility(after).runtime) == "1.20"


def test_a_newer_opset_that_cannot_be_converted_is_refused_in_a_line(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model("g (float[1,2,3,8] q) => (float[1,2,3,8] y) { y = Attention (q, q, q) }", 23), path)
    assert main(["optimize", str(path), "--runtime", "onnxruntime==1.22"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    start = f"onnxfuse: error: {path}: onnxruntime 1.22 loads opset 22 at most, and the model cannot be converted"
    assert line.startswith(start)
    assert line.endswith(": export it at that opset, or leave --runtime away")
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_an_opset_above_the_runtimes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--opset 23: onnxruntime 1\.20 loads opset 21 at most"):
        onnxfuse.optimize(with_constants(GELU, 17, **CONSTANTS), opset=23, runtime="onnxruntime==1.20")


def test_a_file_that_the_runtime_does_not_run_is_not_written() -> None:
    proto = model("g (int32[2,2] x) => (int32[2,2] y) { y = Trilu (x) }", 17)
    with pytest.raises(UsageError, match=r"1\.23 does not run Trilu of opset 17 in int32.*: onnxruntime 1\.29 and"):
        onnxfuse.optimize(proto, runtime="onnxruntime==1.23")
    onnxfuse.optimize(proto, runtime="onnxruntime==1.29", validate="off")


@pytest.mark.parametrize(
    ("version", "opset", "attention", "runs_from"),
    [
        ("1.20", 17, {"com.microsoft"}, "1.20"),  # with a bias for each head: it computes one that they share wrongly
        ("1.22", 17, {"com.microsoft"}, "1.21"),
        ("1.23", 23, {""}, "1.23"),
        (str(NEWEST), 23, {""}, "1.23"),
    ],
)
def test_the_opset_is_raised_as_far_as_the_runtime_goes(
    version: str, opset: int, attention: set[str], runs_from: str
) -> None:
    after = lowered(onnx.load(MODELS / "bert.ts.onnx", load_external_data=False), "ort", version)
    assert after.opset_import[0].version == opset
    assert {node.domain for node in after.graph.node if node.op_type == "Attention"} == attention
    assert str(compatibility(after).runtime) == runs_from


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
@pytest.mark.parametrize("version", ["1.23", "1.26", "1.27"])
def test_a_form_that_a_version_computes_wrongly_is_not_written_for_it(target: str, version: str) -> None:
    """onnxruntime before 1.27 adds the mask of ai.onnx Attention before it caps the scores."""
    after = lowered(with_constants(CAPPED, 23, 10, cap=2.0), target, version)
    assert ("Attention" in ops(after)) == (version == "1.27")
    assert any(op.startswith("Attention_") for op in ops(after)) == (target == "onnxfuse")


@pytest.mark.parametrize(("target", "written"), [("onnx", set()), ("onnxfuse", {"Swish_"})])
def test_an_op_is_written_only_up_to_the_opset_at_which_it_is_expanded(target: str, written: set[str]) -> None:
    """onnxruntime has no kernel for Swish, and expands it at opset 24 alone: an op in its function changed in 25."""
    for opset in (24, 25, 26):
        before = model("g (float[2,8] x) => (float[2,8] y) { s = Sigmoid (x)  y = Mul (x, s) }", opset, 10)
        after = lower(before, CATALOGUE.serving(Target(target)))[1].model
        ran = {op for op in ops(after) if not op.startswith("Swish_")}
        assert ran == ({"Swish"} if opset == 24 else {"Sigmoid", "Mul"})
        assert {op[:6] for op in ops(after) - ran} == written
    of_swish = model("g (float[2,8] x) => (float[2,8] y) { y = Swish (x) }", 25, 10)
    assert (compatibility(of_swish).runtime, compatibility(of_swish).reason) == (None, "Swish of opset 25")


def test_the_report_says_what_runs_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(MODELS / "bert.ts.onnx")
    told = onnxfuse.report(path, target="ort", runtime="onnxruntime==1.20")
    assert told.runtime == "1.20"
    assert told.runs is not None
    assert told.runs.onnxruntime == "1.20"
    assert not told.runs.functions
    assert main(["report", path]) == 0
    assert (
        "runs in onnxruntime 1.20 and later; older ones are not known; needs local functions" in capsys.readouterr().out
    )
    assert main(["optimize", path, "--target", "ort", "--dry-run", "--no-validate"]) == 0
    assert "  runs in onnxruntime 1.23 and later: opset 23\n" in capsys.readouterr().out


def test_what_is_written_runs_in_the_version_that_is_named_or_else_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    named = runtimes.known()[0]
    assert runtimes.proving(named) == named
    monkeypatch.setattr(runtimes.metadata, "version", lambda package: "1.23.2")
    assert str(runtimes.proving(None)) == "1.23"
    for unknown in ("1.2.0", "99.0.0"):
        monkeypatch.setattr(runtimes.metadata, "version", lambda package, unknown=unknown: unknown)
        assert runtimes.proving(None) == runtimes.known()[-1]
