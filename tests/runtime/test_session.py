"""onnxruntime runs kernels of ours inside its own session, and bodies where there is none."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.runtime import registration, session
from onnxfuse.runtime.installed import CPU, CUDA
from tests.bridge_models import ELEMENT_TYPES, Shift, body, model, one_node, shift, value
from tests.runtime.conftest import BACKEND

pytestmark = pytest.mark.usefixtures("kernel_of_shift")


def opened(source: onnx.ModelProto | str | Path, **options: Any) -> ort.InferenceSession:
    """A session on the CPU with kernels, quiet where an error is expected."""
    quiet = options.pop("sess_options", None) or ort.SessionOptions()
    quiet.log_severity_level = 4
    data = source.SerializeToString() if isinstance(source, onnx.ModelProto) else source
    return onnxfuse.InferenceSession(data, quiet, [CPU], emulate=True, **options)


def run(made: ort.InferenceSession, **feeds: np.ndarray) -> list[np.ndarray]:
    quiet = ort.RunOptions()
    quiet.log_severity_level = 4
    return list(made.run(None, feeds, quiet))


# ------------------------------------------------------------------------------------------------ what runs


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_a_kernel_runs_in_place_of_the_body(name: str) -> None:
    kind, dtype = ELEMENT_TYPES[name]
    made = opened(one_node(kind))
    for shape in [(2, 3), (4, 64), (0, 3), (2, 0), (1, 1)]:
        x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        raw = x.view(np.uint16) if name == "bfloat16" else x
        feed = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, kind)
        (y,) = made.run_with_ort_values(None, {"x": feed})
        assert y.shape() == [*shape]
        if x.size:
            assert y.data_type() == f"tensor({name if name != 'float32' else 'float'})"
            data = np.frombuffer(bytearray(y.tensor_size_in_bytes()), dtype)
            ctypes.memmove(data.ctypes.data, y.data_ptr(), data.nbytes)
            np.testing.assert_array_equal(data.reshape(shape), (x.astype(np.float32) + 100).astype(dtype))


def test_a_session_on_a_cpu_runs_bodies_unless_told_to_emulate() -> None:
    data, x = one_node().SerializeToString(), np.ones((2, 3), np.float32)
    options = ort.SessionOptions()
    assert onnxfuse.InferenceSession(data, options, [CPU]).run(None, {"x": x})[0][0, 0] == 1
    assert not onnxfuse.register(options, data, [CPU]).ops
    assert not registration.known(options)
    assert not Shift.pointers


@pytest.mark.parametrize("level", [0, 1, 2, 99])
def test_overloads_inner_graphs_and_functions_all_run_the_kernel(level: int) -> None:
    then = helper.make_graph([shift(["b"], ["t"], "3")], "then", [], [value("t")])
    other = helper.make_graph([shift(["b"], ["e"])], "else", [], [value("e")])
    steps = helper.make_graph(
        [shift(["s"], ["s2"], "2"), helper.make_node("Identity", ["go"], ["on"])],
        "steps",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("s")],
        [value("on", TensorProto.BOOL, []), value("s2")],
    )
    twice = helper.make_function("local", "Twice", ["X"], ["Y"], [shift(["X"], ["m"], "2"), shift(["m"], ["Y"])], [
        helper.make_opsetid("", 17), helper.make_opsetid("onnxfuse", 1)
    ])  # fmt: skip
    nodes = [
        shift(["x"], ["a"], "2"),
        shift(["a"], ["b"], "3"),
        helper.make_node("If", ["c"], ["d"], then_branch=then, else_branch=other),
        helper.make_node("Loop", ["n", "", "d"], ["f"], body=steps),
        helper.make_node("Twice", ["f"], ["y"], domain="local"),
    ]
    whole = model(
        nodes,
        [value("x"), value("c", TensorProto.BOOL, [])],
        [value("y")],
        [body(), body("2"), body("3"), twice],
        [numpy_helper.from_array(np.array(3), "n")],
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel(level)
    made = opened(whole, sess_options=options)
    for branch in (True, False):
        assert run(made, x=np.zeros((1, 2), np.float32), c=np.array(branch))[0].tolist() == [[800, 800]]


def test_external_data_and_the_file_stay_as_they_are(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.full(3, 5, np.float32), "w")
    whole = model([shift(["x", "w"], ["y"])], [value("x")], [value("y")], [body("", ["X", "bias"])], [weight])
    path = tmp_path / "m.onnx"
    onnx.save(whole, path, save_as_external_data=True, location="m.data", size_threshold=0)
    before = path.read_bytes()
    assert run(opened(path), x=np.ones((1, 3), np.float32))[0].tolist() == [[106] * 3]
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["m.data", "m.onnx"]


# ------------------------------------------------------------------------------------- what is registered


def test_cuda_is_served_where_a_session_really_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = one_node().SerializeToString()
    assert not onnxfuse.register(ort.SessionOptions(), data, [CUDA, CPU]).ops
    assert onnxfuse.register(ort.SessionOptions(), data, [CUDA, CPU], emulate=True).names == ["Shift"]
    assert onnxfuse.InferenceSession(data).get_providers() == [CPU]
    monkeypatch.setattr(session, "_cuda", lambda: BACKEND)
    for providers in ([CUDA, CPU], [(CUDA, {"device_id": "0"}), CPU]):
        assert onnxfuse.register(ort.SessionOptions(), data, providers).names == ["Shift"]


# ---------------------------------------------------------------------------------------- errors, lifetimes


def test_sessions_may_outlive_the_interpreter() -> None:
    code = """
import sys, numpy as np
from onnxfuse import kernels
from onnxfuse.runtime import session
from onnxfuse.runtime.custom_op import Backend
from tests.bridge_models import Shift, one_node
import onnxfuse
kernels.KERNELS["Shift"] = Shift
backend = Backend("CPUExecutionProvider", lambda stream: None)
session._emulated = lambda: backend
open = lambda: onnxfuse.InferenceSession(one_node().SerializeToString(), None, ["CPUExecutionProvider"], emulate=True)
class Cycle: pass
cycle = Cycle(); cycle.me = cycle; cycle.sessions = [open() for _ in range(3)]
sys.modules["kept"] = cycle
print(cycle.sessions[0].run(None, {"x": np.zeros((1, 1), np.float32)})[0])
"""
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "[[100.]]\n", "")
