"""onnxruntime's C API as far as custom ops need it: where each function stands in its table.

Names, order and types are those of onnxruntime_c_api.h.  The table is asked for by version: an onnxruntime answers for
every version up to its own, with the table as that version had it, so that what was built for an older one goes on
working ("Rules on how to add a new Ort API version" in onnxruntime_c_api.cc).  So these slots hold in all that came out
after they were written down.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from ctypes import POINTER, addressof, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxfuse.errors import DependencyError

API_VERSIONS = (24, 23)
"""The versions of the table that are asked for in turn, and of OrtCustomOp that is given then."""

INSTEAD = "or open the model with onnxruntime.InferenceSession, which runs the function bodies"
"""What else helps where kernels cannot be connected."""

ORT_FAIL = 1
REQUIRED, OPTIONAL = 0, 1
"""OrtCustomOpInputOutputCharacteristic, which begins with INPUT_OUTPUT_."""
OrtMemTypeDefault = 0

Pointer: TypeAlias = int | None
"""An address, as ctypes gives it: None is the null pointer."""

_ADDRESS = c_size_t
"""A pointer that Python gives: ctypes converts a number faster than anything else."""

SLOTS: dict[str, tuple[int, Any, tuple[Any, ...]]] = {
    "CreateStatus": (0, c_void_p, (c_int, c_char_p)),
    "GetErrorCode": (1, c_int, (_ADDRESS,)),
    "GetErrorMessage": (2, c_char_p, (_ADDRESS,)),
    "CreateCustomOpDomain": (26, c_void_p, (c_char_p, _ADDRESS)),
    "CustomOpDomain_Add": (27, c_void_p, (_ADDRESS, _ADDRESS)),
    "AddCustomOpDomain": (28, c_void_p, (_ADDRESS, _ADDRESS)),
    "GetTensorMutableData": (51, c_void_p, (_ADDRESS, _ADDRESS)),
    "GetTensorElementType": (60, c_void_p, (_ADDRESS, _ADDRESS)),
    "GetDimensionsCount": (61, c_void_p, (_ADDRESS, _ADDRESS)),
    "GetDimensions": (62, c_void_p, (_ADDRESS, _ADDRESS, c_size_t)),
    "GetTensorTypeAndShape": (65, c_void_p, (_ADDRESS, _ADDRESS)),
    "GetAllocatorWithDefaultOptions": (78, c_void_p, (_ADDRESS,)),
    "KernelInfoGetAttribute_float": (85, c_void_p, (_ADDRESS, c_char_p, _ADDRESS)),
    "KernelInfoGetAttribute_int64": (86, c_void_p, (_ADDRESS, c_char_p, _ADDRESS)),
    "KernelInfoGetAttribute_string": (87, c_void_p, (_ADDRESS, c_char_p, _ADDRESS, _ADDRESS)),
    "KernelContext_GetInput": (90, c_void_p, (_ADDRESS, c_size_t, _ADDRESS)),
    "KernelContext_GetOutput": (91, c_void_p, (_ADDRESS, c_size_t, _ADDRESS, c_size_t, _ADDRESS)),
    "ReleaseStatus": (93, None, (_ADDRESS,)),
    "ReleaseValue": (96, None, (_ADDRESS,)),
    "ReleaseTensorTypeAndShapeInfo": (99, None, (_ADDRESS,)),
    "KernelInfoGetAttributeArray_float": (162, c_void_p, (_ADDRESS, c_char_p, _ADDRESS, _ADDRESS)),
    "KernelInfoGetAttributeArray_int64": (163, c_void_p, (_ADDRESS, c_char_p, _ADDRESS, _ADDRESS)),
    "KernelContext_GetGPUComputeStream": (193, c_void_p, (_ADDRESS, _ADDRESS)),
    "KernelInfo_GetInputCount": (230, c_void_p, (_ADDRESS, _ADDRESS)),
    "KernelInfo_GetOutputCount": (231, c_void_p, (_ADDRESS, _ADDRESS)),
    "KernelInfoGetAttribute_tensor": (236, c_void_p, (_ADDRESS, c_char_p, _ADDRESS, _ADDRESS)),
    "KernelInfoGetConstantInput_tensor": (249, c_void_p, (_ADDRESS, c_size_t, _ADDRESS, _ADDRESS)),
    "GetTensorElementTypeAndShapeDataReference": (414, c_void_p, (_ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS)),
}
"""Member of OrtApi → its place in the table, what it returns, what it takes.  An OrtStatus* is null if all is well."""
SINCE = {"GetTensorElementTypeAndShapeDataReference": 24}
"""Member of OrtApi → the first version that has it; what is not named here, all have."""
LARGEST_RANK = 64
"""Room for dimensions that a version before 24 is asked for."""

EVERY_RUN = frozenset(
    (
        "GetTensorMutableData",
        "KernelContext_GetInput",
        "KernelContext_GetOutput",
        "KernelContext_GetGPUComputeStream",
        "GetTensorElementTypeAndShapeDataReference",
    )
)
"""Called with ctypes objects only (c_void_p, c_size_t, byref), never with numbers: that takes a third of the time."""

CALLBACKS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "CreateKernel": (c_void_p, (c_void_p, c_void_p, c_void_p)),
    "GetName": (c_void_p, (c_void_p,)),
    "GetExecutionProviderType": (c_void_p, (c_void_p,)),
    "GetInputType": (c_int, (c_void_p, c_size_t)),
    "GetInputTypeCount": (c_size_t, (c_void_p,)),
    "GetOutputType": (c_int, (c_void_p, c_size_t)),
    "GetOutputTypeCount": (c_size_t, (c_void_p,)),
    "KernelCompute": (None, (c_void_p, c_void_p)),
    "KernelDestroy": (None, (c_void_p,)),
    "GetInputCharacteristic": (c_int, (c_void_p, c_size_t)),
    "GetOutputCharacteristic": (c_int, (c_void_p, c_size_t)),
    "GetInputMemoryType": (c_int, (c_void_p, c_size_t)),
    "GetVariadicInputMinArity": (c_int, (c_void_p,)),
    "GetVariadicInputHomogeneity": (c_int, (c_void_p,)),
    "GetVariadicOutputMinArity": (c_int, (c_void_p,)),
    "GetVariadicOutputHomogeneity": (c_int, (c_void_p,)),
    "CreateKernelV2": (c_void_p, (c_void_p, c_void_p, c_void_p, POINTER(c_void_p))),
    "KernelComputeV2": (c_void_p, (c_void_p, c_void_p)),
    "InferOutputShapeFn": (c_void_p, (c_void_p, c_void_p)),
    "GetStartVersion": (c_int, (c_void_p,)),
    "GetEndVersion": (c_int, (c_void_p,)),
    "GetMayInplace": (c_size_t, (c_void_p, c_void_p)),
    "ReleaseMayInplace": (None, (c_void_p, c_void_p)),
    "GetAliasMap": (c_size_t, (c_void_p, c_void_p)),
    "ReleaseAliasMap": (None, (c_void_p, c_void_p)),
}
"""Member of OrtCustomOp behind `version`, in the header's order → what it returns and takes."""


