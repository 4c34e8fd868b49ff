"""Which ops of a model kernels serve, and why not the others."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import onnxfuse
from onnxfuse import kernels
from onnxfuse.runtime import registration
from onnxfuse.runtime.installed import CPU
from onnxfuse.runtime.served import examine
from tests.bridge_models import body, model, no_kernel, one_node, shift, value
from tests.runtime.test_session import opened, run

pytestmark = pytest.mark.usefixtures("kernel_of_shift")


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


def test_an_op_without_a_kernel_runs_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find", no_kernel)
    assert examine(one_node()).reasons == {"Shift": "Shift has no kernel"}
    assert run(opened(one_node()), x=np.ones((1, 1), np.float32))[0].tolist() == [[1]]
