"""`--validate kernels`: the proof runs the CUDA source of kernels, inside onnxruntime, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import onnxfuse
from onnxfuse import kernels
from onnxfuse.cli.main import main
from onnxfuse.errors import KernelError, NumericsError
from onnxfuse.kernels.device.device import Device, Launch, Source, TensorType
from onnxfuse.kernels.device.kernel import Parameter, Signature
from onnxfuse.kernels.emulator import build
from onnxfuse.kernels.pointwise import pointwise
from onnxfuse.language.catalogue import load
from tests.bridge_models import no_kernel

TEXT = """<ir_version: 9, opset_import: ["": 17]>
g (float[n, 33] x) => (float[n, 33] y) <float alpha = {1.702}> {
    a = Mul(x, alpha)
    s = Sigmoid(a)
    y = Mul(x, s)
}"""
SOURCE = Source(
    "quick_gelu.cu",
    """
extern "C" __global__ void quick_gelu(const float* x, float* y, float alpha, long long count) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count) y[i] = x[i] / (1.0f + expf(-alpha * x[i]));
}
""",
)


class QuickGelu:
    """x · sigmoid(alpha · x), in float32 only.  `factor` is what a mistaken kernel multiplies alpha by."""

    name: ClassVar[str] = "quick_gelu"
    signature: ClassVar[Signature] = Signature("QuickGelu", (Parameter("X"),), (Parameter("Y"),), ("float32",))
    factor: ClassVar[float] = 1.0

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self.alpha = attributes.get("alpha", 1.702)

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        assert inputs[0] is not None
        return (inputs[0],)

    def launch(self, device: Device, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        count = int(np.prod(inputs[0].shape))
        arguments = [inputs[0], outputs[0], np.float32(self.alpha * self.factor), np.int64(count)]
        device.launch(Launch(SOURCE, "quick_gelu", (-(-count // 128),), (128,)), arguments)

    def work(self, inputs: Sequence[TensorType | None]) -> Any:
        raise NotImplementedError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "quick_gelu.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    return path


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> type[QuickGelu]:
    monkeypatch.setitem(kernels.KERNELS, "QuickGelu", QuickGelu)
    return QuickGelu


def test_the_source_of_a_kernel_runs_in_a_session(model: Path, kernel: type[QuickGelu], tmp_path: Path) -> None:
    path = tmp_path / "fused.onnx"
    fused = onnxfuse.optimize(model, path)
    assert fused.report.kernels == {"QuickGelu": kernel.name}
    assert fused.report.validation.kernels == ()
    plain = onnxfuse.InferenceSession(path, providers=["CPUExecutionProvider"])
    emulated = onnxfuse.InferenceSession(path, providers=["CPUExecutionProvider"], emulate=True)
    feeds = {"x": np.random.default_rng(0).standard_normal((7, 33)).astype(np.float32)}
    wanted, got = plain.run(None, feeds)[0], emulated.run(None, feeds)[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(got, np.zeros_like(got))


def test_the_proof_runs_kernels_and_says_which(
    model: Path, kernel: type[QuickGelu], tmp_path: Path, capsys: Any
) -> None:
    target = str(tmp_path / "fused.onnx")
    assert main(["optimize", str(model), "-o", target, "--validate", "kernels"]) == 0
    said = capsys.readouterr().out
    assert "✓ same numbers in onnxruntime" in said
    assert ", with the kernels of QuickGelu run on the CPU\n" in said
    assert Path(target).exists()


def test_a_fusion_whose_kernel_computes_something_else_is_left_out(
    model: Path, kernel: type[QuickGelu], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "factor", 1.01)
    report = onnxfuse.optimize(model, validate="kernels", ignore=["GLU"]).report
    assert {left.fusion.rule for left in report.left_out} == {"QuickGelu"}
    assert report.validation.verdict == "equal"
    assert "QuickGelu" not in report.validation.kernels
    with pytest.raises(NumericsError, match=r"QuickGelu at .*differs by"):
        onnxfuse.optimize(model, validate="kernels", on_mismatch="fail", ignore=["GLU"])
    assert onnxfuse.optimize(model).report.left_out == []


def test_a_kernel_that_reads_out_of_bounds_is_caught(
    model: Path, kernel: type[QuickGelu], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Source(SOURCE.name, SOURCE.text.replace("i < count", "i <= count"))
    monkeypatch.setattr("tests.proof.test_oracle_kernels.SOURCE", wrong)
    report = onnxfuse.optimize(model, validate="kernels").report
    assert {left.fusion.rule for left in report.left_out} == {"QuickGelu"}


def test_an_op_without_a_kernel_runs_its_body(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find", no_kernel)
    report = onnxfuse.optimize(model, validate="kernels").report
    assert report.validation.verdict == "equal"
    assert report.validation.kernels == ()
    assert report.bodies == {"QuickGelu": "QuickGelu has no kernel"}


def test_a_report_says_what_the_fused_ops_run_from(
    model: Path, kernel: type[QuickGelu], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert main(["report", str(model)]) == 0
    assert f"  kernels for QuickGelu ({kernel.name})\n" in capsys.readouterr().out
    monkeypatch.setattr(kernels, "find", no_kernel)
    assert main(["report", str(model)]) == 0
    assert "  from function bodies: QuickGelu\n" in capsys.readouterr().out
    assert main(["report", str(model), "-v"]) == 0
    assert "  QuickGelu runs from its function body: QuickGelu has no kernel\n" in capsys.readouterr().out


def test_without_a_compiler_it_says_so_in_one_line(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    target = tmp_path / "fused.onnx"
    assert main(["optimize", str(model), "-o", str(target), "--validate", "kernels"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "kernels run on a CPU by way of g++, which is not installed: install it" in error
    assert not target.exists()


def test_the_file_is_the_same_with_and_without_kernels(model: Path, kernel: type[QuickGelu]) -> None:
    plain, proved = onnxfuse.optimize(model), onnxfuse.optimize(model, validate="kernels")
    assert isinstance(plain.model, onnx.ModelProto)
    assert plain.model.SerializeToString(deterministic=True) == proved.model.SerializeToString(deterministic=True)


# -------------------------------------------------------------------------------------- which kernel an op has


@pytest.mark.parametrize("op", kernels.KERNELS)
def test_every_op_of_the_table_has_a_kernel_of_its_name(op: str) -> None:
    assert kernels.find(op).signature.op == op


def test_an_op_of_a_rule_has_a_generated_kernel_the_same_each_time() -> None:
    assert kernels.find("Mish") is kernels.find("Mish")
    assert kernels.find("Mish").signature.op == "Mish"
    with pytest.raises(KernelError, match="FusedMatMul has no generated kernel: MatMul is neither"):
        pointwise.kernel("FusedMatMul", load())
    with pytest.raises(KernelError, match="the convolution is left to onnxruntime"):
        kernels.find("FusedConv")
    with pytest.raises(KernelError, match="no rule defines Unheard"):
        kernels.find("Unheard")


RULE = """# A wave that grows.
Swell(X)

