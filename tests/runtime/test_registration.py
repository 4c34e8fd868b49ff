"""Kernels are registered with the options of a session, once each."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxfuse.errors import UsageError
from onnxfuse.runtime import custom_op
from onnxfuse.runtime.served import examine
from tests.bridge_models import Shift, body, model, one_node, shift, value
from tests.runtime.test_session import opened, run

pytestmark = pytest.mark.usefixtures("kernel_of_shift")


def test_each_element_type_of_an_op_is_registered() -> None:
    half = helper.make_node("Cast", ["a"], ["h"], to=TensorProto.FLOAT16)
    nodes = [shift(["x"], ["a"]), half, shift(["h"], ["y"])]
    whole = model(nodes, [value("x")], [value("y", TensorProto.FLOAT16)], [body()])
    assert [op.type for op in examine(whole).ops] == ["float32", "float16"]
    assert run(opened(whole), x=np.zeros((1, 1), np.float32))[0].tolist() == [[200]]


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
