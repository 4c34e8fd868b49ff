"""`onnxfuse run`: what goes in, what comes out, and what is said of both."""

from __future__ import annotations

import io
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from onnxfuse import kernels
from onnxfuse.cli.main import main
from onnxfuse.errors import ModelError, OutputError
from onnxfuse.model import files
from onnxfuse.performance import execution
from onnxfuse.runtime import installed, session
from onnxfuse.runtime.custom_op import Backend
from tests.bridge_models import Shift, no_kernel, one_node

Capture = pytest.CaptureFixture[str]

SCALE = """<ir_version: 9, opset_import: ["": 17]>
g (float[batch, 4] x, int64[batch] n) => (float[batch, 4] y, int64[batch] m, float[0] none) {
    y = Mul(x, x)
    one = Constant <value_int = 1> ()
    m = Add(n, one)
    none = Constant <value = float[0] {}> ()
}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "scale.onnx"
    onnx.save(parser.parse_model(SCALE), path)
    return path


def test_generated_inputs_and_what_comes_out(model: Path, capsys: Capture) -> None:
    assert main(["run", str(model)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{model}: batch=3"
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["output", "type", "shape"],
        ["y", "float32", "[3,"],
        ["m", "int64", "[3]"],
    ]
    y = [float(number) for number in lines[2].split()[-3:]]
    assert 0 <= y[0] <= y[1] <= y[2]
    assert lines[4].split() == ["none", "float32", "[0]"]


def test_given_inputs_and_written_outputs(model: Path, tmp_path: Path, capsys: Capture) -> None:
    x, n = np.arange(8, dtype=np.float32).reshape(2, 4), np.array([5, 7])
    np.savez(tmp_path / "x.npz", x=x, n=n)
    target = tmp_path / "y.npz"
    assert main(["run", str(model), "--inputs", str(tmp_path / "x.npz"), "--outputs", str(target)]) == 0
    assert f"written to {target}" in capsys.readouterr().out
    with np.load(target, allow_pickle=False) as written:
        assert sorted(written) == ["m", "none", "y"]
        np.testing.assert_array_equal(written["y"], x * x)
        np.testing.assert_array_equal(written["m"], [6, 8])


def test_the_seed_and_the_shapes_say_what_is_generated(model: Path) -> None:
    proto = files.read(model)
    first, same, other = (execution.run(proto, model, seed=seed, shapes={"n": (6,)}) for seed in (0, 0, 1))
    assert first.outputs["y"].shape == (6, 4)
    np.testing.assert_array_equal(first.outputs["y"], same.outputs["y"])
    assert not np.array_equal(first.outputs["y"], other.outputs["y"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "x:2,5"], "--shape x:2,5 does not fit the declared [batch,4]"),
        (["--inputs", "none.npz"], "--inputs none.npz: no such file: check the name"),
        (["--outputs", "nowhere/y.npz"], "nowhere/y.npz: there is no folder nowhere: make it first, or choose another"),
        (["--provider", "cuda"], "--provider cuda: no GPU"),
    ],
)
def test_a_mistake_is_one_line(
    model: Path, options: list[str], message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "why_not_cuda", lambda: "no GPU")
    assert main(["run", str(model), *options]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"onnxfuse: error: {message}\n")


def test_a_model_that_does_not_load_or_run_is_named(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "odd.onnx"
    unknown = helper.make_node("Odd", ["x"], ["y"], domain="far")
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("far", 1)]
    graph = helper.make_graph([unknown], "g", value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
    assert main(["run", str(path)]) == 2
    assert f"error: {path}: onnxruntime does not load it: " in capsys.readouterr().err
    wrong = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[n] x) => (float[m] y) { y = Gather(x, i) }'.replace(
            "{ y", "{ i = Constant <value = int64[1] {99999999}> () y"
        )
    )
    onnx.save(wrong, path)
    with pytest.raises(ModelError, match="onnxruntime does not run it: "):
        execution.run(wrong, path)


def test_kernels_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    backend = Backend("CPUExecutionProvider", lambda stream: None)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(session, "_emulated", lambda: backend)
    path = tmp_path / "shift.onnx"
    onnx.save(one_node(), path)
    with monkeypatch.context() as patched:
        patched.setattr(kernels, "find", no_kernel)
        assert main(["run", str(path), "--emulate"]) == 0
        assert "  Shift runs from its function body: Shift has no kernel\n" in capsys.readouterr().out
    monkeypatch.setitem(kernels.KERNELS, "Shift", Shift)
    assert main(["run", str(path), "--emulate"]) == 0
    assert "  kernels: Shift\n" in capsys.readouterr().out
    assert main(["run", str(path)]) == 0
    assert "kernels:" not in capsys.readouterr().out


def test_arrays_that_every_numpy_reads(tmp_path: Path) -> None:
    values = {
        "a": np.array([1.5, 2], ml_dtypes.bfloat16),
        "b": [np.ones(2), np.zeros((0, 1), np.int8)],
        "c": np.array(["x", "longer"], dtype=object),
        "d": None,
        "e": np.array(True),
    }
    files.write_arrays(tmp_path / "all.npz", values)
    with np.load(tmp_path / "all.npz", allow_pickle=False) as written:
        found = {name: (array.dtype.str, array.tolist()) for name, array in written.items()}
    assert found == {
        "a": ("<f4", [1.5, 2]),
        "b.0": ("<f8", [1, 1]),
        "b.1": ("|i1", []),
        "c": ("<U6", ["x", "longer"]),
        "e": ("|b1", True),
    }
    with pytest.raises(OutputError):
        files.write_arrays(tmp_path, values)


@pytest.mark.parametrize("arguments", [["run", "-", "--shape", "x:2,4"], ["bench", "-", "--rounds", "1"]])
def test_a_model_from_stdin(
    arguments: list[str], model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(model.read_bytes())))
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("-: batch=2" if arguments[0] == "run" else "- against ")


def test_what_kernels_cost_is_told(tmp_path: Path, capsys: Capture) -> None:
    path, plain = tmp_path / "softmax.onnx", tmp_path / "plain.onnx"
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18, "onnxfuse": 1]> g (float[4, 9, 33] x) => (float[4, 9, 33] y)
        { y = onnxfuse.Softmax <axis = 1> (x) }"""
    )
    body = """<opset_import: ["": 18], domain: "onnxfuse">
        Softmax <axis: int = -1> (input) => (output) { output = Softmax <axis: int = @axis> (input) }"""
    model.functions.append(parser.parse_function(body))
    onnx.save(model, path)
    assert main(["run", str(path), "--emulate", "--count"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "kernels: Softmax" in said
    assert "softmax_columns.cu softmax_columns 1 " in said
    assert main(["run", str(path), "--count"]) == 2
    assert capsys.readouterr().err.endswith("give --emulate, too\n")
    text = '<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
    onnx.save(parser.parse_model(text), plain)
    assert main(["run", str(plain), "--emulate", "--count"]) == 0
    assert "no kernel was launched" in capsys.readouterr().out