match:  Y = Sin(X) * X
emit:   Y = Swell(X)
cost:   pointwise
test:   X=[2,7,64]
"""
WAVE = """<ir_version: 9, opset_import: ["": 17]>
g (float[n, 33] x) => (float[n, 33] y) { s = Sin(x)  y = Mul(s, x) }"""


def test_the_op_of_a_users_rule_has_a_kernel_without_more(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "swell.rule").write_text(RULE)
    rules, path = [tmp_path], tmp_path / "wave.onnx"
    report = onnxfuse.optimize(parser.parse_model(WAVE), path, rules=rules, validate="kernels").report
    assert report.validation.kernels == ("Swell",)
    assert report.kernels == {"Swell": "pointwise"}
    feeds = {"x": np.linspace(-9, 9, 66, dtype=np.float32).reshape(2, 33)}
    opened = onnxfuse.InferenceSession(path, providers=["CPUExecutionProvider"], emulate=True, rules=rules)
    np.testing.assert_allclose(opened.run(None, feeds)[0], np.sin(feeds["x"]) * feeds["x"], rtol=1e-5, atol=1e-6)
    options = ["--emulate", "--rules", str(tmp_path), "--shape", "x:2,33"]
    assert main(["run", str(path), *options]) == 0
    assert "  kernels: Swell\n" in capsys.readouterr().out
    found = onnxfuse.register(onnxruntime.SessionOptions(), path, ["CPUExecutionProvider"], emulate=True)
    assert (found.names, found.bodies) == ([], {"Swell": "no rule defines Swell"})
