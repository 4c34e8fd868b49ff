"""Launches and bytes are counted as a report counts them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

import onnxfuse
from benchmarks import launches
from onnxfuse.fusing.build import LEVEL
from tests.exports import MODELS


def test_they_are_those_of_a_report() -> None:
    path = MODELS / "bert.ts.onnx"
    told, found = onnxfuse.report(path), launches.row(path, LEVEL)
    assert (found.before.launches, found.after.launches) == (told.before.launches, told.after.launches)
    assert found.before.bytes == told.before.bytes
    assert 0 < found.after.activations < found.after.bytes


def test_weights_are_no_activations(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}> { y = MatMul(x, w) }"""
    model = onnx.parser.parse_model(text)
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "m.npz", **{"in:x": np.zeros((7, 4), np.float32), "out:y": np.zeros((7, 4), np.float32)})
    assert launches.sizes(tmp_path / "m.onnx") == {"x": (7, 4)}
    wanted = launches.Count(1, 2 * 7 * 4 * 4, 2 * 7 * 4 * 4 + 64, 0)
    assert launches.row(tmp_path / "m.onnx", 2) == launches.Row("m", wanted, wanted)


def test_the_table_has_a_sum_beside_torch_compile() -> None:
    one, other = launches.Count(10, 1000, 2000, 0), launches.Count(4, 500, 900, 0)
    rows = [launches.Row("bert.ts", one, other), launches.Row("unheard_of.ts", one, other)]
    bert = launches.COMPILED["bert"]
    lines = launches.table(rows)
    assert lines[2] == f"| bert.ts | 10 | 4 | {bert.launches} | 1 | 0 | 1 | {bert.bytes / 1000:,.0f} |"
    assert lines[3] == "| unheard_of.ts | 10 | 4 |  | 1 | 0 | 1 |  |"
    assert lines[4].startswith("| all 2 | 20 | 8 |  |")
    assert lines[5].startswith(f"| the 1 beside torch.compile | 10 | 4 | {bert.launches} |")
