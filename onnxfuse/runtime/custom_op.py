"""A fused op as onnxruntime calls it: an OrtCustomOp for one element type on one provider."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, addressof, byref, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, TypeVar

import numpy as np
from onnx import helper

from onnxfuse.errors import OnnxfuseError
from onnxfuse.kernels.device.device import Buffer, Device, TensorType
from onnxfuse.kernels.device.kernel import EITHER, Kernel, Parameter
from onnxfuse.kernels.device.types import DTYPES

from . import abi, attributes
from .abi import Api, OrtCustomOp, Pointer

_Kept = TypeVar("_Kept")

NUMBER = Parameter("number")
"""An input of a function that holds a number of its equations, which a kernel knows."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Where the kernels of one provider of onnxruntime are launched.

    `device` gives the device that launches on a stream of that provider, by its handle; 0 where it has none.
    """

    provider: str
    device: Callable[[int], Device]


@dataclass(frozen=True, slots=True)
class Op:
    """An op of domain onnxfuse for one real element type."""

    name: str
    kernel: type[Kernel]
    type: str
    inputs: tuple[int | None, ...]
    """The inputs of its nodes, in order, as numbers of the kernel's inputs; None for one that a kernel needs not."""
    outputs: tuple[int, ...]

    @property
    def parameters(self) -> tuple[list[Parameter], list[Parameter]]:
        """What its nodes take and give."""
        signature = self.kernel.signature
        inputs = [NUMBER if i is None else signature.inputs[i] for i in self.inputs]
        return inputs, [signature.outputs[i] for i in self.outputs]

    def dtype(self, parameter: Parameter) -> np.dtype[Any] | None:
        """The element type of an input or output; None if a node may have one of several."""
        if parameter.type == EITHER:
            return None
        name = self.type if parameter.type == "T" else parameter.type
        return DTYPES[name]


_DIMS = POINTER(c_int64)


class _Scratch:
    """Where the C API writes to; `at_` is the address of each."""

    def __init__(self) -> None:
        self.value, self.pointer, self.dims = c_void_p(), c_void_p(), _DIMS()
        self.rank, self.type = c_size_t(), c_int()
        self.at_value, self.at_pointer, self.at_dims = byref(self.value), byref(self.pointer), byref(self.dims)
        self.at_rank, self.at_type = byref(self.rank), byref(self.type)


class _Own(threading.local):
    """Each thread has a scratch of its own."""

    def __init__(self) -> None:
        self.scratch = _Scratch()


_own = _Own()
_SIZES = [c_size_t(number) for number in range(256)]
"""Numbers of inputs, outputs and dimensions."""


class Node:
    """A node of a session: a kernel with its attributes known.  Several threads may run it at a time.

    What a run calls is spelled out and not wrapped: half of its time goes into calls.
    """

    def __init__(self, api: Api, op: Op, backend: Backend, info: int) -> None:
        number = c_size_t()
        api.check(api.KernelInfo_GetInputCount(info, addressof(number)))
        self._inputs = [
            (index, at, op.dtype(op.kernel.signature.inputs[at]))
            for index, at in enumerate(op.inputs[: number.value])
            if at is not None
        ]
        """(number of the node's, number of the kernel's, element type) of each input."""
        self._is_constant = [_is_constant(api, info, index) for index in range(number.value)]
        self._constants: dict[int, Buffer] = {}
        """Inputs that are initializers: they stay where the first run finds them."""
        self._taken = len(op.kernel.signature.inputs)
        api.check(api.KernelInfo_GetOutputCount(info, addressof(number)))
        self._outputs = op.outputs[: number.value]
        self._given = len(op.kernel.signature.outputs)
        self._api, self._device = api, backend.device
        self._kernel = op.kernel(attributes.read(api, info, op.name))
        self._last: tuple[list[tuple[int, ...] | None], list[_Output]] = ([], [])

    def run(self, context: int) -> None:
        """Launch the kernel on the tensors of a KernelContext.  Raises KernelError, or RuntimeError of onnxruntime."""
        api, scratch, place = self._api, _own.scratch, c_void_p(context)
        inputs = self._read(place, api, scratch)
        outputs, empty = self._allocate(place, api, scratch, self._expected(inputs))
        if not empty:
            if status := api.KernelContext_GetGPUComputeStream(place, scratch.at_pointer):
                api.check(status)
            self._kernel.launch(self._device(scratch.pointer.value or 0), inputs, outputs)

    def _read(self, context: c_void_p, api: Api, scratch: _Scratch) -> list[Buffer | None]:
        inputs: list[Buffer | None] = [None] * self._taken
        for index, at, dtype in self._inputs:
            if index in self._constants:
                inputs[at] = self._constants[index]
                continue
            if status := api.KernelContext_GetInput(context, _SIZES[index], scratch.at_value):
                api.check(status)
            if scratch.value:
                inputs[at] = array = _buffer(api, scratch, dtype)
                if self._is_constant[index]:
                    self._constants[index] = array
        return inputs

    def _expected(self, inputs: Sequence[Buffer | None]) -> list[_Output]:
        """The outputs that inputs of these shapes lead to.  Most runs have the shapes of the one before."""
        shapes = [None if array is None else array.shape for array in inputs]
        known, outputs = self._last
        if shapes != known:
            types = [None if array is None else TensorType(array.dtype, array.shape) for array in inputs]
            made = self._kernel.outputs(types)
            outputs = [_Output(made[at], at) for at in self._outputs]
            # One assignment: another thread sees the old pair or the new.
            self._last = shapes, outputs
        return outputs

    def _allocate(
        self, context: c_void_p, api: Api, scratch: _Scratch, expected: Sequence[_Output]
    ) -> tuple[list[Buffer | None], bool]:
        """The outputs, None where nobody wants one, and whether there is nothing to compute."""
        outputs: list[Buffer | None] = [None] * self._given
        empty = True
        for index, made in enumerate(expected):
            dtype, shape = made.type
            rank = _SIZES[len(shape)]
            if status := api.KernelContext_GetOutput(context, _SIZES[index], made.at_dims, rank, scratch.at_value):
                api.check(status)
            if not scratch.value:
                continue
            if status := api.GetTensorMutableData(scratch.value, scratch.at_pointer):
                api.check(status)
            outputs[made.at] = Buffer(scratch.pointer.value or 0, shape, dtype)
            empty = empty and 0 in shape
        return outputs, empty


