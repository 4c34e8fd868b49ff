"""onnxruntime's own session, with the fused ops of a model registered that kernels can compute."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError
from onnx import ModelProto

from onnxfuse.errors import DependencyError, UsageError

from . import registration
from .custom_op import Backend
from .installed import CPU, CUDA, has_cuda, onnxruntime, why_not_cuda
from .served import Served, examine

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

    from onnxfuse.kernels.emulator.counts import Counts
    from onnxfuse.kernels.emulator.device import Emulated

Model = str | os.PathLike[str] | bytes | ModelProto
Providers = Sequence[str | tuple[str, dict[str, Any]]]


def open_session(
    model: str | os.PathLike[str] | bytes,
    sess_options: SessionOptions | None = None,
    providers: Providers | None = None,
    provider_options: Sequence[dict[str, Any]] | None = None,
    *,
    emulate: bool = False,
    rules: Sequence[Path] = (),
    **options: Any,
) -> InferenceSession:
    """onnxruntime's InferenceSession of a model, its fused nodes run by kernels where there are any for them.

    On CUDA the kernels run on onnxruntime's stream.  On a CPU the nodes run their function bodies, as without onnxfuse;
    `emulate` runs the CUDA source there, for tests: slowly.  `rules` are folders of a user's rules, for ops of theirs.
    All other arguments are onnxruntime's.

    Where the session does not run on CUDA although `providers` name it, onnxruntime says nothing: a RuntimeWarning says
    why if they name the CPU besides, and a DependencyError if they do not.

    Raises DependencyError where onnxruntime is missing, or is too old for kernels to be connected, and
    UsageError where `sess_options` know an op from another model that must run from its function body in this one.
    """
    ort = onnxruntime()
    chosen = sess_options if sess_options is not None else ort.SessionOptions()
    wanted = default_providers() if providers is None else list(providers)
    register(chosen, model, wanted, emulate=emulate, rules=rules)
    source = model if isinstance(model, bytes) else os.fspath(model)
    session = ort.InferenceSession(source, chosen, wanted, provider_options, **options)
    if CUDA in _names(wanted) and CUDA not in session.get_providers():
        _left_out(why_not_cuda() or f"onnxruntime {ort.__version__} does not put this model on CUDA", wanted)
    return session


def _left_out(reason: str, wanted: Providers) -> None:
    """Say why a session is not on CUDA.  Raises DependencyError where no other provider was named."""
    if CPU not in _names(wanted):
        raise DependencyError(f"no session on CUDA: {reason}")
    warnings.warn(f"the session runs on the CPU: {reason}", RuntimeWarning, stacklevel=3)


def register(
    session_options: SessionOptions,
    model: Model,
    providers: Providers | None = None,
    *,
    emulate: bool = False,
    rules: Sequence[Path] = (),
) -> Served:
    """Make known to `session_options` the ops of `model` that kernels compute on one of `providers`.

    Returns what is served, and why the rest is not.  Raises UsageError where the options know an op, from a call for
    another model, that must run from its function body in this one.
    """
    backend = _backend(default_providers() if providers is None else providers, emulate)
    if backend is None:
        return Served()
    proto = _parsed(model)
    found = examine(proto, rules) if proto is not None else Served()
    if clash := registration.known(session_options).intersection(found.reasons):
        name = min(clash)
        raise UsageError(f"these SessionOptions know {name} from another model; make new ones: {found.reasons[name]}")
    if found.ops:
        registration.add(session_options, found.ops, backend)
    return found


def default_providers() -> list[str]:
    """CUDA where a session can have it, and the CPU; a RuntimeWarning where the build for CUDA cannot have it."""
    if has_cuda():
        return [CUDA, CPU]
    if CUDA in onnxruntime().get_available_providers():
        _left_out(why_not_cuda(), [CPU])
    return [CPU]


def _parsed(model: Model) -> ModelProto | None:
    """The model without its external data; None if it is in onnxruntime's own format, or none at all."""
    if isinstance(model, ModelProto):
        return model
    parsed = ModelProto()
    try:
        parsed.ParseFromString(model if isinstance(model, bytes) else Path(model).read_bytes())
    except (OSError, DecodeError):
        return None
    return parsed


def _names(providers: Providers) -> set[str]:
    return {name if isinstance(name, str) else name[0] for name in providers}


def _backend(providers: Providers, emulate: bool) -> Backend | None:
    """Where kernels run in a session of these providers; None where none do."""
    asked = _names(providers)
    if CUDA in asked and (backend := _cuda()) is not None:
        return backend
    return _emulated() if emulate and CPU in asked else None


@cache
def _cuda() -> Backend | None:
    if not has_cuda():
        return None
    from onnxfuse.kernels.device.cuda import Cuda

    try:
        Cuda(0)
    except DependencyError as error:
        warnings.warn(f"fused ops run from their function bodies: {error}", RuntimeWarning, stacklevel=4)
        return None
    return Backend(CUDA, cache(Cuda))


@cache
def _emulated() -> Backend:
    device = _emulator()
    return Backend(CPU, lambda stream: device)


@cache
def _emulator() -> Emulated:
    from onnxfuse.kernels.emulator.device import Emulated

    return Emulated()


def counted() -> AbstractContextManager[list[Counts]]:
    """Within it, what each launch of an emulated session costs on a card is put into the list that it gives."""
    return _emulator().counting()
