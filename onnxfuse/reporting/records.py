"""What onnxfuse found, did, and measured: plain data with one JSON form, which report.schema.json describes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from .conversion import Conversion
from .held import Held

SCHEMA_VERSION = 1

Verdict = Literal["equal", "mismatch", "not validated"]
Bound = Literal["bytes", "flops", "instructions", "launches"]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What a block of a launch needs on an architecture, by the compiled source that is most like it."""

    architecture: str
    registers: int
    """Of a thread."""
    shared: int
    """Bytes of static shared memory."""
    resident: int
    """Blocks that a multiprocessor runs at a time."""


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch of a fused node's kernel."""

    kernel: str
    """File and entry, "gemm.cu gemm"."""
    blocks: int
    threads: int
    """Of a block."""
    shared: int
    """Bytes of dynamic shared memory of a block."""
    occupancy: tuple[Occupancy, ...] = ()
    """For each architecture that kernels are compiled for."""
    waves: int | None = None
    """How often the card is filled with blocks, the last time perhaps not wholly; None as `resident` of Estimate is."""
    instructions: int | None = None
    """That its warps execute, all together; None where no source that is counted is like it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a fused node takes on a card, predicted; None is unknown, because a dimension is."""

    source: str
    """The module of onnxfuse.kernels that has its kernel, or "function body"."""
    seconds: float | None = None
    bound: Bound | None = None
    """What takes the longest; None also where there is nothing to compute."""
    bytes: int | None = None
    """Moved to and from memory."""
    flops: int | None = None
    """A fused multiply-add is two."""
    launches: int | None = None
    resident: int | None = None
    """Blocks that a multiprocessor runs at a time; None also where no compiled source is like the kernel's."""
    measured: bool = False
    """Whether `seconds` was measured on this machine."""
    kernels: tuple[Launched, ...] = ()
    host: float | None = None
    """Seconds of the processor for the node, where no CUDA graph replays it; None where it has no kernel."""
    refused: tuple[str, ...] = ()
    """Why forms of its products that this architecture alone has do not run on this card, where any was tried there and
    refused."""


REGION = "Region"
"""What fusions and near misses that no rule names are called."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """One subgraph that became (or can become) one node."""

    rule: str
    """Name of the rule, e.g. ``LayerNormalization``."""
    op: str
    """``domain.op_type`` of the fused node, e.g. ``onnxfuse.LayerNormalization``; the domain ai.onnx is left out."""
    scope: str
    """Module path of the site, e.g. ``/encoder/layer.0/attention``: what survives a rename of nodes by an exporter."""
    node: str
    """Name of the fused node in the output model."""
    replaced: tuple[str, ...]
    """Names of the nodes it replaces, in topological order."""
    absorbed: tuple[str, ...]
    """Rules that fused parts of it first, such as Gelu inside a FusedMatMul; each as often as it did, without
    `rule` itself."""
    launches_saved: int
    """Kernel launches that are no longer made."""
    bytes_saved: int | None
    """What the replaced nodes move to and from memory more than the fused one, at the sizes of the report; None where
    one is unknown, or nothing was measured."""
    code: str = ""
    """Line of the exporter's program, ``model.py:436``; empty where the file does not say."""
    estimate: Estimate | None = None
    """Where estimates were asked for and the node is one of onnxfuse's ops."""
    sources: tuple[str, ...] = ()
    """Files of the rules that had a part in it, the last one last: ``fusions/2_ops/activation/smooth.rule``."""

    @property
    def kind(self) -> str:
        """What it is counted as: its rule, or of a region, whose words change with every op, ``Region``."""
        return REGION if self.op == f"onnxfuse.{REGION}" else self.rule

    @property
    def kinds(self) -> tuple[str, ...]:
        """All that had a part in it, the last one last."""
        return (*self.absorbed, self.kind)


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A subgraph that almost matched, and why it did not."""

    rule: str
    source: str
    """Where in which rule file the failing step stands: ``fusions/2_ops/norm/layer_normalization.rule:6``; empty for a
    Region, which no file names."""
    scope: str
    node: str
    """Name of the graph node at which the match stopped."""
    reason: str
    """One clause, such as ``Pow exponent wants 2, saw 3``."""
    launches_saved: int = 0
    """Kernel launches that the fusion would save, as far as it matched."""
    code: str = ""
    """Line of the exporter's program, ``model.py:436``; empty where the file does not say."""

    @property
    def order(self) -> tuple[str, str, str, str]:
        """What a report sorts them by."""
        return self.rule, self.scope, self.node, self.reason

    @property
    def cited(self) -> str:
        """The reason, and the line of the rule."""
        return f"{self.reason} ({self.source})" if self.source else self.reason


