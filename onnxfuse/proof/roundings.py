"""How far rounding alone moves the outputs of a model: its own numbers, computed again with other roundings.

Of some outputs only rounding is left.  A softmax does not change where all keys have the same number more, so that the
gradient of the keys' bias is zero: what a file gives are the last digits of terms that cancel, and what a fused one
gives are others.  No tolerance by type says how far these may be apart.  The original does.  With c a number of few
digits below 1,

    y' = f(c x) / c        of an op that adds up, f, which is linear in x: each partial sum is rounded otherwise
    y' = (c f(x)) / c      of any other op that rounds

are y but for rounding, and with O_c what the original gives so, outputs F are the original's O if

    |F - O| <= max(atol, rtol max |O|, LOSS max_c |O_c - O|)        of the farthest element, and LOSS of all together

(roundings at random: Parker, Monte Carlo Arithmetic, 1997).  What was never rounded stays what it is, such as a mask, a
position or a half, since so few digits more have room; and what only moves or chooses numbers does not move them anew,
so that x - x stays 0.  Where terms do not cancel, an output moves by some last digits, and the tolerance is what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, inliner

from onnxfuse.model.element_flow import UNKNOWN, Flow, Kind
from onnxfuse.model.op_traits import CONTROL_FLOW, EXACT, MOVEMENT, RANDOM
from onnxfuse.model.walk import has_bodies
from onnxfuse.runtime.quiet import SessionError
from onnxfuse.terms.term import REAL

from .bfloat16 import emulated
from .draws import Distance, Draws
from .numerics import LOSS

FACTORS = tuple(n / 16 for n in range(9, 16))
"""Four digits, and below 1: a fill that is the largest number stays finite."""
_ADDS_UP: Mapping[str, tuple[int, ...]] = {
    "AveragePool": (0,),
    "Conv": (0, 2),
    "ConvTranspose": (0, 2),
    "CumSum": (0,),
    "Einsum": (0,),
    "Gemm": (0, 2),
    "GlobalAveragePool": (0,),
    "MatMul": (0,),
    "ReduceL1": (0,),
    "ReduceL2": (0,),
    "ReduceMean": (0,),
    "ReduceSum": (0,),
}
"""Ops that give c times as much for c times these operands."""
HALF = int(TensorProto.FLOAT16)
_KEEPS = EXACT | MOVEMENT | CONTROL_FLOW | RANDOM
FACTOR = "onnxfuse/roundings/factor"
"""The input that they are given by."""


class Roundings:
    """What rounding alone does to the outputs of one model."""

    def __init__(self, model: ModelProto, base_dir: Path | None) -> None:
        # In float32 between two nodes, as the CPU provider keeps it, float16 would not be rounded.
        self._draws = Draws(lambda: emulated(rounded_otherwise(model), HALF), base_dir, FACTOR, FACTORS)
        self._refused = False

    def allow(self, case: str, inputs: Mapping[str, Any], expected: Sequence[Any], index: int) -> Distance:
        """How far output `index` may be off in a case, relative to its largest number; nothing where the original does
        not run so."""
        if self._refused:
            return Distance()
        try:
            return self._draws(case, inputs, expected)[index] * LOSS
        except SessionError:
            self._refused = True
            return Distance()


def rounded_otherwise(model: ModelProto) -> ModelProto:
    """A copy of the model whose results are rounded otherwise, by a factor that is one more input.

    Functions are written out where they are called.  Raises SessionError where onnx cannot do that."""
    made = ModelProto()
    try:
        made.CopyFrom(inliner.inline_local_functions(model) if model.functions else model)
    except Exception as error:  # onnx raises its own C++ errors, and ValueError above 2 GiB
        raise SessionError(str(error)) from error
    flow, types = Flow(made), set[int]()
    _graph(made.graph, flow, flow.main, types)
    made.graph.input.append(helper.make_tensor_value_info(FACTOR, TensorProto.FLOAT, ()))
    casts = [helper.make_node("Cast", [FACTOR], [_factor(kind)], to=kind) for kind in sorted(types)]
    _set_nodes(made.graph, [*casts, *made.graph.node])
    return made


def _graph(graph: GraphProto, flow: Flow, known: Mapping[str, Kind], types: set[int]) -> None:
    """Let the results of a graph's nodes be rounded otherwise; the element types of these are added to `types`."""
    kept: list[NodeProto] = []
    for node in graph.node:
        for body, inner in list(flow.bodies(node, known)) if has_bodies(node) else []:
            _graph(body, flow, inner, types)
        if node.op_type in _KEEPS:
            kept.append(node)
            continue
        real = {name: known.get(name, UNKNOWN).dtype for name in (*node.input, *node.output)}
        types |= {real[name] for name in node.output if real[name] in REAL}
        kept += _rounded(node, {name: kind for name, kind in real.items() if kind in REAL})
    _set_nodes(graph, kept)


def _rounded(node: NodeProto, real: Mapping[str, int]) -> Iterator[NodeProto]:
    """A node and what rounds its results otherwise, of which some are `real`."""
    scaled = _ADDS_UP.get(node.op_type, ()) if not node.domain and node.output[0] in real else ()
    own = f"onnxfuse/roundings/{node.output[0]}"
    for at in scaled:
        if at < len(node.input) and node.input[at]:
            given, node.input[at] = node.input[at], f"{own}/{at}"
            yield helper.make_node("Mul", [given, _factor(real[node.output[0]])], [node.input[at]])
    behind: list[NodeProto] = []
    for number, name in enumerate(node.output):
        if name not in real:
            continue
        factor, node.output[number] = _factor(real[name]), f"{own}/result/{number}"
        last = node.output[number]
        if not scaled:
            last = f"{own}/scaled/{number}"
            behind.append(helper.make_node("Mul", [node.output[number], factor], [last]))
        behind.append(helper.make_node("Div", [last, factor], [name]))
    yield node
    yield from behind


def _factor(kind: int) -> str:
    return f"{FACTOR}/{kind}"


def _set_nodes(graph: GraphProto, nodes: Sequence[NodeProto]) -> None:
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(copies)
