"""Sessions of onnxruntime that print nothing: values of all element types, and errors of one line."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.runtime.quiet import Session, SessionError, first_line


def session(graph: str) -> Session:
    return Session(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}'), optimize=False)


def test_outputs_come_in_order_as_arrays() -> None:
    made = session("g (float[n] x) => (float[n] y, int64[1] s) { y = Neg (x)  s = Shape (x) }")
    y, s = made.run({"x": np.array([1, 2], np.float32)})
    assert made.outputs == ["y", "s"]
    assert (y.tolist(), s.tolist()) == ([-1, -2], [2])


def test_types_that_numpy_lacks_are_given_and_got() -> None:
    made = session("g (bfloat16[n] x) => (bfloat16[n] y, float[n] z) { y = Identity (x)  z = Cast <to = 1> (x) }")
    y, z = made.run({"x": np.array([1.5, -2], ml_dtypes.bfloat16)})
    assert y.dtype == ml_dtypes.bfloat16
    assert y.astype(float).tolist() == z.tolist() == [1.5, -2]


@pytest.mark.parametrize("text", ["float[n] x", "string[n] x"])
def test_what_is_to_be_timed_runs_whatever_its_types(text: str) -> None:
    made = session(f"g ({text}) => (y) {{ y = Identity (x) }}")
    value = np.array([1.0], np.float32) if text.startswith("float") else np.array(["a"], object)
    made.runner({"x": value})()


def test_what_does_not_load_or_run_says_so_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SessionError, match="Nonsense") as caught:
        session("g (float[n] x) => (y) { y = Nonsense (x) }")
    assert "\n" not in str(caught.value)
    with pytest.raises(SessionError) as caught:
        session("g (float[n] x, float[m] z) => (y) { y = Add (x, z) }").run({
            "x": np.ones(2, np.float32), "z": np.ones(3, np.float32)
        })  # fmt: skip
    assert "\n" not in str(caught.value)
    assert not str(caught.value).startswith("[ONNXRuntimeError]")
    assert capfd.readouterr().err == ""


def test_a_message_is_cut_to_its_first_line() -> None:
    assert first_line(RuntimeError("[ONNXRuntimeError] : 2 : INVALID: no\nmore")) == "INVALID: no"
    assert first_line(RuntimeError("")) == "RuntimeError"


def test_external_data_is_looked_for_in_the_folder_that_is_named(tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (y) <float[2] w = {1, 2}> { y = Add (x, w) }'
    )
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="w")
    bare = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    (y,) = Session(bare, tmp_path, optimize=False).run({"x": np.zeros(2, np.float32)})
    assert y.tolist() == [1, 2]