@dataclass(frozen=True, slots=True)
class Totals:
    """What running a model once takes, all of its nodes together."""

    launches: int = 0
    """Of nodes that are more than a view, a constant, or arithmetic with shapes: one each, two where sums over all rows
    come with what is of each row."""
    bytes: int = 0
    """Read and written by these, each input and output once."""
    unsized: int = 0
    """Launches whose bytes are not among them, since a size depends on the data."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a model, and what it takes on a card."""

    name: str
    """The node's own, or that of its first output."""
    op: str
    """``domain.op_type``; the domain ai.onnx is left out."""
    scope: str
    """Module path; empty where the exporter did not say."""
    launches: int
    """0 for a view, a constant, and arithmetic with shapes."""
    seconds: float
    """The longer of the two below, and the launch."""
    memory_seconds: float
    """Of moving its bytes."""
    compute_seconds: float
    bound: Bound | None
    """What takes the longest; None where nothing is launched."""
    bytes: int | None
    """Read and written; None where a size depends on the data."""
    flops: int | None
    """A fused multiply-add is two."""
    reads: tuple[int, ...]
    """The nodes of the same model whose values it reads, by their number."""
    becomes: int | None = None
    """Of a node of the original: the node of the output that stands for it; None where nothing has to."""
    fusion: int | None = None
    """Of a node of the output: which of the report's fusions wrote it."""
    reason: str = ""
    """Of a node of the output that stands for itself alone: why."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of all graphs and functions of a model, without Constants, before and after, each list in order."""

    card: str
    """Name of the card that times are for."""
    before: tuple[Node, ...]
    after: tuple[Node, ...]


NO_RULE = "no rule takes it with a neighbour"
"""Why a node stays that computes and has neighbours that do."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """Nodes of one op that are launched one by one in the output too."""

    op: str
    """``domain.op_type``; the domain ai.onnx is left out."""
    nodes: int
    share: float
    """Of the time that the output is predicted to take on a card, between 0 and 1."""
    reason: str
    """Why they are not fused."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A fusion that is not in the output: the proof found it guilty of a mismatch, or it is predicted to be slower."""

    fusion: Fusion
    error: float | None
    """Error of the model that it was in; None where no number describes the mismatch, or there is none."""
    reason: str
    """What differs, why the model with it does not run, or how much slower it is."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Original against fused model, in onnxruntime."""

    verdict: Verdict
    max_error: float | None = None
    """Largest |fused - original| / max|original| over outputs and cases, at least atol / rtol for max|original| where
    the two count as equal; None if not validated."""
    rtol: float | None = None
    atol: float | None = None
    cases: int = 0
    """Number of input sets that both models ran."""
    note: str = ""
    """Why nothing was validated, or which output differs most."""
    reference_error: tuple[float, float] | None = None
    """(original, fused) error against float64, with ``--validate reference``."""
    kernels: tuple[str, ...] = ()
    """Fused ops that ran the source of their kernel, with ``--validate kernels``."""
    sites: int = 0
    """Values that are computed differently, and were compared at their own places."""
    kinds: int = 0
    """Of these, those that were run: each stands for the others that are the same but for names and weights."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Nodes that onnxruntime's CUDA provider has no kernel for, so that they run on the CPU."""

    onnxruntime: str
    """The version whose table of kernels says so."""
    before: dict[str, int]
    """Op of the original, and what is lacking → how many nodes."""
    after: dict[str, int]
    """The same of the output."""
    host: tuple[int, int]
    """Nodes without a kernel that only compute with shapes, as onnxruntime does on the CPU anyway; before, after."""