def _buffer(api: Api, scratch: _Scratch, dtype: np.dtype[Any] | None) -> Buffer:
    """The memory of the tensor in `scratch.value`, of the element type that it has to have."""
    value = scratch.value
    if status := (
        api.GetTensorMutableData(value, scratch.at_pointer)
        or api.GetTensorElementTypeAndShapeDataReference(value, scratch.at_type, scratch.at_dims, scratch.at_rank)
    ):
        api.check(status)
    rank = scratch.rank.value
    if dtype is None:
        dtype = helper.tensor_dtype_to_np_dtype(scratch.type.value)
    return Buffer(scratch.pointer.value or 0, tuple(scratch.dims[:rank]) if rank else (), dtype)


def _kind(dtype: np.dtype[Any] | None) -> int:
    """The ONNXTensorElementDataType; that of any tensor is 0."""
    return 0 if dtype is None else int(helper.np_dtype_to_tensor_dtype(dtype))


def _is_constant(api: Api, info: int, index: int) -> bool:
    found, value = c_int(), c_void_p()
    api.check(api.KernelInfoGetConstantInput_tensor(info, index, addressof(found), addressof(value)))
    return bool(found.value)


class _Output:
    """The type of an output, its number among the kernel's, and its dims as the C API takes them."""

    __slots__ = ("_dims", "at", "at_dims", "type")

    def __init__(self, made: TensorType, at: int) -> None:
        self.type, self.at = made, at
        self._dims = (c_int64 * len(made.shape))(*made.shape)
        self.at_dims = byref(self._dims)


_nodes: dict[int, Node] = {}
"""The nodes of all sessions by handle: onnxruntime holds a handle, Python the node."""
_handles = count(1)


@cache
def define(api: Api, op: Op, backend: Backend) -> int:
    """The address of the op's OrtCustomOp.

    It and all it points to are never freed: onnxruntime goes on using them, and calls KernelDestroy of sessions that
    live until the interpreter ends.  There is one for each op and backend, however many sessions use it.
    """
    name, provider = (
        ctypes.create_string_buffer(op.name.encode()),
        ctypes.create_string_buffer(backend.provider.encode()),
    )
    functions: dict[str, Callable[..., Any]] = {
        "GetName": lambda _: ctypes.addressof(name),
        "GetExecutionProviderType": lambda _: ctypes.addressof(provider),
        "GetInputMemoryType": lambda _, index: abi.OrtMemTypeDefault,
        "GetStartVersion": lambda _: 1,
        "GetEndVersion": lambda _: 2**31 - 1,
    }
    for direction, parameters in zip(("Input", "Output"), op.parameters, strict=True):
        kinds = [_kind(op.dtype(parameter)) for parameter in parameters]
        needs = [abi.OPTIONAL if parameter.optional else abi.REQUIRED for parameter in parameters]
        functions |= {
            f"Get{direction}TypeCount": lambda _, kinds=kinds: len(kinds),
            f"Get{direction}Type": lambda _, index, kinds=kinds: kinds[index],
            f"Get{direction}Characteristic": lambda _, index, needs=needs: needs[index],
            f"GetVariadic{direction}MinArity": lambda _: 1,
            f"GetVariadic{direction}Homogeneity": lambda _: 1,
        }

    def create(_: int, __: int, info: int, handle: Any) -> Pointer:
        try:
            node = Node(api, op, backend, info)
        except BaseException as error:
            return api.status(explain(error))
        handle[0] = number = next(_handles)
        _nodes[number] = node
        return None

    def compute(handle: int, context: int) -> Pointer:
        try:
            _nodes[handle].run(context)
        except BaseException as error:
            return api.status(explain(error))
        return None

    def destroy(handle: int, nodes: dict[int, Node] = _nodes) -> None:
        nodes.pop(handle, None)

    functions |= {"CreateKernelV2": create, "KernelComputeV2": compute, "KernelDestroy": destroy}
    struct = OrtCustomOp(version=api.version)
    for member, function in functions.items():
        result, arguments = abi.CALLBACKS[member]
        setattr(struct, member, ctypes.cast(_immortal(ctypes.CFUNCTYPE(result, *arguments)(function)), c_void_p).value)
    return ctypes.addressof(_immortal(struct))


def _immortal(kept: _Kept) -> _Kept:
    """The object, which now outlives the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    return kept


def explain(error: BaseException) -> str:
    """One line for onnxruntime to pass on."""
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, OnnxfuseError) else f"{type(error).__name__}: {text}"
