"""How long fused nodes take on a card, predicted, and what bounds them.

A kernel moves bytes, computes, executes instructions, and is launched: it takes as long as the longest of the first
three, and the last beside that (`kernel_times`).  A product that was measured on this machine takes what
`kernels.gemm.autotune` knows.  An op without a kernel is what the nodes of its function body are one by one: their
inputs and outputs once each, and a launch for each that is not a mere view.  So are nodes that nothing fused, but a
product takes as long as ours would, fused or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import FunctionProto, ModelProto, NodeProto, helper

from onnxfuse import kernels
from onnxfuse.errors import KernelError
from onnxfuse.kernels.attention import proof as attention_proof
from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.attention.tiles import form_of
from onnxfuse.kernels.device import cublaslt
from onnxfuse.kernels.device.device import Launch, TensorType
from onnxfuse.kernels.device.kernel import Kernel, Work
from onnxfuse.kernels.gemm import proof
from onnxfuse.kernels.gemm.autotune import Class, best, verdicts
from onnxfuse.kernels.gemm.forms import ByForms
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from onnxfuse.kernels.inspect.executed import Executed
from onnxfuse.kernels.inspect.launches import launches, occupancy
from onnxfuse.lifting.lift import lift
from onnxfuse.lifting.view import View
from onnxfuse.matching.work import Tensor, tensors
from onnxfuse.model.graph import DOMAIN, REGION, family, roots
from onnxfuse.model.op_traits import FREE, MATRIX_PRODUCTS, PRODUCTS
from onnxfuse.model.types import numpy_name
from onnxfuse.reporting.records import Estimate
from onnxfuse.runtime.served import arguments, values

from .gpus import Card
from .kernel_times import NOTHING, counted, host, own, told, vendors
from .roofline import Times, demand
from .sizes import sized

FUNCTION_BODY = "function body"


@dataclass(slots=True)
class Prediction:
    """How long a model takes on a card."""

    fused: dict[tuple[str, str], Estimate] = field(default_factory=dict)
    """Its fused nodes, by scope path and name."""
    others: float = 0.0
    """Seconds of its other nodes, each as if a runtime ran it alone; what is constant is computed before."""
    unknown: int = 0
    """Nodes of whose shapes too little is known."""

    @property
    def seconds(self) -> float:
        """Of all nodes that something is known of."""
        return self.others + math.fsum(e.seconds for e in self.fused.values() if e.seconds is not None)


def predict(
    model: ModelProto,
    shapes: Mapping[str, Sequence[int]],
    card: Card,
    rules: Sequence[Path] = (),
    base_dir: Path | None = None,
) -> Prediction:
    """Of a model whose inputs have these shapes."""
    exact = sized(model, shapes)
    bodies = {f.name: f for f in exact.functions if f.domain == DOMAIN}
    found = Prediction()
    views: dict[int, View] = {}
    for root in roots(exact):
        for graph in root.scopes():
            view = views[id(graph)] = lift(graph, base_dir, views.get(id(graph.parent)))
            for node in graph.nodes:
                if node.domain == DOMAIN:
                    kinds = [numpy_name(view.dtypes.get(name, 0)) for name in node.output]
                    estimate = _estimate(node, _types(view, node.input), kinds, bodies, card, rules)
                    found.fused[graph.path, node.name] = estimate
                    found.unknown += estimate.seconds is None
                elif any(name and not view.term(name).constant for name in node.output):
                    cost = _alone(view, node, card)
                    found.others += cost.seconds if cost is not None else 0.0
                    found.unknown += cost is None
    return found


def _types(view: View, names: Iterable[str]) -> list[TensorType | None] | None:
    """The types of some values, None for what is left out; None if one is unknown."""
    found = tensors(view, names, {})
    return found if found is None else [tensor and _typed(tensor) for tensor in found]


def _typed(tensor: Tensor) -> TensorType:
    return TensorType(np.dtype(helper.tensor_dtype_to_np_dtype(tensor.dtype)), tensor.shape)


# ------------------------------------------------------------------------------------------------------- one node


def _estimate(
    node: NodeProto,
    types: list[TensorType | None] | None,
    kinds: Sequence[str],
    bodies: Mapping[str, FunctionProto],
    card: Card,
    rules: Sequence[Path],
) -> Estimate:
    body, attributes = bodies.get(node.op_type), values(node)
    try:
        given_types = [each.dtype.name if each else "" for each in types or ()]
        if body is None:
            made = kernels.find(family(node.op_type), rules)
        elif family(node.op_type) == REGION:
            made = kernels.of_region(body, given_types, kinds)
        else:
            operands = [[each for each in types if each is not None]] if types and None not in types else None
            made = kernels.of_use(family(node.op_type), body, given_types, kinds, rules, operands)
        kernel = made(attributes)
        inputs, outputs = arguments(made.signature, body)
        source = made.name
    except KernelError:
        kernel, source = None, FUNCTION_BODY
    if types is None:
        return Estimate(source)
    if kernel is not None:
        try:
            given = dict(zip(inputs, types, strict=True))
            wanted = [at in outputs[: len(node.output)] for at in range(len(kernel.signature.outputs))]
            padded = [given.get(at) for at in range(len(kernel.signature.inputs))]
            return _of_kernel(kernel, source, padded, wanted, _rate(_multiplies(node, body), types, card), card)
        except KernelError:
            source = FUNCTION_BODY
    return _of_body(body, types, card, bodies.values()) if body is not None else Estimate(source)


def _padded(kernel: Kernel, types: Sequence[TensorType | None]) -> list[TensorType | None]:
    return [*types, *[None] * (len(kernel.signature.inputs) - len(types))]


def _multiplies(node: NodeProto, body: FunctionProto | None) -> bool:
    """Is there a product of matrices in what a node computes?"""
    inside = body.node if body is not None and family(node.op_type) == REGION else ()
    return family(node.op_type) in PRODUCTS or any(each.op_type in MATRIX_PRODUCTS for each in inside)


def _of_kernel(
    kernel: Kernel,
    source: str,
    types: Sequence[TensorType | None],
    wanted: Sequence[bool],
    rate: float,
    card: Card,
) -> Estimate:
    work = kernel.work(types)
    made, executed, times, refused = _launched(kernel, work, types, wanted, rate, card)
    measured = _measured(kernel.which(types), card) if made and isinstance(kernel, FusedMatMul) else None
    return Estimate(
        source,
        measured or times.seconds,
        times.bound if made else None,
        _bytes(work),
        work.flops,
        len(made),
        min((found.resident for one in made if (found := occupancy(one, card.architecture))), default=None),
        measured is not None,
        tuple(told(one, found, card) for one, found in zip(made, executed, strict=True)),
        host(sum(t is not None for t in types) + sum(wanted)) if made else 0.0,
        refused,
    )


class _Ours(NamedTuple):
    """What a kernel launches, in the fastest of its own forms; what that executes, and how long it takes, or the
    vendor's product in its place."""

    made: Sequence[Launch]
    executed: Sequence[Executed | None]
    times: Times
    refused: tuple[str, ...]
    """Why forms by warpgroups, where it has any, are none of them."""


