"""CUDA kernels of the fused ops, and the host side that launches them.

Device code is CUDA C++ in `*.cu` (shared parts in `*.cuh`), or generated; the host side of each op is a `Kernel`,
written once and run on any `Device`: CUDA by way of CuPy, or a CPU by way of the emulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from .kernel import Kernel

KERNELS: dict[str, type[Kernel] | str] = {
    "GroupNormalization": "group_norm",
    "InstanceNormalization": "group_norm",
    "LayerNormalization": "row_norm",
    "LogSoftmax": "softmax",
    "RMSNormalization": "row_norm",
    "SafeSoftmax": "softmax",
    "SkipLayerNormalization": "row_norm",
    "SkipSimplifiedLayerNormalization": "row_norm",
    "Softmax": "softmax",
}
"""Op of domain onnxfuse → its kernel, or the module here that has it under the op's name.  Others are generated."""


def find(op: str, rules: Sequence[Path] = ()) -> type[Kernel]:
    """The kernel of an op of domain onnxfuse, the same class every time; `rules` are folders of a user's own rules.

    Raises KernelError with the reason where there is none, and the op runs from its function body.
    """
    written = KERNELS.get(op)
    if isinstance(written, str):
        found: type[Kernel] = getattr(import_module(f"{__name__}.{written}"), op)
        return found
    return written or _generated(op, tuple(rules))


@cache
def _generated(op: str, rules: tuple[Path, ...]) -> type[Kernel]:
    # The generator reads rules, and much of the engine with them: whoever needs no more than a device does without.
    from ..language import load
    from . import pointwise

    return pointwise.kernel(op, load(rules))
