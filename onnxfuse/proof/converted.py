"""Proof of a model in half precision: the numbers that it has to hold, and the original's answers in float32.

The fused model is proved before, in float32 (`prove`).  What is left to show is what the conversion did: every output
is within the precision's tolerance of float32, relative to its largest number, masked rows included.  Inputs that
become half precision are not fed what that cannot say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from onnxfuse.model.element_flow import Flow
from onnxfuse.model.spool import Key
from onnxfuse.precision.convert import Converted, convert
from onnxfuse.precision.wanted import CASTS, Precision, Ranges
from onnxfuse.reporting.records import Validation
from onnxfuse.runtime.quiet import Session, SessionError
from onnxfuse.system.isolation import TookTooLongError, isolated

from . import interval
from .claim import Claim, Experiment
from .input_values import Case
from .oracle import Oracle

if TYPE_CHECKING:
    from onnxfuse.fusing.fused import Progress

CONVERTED = "run in half precision"


def convert_proved(
    claim: Claim, precision: Precision, experiment: Experiment, progress: Progress
) -> tuple[Converted, Validation]:
    """Convert a proved model, and compare what it becomes with the original, in a process of its own.

    Raises what `convert` does."""

    def work(tell: Progress) -> _Found:
        return _Judge(claim, precision, experiment, tell).verdict()

    try:
        found = isolated(work, experiment.timeout, progress) if experiment.timeout is not None else work(progress)
    except TookTooLongError as error:
        found = _Found(Validation("not validated", note=str(error)))
    if claim.spool is not None:
        claim.spool.stored |= found.stored
    return as_claimed(claim, precision, found.ranges, found.kept), found.validation


def as_claimed(claim: Claim, precision: Precision, ranges: Ranges | None = None, kept: range = range(0)) -> Converted:
    """The fused model of a claim in half precision (`convert`)."""
    folders: dict[str, Any] = {"rules": claim.rules, "base_dir": claim.base_dir, "spool": claim.spool}
    return convert(claim.fused.model, precision, ranges, kept=kept, target=claim.target, **folders)


@dataclass(frozen=True)
class _Found:
    """What a conversion is made with, and what is to be said of it."""

    validation: Validation
    ranges: Mapping[str, float] = field(default_factory=dict)
    """Of the fused model's values."""
    kept: range = range(0)
    """Nodes that stay in float32 for what half precision would round there."""
    few_casts: bool = True
    stored: Mapping[Key, tuple[int, int]] = field(default_factory=dict)
    """Weights that another process has converted already."""


