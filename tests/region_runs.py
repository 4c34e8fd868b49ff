"""What tests of regions share: a body as a function, run by its kernel on the emulator, and by onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import FunctionProto, helper, parser

from onnxfuse.kernels import of_region
from onnxfuse.kernels.device.device import Argument, Launch, TensorType
from onnxfuse.kernels.emulator.device import Emulated
from tests.kernel_runs import shifted

Array: TypeAlias = "NDArray[Any]"
Case: TypeAlias = "tuple[str, Sequence[tuple[int, ...]]]"
"""A body, and the shapes of what it reads."""


def function(text: str) -> FunctionProto:
    return parser.parse_function(f'<opset_import: ["": 20], domain: "onnxfuse"> Region_1 {text}')


def expected(body: FunctionProto, arrays: Sequence[Array]) -> list[Array]:
    """What onnxruntime gives for float32."""
    inputs = [helper.make_tensor_value_info(n, 1, x.shape) for n, x in zip(body.input, arrays, strict=True)]
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in body.output]
    graph = helper.make_graph(list(body.node), "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(zip(body.input, arrays, strict=True))))


def operands(case: Case, dtype: Any = np.float32, shift: float = 0.0) -> list[Array]:
    rng = np.random.default_rng(7)
    return [(rng.standard_normal(shape) + shift).astype(dtype) for shape in case[1]]


def given(case: Case, arrays: Sequence[Array], device: Emulated | None = None) -> list[Array]:
    """What a region's kernel gives, every element of which must have been written."""
    body, device, kind = function(case[0]), device or Emulated(), arrays[0].dtype.name
    made = of_region(body, [kind] * len(arrays), [kind] * len(body.output))({})
    results = [np.empty(t.shape, t.dtype) for t in made.outputs([TensorType(x.dtype, x.shape) for x in arrays])]
    with device.fresh(*results):
        made.launch(device, arrays, results)
    return results


def at_odd_addresses(case: Case) -> tuple[list[Array], list[Array]]:
    """What a region's kernel gives where arrays begin an element behind a multiple of 16 bytes, and what it must."""
    arrays = [shifted(x.shape, x.dtype, 1) for x in operands(case)]
    for array, x in zip(arrays, operands(case), strict=True):
        array[...] = x
    return given(case, arrays), expected(function(case[0]), operands(case))


def computed(
    case: Case, dtype: Any = np.float32, device: Emulated | None = None, shift: float = 0.0
) -> tuple[list[Array], list[Array]]:
    """What a region's kernel gives for random operands, and what it must."""
    arrays = operands(case, dtype, shift)
    return given(case, arrays, device), expected(function(case[0]), [x.astype(np.float32) for x in arrays])


def near(found: Sequence[Array], wanted: Sequence[Array]) -> None:
    """Fails where a result is not what it must be but for rounding: sums are float32, and in half precision each result
    is rounded once."""
    for own, exact in zip(found, wanted, strict=True):
        step = float(ml_dtypes.finfo(own.dtype).eps)  # type: ignore[no-untyped-call]
        rtol, atol = (2e-5, 5e-5) if own.dtype == np.float32 else (step, step * 2e-2)
        np.testing.assert_allclose(own.astype(np.float64), exact, rtol=rtol, atol=atol)


def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The launches of emulators from now on."""
    made: list[Launch] = []
    launch = Emulated.launch

    def noting(self: Emulated, one: Launch, arguments: Sequence[Argument]) -> None:
        made.append(one)
        launch(self, one, arguments)

    monkeypatch.setattr(Emulated, "launch", noting)
    return made
