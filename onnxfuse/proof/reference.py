"""The ONNX reference evaluator, with the operators that it lacks (`reference_ops`), holding a value only while it is
read.

The evaluator keeps all that it computes until it is done, which in float64 is gigabytes for an image model: steps
between its nodes drop what no later node reads.  Inputs are made float64 where they are read first, and so are large
weights: a Cast of one runs right before what reads it.  Weights in files are mapped into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxfuse.model import protobuf
from onnxfuse.model.external_data import entries, is_external
from onnxfuse.model.graph import read_by

from .reference_ops import OPS


class Evaluator(ReferenceEvaluator):
    """The reference evaluator with these operators, in functions too.  It gives the outputs of its model, and no value
    in between; `widen` is what becomes of each input, and `base_dir` where external data is.

    A run raises OSError, or ValueError, where that cannot be read."""

    def __init__(
        self,
        proto: Any,
        widen: Callable[[Any], Any] | None = None,
        base_dir: Path | None = None,
        **options: Any,
    ) -> None:
        outside = _outside(proto) if isinstance(proto, ModelProto) else {}
        super().__init__(_without(proto, outside) if outside else proto, **(options | {"new_ops": list(OPS)}))
        self._forget_self()
        self._put_off_casts(self.rt_inits_.keys() | outside.keys())
        given, unread = set(self.input_names), outside.keys() | set[str]()
        reads = [set(read_by(node)) for node in self.nodes_]
        last = {name: index for index, names in enumerate(reads) for name in names}
        made = (given | unread).union(*(node.output for node in self.nodes_)) - {"", *self.output_names}
        steps: list[Any] = []
        for index, (node, names) in enumerate(zip(self.rt_nodes_, reads, strict=True)):
            if widen is not None and (fresh := given & names):
                steps.append(_Widen(sorted(fresh), sorted(fresh), widen))
                given -= fresh
            steps += [_Mapped([], [name], outside[name], base_dir or Path.cwd()) for name in sorted(unread & names)]
            unread -= names
            steps.append(node)
            written = made & set(self.nodes_[index].output)
            if done := {name for name in made & names | written if last.get(name, -1) <= index}:
                steps.append(_Drop([], sorted(done)))
        if widen is not None and (rest := given & set(self.output_names)):
            steps.append(_Widen(sorted(rest), sorted(rest), widen))
        self.rt_nodes_ = steps

    def _forget_self(self) -> None:
        """Nodes log by a function that holds the evaluator, which holds them: nobody frees its weights but the cycle
        collector, which a proof runs without."""
        for node in self.rt_nodes_:
            if hasattr(node, "run_params"):
                node.run_params["log"] = _log_nothing

    def _put_off_casts(self, constants: Set[str]) -> None:
        """Let each Cast of one of these run right before what reads it first."""
        nodes = enumerate(self.nodes_)
        waiting = {i: node.output[0] for i, node in nodes if node.op_type == "Cast" and node.input[0] in constants}
        casts = {name: index for index, name in waiting.items()}
        order: list[int] = []
        for index, node in enumerate(self.nodes_):
            if index not in waiting:
                order += [casts.pop(name) for name in sorted(casts.keys() & set(read_by(node)))]
                order.append(index)
        order += sorted(casts.values())
        self.nodes_ = [self.nodes_[index] for index in order]
        self.rt_nodes_ = [self.rt_nodes_[index] for index in order]


def _log_nothing(*_: object) -> None:
    """What takes the place of the evaluator's log, which is for whom sets `verbose`."""


def _outside(model: ModelProto) -> dict[str, TensorProto]:
    """The weights in files, by name."""
    return {tensor.name: tensor for tensor in model.graph.initializer if is_external(tensor)}


def _without(model: ModelProto, names: Collection[str]) -> ModelProto:
    """A copy without these initializers."""
    made = ModelProto()
    made.CopyFrom(model)
    protobuf.remove(made.graph.initializer, lambda tensor: tensor.name in names)
    return made


@dataclass
class _Drop:
    """Among the evaluator's nodes, what takes the place of values that nobody reads any more."""

    input: Sequence[str]
    output: Sequence[str]
    op_type = "Drop"
    has_linked_attribute = False

    def need_context(self) -> bool:
        """As the evaluator asks its nodes: does it read more than its inputs?"""
        return False

    def run(self, *values: Any) -> list[Any]:
        return [None] * len(self.output)


@dataclass
class _Widen(_Drop):
    """What takes the place of inputs in their own precision."""

    widen: Callable[[Any], Any]

    def run(self, *values: Any) -> list[Any]:
        return [self.widen(value) for value in values]


@dataclass
class _Mapped(_Drop):
    """What gives a weight that is in a file, and takes memory only where it is read."""

    tensor: TensorProto
    base_dir: Path

    def run(self, *values: Any) -> list[Any]:
        said, dtype = entries(self.tensor), helper.tensor_dtype_to_np_dtype(self.tensor.data_type)
        at, shape = int(said.get("offset") or 0), tuple(self.tensor.dims)
        return [np.memmap(self.base_dir / said["location"], dtype, "r", at, shape)]
