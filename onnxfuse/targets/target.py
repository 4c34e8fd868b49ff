"""For whom a file is written, as one value: its ops, from which opset on, for which element types there is a kernel,
and which folders of rules/ lead to them.

What onnxruntime runs on a CPU, version by version, `runtimes` knows.  An op that its table does not name was not
asked about and is taken to run: the proof will tell.  Kernels of its CUDA provider stand in cuda_kernels.json
(`cuda_provider`), which names them all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onnx import defs

from onnxfuse.errors import UsageError
from onnxfuse.model.schema import allows, is_standard
from onnxfuse.model.types import type_name

from . import cuda_provider, runtimes
from .runtimes import Runtime

NEWEST = runtimes.known()[-1].opset
"""The highest opset that the newest onnxruntime loads."""

EXPANDED = frozenset({"GroupNormalization"})
"""Standard ops that onnxruntime has no kernel for on a CPU.  It expands their function; the equations are faster."""

QUANTIZED = frozenset(("Attention", "EmbedLayerNormalization"))
"""What onnxruntime's quantizers take for the ops of com.microsoft with these names, whatever domain they are of."""


@dataclass(frozen=True)
class Kind:
    """What the targets of one name and provider have in common."""

    folders: tuple[str, ...]
    """The folders of rules/ that say what fused ops become there, the most general one first."""
    functions: bool = False
    """Whether fused ops stand in the files, each with a function body."""
    worth_raising: frozenset[str] = frozenset()
    """Ops for which a model's opset is raised."""
    newest: bool = False
    """Whether it is for the newest onnxruntime that is known where none is named; else for any runtime."""
    expanded: frozenset[str] = frozenset()
    """Standard ops that are not written, since onnxruntime merely expands them."""
    cuda: bool = False
    """Whether onnxruntime's CUDA provider has to have a kernel for every op."""


KINDS: Mapping[tuple[str, str], Kind] = {
    ("onnxfuse", "cpu"): Kind(("onnxfuse",), functions=True, expanded=EXPANDED),
    ("onnx", "cpu"): Kind(
        ("onnx",),
        # GroupNormalization is not: onnxruntime expands it, and an InstanceNormalization of groups is faster there.
        worth_raising=frozenset("Attention Gelu LayerNormalization RMSNormalization RotaryEmbedding".split()),
    ),
    # For others (Swish, Mish, ...) the primitives are as fast, or com.microsoft has them at every opset.
    ("ort", "cpu"): Kind(
        ("onnx", "contrib", "ort"),
        worth_raising=frozenset(("Attention", "LayerNormalization")),
        newest=True,
        expanded=EXPANDED,
    ),
    # No opset is worth raising: com.microsoft has the ops at every opset, and the provider lacks kernels at newer ones.
    ("ort", "cuda"): Kind(("onnx", "contrib", "cuda"), expanded=EXPANDED | {"Attention"}, cuda=True),
}
"""Name and onnxruntime provider of every target."""

FOLDERS = frozenset(folder for kind in KINDS.values() for folder in kind.folders)
"""The folders of rules that any target takes."""
FUSING = frozenset(folder for kind in KINDS.values() if kind.functions for folder in kind.folders)
"""The folders whose rules are fusions: those of a target that has fused ops.  All others say what becomes of them."""


@dataclass(frozen=True)
class NodeKind:
    """What of a node decides whether a target has it."""

    op: str
    attrs: Mapping[str, Any]
    """Those that it names."""
    opset: int
    """Of ai.onnx, whatever domain the op is of."""
    dtype: int
    defined: bool
    """Whether it is a fused op, which must be standard where there are no function bodies."""
    inputs: Sequence[Sequence[Any] | None] = ()
    """Shapes, as `runtimes.features` wants them."""

    @property
    def features(self) -> frozenset[str]:
        return runtimes.features(self.op, self.attrs, self.inputs, type_name(self.dtype))


