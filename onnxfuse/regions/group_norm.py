"""GroupNormalization and InstanceNormalization as what they compute of rows, so that a kernel takes in what is around
them: the residual sum before, the activation behind.

    rows = Reshape(X, [0, groups, -1])                    where a group is a channel, X itself, and no Reshape behind
    Y    = (rows - mean) / Sqrt(variance + epsilon), as [0, channels, -1], times scale, plus bias, as X

What is in half precision is so in float32, and rounded at the end alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxfuse.language.functions import CAST_LIKE
from onnxfuse.model.graph import DOMAIN, family_of
from onnxfuse.model.standard import STANDARD
from onnxfuse.terms.term import HALF

from .scope import Scope

OF_CHANNELS = 21
"""The opset from which on ai.onnx GroupNormalization has a scale for each channel, as ours has."""
AXES_INPUT = 18
"""The opset from which on a mean has its axes as an input."""


class _Norm(NamedTuple):
    """What is normalized: so many groups of channels of a tensor of this rank."""

    groups: int
    channels: int
    rank: int
    epsilon: float


def written_out(scope: Scope, node: NodeProto, at: str) -> Sequence[NodeProto]:
    """The node in means of rows and ops of elements; nothing where it is none of these, or its channels are not known.
    Inner values have names that begin with `at`."""
    op, opset = family_of(node), scope.view.graph.opset
    if op == "InstanceNormalization":
        known = node.domain in STANDARD
    else:
        known = op == "GroupNormalization" and (node.domain == DOMAIN or (not node.domain and opset >= OF_CHANNELS))
    if not known or opset < CAST_LIKE:
        return ()
    kind = scope.dtype(node.input[0])
    if kind not in (TensorProto.FLOAT, *HALF):
        return ()
    shape = scope.term(node.input[0]).shape
    if shape is None or len(shape) < 3 or not isinstance(shape[1], int):
        return ()
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    groups = given.get("num_groups", shape[1])
    inputs, output, before, behind = list(node.input), node.output[0], [], []
    if kind in HALF:
        before = [_cast(name, f"{at}/real{i}", TensorProto.FLOAT) for i, name in enumerate(inputs)]
        inputs, output = [step.output[0] for step in before], f"{at}/result"
        behind = [_cast(output, node.output[0], kind)]
    norm = _Norm(groups, shape[1], len(shape), given.get("epsilon", 1e-5))
    return (*before, *_steps(inputs, output, at, opset, norm), *behind)


def _cast(name: str, to: str, kind: int) -> NodeProto:
    return helper.make_node("Cast", [name], [to], to=kind)


def _steps(inputs: Sequence[str], output: str, at: str, opset: int, norm: _Norm) -> Iterator[NodeProto]:
    x, scale, bias = inputs
    grouped = norm.groups != norm.channels  # else rows are those of x, which may have no elements: then -1 is no size
    axes = [2] if grouped else list(range(2, norm.rank))

    def constant(name: str, value: object, kind: type[np.generic] = np.int64) -> NodeProto:
        return helper.make_node("Constant", [], [f"{at}/{name}"], value=numpy_helper.from_array(np.array(value, kind)))

    def mean(of: str, name: str) -> NodeProto:
        if opset < AXES_INPUT:
            return helper.make_node("ReduceMean", [of], [f"{at}/{name}"], axes=axes)
        return helper.make_node("ReduceMean", [of, f"{at}/last"], [f"{at}/{name}"])

    def step(op: str, inputs: Sequence[str], name: str) -> NodeProto:
        return helper.make_node(op, inputs, [f"{at}/{name}"])

    rows = x
    if grouped:
        rows = f"{at}/rows"
        yield from (constant("grouped", [0, norm.groups, -1]), step("Reshape", [x, f"{at}/grouped"], "rows"))
    if opset >= AXES_INPUT:
        yield constant("last", axes)
    yield from (mean(rows, "mean"), step("Sub", [rows, f"{at}/mean"], "centered"))
    yield step("Mul", [f"{at}/centered", f"{at}/centered"], "squares")
    yield mean(f"{at}/squares", "variance")
    # In the type of the variance, whatever that becomes: of another operand, the result would rest on that as well.
    yield constant("number", norm.epsilon, np.float32)
    yield step("CastLike", [f"{at}/number", f"{at}/variance"], "epsilon")
    yield step("Add", [f"{at}/variance", f"{at}/epsilon"], "above")
    yield step("Sqrt", [f"{at}/above"], "deviation")
    yield step("Div", [f"{at}/centered", f"{at}/deviation"], "normal")
    channels = f"{at}/normal"
    if grouped:
        channels = f"{at}/channels"
        yield constant("of_channels", [0, norm.channels, -1])
        yield step("Reshape", [f"{at}/normal", f"{at}/of_channels"], "channels")
    yield constant("behind", [1] if grouped else list(range(1, norm.rank - 1)))
    yield step("Unsqueeze", [scale, f"{at}/behind"], "scale")
    yield step("Mul", [channels, f"{at}/scale"], "scaled")
    yield step("Unsqueeze", [bias, f"{at}/behind"], "bias")
    yield helper.make_node("Add", [f"{at}/scaled", f"{at}/bias"], [f"{at}/shifted" if grouped else output])
    if grouped:
        yield step("Shape", [x], "shape")
        yield helper.make_node("Reshape", [f"{at}/shifted", f"{at}/shape"], [output])
