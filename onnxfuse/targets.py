"""For whom a file is written, as one value: its ops, from which opset on, for which element types there is a kernel,
and which folders of rules/ lead to them.

The kernels of onnxruntime's CPU provider stand in ort_kernels.json, which benchmarks/ort_kernels.py makes by asking
onnxruntime for each op and element type.  An op that the table does not name was not asked about and is taken to run:
the proof will tell.  Those of its CUDA provider stand in cuda_kernels.json (`cuda_provider`), which names them all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from onnx import TensorProto, defs

from . import cuda_provider
from .canonical import allows, is_standard
from .errors import UsageError

KERNELS = Path(__file__).with_name("ort_kernels.json")

EXPANDED = frozenset({"GroupNormalization"})
"""Standard ops that onnxruntime has no kernel for on a CPU.  It expands their function; the equations are faster."""


@dataclass(frozen=True)
class Kind:
    """What the targets of one name and provider have in common."""

    folders: tuple[str, ...]
    """The folders of rules/ that say what fused ops become there, the most general one first."""
    functions: bool = False
    """Whether fused ops stand in the files, each with a function body."""
    worth_raising: frozenset[str] = frozenset()
    """Ops for which a model's opset is raised."""
    kernels: Path | None = None
    """The table of the kernels that a runtime has; None if any op of the standard will do."""
    expanded: frozenset[str] = frozenset()
    """Standard ops that the runtime merely expands."""
    cuda: bool = False
    """Whether onnxruntime's CUDA provider has to have a kernel for every op."""


KINDS: Mapping[tuple[str, str], Kind] = {
    ("onnxfuse", "cpu"): Kind(("onnxfuse",), functions=True),
    ("onnx", "cpu"): Kind(
        ("onnx",),
        worth_raising=frozenset(
            "Attention Gelu GroupNormalization LayerNormalization RMSNormalization RotaryEmbedding".split()
        ),
    ),
    # For others (Swish, Mish, ...) the primitives are as fast, or com.microsoft has them at every opset.
    ("ort", "cpu"): Kind(
        ("onnx", "contrib", "ort"),
        worth_raising=frozenset(("Attention", "LayerNormalization")),
        kernels=KERNELS,
        expanded=EXPANDED,
    ),
    # No opset is worth raising: com.microsoft has the ops at every opset, and the provider lacks kernels at newer ones.
    ("ort", "cuda"): Kind(("onnx", "contrib", "cuda"), expanded=EXPANDED | {"Attention"}, cuda=True),
}
"""Name and onnxruntime provider of every target."""


@dataclass(frozen=True)
class Target:
    """For whom a file is written.  Raises UsageError where there is no such target."""

    name: str = "onnxfuse"
    """"onnxfuse" for fused ops with function bodies, "onnx" for standard ops, "ort" for what onnxruntime runs best."""
    provider: str = "cpu"
    """Of onnxruntime."""

    def __post_init__(self) -> None:
        if (self.name, self.provider) in KINDS:
            return
        names = list(dict.fromkeys(name for name, _ in KINDS))
        if self.name not in names:
            raise UsageError(f"--target {self.name}: it is one of {', '.join(names)}")
        providers = [provider for name, provider in KINDS if name == self.name]
        raise UsageError(f"--provider {self.provider}: --target {self.name} is for {', '.join(providers)}")

    @property
    def kind(self) -> Kind:
        return KINDS[self.name, self.provider]

    @property
    def functions(self) -> bool:
        """Whether fused ops stand in its files, each with a function body."""
        return self.kind.functions

    @property
    def standard(self) -> bool:
        """Whether its files have ops of the standard alone."""
        return not self.functions and self.kind.kernels is None

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of rules/ that say what fused ops become, the most general one first."""
        return self.kind.folders

    def has_kernel(self, op: str, dtype: int) -> bool:
        """Does it run this op (`Gelu`, `com.microsoft.BiasGelu`) in this element type?"""
        if self.kind.kernels is None:
            return True
        known = kernels(self.kind.kernels).get(op.removeprefix("ai.onnx."))
        return known is None or TensorProto.DataType.Name(dtype).lower() in known

    def has_edition(self, op: str, opset: int) -> bool:
        """Does it run an op of ai.onnx as this opset has it, in any element type?"""
        return not self.kind.cuda or not cuda_provider.refusal(op, opset, {})

    def can_say(self, op: str, attrs: Mapping[str, Any], opset: int, dtype: int, defined: bool) -> bool:
        """Can a node of this op, in this element type, stand in its files?  `defined` ops are fused ones, which must be
        standard where there are no function bodies."""
        if self.functions:
            return True
        if defined and not (is_standard(op, attrs, opset) and allows(op, opset, dtype)):
            return False
        if self.kind.cuda and cuda_provider.refusal(op, opset, cuda_provider.result_type(op, opset, dtype)):
            return False
        return op not in self.kind.expanded and self.has_kernel(op, dtype)

    def wanted_opset(self, op: str, attrs: Mapping[str, Any]) -> int:
        """The opset that its files have to have for this op; 0 if it is not worth raising one for it."""
        opsets = range(1, defs.onnx_opset_version() + 1) if op in self.kind.worth_raising else ()
        return next((opset for opset in opsets if is_standard(op, attrs, opset)), 0)


DEFAULT = Target()


@cache
def kernels(table: Path) -> Mapping[str, frozenset[str]]:
    """Op, with its domain if that is not ai.onnx → the element types (`float`, `float16`, ...) that have a kernel."""
    found = json.loads(table.read_text(encoding="utf-8"))
    return {op: frozenset(types) for op, types in found["kernels"].items()}
