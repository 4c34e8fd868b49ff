"""What quantizers make of files: their products are counted, and a fused file is compared with its original."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from benchmarks import quantization
from benchmarks.quantization import ORIGINAL, Row
from tests.matching.test_kept_products import MODELS

QUANTIZERS = ["dynamic", "static", *(["nbits"] if find_spec("onnx_ir") else [])]


@pytest.mark.parametrize("name", ["block", "convolutions"])
def test_a_file_with_its_products_kept_is_quantized_like_the_original(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization, "DRAWS", 2)
    path = tmp_path / f"{name}.onnx"
    onnx.save(MODELS[name], path)
    rows = list(quantization.measured(path, ["none", "all"], ["onnxfuse", "ort"], QUANTIZERS))
    assert not [row for row in rows if row.refused and row.keep != "none"]
    for quantizer in QUANTIZERS:
        of = {(row.keep, row.column): row for row in rows if row.quantizer == quantizer}
        original = of["", ORIGINAL]
        for target in ("onnxfuse", "ort"):
            row = of["all", target]
            assert (row.products, row.kernels, row.weighted) == (
                original.products,
                original.kernels,
                original.weighted,
            )
            assert row.error is not None
            assert row.error < 0.2
    plain = {row.quantizer: row for row in rows if (row.keep, row.column) == ("none", "onnxfuse")}
    assert plain["dynamic"].wrong == plain["static"].wrong == "fewer products"


def test_without_a_package_its_quantizer_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("onnxruntime.quantization.matmul_nbits")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    path = tmp_path / "m.onnx"
    onnx.save(MODELS["block"], path)
    row = quantization.examined(Row("m", "nbits", "", ORIGINAL), path, [], [], tmp_path)
    assert row.refused.startswith("ModuleNotFoundError")


def test_products_are_counted() -> None:
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (float[2, 2] x, uint8[2, 2] q) => (float[2, 2] y)
            <uint8[2, 2] w = {1, 2, 3, 4}, float s = {0.5}, uint8 z = {0}> {
            a = QuantizeLinear (x, s, z) d = DequantizeLinear (a, s, z) e = DequantizeLinear (w, s, z)
            both = MatMul (d, e) neither = MatMul (x, x) activations = MatMul (d, d)
            stored = MatMulInteger (q, w) fed = MatMulInteger (q, q)
            y = Add (both, neither) }""")
    assert quantization.quantized(model) == 4
    assert quantization.quantized(model, weighted=True) == 2


def test_what_is_worse_is_said() -> None:
    original = Row("m", "static", "", ORIGINAL, products=4, kernels=4, weighted=3, error=0.1)

    def judged(keep: str = "all", **values: object) -> str:
        row = Row("m", "static", keep, "onnx", **({"products": 4, "kernels": 4, "weighted": 3, "error": 0.1} | values))  # type: ignore[arg-type]
        return quantization._judge(row, original).wrong

    assert judged() == ""
    assert judged(refused="no") == "refused"
    assert judged(products=3) == "fewer products"
    assert judged(kernels=3) == "fewer kernels"
    assert judged(weighted=2) == "fewer products"
    assert judged("weighted", products=3, kernels=3) == "", "attention has no weights"
    assert judged(error=0.16) == "farther off"


def test_an_error_is_that_of_the_worst_output() -> None:
    want = [[np.array([3.0, 4.0]), np.array([1, 2]), np.array([1.0, np.inf])]]
    found = [[np.array([3.0, 4.5]), np.array([1, 9]), np.array([1.0, 7.0])]]
    assert quantization.error_of(found, want) == pytest.approx(0.1)


def test_a_record_has_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, record = tmp_path / "m.onnx", tmp_path / "r.json"
    onnx.save(MODELS["adapted"], path)
    monkeypatch.setattr(quantization, "DRAWS", 1)
    arguments = [str(path), "--targets", "onnx", "--quantizers", "dynamic", "--keep", "none", "all"]
    assert quantization.main([*arguments, "--record", str(record)]) == 0
    rows = json.loads(record.read_text())["rows"]
    assert [(row["keep"], row["column"]) for row in rows] == [("", ORIGINAL), ("none", "onnx"), ("all", "onnx")]
    assert "dynamic   all      onnx         1 of 1" in capsys.readouterr().out