def _by_warpgroups(
    kernel: Kernel, types: Sequence[TensorType | None], wanted: Sequence[bool] | None, card: Card
) -> Iterator[tuple[Sequence[Launch], str]]:
    """What its forms by warpgroups launch, and why that is refused on the card, empty if it is not."""
    if isinstance(kernel, ByForms):
        for other in kernel.by_warpgroups(types, card.multiprocessors, card.architecture):
            yield other.launches, proof.proofs().refusal(card.name, other.which, other.form)
    elif isinstance(kernel, Attention) and (form := form_of(card.architecture)):
        made = kernel.by_form(form, types, card.multiprocessors, wanted)
        if made and types[0] is not None:
            yield made, attention_proof.proofs().refusal(card.name, form, types[0].dtype.name)


def _launched(
    kernel: Kernel,
    work: Work,
    types: Sequence[TensorType | None],
    wanted: Sequence[bool] | None,
    rate: float,
    card: Card,
) -> _Ours:
    forms: list[Sequence[Launch]] = [launches(kernel, types, card.multiprocessors, wanted)]
    refused: list[str] = []
    for launched, why in _by_warpgroups(kernel, types, wanted, card):
        if why:
            refused.append(why)
        else:
            forms.append(launched)
    found = [(made, _counted(kernel, work, made, rate, card)) for made in forms]
    each = [(made, executed, own(work, made, executed, rate, card)) for made, executed in found]
    made, executed, ours = min(each, key=lambda one: one[2].seconds)
    if kernel.name != FusedMatMul.name:
        return _Ours(made, executed, ours, tuple(refused))
    fastest = min(ours, vendors(work, made, rate, card), key=lambda times: times.seconds)
    return _Ours(made, executed, fastest, tuple(refused))


