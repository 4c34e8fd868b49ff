"""One run of a model: what it was fed and gave, and in one line why there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.errors import ModelError, UsageError
from onnxfuse.performance.execution import opened, run

HEAD = '<ir_version: 8, opset_import: ["" : 18]> g'


def saved(folder: Path, text: str) -> tuple[onnx.ModelProto, Path]:
    model, path = parser.parse_model(f"{HEAD} {text}"), folder / "m.onnx"
    onnx.save(model, path)
    return model, path


def test_a_run_has_what_was_fed_and_what_came_out_by_name(tmp_path: Path) -> None:
    model, path = saved(tmp_path, "(float[b, 4] x) => (float[b, 4] y, float[b, 4] z) { y = Neg (x) z = Abs (x) }")
    found = run(model, path, shapes={"x": [5, 4]}, seed=3)
    x = found.inputs["x"]
    assert x.shape == (5, 4)
    assert "b=5" in found.case
    assert found.outputs.keys() == {"y", "z"}
    np.testing.assert_array_equal(found.outputs["y"], -x)
    np.testing.assert_array_equal(found.outputs["z"], np.abs(x))
    np.testing.assert_array_equal(run(model, path, shapes={"x": [5, 4]}, seed=3).inputs["x"], x)
    assert (run(model, path, shapes={"x": [5, 4]}, seed=4).inputs["x"] != x).any()
    assert (found.kernels, found.bodies) == ((), {})


def test_what_is_given_is_fed(tmp_path: Path) -> None:
    model, path = saved(tmp_path, "(float[b, 4] x) => (float[b, 4] y) { y = Neg (x) }")
    given = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(run(model, path, given={"x": given}).outputs["y"], -given)
    with pytest.raises(UsageError, match="x"):
        run(model, path, given={"x": given[:, :3]})


def test_what_does_not_load_or_run_is_said_with_its_name(tmp_path: Path) -> None:
    model, path = saved(tmp_path, "(float[b, 4] x) => (float[b, 4] y) { y = com.nobody.Op (x) }")
    with pytest.raises(ModelError, match=r"model\.onnx: onnxruntime does not load it: "):
        opened(model, "model.onnx")
    model, path = saved(
        tmp_path,
        """(float[2, 4] x) => (float[?, ?] y) <int64[2] two = {3, 5}> {
            s = Shape (x) t = Add (s, two) y = Reshape (x, t) }""",
    )
    with pytest.raises(ModelError, match=r"m\.onnx: onnxruntime does not run it: "):
        run(model, path)
