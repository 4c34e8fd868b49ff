"""A normalization, which reduces, as what is left of it for who has something that it gives besides.

    LayerNormalization   Y = (X - Mean) * InvStdDev * Scale + B      where Mean and InvStdDev are kept: a loop
    BatchNormInternal    Y = (X - mean) * (inv * scale) + B          where mean and inv are kept: a loop
    Skip..., Embed...    Y = LayerNormalization(sum, gamma, beta)    where the sum is kept: neither it nor its terms

In each case the steps of the op's definition, without those behind what is kept, so that the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from onnx import FunctionProto, NodeProto

from onnxfuse.language.bodies import Use, real_dtype
from onnxfuse.language.builtins import UndecidedError
from onnxfuse.language.functions import function
from onnxfuse.lifting.view import View
from onnxfuse.model.graph import DOMAIN
from onnxfuse.model.schema import attribute_value
from onnxfuse.model.standard import STANDARD


@dataclass(frozen=True)
class Restated:
    """Steps that give the first result of a node, in the names of its definition."""

    steps: Sequence[NodeProto]
    result: str
    reads: Mapping[str, str]
    """What they read, by name → the values of the scope."""

    def nodes(
        self, label: str, given: Callable[[str], str], unique: Callable[[str], str]
    ) -> tuple[list[NodeProto], str]:
        """The steps as nodes, and the name of the result: `given` tells under which name a value of the scope is read,
        `unique` makes names that nothing has."""
        names = {"": ""} | {own: given(value) for own, value in self.reads.items()}
        made = list[NodeProto]()
        for step in self.steps:
            node = NodeProto()
            node.CopyFrom(step)
            node.name = unique(f"{label}_{step.op_type}")
            names |= {name: unique(f"{label}_{step.op_type}") for name in step.output}
            node.input[:] = [names[name] for name in step.input]
            node.output[:] = [names[name] for name in step.output]
            made.append(node)
        return made, names[self.result]


def restated(view: View, node: NodeProto, saved: Collection[str]) -> Restated | None:
    """What is left of a node if its other results are there that are `saved`; None where this spares nothing."""
    if not node.output[0] or not any(name in saved for name in node.output[1:]):
        return None
    body = _definition(view, node)
    if body is None:
        return None
    values, result = dict(zip(body.input, filter(None, node.input), strict=False)), body.output[0]
    kept = {own: name for own, name in zip(body.output, node.output, strict=False) if name in saved}
    steps = _left(body, result, kept.keys() - {result})
    _typed(view, steps, values | kept)
    inside = {name for step in steps for name in step.output}
    read = {name for step in steps for name in step.input if name} - inside
    if read.isdisjoint(kept) or not read <= values.keys() | kept.keys():
        return None
    return Restated(steps, result, {own: (values | kept)[own] for own in sorted(read)})


def _definition(view: View, node: NodeProto) -> FunctionProto | None:
    """What a node computes by its definition; None where it has none."""
    if node.domain == DOMAIN:
        functions = view.graph.model.functions
        return next((f for f in functions if (f.domain, f.name) == (node.domain, node.op_type)), None)
    if view.catalogue is None or node.domain not in STANDARD or node.op_type not in view.catalogue.definitions:
        return None
    shapes = [view.term(name).shape if name else None for name in node.input]
    use = Use(
        node.op_type,
        tuple(bool(name) for name in node.input),
        tuple(sorted((a.name, attribute_value(a)) for a in node.attribute)),
        (True,) * len(node.output),
        real_dtype([view.dtypes.get(node.input[0], 0) or view.term(node.input[0]).dtype]),
        tuple(None if s is None else tuple(d if isinstance(d, int) else str(d) for d in s) for s in shapes),
    )
    try:
        return function(use, view.catalogue, view.graph.opset, generic=True, standard=False)
    except UndecidedError:
        return None


def _left(body: FunctionProto, result: str, kept: Collection[str]) -> list[NodeProto]:
    """The steps to a result where others are kept.  Of what one of these is a Squeeze of, it is the Unsqueeze of it."""
    made = {name: node for node in body.node for name in node.output}
    first = list[NodeProto]()
    for name in kept:
        if made[name].op_type == "Squeeze":
            wide = NodeProto()
            wide.CopyFrom(made[name])
            wide.op_type, wide.input[0], wide.output[0] = "Unsqueeze", name, made[name].input[0]
            first += [*(made[axes] for axes in wide.input[1:]), wide]
    there = {name for node in first for name in node.output}.union(kept)
    nodes = [*{id(node): node for node in first}.values(), *(n for n in body.node if there.isdisjoint(n.output))]
    steps, wanted = list[NodeProto](), {result}
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            step = NodeProto()
            step.CopyFrom(node)
            steps.append(step)
            wanted.update(node.input)
    return steps[::-1]


def _typed(view: View, steps: Sequence[NodeProto], values: Mapping[str, str]) -> None:
    """Let numbers take their element type from what is read anyway; `values` are those that may be."""
    casts = [step for step in steps if step.op_type == "CastLike"]
    read = {name for step in steps for name in (step.input[:1] if step in casts else step.input)} & values.keys()

    def dtype(own: str) -> int:
        return view.dtypes.get(values[own], 0) or view.term(values[own]).dtype

    for step in casts:
        alike = [own for own in sorted(read) if dtype(own) == dtype(step.input[1])]
        step.input[1] = next(iter(alike), step.input[1])
