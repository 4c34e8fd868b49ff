"""The onnxruntime that is installed."""

from __future__ import annotations

import ctypes
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from types import ModuleType

from onnx import TensorProto, helper

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
    return not why_not_cuda()


@cache
def why_not_cuda() -> str:
    """Why no session runs on CUDA, in one line; empty if one does.

    The libraries of CUDA that packages brought are loaded before: onnxruntime's provider does not look for them.
    """
    ort = onnxruntime()
    release = f"onnxruntime {ort.__version__}"
    if CUDA not in ort.get_available_providers():
        return f"{release} is built without CUDA: pip install 'onnxfuse[gpu]' in an environment of its own"
    missing = preload(ort)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        with redirect_stdout(StringIO()) as said:
            session = ort.InferenceSession(_probe(), options, providers=[CUDA, CPU])
    except Exception as error:  # onnxruntime's exceptions share no base class
        return f"{release} has no session on CUDA: {_line(str(error))}"
    if CUDA in session.get_providers():
        return ""
    fallen_back = _line(said.getvalue(), "EP Error ")
    return (
        f"{release} cannot use CUDA: {_unloadable(ort) or fallen_back or missing or 'is there a GPU, and its driver?'}"
    )


def preload(ort: ModuleType) -> str:
    """Load the libraries of CUDA and cuDNN from the packages that hold them; what onnxruntime says of those missing."""
    if not hasattr(ort, "preload_dlls"):  # older than 1.21
        return ""
    with redirect_stdout(StringIO()) as said:
        ort.preload_dlls()
    return _line(said.getvalue())


def _unloadable(ort: ModuleType) -> str:
    """What the linker says of the provider's library; empty where it finds nothing wrong, or no library."""
    folder = Path(str(ort.__file__)).parent / "capi"
    try:
        for name in ("shared", "cuda"):
            path = folder / f"libonnxruntime_providers_{name}.so"
            if path.exists():
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as error:
        said = _line(str(error))
        return f"{said} (the driver's)" if said.startswith("libcuda.so") else f"{said} (pip install 'onnxfuse[gpu]')"
    return ""


def _probe() -> bytes:
    """A model of one node."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "probe", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def _line(text: str, beginning: str = "") -> str:
    """The first line that says something and begins so."""
    return next((line.strip() for line in text.splitlines() if line.strip() and line.startswith(beginning)), "")
