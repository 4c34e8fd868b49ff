"""The body of a region: its nodes written out in ops of the standard, and what they read from outside.

Names are those of the scope until `content` gives new ones, which are the same for all regions of one content.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
from onnx import FunctionProto, NodeProto, helper

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.device.types import DTYPES
from onnxfuse.kernels.gemm.region import planned_types
from onnxfuse.kernels.pointwise.expressions.trace import NODES, SERVED
from onnxfuse.kernels.pointwise.loops import traced
from onnxfuse.kernels.pointwise.parts import apart
from onnxfuse.kernels.rows.fused import ROWS
from onnxfuse.kernels.rows.places import PlaceError
from onnxfuse.kernels.rows.settled import settled
from onnxfuse.model.graph import DOMAIN, REGION
from onnxfuse.model.op_traits import FREE, MATRIX_PRODUCTS
from onnxfuse.model.standard import STANDARD

from . import batch_norm, gemm, group_norm, measure, reductions, skip_norm
from .generic import generic
from .given import passed
from .scope import Scope

MATRICES = ROWS | MATRIX_PRODUCTS
"""Ops of which a kernel has the elements of a matrix in hand, at their places."""
TAKEN = SERVED | MATRICES
"""Ops that a body may have."""
WORDS = 4
"""Most ops in the name of a function."""
SPELLED = (
    batch_norm.written_out,
    gemm.written_out,
    group_norm.written_out,
    reductions.written_out,
    skip_norm.written_out,
)
"""What writes a node, of the standard or not, as ops that kernels of regions know: each has ops of its own."""
KEPT = 1 << 12
"""Launches that are written out at a time: each is part of several bodies that are tried."""


@dataclass(frozen=True)
class Body:
    """Nodes in topological order, and the values of the scope that they read and are read for."""

    nodes: tuple[NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()


def standard(scope: Scope, index: int) -> list[NodeProto]:
    """A node in ops of the standard: the body of one of our functions, else the node itself.  Its inner values have
    names that no value of a scope has, until `content` gives them others."""
    found = scope.steps.get(index)
    if found is None:
        if len(scope.steps) >= KEPT:
            scope.steps.clear()
        found = scope.steps[index] = list(_flat(scope, scope.view.graph.nodes[index], f"\0{index}"))
    return found


def _flat(scope: Scope, node: NodeProto, at: str) -> Iterator[NodeProto]:
    function = scope.functions.get(node.op_type) if node.domain == DOMAIN else None
    spelled = next(filter(None, (written_out(scope, node, at) for written_out in SPELLED)), ())
    if spelled or function is None:
        yield from spelled or (node,)
        return
    outer = dict(zip(function.input, node.input, strict=False)) | dict(zip(function.output, node.output, strict=False))
    given = {attribute.name: attribute for attribute in node.attribute}
    for number, inner in enumerate(function.node):
        made = NodeProto(op_type=inner.op_type, domain=inner.domain)
        made.input.extend(name and outer.get(name, f"{at}/{name}") for name in inner.input)
        made.output.extend(name and (outer.get(name) or f"{at}/{name}") for name in inner.output)
        for attribute in inner.attribute:
            if not attribute.ref_attr_name:
                made.attribute.append(attribute)
            elif attribute.ref_attr_name in given:
                made.attribute.add().CopyFrom(given[attribute.ref_attr_name])
                made.attribute[-1].name = attribute.name
        yield from _flat(scope, made, f"{at}/{number}")


class _Writer:
    """Puts together a body."""

    def __init__(self, scope: Scope, inside: Iterable[int]) -> None:
        self.scope, self.graph = scope, scope.view.graph
        self.made = {name for index in inside for name in self.graph.nodes[index].output if name}
        self.nodes: list[NodeProto] = []
        self.inputs: dict[str, None] = {}
        self.known: set[str] = set()

    def add(self, index: int) -> None:
        """A launch, behind what it needs that is none."""
        for name in self.graph.nodes[index].input:
            self.need(name)
        steps = standard(self.scope, index)
        self.nodes += steps
        self.known.update(name for step in steps for name in step.output)

    def need(self, name: str) -> None:
        """See to it that a value is there; iterative, since shapes are computed from shapes."""
        pending = [name]
        while pending:
            name = pending[-1]
            if not name or name in self.known or name in self.inputs:
                pending.pop()
                continue
            tensor = self.scope.embedded(name)
            if tensor is not None:
                self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
                self.known.add(name)
                continue
            index = self._between(name)
            if index is None:
                self.inputs[name] = None
                continue
            node = self.graph.nodes[index]
            missing = [n for n in node.input if n and n not in self.known and n not in self.inputs]
            if missing:
                pending += missing
                continue
            self.nodes.append(node)
            self.known.update(node.output)

    def _between(self, name: str) -> int | None:
        """The node of a value that is no launch, and has to be in the body: one of shapes, or a view of what is made
        inside."""
        if name in self.scope.hosted:
            return self.scope.hosted[name]
        inside = name in self.scope.root_of and self.scope.root(name) in self.made
        return self.graph.producer[name] if inside else None


def body(scope: Scope, indices: Sequence[int], outputs: Sequence[str] = ()) -> Body:
    """The body of launches, given the indices of their nodes in order, and what it is asked for."""
    writer = _Writer(scope, indices)
    for index in indices:
        writer.add(index)
    return asked(scope, Body(tuple(writer.nodes), tuple(writer.inputs)), outputs)


def asked(scope: Scope, written: Body, outputs: Sequence[str]) -> Body:
    """A body of which nothing was asked, with what it is asked for and the numbers that it is given for that."""
    kinds = [scope.kind(name) for name in (*written.inputs, *outputs)]
    real = "float32" in kinds[: len(written.inputs)]
    # What lies between two Casts is float32 to nobody else, and needs no number to say so.
    given = passed(written.nodes, scope.view.graph.opset, real=real) if outputs and "float32" in kinds else []
    nodes = tuple(node for node in written.nodes if not (node.op_type == "Constant" and node.output[0] in given))
    return Body(nodes, (*written.inputs, *given), tuple(outputs))


def refusal(scope: Scope, written: Body, *, whole: bool = False, placed: bool = False, most: int = 1) -> str:
    """Why no kernel computes a body in so many launches at the `most`; empty if one does.  A `whole` region is asked
    what its loops are; of one that is known to be `placed`, everything lies where it is wanted at all sizes.

    One plan tells, of the first sizes that fit one another.  They are unlike where rows have to lie where they are
    wanted: those that are equal by chance would hide that they do not."""
    for node in written.nodes:
        if node.domain not in STANDARD or node.op_type not in TAKEN:
            return f"{node.op_type} neither computes elements nor moves them, nor reduces rows"
    for name in (*written.inputs, *written.outputs):
        kind = scope.kind(name)
        if kind not in DTYPES:
            return f"{name} is {kind}, which no kernel takes"
    if reason := crowded(written):
        return reason
    kinds = [scope.kind(name) for name in written.inputs]
    text = _nameless(written, 0, kinds).SerializeToString(deterministic=True)
    shapes = [scope.term(name).shape or () for name in written.inputs]
    made = tuple(scope.kind(name) for name in written.outputs)
    matrix = any(node.op_type in MATRICES for node in written.nodes)
    reason = ""
    for symbols in (measure.UNLIKE, *measure.ALIKE) if matrix and not placed else measure.ALIKE:
        sizes = measure.tried(shapes, symbols)
        reason, misplaced = _tried(text, tuple(kinds), sizes, made, whole or matrix, most)
        if not reason or misplaced:
            break
    return reason


def crowded(written: Body) -> str:
    """Why a body has more nodes than one kernel is made of, views and constants among them; empty if it has not."""
    if len(written.nodes) <= NODES:
        return ""
    longest = max(len(nodes) for nodes, _ in apart(written.nodes, written.outputs))
    return f"{longest} nodes are too many for one kernel" if longest > NODES else ""


@lru_cache(maxsize=1 << 14)
def _tried(
    text: bytes,
    kinds: tuple[str, ...],
    shapes: tuple[tuple[int, ...] | None, ...],
    made: tuple[str, ...],
    whole: bool,
    most: int,
) -> tuple[str, bool]:
    """Why the generator refuses a body at these sizes, and whether that is for where rows lie; `kinds` are the element
    types of what it reads, `made` those of what it has to give.  It is the same for a part of a region that has a
    matrix as for the `whole`."""
    function = settled(FunctionProto.FromString(text), kinds)
    if None in shapes:
        return "a size is a function of nothing known", False
    types = [TensorType(DTYPES[kind], shape) for kind, shape in zip(kinds, shapes, strict=True) if shape is not None]
    given, nodes = dict(zip(function.input, types, strict=True)), list(function.node)
    try:
        results, launches = _planned(nodes, given, list(function.output), whole)
        if launches > most:
            return "it is more than one loop", False
    except KernelError as error:
        return str(error), isinstance(error, PlaceError)
    except (ArithmeticError, LookupError, ValueError) as error:  # of a node that no runtime may run
        return f"no kernel is written for it: {error}", False
    for wanted, dtype in zip(made, results, strict=True):
        if dtype.name != wanted:  # memory would be read as what it is not
            return f"the kernel would give {dtype.name} where {wanted} is read", False
    return "", False


def _planned(
    nodes: Sequence[NodeProto], given: Mapping[str, TensorType], outputs: Sequence[str], whole: bool
) -> tuple[list[np.dtype[Any]], int]:
    """The element types of the outputs of a body, and its launches.  Raises KernelError."""
    if not whole:
        return [value.dtype for value in traced(nodes, given, outputs).values()], 1
    types, count = planned_types(nodes, given, outputs)
    return [result.dtype for result in types], count


def content(written: Body, opset: int, kinds: Sequence[str]) -> FunctionProto:
    """A body as the function that all regions of its content call; `kinds` are the element types of its inputs."""
    made = _nameless(written, opset, kinds)
    digest = hashlib.blake2s(repr((opset, tuple(kinds))).encode(), digest_size=4)
    digest.update(made.SerializeToString(deterministic=True))
    made.name = f"{REGION}_{''.join(dict.fromkeys(list(_launched(written))[:WORDS]))}_{digest.hexdigest()}"
    return made


def _nameless(written: Body, opset: int, kinds: Sequence[str]) -> FunctionProto:
    """That function, which has no name yet."""
    names: dict[str, str] = {"": ""}
    names |= {name: f"x{number}" for number, name in enumerate(written.inputs)}
    names |= {name: f"y{number}" for number, name in enumerate(written.outputs)}
    made = FunctionProto(domain=DOMAIN)
    inner = 0
    like = next((name for name, kind in zip(written.inputs, kinds, strict=False) if kind == "float32"), "")
    for node in generic(written.nodes, like, opset):
        # Nodes without names are all one to a fusion of onnxruntime 1.20's, which then refuses the model.
        copy = made.node.add(op_type=node.op_type, domain=node.domain, name=f"n{len(made.node)}")
        for name in node.output:
            if name not in names:
                names[name] = f"v{inner}"
                inner += 1
        copy.input.extend(names[name] for name in node.input)
        copy.output.extend(names[name] for name in node.output)
        copy.attribute.extend(sorted(node.attribute, key=lambda attribute: attribute.name))
    made.input.extend(names[name] for name in written.inputs)
    made.output.extend(names[name] for name in written.outputs)
    made.opset_import.append(helper.make_opsetid("", opset))
    return made


def _launched(written: Body) -> Iterator[str]:
    return (node.op_type for node in written.nodes if node.op_type not in FREE)


def words(ops: Sequence[str]) -> str:
    """The ops of a region as reports name it: ``Mul Add Transpose``, those that follow themselves as ``Slice×2``; of
    many each once with its number."""
    runs = [(op, len(list(run))) for op, run in groupby(ops)]
    if len(runs) > 2 * WORDS:
        runs = list(Counter(ops).items())
    return " ".join(op if count == 1 else f"{op}\N{MULTIPLICATION SIGN}{count}" for op, count in runs)
