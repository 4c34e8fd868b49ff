"""The onnxruntime that is installed."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from onnxfuse.errors import DependencyError

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def onnxruntime() -> ModuleType:
    """The onnxruntime module.  Raises DependencyError where neither of its two packages is installed."""
    try:
        import onnxruntime as ort
    except ImportError as error:
        message = (
            "onnxruntime is not installed: pip install 'onnxfuse[cpu]', or 'onnxfuse[gpu]' on a machine with a GPU"
        )
        raise DependencyError(message) from error
    return ort  # type: ignore[no-any-return]


@cache
def has_cuda() -> bool:
    """Whether a session really runs on CUDA: onnxruntime lists the provider also where it cannot be loaded."""
    from onnx import TensorProto, helper

    ort = onnxruntime()
    if CUDA not in ort.get_available_providers():
        return False
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "probe", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[CUDA, CPU])
    except Exception:  # onnxruntime's exceptions share no base class
        return False
    return CUDA in session.get_providers()