@dataclass(frozen=True)
class Target:
    """For whom a file is written.  Raises UsageError where there is no such target, or nothing such to keep."""

    name: str = "onnxfuse"
    """"onnxfuse" for fused ops with function bodies, "onnx" for standard ops, "ort" for what onnxruntime runs best."""
    provider: str = "cpu"
    """Of onnxruntime."""
    runtime: Runtime | None = None
    """The onnxruntime that must run its files; None if any may."""
    keep_products: Literal["all", "weighted"] | None = None
    """Whether the products, or those with a weight, stay nodes of their own, for a quantizer to find."""

    def __post_init__(self) -> None:
        if self.keep_products not in (None, "all", "weighted"):
            raise UsageError(f"keep_products={self.keep_products!r}: it is 'all', 'weighted' or None")
        if (self.name, self.provider) in KINDS:
            if self.runtime is not None and self.provider != "cpu":
                raise UsageError(f"--runtime holds what runs on a CPU: leave --provider {self.provider} away")
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
        return self.folders == ("onnx",)

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of rules/ that say what fused ops become, the most general one first."""
        return self.kind.folders

    @property
    def held(self) -> Runtime | None:
        """The onnxruntime by whose tables ops are chosen; None if any op of the standard will do."""
        return self.runtime or (runtimes.known()[-1] if self.kind.newest else None)

    def has_edition(self, op: str, opset: int) -> bool:
        """Does it run an op of ai.onnx as this opset has it, in any element type?"""
        return not self.kind.cuda or not cuda_provider.refusal(op, opset, {})

    def has_kernel(self, op: str, dtype: int, opset: int = NEWEST, features: Collection[str] = ()) -> bool:
        """Does it run this op (`Gelu`, `com.microsoft.BiasGelu`) of an opset of ai.onnx in this element type, and
        rightly with such `features` (see `runtimes.features`)?

        Where no onnxruntime is named, every one that loads a file of this opset has to compute it rightly."""
        if self.kind.cuda:
            return not cuda_provider.refusal(op, opset, cuda_provider.result_type(op, opset, dtype))
        op, kind = op.removeprefix("ai.onnx."), type_name(dtype)
        oldest = runtimes.loading(opset)
        held, opset = self.held, 1 if "." in op else opset
        if runtimes.since(op, opset) is None:
            return True
        inputs, outputs = runtimes.parameters(op, opset)
        if held is None:  # any runtime will do, but an op that none runs cannot be proved
            asked = frozenset((name, kind) for name in outputs[:1] if name in inputs and runtimes.computes(kind))
            return runtimes.first(op, opset, asked) is not None and self._right(op, features, oldest)
        # The type of the result, where it is an input's: a product of bytes may give numbers.
        of = next((name for name in outputs[:1] if name in inputs), inputs[0] if inputs else "")
        needed = runtimes.first(op, opset, frozenset({(of, kind)} if of else ()))
        return opset <= held.opset and needed is not None and needed <= held and self._right(op, features, oldest)

    def _right(self, op: str, features: Collection[str], oldest: Runtime | None) -> bool:
        """Does the onnxruntime that is named compute an op with these features rightly or, where none is, each from the
        `oldest` on that loads the file?"""
        right, asked = runtimes.right_from(op, features), self.runtime or oldest
        return right is None or (asked is not None and right <= asked)

    def has(self, op: str, attrs: Mapping[str, Any], opset: int, dtype: int, features: Collection[str] = ()) -> bool:
        """Can the standard op stand in its files, or in function bodies, at this opset?"""
        if not (is_standard(op, attrs, opset) and allows(op, opset, dtype)):
            return False
        return op not in self.kind.expanded and not self._mistaken(op) and self.has_kernel(op, dtype, opset, features)

    def may_have(self, op: str, opset: int, dtype: int, features: Collection[str] = (), *, raising: bool) -> bool:
        """The same at this opset or, when `raising`, at one that is worth raising the model to; of com.microsoft's ops,
        which have no opset to raise, whether there is a kernel."""
        if not op.startswith("ai.onnx.") and "." in op:
            return self.has_kernel(op, dtype, opset, features)
        wanted = self.wanted_opset(op, {}) if raising else 0
        return any(self.has(op, {}, at, dtype, features) for at in {opset, max(wanted, opset)})

    def can_say(self, node: NodeKind) -> bool:
        """Can such a node stand in its files?"""
        return self._says(node, node.features)

    def _says(self, node: NodeKind, features: Collection[str]) -> bool:
        """The same of a node that has these features alone."""
        op, opset, dtype = node.op, node.opset, node.dtype
        if node.defined:
            return self.functions or self.has(op, node.attrs, opset, dtype, features)
        return op not in self.kind.expanded and not self._mistaken(op) and self.has_kernel(op, dtype, opset, features)

    def mistake(self, node: NodeKind) -> str:
        """Why it cannot say a node that it could if every onnxruntime computed it rightly, and what a user may ask for;
        "" where that is not the reason."""
        op, features = node.op, node.features
        right = runtimes.right_from(op, features)
        if right is None or not self._says(node, ()):
            return ""
        what = f"{op} with {runtimes.mistake(op, features)} is wrong in onnxruntime before {right}"
        if self.runtime is not None:
            return f"{what}, and --runtime holds it to {self.runtime}"
        return f"{what}, which loads the file: --runtime onnxruntime=={right} fuses it for that and later ones"

    @property
    def keeps_products(self) -> bool:
        """Do products stay nodes of their own, all of them or those with a weight?"""
        return self.keep_products is not None

    def wanted_opset(self, op: str, attrs: Mapping[str, Any]) -> int:
        """The opset that its files have to have for this op; 0 if it is not worth raising one for it."""
        return next((opset for opset in self._raised(op) if is_standard(op, attrs, opset)), 0)

    def _raised(self, op: str, opset: int = 0) -> range:
        """The opsets above one to which a model is raised for this op."""
        highest = self.runtime.opset if self.runtime else defs.onnx_opset_version()
        return range(opset + 1, highest + 1) if op in self.kind.worth_raising and not self._mistaken(op) else range(0)

    def _mistaken(self, op: str) -> bool:
        """Would a quantizer take the op for another one?  Fused ops have names of their own."""
        return self.keeps_products and not self.functions and op.rpartition(".")[2] in QUANTIZED


DEFAULT = Target()
