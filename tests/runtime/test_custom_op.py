"""Custom ops of onnxruntime: inputs and outputs, memory, streams, threads, errors and lifetimes."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.runtime import custom_op
from onnxfuse.runtime.served import examine
from tests.bridge_models import Shift, body, model, one_node, shift, value
from tests.runtime.conftest import STREAMS
from tests.runtime.test_session import opened, run

pytestmark = pytest.mark.usefixtures("kernel_of_shift")


OUTPUTS = ["Y", "mean", "twice"]


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
