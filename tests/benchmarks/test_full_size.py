"""Models of real size are measured without those that cannot be exported here, of which a line tells."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

from benchmarks import full_size
from benchmarks.full_size import exported, main, one_run, said_of_proof

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, which Linux has")

MODEL = """<ir_version: 9, opset_import: ["": 18]> g (float[n, 8] x) => (float[n, 8] y)
    <float root = {1.4142135}, float one = {1}, float half = {0.5}> {
    d = Div(x, root) e = Erf(d) p = Add(e, one) m = Mul(x, p) y = Mul(m, half) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "gelu.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def test_a_row_tells_of_the_proof(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--models", str(model), "--target", "ort"]) == 0
    head, _, row = capsys.readouterr().out.strip().splitlines()
    cells = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert cells["| model"] == "| gelu"
    assert cells["proof |"].startswith("largest error")
    assert float(cells["user"]) > 0


def test_one_run_is_of_a_model_that_runs(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 <= one_run(model) < 1
    broken = tmp_path / "broken.onnx"
    onnx.save(onnx.parser.parse_model(MODEL.replace("Erf", "own.Unheard")), broken)
    assert one_run(broken) == 0
    assert "broken.onnx does not run: " in capsys.readouterr().err


def test_what_is_missing_for_a_model_is_said_and_the_next_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        "if [ $4 = unet ]; then echo 'unet needs diffusers; install it with: pip install diffusers' >&2; exit 2; fi\n"
        'touch "$3/$4.onnx" "$3/$4.onnx.data"\n'
    )
    python.chmod(0o755)
    folder = tmp_path / "models"
    folder.mkdir()
    for path in exported(["unet", "swin_base"], folder, str(python), keep=False):
        assert path == folder / "swin_base.onnx"
        assert path.exists()
    assert list(folder.iterdir()) == []
    assert capsys.readouterr().err == (
        "unet is left out: unet needs diffusers; install it with: pip install diffusers\n"
    )


def test_what_ended_otherwise_is_told_by_its_last_line() -> None:
    assert said_of_proof("written\nError: no such op\n", 2) == "exit 2: Error: no such op"
    assert said_of_proof("  ✓ same numbers in onnxruntime: largest error 1e-7 in 2 runs\n", 0).startswith("largest")
    assert full_size.said_of_proof("", 1) == "exit 1: "
