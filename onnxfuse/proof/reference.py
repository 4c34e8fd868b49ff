"""The ONNX reference evaluator, with the operators that it lacks (`reference_ops`), holding a value only while it is
read.

The evaluator keeps all that it computes until it is done, which in float64 is gigabytes for an image model: steps
between its nodes drop what no later node reads.  Inputs are made float64 where they are read first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import NodeProto
from onnx.reference import ReferenceEvaluator

from onnxfuse.model.graph import captured_names

from .reference_ops import OPS


class Evaluator(ReferenceEvaluator):
    """The reference evaluator with these operators, in functions too.  It gives the outputs of its model, and no value
    in between; `widen` is what becomes of each input."""

    def __init__(self, proto: Any, widen: Callable[[Any], Any] | None = None, **options: Any) -> None:
        super().__init__(proto, **(options | {"new_ops": list(OPS)}))
        given = set(self.input_names)
        reads = [_read(node) for node in self.nodes_]
        last = {name: index for index, names in enumerate(reads) for name in names}
        made = given.union(*(node.output for node in self.nodes_)) - {"", *self.output_names}
        steps: list[Any] = []
        for index, (node, names) in enumerate(zip(self.rt_nodes_, reads, strict=True)):
            if widen is not None and (fresh := given & names):
                steps.append(_Widen(sorted(fresh), sorted(fresh), widen))
                given -= fresh
            steps.append(node)
            written = made & set(self.nodes_[index].output)
            if done := {name for name in made & names | written if last.get(name, -1) <= index}:
                steps.append(_Drop([], sorted(done)))
        if widen is not None and (rest := given & set(self.output_names)):
            steps.append(_Widen(sorted(rest), sorted(rest), widen))
        self.rt_nodes_ = steps


def _read(node: NodeProto) -> set[str]:
    """What a node and the bodies in it read."""
    return {*node.input, *captured_names(node)} - {""}


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
