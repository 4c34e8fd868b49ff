"""CUDA kernels of the fused ops, and the host side that launches them.

Device code is CUDA C++ in `*.cu` (shared parts in `*.cuh`), or generated; the host side of each op is a `Kernel`,
written once and run on any `Device`: CUDA by way of CuPy, or a CPU by way of the emulator.
"""

from __future__ import annotations

from .kernel import Kernel

KERNELS: dict[str, type[Kernel]] = {}
"""Op of domain onnxfuse → its kernel."""


def find(op: str) -> type[Kernel] | None:
    """The kernel of an op of domain onnxfuse; None if it runs from its function body.

    The same class every time: onnxruntime is told of it once.
    """
    return KERNELS.get(op)