@dataclass(frozen=True)
class _Judge:
    claim: Claim
    precision: Precision
    experiment: Experiment
    tell: Progress

    def verdict(self) -> _Found:
        """Where the outputs are off by too much, a stretch of nodes stays in float32, as short as brings them within
        the tolerance, or longer if that takes fewer Casts."""
        claim, experiment = self.claim, self.experiment
        oracle = Oracle(
            claim.original,
            seed=experiment.seed,
            shapes=experiment.shapes,
            given=experiment.inputs,
            base_dir=claim.base_dir,
            reference=experiment.validate == "reference",
            emulate=experiment.validate == "kernels",
            rules=claim.rules,
            precision=self.precision.dtype,
        )
        if not oracle.cases:
            return _Found(Validation("not validated", note=oracle.reason))
        seen = ranges(claim.runnable(claim.fused.model), oracle.cases, claim.base_dir)
        plain = self._found(oracle, seen, range(0))
        if plain.validation.verdict != "mismatch":
            return plain
        tried: dict[range, _Found] = {}

        def good(kept: range) -> bool:
            tried[kept] = self._found(oracle, seen, kept)
            return tried[kept].validation.verdict != "mismatch"

        shortest = interval.fewest(len(claim.fused.model.graph.node), good)
        if shortest is None:
            return plain
        costs = as_claimed(claim, self.precision, seen, shortest).boundaries
        for kept in interval.wider(shortest, costs, CASTS):
            if good(kept) and tried[kept].few_casts:
                return tried[kept]
        found = tried[shortest]
        return found if found.few_casts or self.precision.name == "mixed" else plain

    def _found(self, oracle: Oracle, seen: Mapping[str, float], kept: range) -> _Found:
        """What there is to say of the model with these nodes in float32."""
        self.tell(CONVERTED, 0, 1)
        claim, experiment = self.claim, self.experiment
        converted = as_claimed(claim, self.precision, seen, kept)
        cast = {cast.value for cast in converted.told.casts if not cast.node}
        oracle.drop(lambda case: case.unusual and any(self._beyond(case.inputs[n]) for n in cast & case.inputs.keys()))
        oracle.swallowing = converted.cut_off
        made = claim.runnable(converted.model)
        if self.precision.io:
            made = with_types_of(claim.original, made)
        rtol = self.precision.rtol if experiment.rtol is None else experiment.rtol
        folder = claim.spool.path.parent if claim.spool is not None else None
        compared = oracle.compare(made, optimize=False, rtol=rtol, atol=experiment.atol, base_dir=folder)
        stored = claim.spool.stored if claim.spool is not None else {}
        return _Found(replace(compared, rtol=rtol), seen, kept, converted.few_casts, stored)

    def _beyond(self, value: object) -> bool:
        """Does an input hold numbers that half precision cannot say, such as what fills a float32 mask?"""
        return isinstance(value, np.ndarray) and value.dtype == np.float32 and _size(value) > self.precision.largest


def ranges(model: ModelProto, cases: Sequence[Case], base_dir: Path | None = None) -> dict[str, float]:
    """Values of the main graph in float32 → the size of their largest finite number in usual cases.

    Empty where the model does not run."""
    kinds = Flow(model).main
    made = [name for node in model.graph.node for name in node.output if name]
    names = [name for name in made if kinds[name].dtype == TensorProto.FLOAT]
    have = {output.name for output in model.graph.output}
    count = len(model.graph.output)
    try:
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in have)
        session = Session(model, base_dir, optimize=False)
        found = dict.fromkeys(names, 0.0)
        for case in (case for case in cases if not case.unusual):
            for name, value in zip(session.outputs, session.run(case.inputs), strict=True):
                if name in found and isinstance(value, np.ndarray):
                    found[name] = max(found[name], _size(value))
        return found
    except SessionError:
        return {}
    finally:
        del model.graph.output[count:]


def _size(array: np.ndarray) -> float:
    return float(np.abs(array[np.isfinite(array)]).max(initial=0))


def with_types_of(original: ModelProto, model: ModelProto) -> ModelProto:
    """A copy of a model whose inputs and outputs have the types of the original's again: to be compared with it."""
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    before, after = [], []
    for ours, theirs in zip(graph.input, original.graph.input, strict=False):
        kind, wanted = ours.type.tensor_type.elem_type, theirs.type.tensor_type.elem_type
        if kind != wanted:
            before.append(helper.make_node("Cast", [ours.name], [f"{ours.name}/given"], to=kind))
            _rename(graph, ours.name, f"{ours.name}/given", reads=True)
            ours.type.tensor_type.elem_type = wanted
    for ours, theirs in zip(graph.output, original.graph.output, strict=True):
        kind, wanted = ours.type.tensor_type.elem_type, theirs.type.tensor_type.elem_type
        if kind != wanted:
            _rename(graph, ours.name, f"{ours.name}/made", reads=False)
            after.append(helper.make_node("Cast", [f"{ours.name}/made"], [ours.name], to=wanted))
            ours.type.tensor_type.elem_type = wanted
    nodes = [*before, *graph.node, *after]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return made


def _rename(graph: onnx.GraphProto, name: str, other: str, *, reads: bool) -> None:
    for node in graph.node:
        node.input[:] = [other if value == name else value for value in node.input]
        if not reads:
            node.output[:] = [other if value == name else value for value in node.output]