class OrtCustomOp(ctypes.Structure):
    """The struct of callbacks by which onnxruntime knows a custom op; a null pointer stands for what an op lacks."""

    _fields_ = [("version", c_uint32), *((name, c_void_p) for name in CALLBACKS)]


class _Room(threading.local):
    """Where each thread is told dimensions."""

    def __init__(self) -> None:
        self.dims = (c_int64 * LARGEST_RANK)()


_room = _Room()


class Api:
    """The functions of `SLOTS` by their names, of the onnxruntime at whose OrtApiBase `base` points.

    They are called with Python's lock held: none of them waits for another thread, and most take less time than to give
    the lock away.  Raises DependencyError where this onnxruntime has no table of a version of `API_VERSIONS`.
    """

    def __init__(self, base: int) -> None:
        members = ctypes.cast(base, POINTER(c_void_p))
        version = ctypes.CFUNCTYPE(c_char_p)(members[1])()
        ask = ctypes.CFUNCTYPE(c_void_p, c_uint32)(members[0])
        table, self.version = next(((found, v) for v in _spoken(version) if (found := ask(v))), (None, 0))
        if not table:
            raise DependencyError(
                f"kernels need version {min(API_VERSIONS)} of onnxruntime's C API, and onnxruntime {version.decode()} "
                f"has none so new: install onnxruntime>=1.{min(API_VERSIONS)}, {INSTEAD}"
            )
        entries = ctypes.cast(table, POINTER(c_void_p))
        for name, (slot, result, arguments) in SLOTS.items():
            if self.version >= SINCE.get(name, 0):
                kinds = () if name in EVERY_RUN else arguments
                setattr(self, name, ctypes.PYFUNCTYPE(result, *kinds)(entries[slot]))
        if self.version < SINCE["GetTensorElementTypeAndShapeDataReference"]:
            self.GetTensorElementTypeAndShapeDataReference = self._type_and_shape
        self._try()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    def _type_and_shape(self, value: Any, kind: Any, dims: Any, rank: Any) -> Pointer:
        """Writes the element type of a tensor, the address of its dimensions and their number to what the last three
        refer to, as the function of version 24 does.  The address is good until this thread asks again."""
        info = c_void_p()
        failed: Pointer = self.GetTensorTypeAndShape(getattr(value, "value", value), addressof(info))
        if failed:
            return failed
        try:
            room = _room.dims
            failed = (
                self.GetTensorElementType(info.value, addressof(kind._obj))
                or self.GetDimensionsCount(info.value, addressof(rank._obj))
                or self.GetDimensions(info.value, addressof(room), min(rank._obj.value, LARGEST_RANK))
            )
            c_size_t.from_buffer(dims._obj).value = addressof(room)
            return failed
        finally:
            self.ReleaseTensorTypeAndShapeInfo(info.value)

    def _try(self) -> None:
        """Raises DependencyError if the slots of a status are not where they should be."""
        status = self.status("onnxfuse")
        if self.GetErrorCode(status) != ORT_FAIL or self.GetErrorMessage(status) != b"onnxfuse":
            raise DependencyError(f"this onnxruntime's C API is not as its header says: install another, {INSTEAD}")
        self.ReleaseStatus(status)

    def check(self, status: Pointer) -> None:
        """Raises RuntimeError with the status's message, and frees it, if there is one."""
        if status:
            message = self.GetErrorMessage(status).decode(errors="replace")
            self.ReleaseStatus(status)
            raise RuntimeError(message)

    def ok(self, status: Pointer) -> bool:
        """Whether there is no error; the status is freed."""
        if status:
            self.ReleaseStatus(status)
        return not status

    def status(self, message: str) -> Pointer:
        """A new status that says `message`; onnxruntime frees it."""
        created: Pointer = self.CreateStatus(ORT_FAIL, message.encode(errors="replace"))
        return created


def _spoken(version: bytes) -> list[int]:
    """The versions to ask an onnxruntime for: one that it lacks makes it complain on stderr."""
    minor = re.match(rb"1\.(\d+)", version)
    return [known for known in API_VERSIONS if minor is None or known <= int(minor[1])]