@dataclass(frozen=True, slots=True)
class Runs:
    """What runs the fused model, on a CPU."""

    onnxruntime: str | None
    """The first version, "1.23"; None if none that is known does."""
    reason: str
    """What asks for that version; empty if the oldest that is known will do."""
    functions: bool
    """Whether it has local functions, which a runtime has to know."""
    domains: tuple[str, ...] = ()
    """Domains of ops that have to be registered besides."""
    precise: str | None = None
    """The first version whose normalizations keep the digits of rows with a mean that is far larger than the deviation,
    where older ones that run it lose them, and there are none in the original."""


@dataclass(slots=True)
class Report:
    """All there is to say about one model.

    `to_json` is the stable form.  report.schema.json, a JSON Schema (draft 2020-12) beside this file, says what each
    key means; tests/reporting/test_records.py checks that they agree.
    """

    model: str
    """The file, as the user named it."""
    output: str | None = None
    """The file written; None if none was."""
    target: str = "onnxfuse"
    provider: str = "cpu"
    """Of onnxruntime, for which the output is."""
    runtime: str | None = None
    """The onnxruntime that it is held to, "1.23"; None if none was named."""
    level: int = 2
    """How much was fused: 0 folds alone, 1 what rules name, 2 and 3 regions, too."""
    nodes_before: int = 0
    nodes_after: int = 0
    before: Totals = field(default_factory=Totals)
    after: Totals = field(default_factory=Totals)
    held: Held | None = None
    """Of a training step, what lives between forward and backward."""
    remaining: list[Remaining] = field(default_factory=list)
    """What no fusion covers, what takes longest first."""
    nodes: Nodes | None = None
    """Each of them, where that was asked for."""
    fusions: list[Fusion] = field(default_factory=list)
    near_misses: list[NearMiss] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    kernels: dict[str, str] = field(default_factory=dict)
    """Op of domain onnxfuse in the output → the module of onnxfuse.kernels that has its kernel; of Region, all."""
    generated: int = 0
    """Kernels that are generated for its regions, each compiled at the first run on a GPU; equal ones share one."""
    bodies: dict[str, str] = field(default_factory=dict)
    """Each other such op → why it runs from its function body."""
    placement: Placement | None = None
    """Where the provider is CUDA."""
    unread: list[str] = field(default_factory=list)
    """Tensors whose values were wanted, and taken for unknown since their external data is missing."""
    runs: Runs | None = None
    card: str | None = None
    """Name of the card that the estimates are for."""
    shares_on: str = ""
    """Name of the card that shares of the predicted time are for."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of the inputs that bytes and times are for; empty where the inputs are of kinds that none fit."""
    assumed: str = ""
    """Sizes that bytes and times are for and that nobody gave, such as ``batch=3 sequence=7``."""
    conversion: Conversion | None = None
    """Where half precision was asked for."""
    validation: Validation = field(default_factory=lambda: Validation("not validated"))
    seconds: float = 0.0
    """Wall-clock time from reading to writing."""

    @property
    def census(self) -> Counter[str]:
        """How often each rule fired, inside other fusions as well: a Gelu is a Gelu inside a FusedMatMul too.  Regions
        are one kind."""
        return Counter(kind for fusion in self.fusions for kind in fusion.kinds)

    @property
    def launches_saved(self) -> int:
        """Kernel launches that all the fusions together save."""
        return sum(fusion.launches_saved for fusion in self.fusions)

    def narrowed(self, keep: Callable[[Fusion | NearMiss], bool]) -> Report:
        """The same report with only those fusions, near misses and fusions left out that `keep` wants."""
        return replace(
            self,
            fusions=[fusion for fusion in self.fusions if keep(fusion)],
            near_misses=[miss for miss in self.near_misses if keep(miss)],
            left_out=[left for left in self.left_out if keep(left.fusion)],
        )

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-ready data; a key never changes its meaning within a `schema` version.

        Numbers that JSON cannot write (NaN and infinity, as errors of a mismatch may be) become null.
        """
        plain: dict[str, Any] = _plain({"schema": SCHEMA_VERSION} | asdict(self) | {"census": dict(self.census)})
        return plain


def known_bytes(fusions: Iterable[Fusion]) -> tuple[int, bool]:
    """The bytes that `fusions` save as far as known, and whether that is all of it."""
    sizes = [fusion.bytes_saved for fusion in fusions]
    return sum(size for size in sizes if size is not None), None not in sizes


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case float():
            return value if math.isfinite(value) else None
        case _:
            return value
