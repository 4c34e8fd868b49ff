"""How far the outputs of a quantized model move where values lie at the boundary between two steps of a quantizer.

What a quantizer reads is rounded to one of 256 steps or fewer.  A value that lies at the boundary between two of them
falls to the one side or the other by the last digits of what was computed before, and its step is thousands of times
what rounding does.  So two models that agree in all but last digits may be far apart, and no tolerance by type says how
far: the model itself does.

The original is run again with every number that a quantizer reads moved by as much as rounding may move it,

    x' = x + ROUNDINGS e min(max|x|, STEPS s) n(x)        e: the distance from 1 to the next number of float32,
                                                          s: the largest scale, n(x) between -1 and 1

with n of DRAWS kinds, each of which looks random (the sine of a large multiple).  A number beyond all steps, such as an
infinity or what fills a mask, says nothing of how the others are rounded.  What is read in half precision has been
rounded to that besides, by OWN units in the last place of its own.  Nothing but the values at a boundary changes
by that, and what comes of it, as far as it goes beyond the tolerance, is what rounding may do: to the farthest element,
and to all of them together.  Where no value lies at a boundary, no output moves, and nothing is allowed beyond the
tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, inliner, numpy_helper

from onnxfuse.model.element_flow import UNKNOWN, Flow, Kind
from onnxfuse.model.walk import has_bodies, nodes
from onnxfuse.runtime.quiet import SessionError
from onnxfuse.terms.term import HALF

from . import numerics
from .draws import Distance, Draws
from .input_values import Case

QUANTIZERS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
"""Ops that round their first input to few steps."""
ROUNDINGS = 8.0
"""Units in the last place of the largest number, by which what a quantizer reads may be off: sums in another order."""
OWN = 2.0
"""Units in the last place of a number in half precision, by which it may be off: it is rounded from what was computed
in float32, and an op before may have rounded what it is computed from."""
DRAWS = 8
"""An element that rounding puts on the other side is there in one of so many draws, but for one in a hundred."""
STEPS = 2.0**16
"""A quantizer has no more steps."""
BEYOND = 2.0
"""Other rounding may do so many times what the worst draw shows."""
_SPREAD, _HIGHEST = 1e6, 1e30
_SEED = "onnxfuse/quantizers/seed"


class Boundaries:
    """What rounding does to the outputs of one model by way of its quantizers."""

    def __init__(self, model: ModelProto, base_dir: Path | None) -> None:
        self.none = not any(node.op_type in QUANTIZERS for node in nodes(model.graph, *model.functions))
        self._draws = Draws(lambda: shaken(model), base_dir, _SEED, range(DRAWS))

    none: bool
    """Is nothing allowed, since there are no quantizers or nobody knows what they do?"""
    unknown = ""
    """Why nothing is allowed though there are quantizers; "" where that is not so."""

    @property
    def note(self) -> str:
        """What there is to say where outputs are off that far."""
        most = self._draws.most
        return f"values between two steps of its quantizers fall to either side, which alone moves it by {most:.1e}"

    def explain(self, case: Case, expected: Sequence[Any], index: int, actual: Any) -> bool:
        """Is output `index` off by no more than by values that fall to the other side: neither farther nor oftener?"""
        own = expected[index]
        if self.none or case.empty or not isinstance(actual, np.ndarray) or actual.shape != own.shape:
            return False
        return Distance.of(actual, own) <= self._moved(case, expected, index) * BEYOND

    def allow(self, case: Case, expected: Sequence[Any], index: int) -> float:
        """How far output `index` may be off, relative to its largest number."""
        return 0.0 if self.none or case.empty else BEYOND * self._moved(case, expected, index).most

    def _moved(self, case: Case, expected: Sequence[Any], index: int) -> Distance:
        """By how much an output moves at most."""
        try:
            return self._draws(case.name, case.inputs, expected)[index]
        except SessionError as error:  # a quantizer reads a type that onnxruntime does not compute a sine in, or so
            self.none, self.unknown = True, f"what rounding does before its quantizers is not known: {error}"
            return Distance()


def shaken(model: ModelProto) -> ModelProto:
    """A copy of the model in which what quantizers read is moved, by an input that says which draw it is.

    Functions are written out where they are called, if there are quantizers in any."""
    made = ModelProto()
    if any(node.op_type in QUANTIZERS for node in nodes(*model.functions)):
        try:
            model = inliner.inline_local_functions(model)
        except Exception as error:  # onnx raises its own C++ errors, and ValueError above 2 GiB
            raise SessionError(str(error)) from error
    made.CopyFrom(model)
    flow = Flow(made)
    made.graph.input.append(helper.make_tensor_value_info(_SEED, TensorProto.FLOAT, ()))
    _shake(made.graph, flow, flow.main)
    return made


def _shake(graph: GraphProto, flow: Flow, known: Mapping[str, Kind]) -> None:
    kept: list[NodeProto] = []
    for node in graph.node:
        for body, inner in list(flow.bodies(node, known)) if has_bodies(node) else []:
            _shake(body, flow, inner)
        if node.op_type in QUANTIZERS:
            kept += _moved(node, known.get(node.input[0], UNKNOWN).dtype)
        kept.append(node)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)


def _moved(node: NodeProto, dtype: int) -> list[NodeProto]:
    """Nodes that move what a quantizer reads, and make it read that."""
    if dtype not in HALF:
        return _shifted(node)
    # All of it in float32, and rounded again.
    given, wide = node.input[0], f"onnxfuse/quantizers/{node.output[0]}/wide"
    scale, node.input[0] = node.input[1], wide
    if node.op_type == "QuantizeLinear":
        node.input[1] = f"{wide}/scale"
    made = [
        helper.make_node("Cast", [given], [wide], to=TensorProto.FLOAT),
        *([helper.make_node("Cast", [scale], [node.input[1]], to=TensorProto.FLOAT)] * (node.input[1] != scale)),
        *_shifted(node, OWN * numerics.epsilon(helper.tensor_dtype_to_np_dtype(dtype))),
        helper.make_node("Cast", [node.input[0]], [f"{wide}/rounded"], to=dtype),
    ]
    node.input[0], node.input[1] = f"{wide}/rounded", scale
    return made


def _shifted(node: NodeProto, share: float = 0.0) -> list[NodeProto]:
    """The same in float32; by this share of each number besides."""
    read, own = node.input[0], f"onnxfuse/quantizers/{node.output[0]}"
    numbers = {"spread": _SPREAD, "highest": _HIGHEST, "lowest": -_HIGHEST}
    numbers |= {"unit": ROUNDINGS * numerics.epsilon(np.dtype(np.float32)), "share": share}
    node.input[0], largest = f"{own}/moved", f"{own}/largest"
    within: list[NodeProto] = []
    if node.op_type == "QuantizeLinear":  # the steps of a dynamic one are as large as its largest number asks for
        within = [
            _number(f"{own}/steps", STEPS),
            helper.make_node("Abs", [node.input[1]], [f"{own}/scales"]),
            helper.make_node("ReduceMax", [f"{own}/scales"], [f"{own}/scale"], keepdims=0),
            helper.make_node("Mul", [f"{own}/scale", f"{own}/steps"], [f"{own}/range"]),
            helper.make_node("Min", [largest, f"{own}/range"], [f"{own}/within"]),
        ]
    reach = within[-1].output[0] if within else largest
    return [
        *(_number(f"{own}/{name}", value) for name, value in numbers.items()),
        helper.make_node("Mul", [read, f"{own}/spread"], [f"{own}/far"]),
        # The sine of infinity is NaN, which a quantizer makes some other step of.
        helper.make_node("Min", [f"{own}/far", f"{own}/highest"], [f"{own}/below"]),
        helper.make_node("Max", [f"{own}/below", f"{own}/lowest"], [f"{own}/finite"]),
        helper.make_node("Add", [f"{own}/finite", _SEED], [f"{own}/drawn"]),
        helper.make_node("Sin", [f"{own}/drawn"], [f"{own}/noise"]),
        helper.make_node("Abs", [read], [f"{own}/size"]),
        helper.make_node("ReduceMax", [f"{own}/size"], [largest], keepdims=0),
        *within,
        helper.make_node("Mul", [reach, f"{own}/unit"], [f"{own}/together"]),
        helper.make_node("Min", [f"{own}/size", f"{own}/highest"], [f"{own}/number"]),
        helper.make_node("Mul", [f"{own}/number", f"{own}/share"], [f"{own}/alone"]),
        helper.make_node("Add", [f"{own}/together", f"{own}/alone"], [f"{own}/most"]),
        helper.make_node("Mul", [f"{own}/noise", f"{own}/most"], [f"{own}/by"]),
        helper.make_node("Add", [read, f"{own}/by"], [node.input[0]]),
    ]


def _number(name: str, value: float) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value, np.float32)))
