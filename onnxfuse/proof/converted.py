"""Proof of a model in half precision: the numbers that it has to hold, and the original's answers in float32.

The fused model is proved before, in float32 (`prove`).  What is left to show is what the conversion did: every output
is within the precision's tolerance of float32, relative to its largest number, masked rows included.  Inputs that
become half precision are not fed what that cannot say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from onnxfuse.model.element_flow import Flow
from onnxfuse.model.spool import Key
from onnxfuse.precision.convert import Converted, convert, written_out
from onnxfuse.precision.wanted import CASTS, Precision, Ranges
from onnxfuse.reporting.records import Validation
from onnxfuse.rewriting.inline_control_flow import straightened
from onnxfuse.runtime.quiet import Session, SessionError
from onnxfuse.system.isolation import TookTooLongError, isolated

from . import interval
from .branches import Branch, branches, taken
from .claim import Claim, Experiment
from .input_values import Case
from .noise import alike
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
        return _Judge(alike(claim), precision, experiment, tell).verdict()

    try:
        found = isolated(work, experiment.timeout, progress) if experiment.timeout is not None else work(progress)
    except TookTooLongError as error:
        found = _Found(Validation("not validated", note=str(error)))
    if claim.spool is not None:
        claim.spool.stored |= found.stored
    chosen: dict[str, Any] = {"kept": found.kept, "bodies": found.bodies}
    made = as_claimed(claim, precision, found.ranges, **chosen)
    if claim.spool is not None and claim.spool.wastes(made.model):
        claim.spool.clear()
        made = as_claimed(claim, precision, found.ranges, **chosen)
    return made, found.validation


def as_claimed(claim: Claim, precision: Precision, ranges: Ranges | None = None, **chosen: Any) -> Converted:
    """The fused model of a claim in half precision, with what else is `chosen` (`convert`)."""
    folders: dict[str, Any] = {"rules": claim.rules, "base_dir": claim.base_dir, "spool": claim.spool}
    return convert(claim.fused.model, precision, ranges, target=claim.target, **folders, **chosen)


@dataclass(frozen=True)
class _Found:
    """What a conversion is made with, and what is to be said of it."""

    validation: Validation
    ranges: Mapping[str, float] = field(default_factory=dict)
    """Of the fused model's values."""
    kept: range = range(0)
    """Nodes that stay in float32 for what half precision would round there."""
    bodies: frozenset[str] = frozenset()
    """Ops whose bodies are converted."""
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
        the tolerance, or longer if that takes fewer Casts.  Bodies of control flow are in half precision if all are
        right: all of them, or else the branches of If."""
        claim = self.claim
        oracle = self._oracle(claim.original, self.experiment)
        if not oracle.cases:
            return _Found(Validation("not validated", note=oracle.reason))
        seen = ranges(claim.runnable(claim.fused.model), oracle.cases, claim.base_dir)
        # As what was fused is: bodies in functions are converted, too.
        original = straightened(written_out(claim.original), claim.base_dir)
        known = branches(original).values()
        there = frozenset(op for branch in known for op in branch.ops)
        for bodies in dict.fromkeys((there, there & {"If"})) if there else ():
            found = self._found(oracle, seen, range(0), bodies)
            own = [step for branch in known if bodies.issuperset(branch.ops) for step in branch.each_step()]
            if bodies and found.validation.verdict != "mismatch" and self._all_right(original, own, seen, bodies):
                return found
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
        costs = as_claimed(claim, self.precision, seen, kept=shortest, bodies=()).boundaries
        for kept in interval.wider(shortest, costs, CASTS):
            if good(kept) and tried[kept].few_casts:
                return tried[kept]
        found = tried[shortest]
        return found if found.few_casts or self.precision.name == "mixed" else plain

    def _oracle(self, original: ModelProto, experiment: Experiment) -> Oracle:
        return Oracle(
            original,
            seed=experiment.seed,
            shapes=experiment.shapes,
            given=experiment.inputs,
            base_dir=self.claim.base_dir,
            reference=experiment.validate == "reference",
            emulate=experiment.validate == "kernels",
            rules=self.claim.rules,
            precision=self.precision.dtype,
            rtol=self.precision.rtol,
        )

    def _found(
        self, oracle: Oracle, seen: Mapping[str, float], kept: range, bodies: frozenset[str] = frozenset()
    ) -> _Found:
        """What there is to say of the model with these nodes in float32, and these ops' bodies in half precision."""
        self.tell(CONVERTED, 0, 1)
        claim = self.claim
        converted = as_claimed(claim, self.precision, seen, kept=kept, bodies=bodies)
        compared = self._compared(oracle, converted, claim.original, claim.runnable(converted.model))
        stored = claim.spool.stored if claim.spool is not None else {}
        return _Found(compared, seen, kept, bodies, converted.few_casts, stored)

    def _all_right(
        self, whole: ModelProto, known: Iterable[Branch], seen: Mapping[str, float], bodies: frozenset[str]
    ) -> bool:
        """Is each of these bodies of the original what it was, as if its branch were always taken, or a step of
        it all?  Not if the first cannot be run."""
        claim = self.claim
        converted = as_claimed(claim, self.precision, seen, bodies=bodies)
        model = claim.runnable(converted.model)
        for branch in known:
            original, made = taken(whole, branch), taken(model, branch)
            assert original is not None, "it was found there"
            self.tell(CONVERTED, 0, 1)
            given = self.experiment
            oracles = (self._oracle(original, e) for e in (given, replace(given, inputs=None, shapes=None)))
            oracle = next((oracle for oracle in oracles if oracle.cases), None)
            if oracle is None and branch.step:
                continue  # there is none, or it needs what others give
            if made is None or oracle is None:
                return False
            if branch.repeats:
                made = with_types_of(declared(original), declared(made))
            if self._compared(oracle, converted, original, made).verdict == "mismatch":
                return False
        return True

    def _compared(self, oracle: Oracle, converted: Converted, original: ModelProto, made: ModelProto) -> Validation:
        """What there is to say of a model, or a branch of it, beside the original or the same branch."""
        claim, experiment = self.claim, self.experiment
        cast = {cast.value for cast in converted.told.casts if not cast.node}
        oracle.drop(lambda case: case.unusual and any(self._beyond(case.inputs[n]) for n in cast & case.inputs.keys()))
        oracle.swallowing = converted.cut_off
        if self.precision.io:
            made = with_types_of(original, made)
        folder = claim.spool.path.parent if claim.spool is not None else None
        return oracle.compare(made, optimize=False, rtol=experiment.rtol, atol=experiment.atol, base_dir=folder)

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


def declared(model: ModelProto) -> ModelProto:
    """A copy of a model whose outputs have the element types that flow to them; shapes are not said."""
    made, kinds = ModelProto(), Flow(model).main
    made.CopyFrom(model)
    for info in made.graph.output:
        if info.type.WhichOneof("value") is None and kinds[info.name].dtype:
            info.type.tensor_type.elem_type = kinds[info.name].dtype
    return made


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
