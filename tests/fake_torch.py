"""As much of PyTorch as benchmarks.gpu uses, over NumPy and the memory of a HostMachine, whose clock it moves."""

from __future__ import annotations

import contextlib
import ctypes
import math
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from .host_machine import HostMachine

TOOK = 1e-6
"""Seconds of an op."""


class Tensor(np.ndarray[Any, Any]):
    """An array with the methods of a tensor."""

    def double(self) -> Tensor:
        return self.astype(np.float64)  # type: ignore[return-value]

    def norm(self) -> float:
        return float(np.linalg.norm(np.asarray(self)))

    def unsqueeze(self, axis: int) -> Tensor:
        return np.expand_dims(self, axis)  # type: ignore[return-value]

    def chunk(self, count: int, axis: int) -> Any:
        return np.split(self, count, axis)

    def t(self) -> Tensor:
        return self.T  # type: ignore[return-value]


class FakeTorch:
    """The module.  A backend of attention but MATH takes no mask, and says so as PyTorch does."""

    __version__ = "2"
    float16, float32, bool = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.bool_)
    bfloat16 = np.dtype(ml_dtypes.bfloat16)

    def __init__(self, machine: HostMachine) -> None:
        self._machine, self._backend = machine, ""
        self.compiled: list[dict[str, Any]] = []
        self.wrong = ""
        """The backend that computes something else."""
        self._dynamo = SimpleNamespace(reset=lambda: None)
        self.nn = SimpleNamespace(
            attention=SimpleNamespace(
                SDPBackend=SimpleNamespace(
                    FLASH_ATTENTION="FLASH",
                    EFFICIENT_ATTENTION="EFFICIENT",
                    CUDNN_ATTENTION="CUDNN",
                    MATH="MATH",
                ),
                sdpa_kernel=self._chosen,
            ),
            functional=SimpleNamespace(
                scaled_dot_product_attention=self._attend, linear=self._linear, gelu=self._gelu, silu=self._silu
            ),
        )
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            ExternalStream=lambda address: address,
            stream=lambda stream: contextlib.nullcontext(),
            synchronize=lambda: None,
            empty_cache=lambda: None,
            CUDAGraph=Graph,
            graph=lambda graph: contextlib.nullcontext(),
        )

    def no_grad(self) -> Any:
        return contextlib.nullcontext()

    def as_tensor(self, raw: Any, device: str) -> Tensor:
        assert device == "cuda"
        about = raw.__cuda_array_interface__
        dtype = np.dtype(about["typestr"])
        count = math.prod(about["shape"]) * dtype.itemsize
        memory = (ctypes.c_uint8 * count).from_address(about["data"][0])
        return np.ctypeslib.as_array(memory).view(dtype).reshape(about["shape"]).view(Tensor)  # type: ignore[no-any-return]

    def compile(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        self.compiled.append(options)
        return function

    def cat(self, parts: Any, axis: int) -> Any:
        return np.concatenate(parts, axis).view(Tensor)

    def _spent(self, result: Any, dtype: Any) -> Any:
        self._machine.now += TOOK
        return np.asarray(result).astype(dtype).view(Tensor)

    @contextlib.contextmanager
    def _chosen(self, backend: str) -> Iterator[None]:
        self._backend = backend
        yield
        self._backend = ""

    def _attend(self, q: Any, k: Any, v: Any, mask: Any, is_causal: Any = False, enable_gqa: Any = False) -> Any:
        if mask is not None and self._backend != "MATH":
            warnings.warn(f"{self._backend} kernel not used because: (Triggered internally at sdp.cpp:1)", stacklevel=2)
            warnings.warn("It does not support a mask. (Triggered internally at sdp.cpp:2)", stacklevel=2)
            raise RuntimeError("No available kernel. Aborting execution.")
        group = q.shape[1] // k.shape[1]
        assert enable_gqa == (group > 1)
        wide, keys, values = (x.astype(np.float64) for x in (q, k.repeat(group, 1), v.repeat(group, 1)))
        scores = wide @ keys.swapaxes(2, 3) / math.sqrt(q.shape[3])
        if is_causal:
            scores = np.where(np.tri(*scores.shape[2:], dtype=np.bool_), scores, -np.inf)
        if mask is not None:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y = weights / weights.sum(-1, keepdims=True) @ values
        return self._spent(y + (self._backend == self.wrong), q.dtype)

    def _linear(self, x: Any, weight: Any, bias: Any) -> Any:
        y = x.astype(np.float64) @ weight.t().astype(np.float64)
        return self._spent(y if bias is None else y + bias, x.dtype)

    def _gelu(self, x: Any, approximate: str = "none") -> Any:
        wide = x.astype(np.float64)
        if approximate == "tanh":
            y = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
        else:
            y = 0.5 * wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))
        return self._spent(y, x.dtype)

    def _silu(self, x: Any) -> Any:
        wide = x.astype(np.float64)
        return self._spent(wide / (1 + np.exp(-wide)), x.dtype)


class Graph:
    """A CUDA graph that cannot be captured: calls run as they are."""

    def __init__(self) -> None:
        raise RuntimeError("nothing is captured on a CPU")
