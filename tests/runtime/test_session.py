"""onnxruntime runs kernels of ours inside its own session, and bodies where there is none."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse import kernels
from onnxfuse.errors import UsageError
from onnxfuse.runtime import custom_op, registration, session
from onnxfuse.runtime.custom_op import Backend
from onnxfuse.runtime.installed import CPU, CUDA
from onnxfuse.runtime.served import examine
from tests.bridge_models import ELEMENT_TYPES, Shift, body, model, no_kernel, one_node, shift, value

OUTPUTS = ["Y", "mean", "twice"]
STREAMS: deque[int] = deque(maxlen=8)
BACKEND = Backend(CPU, lambda stream: STREAMS.append(stream))  # type: ignore[arg-type, func-returns-value]


@pytest.fixture(autouse=True)
def kernel_of_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernels.KERNELS, "Shift", Shift)
    monkeypatch.setattr(session, "_emulated", lambda: BACKEND)
    Shift.seen.clear()
    Shift.pointers.clear()


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


def test_inputs_and_outputs_may_be_left_out() -> None:
    x, bias, mask = np.ones((2, 3), np.float32), np.full(3, 5, np.float32), np.array([True, False, True])
    inputs, names = (
        [value("x"), value("bias", dims=["b"]), value("mask", TensorProto.BOOL, ["b"])],
        ["X", "bias", "mask"],
    )
    whole = model([shift(["x", "bias", "mask"], ["y"])], inputs, [value("y")], [body("", names)])
    assert run(opened(whole), x=x, bias=bias, mask=mask)[0].tolist() == [[106, 6, 106]] * 2
    whole = model([shift(["x", "", "mask"], ["y"])], [inputs[0], inputs[2]], [value("y")], [body("", names)])
    assert run(opened(whole), x=x, mask=mask)[0].tolist() == [[101, 1, 101]] * 2
    outputs = [value("y"), value("m", dims=["a"])]
    whole = model([shift(["x"], ["y", "m"])], inputs[:1], outputs, [body("", names[:1], ["Y", "mean"])])
    y, mean = run(opened(whole), x=x)
    assert (y.tolist(), mean.tolist()) == ([[101] * 3] * 2, [1, 1])
    outputs.append(value("t"))
    whole = model([shift(["x"], ["y", "", "t"])], inputs[:1], [outputs[0], outputs[2]], [body("", ["X"], OUTPUTS)])
    assert [each.tolist() for each in run(opened(whole), x=x)] == [[[101] * 3] * 2, [[2] * 3] * 2]
    whole = model([shift(["x"], ["", "m"])], inputs[:1], outputs[1:2], [body("", names[:1], ["Y", "mean"])])
    assert examine(whole).reasons == {"Shift": "Shift has no Y at , which its kernel wants"}


def test_a_kernel_gets_attributes_of_all_kinds() -> None:
    table = np.arange(6, dtype=np.int32).reshape(2, 3)
    given = {
        "alpha": 0.5,
        "axis": -1,
        "mode": "größer",
        "axes": [1, 2, 3],
        "scales": [0.5, 2.0],
        "table": numpy_helper.from_array(table),
        "scalar": numpy_helper.from_array(np.float16(3)),
    }
    opened(one_node(**given))
    for seen in Shift.seen[-2:]:  # as the model is looked at, and as onnxruntime tells it
        np.testing.assert_array_equal(seen.pop("table"), table)
        assert seen.pop("scalar") == np.float16(3)
        assert seen == {"alpha": 0.5, "axis": -1, "mode": "größer", "axes": (1, 2, 3), "scales": (0.5, 2.0)}
    opened(one_node())
    assert Shift.seen[-1] == {}


def test_an_attribute_of_a_function_reaches_the_kernel() -> None:
    inner = shift(["X"], ["Y"])
    inner.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="beta")
    local = helper.make_function("local", "F", ["X"], ["Y"], [inner], [
        helper.make_opsetid("", 17), helper.make_opsetid("onnxfuse", 1)
    ], ["beta"])  # fmt: skip
    call = helper.make_node("F", ["x"], ["y"], domain="local", beta=0.25)
    made = opened(model([call], [value("x")], [value("y")], [body(), local]))
    assert run(made, x=np.zeros((1, 1), np.float32))[0].tolist() == [[100]]
    assert Shift.seen == [{"alpha": 0.25}]


def test_nothing_is_copied_and_constants_are_asked_for_once() -> None:
    weight = numpy_helper.from_array(np.full(3, 5, np.float32), "w")
    whole = model([shift(["x", "w"], ["y"])], [value("x")], [value("y")], [body("", ["X", "bias"])], [weight])
    made = opened(whole)
    x, y = np.ones((2, 3), np.float32), np.empty((2, 3), np.float32)
    binding = made.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    for _ in range(2):
        made.run_with_iobinding(binding)
    assert y.tolist() == [[106] * 3] * 2
    assert [pointers[0] for pointers in Shift.pointers] == [x.ctypes.data] * 2
    assert Shift.pointers[0][1] == Shift.pointers[1][1] is not None
    assert Shift.pointers[0][2] is None


def test_kernels_run_on_the_stream_of_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    made = opened(one_node())
    STREAMS.clear()
    run(made, x=np.ones((1, 1), np.float32))
    (node,) = list(custom_op._nodes.values())[-1:]

    def stream(context: object, place: Any) -> None:
        place._obj.value = 0x5EED

    monkeypatch.setattr(node._api, "KernelContext_GetGPUComputeStream", stream)
    run(made, x=np.ones((1, 1), np.float32))
    run(made, x=np.ones((0, 1), np.float32))  # nothing to compute, nothing to launch
    assert [*STREAMS] == [0, 0x5EED]


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


@pytest.mark.parametrize(
    ("whole", "reason"),
    [
        (one_node(TensorProto.DOUBLE), "the kernel of Shift has no float64: it has float32, float16, bfloat16"),
        (one_node(mode="refused"), "Shift has no mode refused"),
        (one_node(names=["a", "b"]), "onnxruntime tells no kernel an attribute of type STRINGS, as names is"),
        (
            model([shift(["x", "x", "x"], ["y"])], [value("x")], [value("y")], [body("", ["X", "bias", "mask"])]),
            "mask of Shift is float32 at , its kernel wants bool",
        ),
        (
            model([shift(["x"] * 4, ["y"])], [value("x")], [value("y")], [body("", ["X", "bias", "mask", "n"])]),
            "the kernel of Shift knows no n",
        ),
        (
            model(
                [helper.make_node("Mystery", ["x"], ["h"], domain="far"), shift(["h"], ["y"])],
                [value("x")],
                [helper.make_value_info("y", onnx.TypeProto())],
                [body()],
            ),
            "the element type of h is unknown before the model runs",
        ),
    ],
)
def test_an_op_with_a_node_that_its_kernel_does_not_take_runs_its_body(whole: onnx.ModelProto, reason: str) -> None:
    found = examine(whole)
    assert (found.ops, found.reasons) == ([], {"Shift": reason})
    if "Mystery" not in str(whole):
        assert not registration.known(options := ort.SessionOptions())
        assert onnxfuse.register(options, whole, [CPU], emulate=True).names == []
        opened(whole)


def test_each_element_type_of_an_op_is_registered() -> None:
    half = helper.make_node("Cast", ["a"], ["h"], to=TensorProto.FLOAT16)
    nodes = [shift(["x"], ["a"]), half, shift(["h"], ["y"])]
    whole = model(nodes, [value("x")], [value("y", TensorProto.FLOAT16)], [body()])
    assert [op.type for op in examine(whole).ops] == ["float32", "float16"]
    assert run(opened(whole), x=np.zeros((1, 1), np.float32))[0].tolist() == [[200]]


def test_an_op_without_a_kernel_runs_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find", no_kernel)
    assert examine(one_node()).reasons == {"Shift": "Shift has no kernel"}
    assert run(opened(one_node()), x=np.ones((1, 1), np.float32))[0].tolist() == [[1]]


def test_options_serve_several_sessions_and_models() -> None:
    options = ort.SessionOptions()
    x = np.zeros((1, 1), np.float32)
    for whole in (one_node(), one_node(), one_node(alpha=0.5)):
        assert run(opened(whole, sess_options=options), x=x)[0].tolist() == [[100]]
    assert Shift.seen[-1] == {"alpha": 0.5}
    half = opened(one_node(TensorProto.FLOAT16), sess_options=options)
    assert run(half, x=x.astype(np.float16))[0].tolist() == [[100]]
    with pytest.raises(UsageError, match="know Shift from another model; make new ones: the kernel of Shift has no fl"):
        opened(one_node(TensorProto.DOUBLE), sess_options=options)


def test_kernels_are_registered_once_however_many_sessions_use_them() -> None:
    opened(one_node())
    before = custom_op.define.cache_info().currsize
    for _ in range(5):
        opened(one_node())
    assert custom_op.define.cache_info().currsize == before


def test_cuda_is_served_where_a_session_really_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = one_node().SerializeToString()
    assert not onnxfuse.register(ort.SessionOptions(), data, [CUDA, CPU]).ops
    assert onnxfuse.register(ort.SessionOptions(), data, [CUDA, CPU], emulate=True).names == ["Shift"]
    assert onnxfuse.InferenceSession(data).get_providers() == [CPU]
    monkeypatch.setattr(session, "_cuda", lambda: BACKEND)
    for providers in ([CUDA, CPU], [(CUDA, {"device_id": "0"}), CPU]):
        assert onnxfuse.register(ort.SessionOptions(), data, providers).names == ["Shift"]


# ---------------------------------------------------------------------------------------- errors, lifetimes


def test_an_error_in_a_kernel_is_an_error_of_onnxruntime_in_one_line() -> None:
    made = opened(one_node())
    with pytest.raises(Exception, match=r"running Shift node.*Shift takes no row of 13:$"):
        run(made, x=np.zeros((1, 13), np.float32))
    with pytest.raises(Exception, match=r"running Shift node.*ZeroDivisionError: the kernel divides by zero$"):
        run(made, x=np.full((1, 1), 666, np.float32))
    assert run(made, x=np.zeros((1, 1), np.float32))[0].tolist() == [[100]]


def test_a_kernel_that_refuses_only_at_creation_is_an_error_of_onnxruntime() -> None:
    inner = shift(["X"], ["Y"])
    inner.attribute.add(name="mode", type=onnx.AttributeProto.STRING, ref_attr_name="how")
    local = helper.make_function("local", "F", ["X"], ["Y"], [inner], [
        helper.make_opsetid("", 17), helper.make_opsetid("onnxfuse", 1)
    ], ["how"])  # fmt: skip
    call = helper.make_node("F", ["x"], ["y"], domain="local", how="refused")
    with pytest.raises(Exception, match="Shift has no mode refused"):
        opened(model([call], [value("x")], [value("y")], [body(), local]))


def test_several_threads_run_one_session_at_different_shapes() -> None:
    made = opened(one_node())
    wrong: list[str] = []

    def work(number: int) -> None:
        for step in range(200):
            x = np.full((number + 1, step % 5 + 1), number, np.float32)
            (y,) = made.run(None, {"x": x})
            if y.shape != x.shape or not (y == number + 100).all():
                wrong.append(f"{number} {step}: {y}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_session_takes_its_nodes_along() -> None:
    gc.collect()
    before = len(custom_op._nodes)
    sessions = [opened(one_node()) for _ in range(3)]
    assert len(custom_op._nodes) == before + 3
    sessions.clear()
    gc.collect()
    assert len(custom_op._nodes) == before


def test_ten_thousand_runs_leave_nothing_behind() -> None:
    made, x = opened(one_node()), np.ones((16, 64), np.float32)

    def growth(runs: int) -> int:
        before = pages()
        for _ in range(runs):
            made.run(None, {"x": x})
        return pages() - before

    growth(1000)
    # Allocators grow by leaps.  A leak grows all the time: 16 bytes a run would be 10 pages in each of the four.
    assert min(growth(2500) for _ in range(4)) < 5


def pages() -> int:
    """Pages of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1])


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
