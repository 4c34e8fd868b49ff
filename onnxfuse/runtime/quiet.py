"""onnxruntime as the proof and the commands use it: silent, its errors in one line, and types that NumPy lacks."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxfuse.errors import DependencyError
from onnxfuse.model import external_data
from onnxfuse.model.types import type_of

from . import installed
from .installed import CPU, CUDA
from .served import Served

THREADS = 2
_SILENT = 4
"""onnxruntime's severity "fatal": what goes wrong is said once, by the SessionError."""


def onnxruntime() -> ModuleType:
    """The onnxruntime module, silenced.  Raises DependencyError where neither of its two packages is installed."""
    ort = installed.onnxruntime()
    ort.set_default_logger_severity(_SILENT)
    return ort


class SessionError(Exception):
    """onnxruntime refuses or fails; the text is its reason in one line."""


class Session:
    """A session of a model, or of the file that it is in; external data of a ModelProto stays in `base_dir`.

    On "cuda", and on "cpu" if `emulate` is set, fused ops run kernels where they have one (`served` says which), else
    their function bodies.  Threads that wait for work sleep, unless they are `spinning`, as onnxruntime's own do
    and times are taken: of short runs spinning costs a fifth of the CPU's time.  With `profile`, a path without its
    end, onnxruntime writes a profile there.  `generous` has memory for each value: planning which share it takes
    onnxruntime (1.31) a time that grows with the square of the nodes, a second for 2,400 of them.
    Raises SessionError, and DependencyError where a package is missing.
    """

    served: Served
    """Which fused ops run kernels; none where no kernels were asked for."""

    def __init__(
        self,
        model: onnx.ModelProto | Path,
        base_dir: Path | None = None,
        *,
        optimize: bool,
        provider: str = "cpu",
        emulate: bool = False,
        rules: Sequence[Path] = (),
        threads: int = THREADS,
        spinning: bool = False,
        profile: str = "",
        generous: bool = False,
    ) -> None:
        ort = onnxruntime()
        if provider == "cuda" and (reason := installed.why_not_cuda()):
            raise DependencyError(f"--provider cuda: {reason}")
        options = ort.SessionOptions()
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
        options.intra_op_num_threads = threads
        if not spinning:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = _SILENT
        options.enable_mem_reuse = not generous
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, profile
        source: Any = model
        providers = [CUDA, CPU] if provider == "cuda" else [CPU]
        self.served = Served()
        if provider == "cuda" or emulate:
            from .session import register

            self.served = register(options, model, providers, emulate=emulate, rules=rules)
        try:
            if isinstance(model, onnx.ModelProto):
                folder = str((base_dir or Path.cwd()).resolve())
                options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
                if external_data.places(model) and not spinning:
                    # Else onnxruntime (1.31) makes a copy of what it would map: as much memory as there are weights.
                    options.add_session_config_entry("session.disable_prepacking", "1")
                    options.enable_cpu_mem_arena = False  # which keeps what it has once had, up to twice what is wanted
                source = model.SerializeToString()
            self._session = ort.InferenceSession(source, options, providers=providers)
        except Exception as error:  # onnxruntime's exceptions share no base class; protobuf's limit is 2 GiB
            raise SessionError(first_line(error)) from error
        if provider == "cuda" and CUDA not in self._session.get_providers():
            raise SessionError(f"onnxruntime {ort.__version__} does not put this model on CUDA")
        self._device = provider
        values = (*self._session.get_inputs(), *self._session.get_outputs())
        self._types = {value.name: _element_type(value.type) for value in values}
        self._tensors = all(value.type.startswith("tensor(") for value in values)
        self.outputs = [value.name for value in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """All outputs, in order: arrays (dtypes of ml_dtypes where numpy has none), lists of arrays, or None."""
        ort = onnxruntime()
        options = ort.RunOptions()
        options.log_severity_level = _SILENT
        try:
            if not any(self._types.values()):
                return list(self._session.run(None, dict(feeds), options))
            values = {name: self._to_ort(ort, name, value) for name, value in feeds.items()}
            return [_from_ort(v) for v in self._session.run_with_ort_values(None, values, options)]
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise SessionError(first_line(error)) from error

    def runner(self, feeds: Mapping[str, Any]) -> Callable[[], None]:
        """A function that runs the model once and leaves all tensors where the provider has them: to be timed."""
        strings = any(isinstance(value, np.ndarray) and value.dtype.kind in "OUS" for value in feeds.values())
        if strings or not self._tensors:
            return lambda: self._session.run(None, feeds)
        ort = onnxruntime()
        binding = self._session.io_binding()
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, self._to_ort(ort, name, value, self._device))
        for name in self.outputs:
            binding.bind_output(name, self._device)
        return lambda: self._session.run_with_iobinding(binding)

    def end_profile(self) -> Path:
        """The file that the profile is in; nothing is added to it any more."""
        return Path(self._session.end_profiling())

    def _to_ort(self, ort: ModuleType, name: str, value: Any, device: str = "cpu") -> Any:
        if kind := self._types[name]:
            raw = value.view(np.uint16 if value.dtype.itemsize == 2 else np.uint8)
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, kind)
        return ort.OrtValue.ortvalue_from_numpy(value, device, 0)


def _from_ort(value: Any) -> np.ndarray:
    kind = _element_type(value.data_type())
    if not kind:
        return np.asarray(value.numpy())
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(raw, helper.tensor_dtype_to_np_dtype(kind)).reshape(value.shape())


def _element_type(text: str) -> int:
    """The TensorProto type in ``tensor(bfloat16)`` if numpy has no dtype for it, else 0."""
    match = re.fullmatch(r"tensor\((bfloat16|float8\w+)\)", text)
    return type_of(match[1]) if match else 0


def first_line(error: Exception) -> str:
    """The first line of a message, without onnxruntime's prefix."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", lines[0])