def _counted(kernel: Kernel, work: Work, made: Sequence[Launch], rate: float, card: Card) -> Sequence[Executed | None]:
    return counted(work, made, kernel.name in (FusedMatMul.name, Attention.name), rate, card)


def _bytes(work: Work) -> int:
    return work.read + work.written


def _rate(product: bool, types: Sequence[TensorType | None], card: Card) -> float:
    """Operations a second: of products, by the first operand of real numbers; what has none is counted like others."""
    real = next((t.dtype for t in types if t is not None and t.dtype.kind in "fV"), None)
    return card.tensor if product and real is not None and real.itemsize == 2 else card.float32


# ------------------------------------------------------------------------------------------------ function bodies


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a standard node takes."""

    times: Times
    bytes: int = 0
    flops: int = 0
    measured: float | None = None

    @property
    def seconds(self) -> float:
        return self.measured or self.times.seconds


def _alone(view: View, node: NodeProto, card: Card) -> _Cost | None:
    """A standard node by itself; None where one of its shapes is unknown."""
    if node.op_type in FREE:
        return _Cost(NOTHING)
    asked = demand(view, node, {})
    if asked is None:
        return None
    if node.op_type in MATRIX_PRODUCTS:
        types = [t for t in _types(view, node.input) or () if t is not None]
        if types[0].dtype.kind in "fV":
            with suppress(KernelError):  # of vectors, or with its first operand transposed
                return _product(node, types, card)
    return _Cost(asked.on(card), asked.bytes, asked.flops)


def _product(node: NodeProto, inputs: list[TensorType], card: Card) -> _Cost:
    """A product as if ours computed it, which is never slower than the vendor's with a pass behind it."""
    given = values(node)
    if given.get("transA"):
        raise KernelError("a transposed first operand")
    kernel = FusedMatMul({"activation": "Relu", "transB": given.get("transB", 0)})
    types = _padded(kernel, inputs[:2])
    work = kernel.work(types)
    alone = _measured(kernel.which(types)._replace(epilogue=""), card)
    rate = _rate(True, types, card)
    times = _launched(kernel, work, types, None, rate, card).times
    return _Cost(times, _bytes(work), work.flops, alone)


def _measured(which: Class, card: Card) -> float | None:
    """Seconds that products of a class take, or else of the same sizes with another epilogue: the least."""
    exact = verdicts().measured(card.name, which)
    others = (verdicts().measured(card.name, which._replace(epilogue=name)) for name in ("", *cublaslt.NAMES))
    known = [exact] if exact else [times for times in others if times]
    return min((times[best(times)] for times in known), default=None)


def _of_body(
    body: FunctionProto, types: Sequence[TensorType | None], card: Card, functions: Iterable[FunctionProto]
) -> Estimate:
    """The nodes of a body one by one; unknown where a shape inside it is.  `functions` are those that it may call."""
    view = _view(body, types, functions)
    costs = [_alone(view, node, card) for node in view.graph.nodes if node.op_type not in FREE]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return Estimate(FUNCTION_BODY)
    total = sum((cost.times for cost in known), NOTHING)
    return Estimate(
        FUNCTION_BODY,
        math.fsum(cost.seconds for cost in known),
        total.bound if known else None,
        sum(cost.bytes for cost in known),
        sum(cost.flops for cost in known),
        len(known),
    )


def _view(body: FunctionProto, types: Sequence[TensorType | None], functions: Iterable[FunctionProto]) -> View:
    """A body as a graph of its own, whose inputs have these types."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(t.dtype), t.shape)
        for name, t in zip(body.input, types, strict=False)
        if t is not None
    ]
    graph = helper.make_graph(list(body.node), body.name, inputs, [])
    model = helper.make_model(graph, opset_imports=list(body.opset_import), functions=list(functions))
    return lift(next(roots(model)), None)
