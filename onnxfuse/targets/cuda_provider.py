"""Which ops onnxruntime's CUDA provider has a kernel for, by its own table.

cuda_kernels.json says for each op from which opset to which it has a kernel, and for which element types;
benchmarks/cuda_kernels.py asked a release of onnxruntime-gpu for it.  A kernel whose end is open serves the edition of
the op that it was written for and none that came after (onnxruntime's kernel_registry.cc): an op that a later opset of
ai.onnx changed falls back to the CPU until onnxruntime registers it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from onnxfuse.model.standard import parameters, schema_of
from onnxfuse.model.types import type_name

TABLE = Path(__file__).with_name("cuda_kernels.json")


@dataclass(frozen=True)
class Kernel:
    """A kernel of an op: its first and last opset, None for an open end, and element types by type parameter."""

    since: int
    until: int | None
    types: Mapping[str, frozenset[str]]

    def serves(self, edition: int) -> bool:
        """Does it serve the edition of its op that stands in the standard since this opset?"""
        return edition == self.since if self.until is None else self.since <= edition <= self.until


@cache
def version() -> str:
    """The onnxruntime that the table is of."""
    return str(json.loads(TABLE.read_text(encoding="utf-8"))["onnxruntime"])


@cache
def table() -> Mapping[str, tuple[tuple[str, ...], tuple[Kernel, ...]]]:
    """Op, with its domain if that is not ai.onnx → the type parameters of its inputs, and its kernels."""
    found = json.loads(TABLE.read_text(encoding="utf-8"))["ops"]
    return {
        op: (
            tuple(entry["inputs"]),
            tuple(
                Kernel(k["since"], k["until"], {name: frozenset(types) for name, types in k["types"].items()})
                for k in entry["kernels"]
            ),
        )
        for op, entry in found.items()
    }


@cache
def edition(op: str, opset: int) -> int:
    """The opset at which ai.onnx had this op last changed; 1 for an op that onnxruntime alone has there."""
    schema = schema_of(op, opset)
    return 1 if schema is None else int(schema.since_version)


def refusal(op: str, opset: int, types: Mapping[str, int]) -> str:
    """Why there is no kernel for an op (`Gelu`, `com.microsoft.BiasGelu`) at an opset of ai.onnx; "" if there is.

    `types` are the element types of type parameters as far as they are known."""
    _, kernels = table().get(op.removeprefix("ai.onnx."), ((), ()))
    if not kernels:
        return "no kernel"
    since = 1 if "." in op else edition(op, opset)
    serving = [kernel for kernel in kernels if kernel.serves(since)]
    if not serving:
        return f"no kernel for the edition of opset {since}"
    named = {name: type_name(dtype) for name, dtype in types.items() if dtype}
    if any(all(kind in k.types.get(name, {kind}) for name, kind in named.items()) for k in serving):
        return ""
    return f"no kernel in {', '.join(dict.fromkeys(named.values()))}"


def result_type(op: str, opset: int, dtype: int) -> Mapping[str, int]:
    """The element type of an op's first output, by its type parameter; com.microsoft calls that T."""
    name = op.removeprefix("ai.onnx.")
    return {next(iter(parameters(name, opset)[1]), "T"): dtype}
