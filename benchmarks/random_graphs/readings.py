"""Other readings of a model, which a fused op may follow as well as what is written.  The README (Limits) names each.

hidden    what a mask hides does not count, even where it is infinite or NaN: a score under a mask of at most -1e4, one
          that is multiplied by 0, and a value whose weight is 0
added     a score that Where replaces by at most -1e4 is added to, so that it shows where it is infinite or NaN, or so
          enormous that the fill beside it is nothing
fill      a fill of at most -1e9 hides, even beside scores so enormous that the sum of both does not, or below it
lowest    where no score that a row may see is above -inf, what it must not see counts as the lowest number, in
          onnxruntime's own Attention
dead      where no score of a row is above -inf, its weights are 0, in onnxruntime's own Attention (the erratum of
          ai.onnx Attention-24 has it so), instead of the NaN of a Softmax
guard     a guard that makes 0 of weights that are NaN is for rows that are masked throughout, not for strange scores
enormous  an exponential that is out of range is only enormous, as are squares of numbers and sums, products and
          quotients of such: what is computed of them in the end, weights, a hyperbolic tangent, a logarithm or what a
          variance divides, is what it is for real numbers; or a quotient of such alone is, a hyperbolic tangent
small     log(1 + x) is x where x is less than an ulp of 1
poison    a row of exponentials over their sum that holds infinity is NaN throughout, as Softmax has it
lost      the logarithm of a sum of exponentials that holds NaN and infinity is infinite, in onnxruntime's own
          ReduceLogSumExp: such as [-inf, NaN] and [inf, NaN]; and finite where only the exponentials are not
variance  the mean of squares less the square of the mean is the mean of the squares of what differs from the mean
product   what differs from the mean is multiplied before it is subtracted, as onnxruntime's InstanceNormalization does
ulps      the variance of a row whose numbers differ by an ulp is 0, as onnxruntime's LayerNormalization has it of short
          rows
constant  the mean of equal numbers is that number, and not an ulp beside it
mean      the mean of a row that holds an infinity is NaN, where LayerNormalization gives it
largest   the largest or smallest of a row is that of those that are not NaN, as onnxruntime's ReduceMax may have it
order     a product of several factors is multiplied in any order, and may leave the range of its type on the way
zero      the sign of a 0 may be lost, or gained where one is subtracted

Each is a rewriting of the original, and a result is right where it is what the original computes in one of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, inliner, numpy_helper

from onnxfuse.model.walk import attribute_graphs

from . import rows
from .magnitudes import enormous, small
from .orders import gathered, ordered

HIDES, FILLS = -1e4, -1e9
"""A mask that is added hides from the first on, beside any scores from the second on."""
BESIDE = 1e-3
"""Scores of at least so many times a fill are enormous beside it."""
LARGEST: dict[int, float] = {
    TensorProto.FLOAT: float(np.finfo(np.float32).max),
    TensorProto.FLOAT16: float(np.finfo(np.float16).max),
}
SCORES = frozenset("Add Sub Mul Div Where Max Min Neg Tanh Identity Reshape Transpose Unsqueeze Squeeze".split())
WEIGHTS = frozenset("Where Mul Identity Reshape Transpose Unsqueeze Squeeze Dropout".split())
REAL = (TensorProto.FLOAT, TensorProto.FLOAT16)
FAR = 10
"""Nodes that lie between a product and a Softmax at most."""


@dataclass
class Edit:
    """A graph without functions, on the way to be read otherwise: nodes that are replaced, by the index of the old."""

    model: onnx.ModelProto
    kinds: dict[str, int]
    around: dict[str, TensorProto] = field(default_factory=dict)
    """Constants of the graphs around."""
    replaced: dict[int, list[onnx.NodeProto]] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.nodes = list(self.model.graph.node)
        self.maker = {name: i for i, node in enumerate(self.nodes) for name in node.output}
        self.opset = next(entry.version for entry in self.model.opset_import if not entry.domain)
        self.made: list[onnx.NodeProto] = []
        self.constants = self.around | {tensor.name: tensor for tensor in self.model.graph.initializer}
        self.constants |= {n.output[0]: n.attribute[0].t for n in self.nodes if n.op_type == "Constant"}

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = self.fresh()
        self.made.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def fresh(self) -> str:
        self.count += 1
        return f"{self.nodes[-1].output[0]}/reading/{len(self.nodes)}/{self.count}"

    def number(self, value: float, like: str) -> str:
        kind = helper.tensor_dtype_to_np_dtype(self.kinds[like])
        return self.node("Constant", value=numpy_helper.from_array(np.array(value, kind)))

    def largest(self, x: str, axes: Sequence[int] = (-1,)) -> str:
        return self.reduced("ReduceMax", x, axes)

    def reduced(self, op: str, x: str, axes: Sequence[int], keepdims: int = 1) -> str:
        """Along these axes, all of them if none are named, whose length stays 1."""
        if not axes:
            return self.node(op, x, keepdims=keepdims)
        if self.opset >= 18:
            constant = self.node("Constant", value=numpy_helper.from_array(np.array(axes, np.int64)))
            return self.node(op, x, constant, keepdims=keepdims)
        return self.node(op, x, axes=axes, keepdims=keepdims)

    def axes(self, node: onnx.NodeProto) -> list[int] | None:
        """Those of a reduction, where they are constants."""
        listed = [a.ints for a in node.attribute if a.name == "axes"]
        given = self.constant(node.input[1]) if len(node.input) > 1 else None
        axes = [int(axis) for axis in (given if given is not None else listed[0] if listed else ())]
        return axes or None

    def constant(self, name: str) -> NDArray[Any] | None:
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def high(self, x: str) -> str:
        """Is it NaN, or more than any number?"""
        return self.node("Or", self.node("IsNaN", x), self.node("Equal", x, self.number(np.inf, x)))

    def strange(self, x: str) -> str:
        low = self.node("Equal", x, self.number(-np.inf, x))
        return self.node("Or", self.high(x), low)

    def at_most(self, x: str, bound: float) -> str:
        above = self.node("Greater", x, self.number(bound, x))
        return self.node("Not", self.node("Or", above, self.node("IsNaN", x)))

    def row(self, condition: str) -> str:
        """Does it hold anywhere in the row?"""
        whole = self.node("Cast", condition, to=TensorProto.FLOAT)
        return self.node("Cast", self.largest(whole), to=TensorProto.BOOL)

    def instead(self, index: int, value: str) -> None:
        """What has been made since the last time, and its value in place of that of a node."""
        old = self.nodes[index]
        self.replaced[index] = [*self.made, helper.make_node("Identity", [value], [old.output[0]])]
        self.made = []

    def kept(self, index: int, first: str = "") -> str:
        """A node as it is, under another name, or with another first operand."""
        again = onnx.NodeProto.FromString(self.nodes[index].SerializeToString())
        again.input[0] = first or again.input[0]
        again.output[0] = again.name = self.fresh()
        self.made.append(again)
        return str(again.output[0])

    def done(self) -> onnx.ModelProto | None:
        if not self.replaced:
            return None
        del self.model.graph.node[:]
        for index, node in enumerate(self.nodes):
            self.model.graph.node.extend(self.replaced.get(index, [node]))
        del self.model.graph.value_info[:]
        return self.model

    # ------------------------------------------------------------------------------------- attention

    def climb(self, name: str, through: frozenset[str], to: str, depth: int = FAR) -> list[tuple[int, int]] | None:
        """(node, operand) of each step from a value up to an op; None if it is not there."""
        index = self.maker.get(name)
        if index is None or not depth:
            return None
        node = self.nodes[index]
        if node.op_type in to.split():
            return [(index, -1)]
        for place, operand in enumerate(node.input if node.op_type in through else ()):
            path = self.climb(operand, through, to, depth - 1)
            if path is not None:
                return [(index, place), *path]
        return None

    def softmaxes(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Each Softmax of attention scores, and the way up to their product."""
        for index, node in enumerate(self.nodes):
            path = self.climb(node.input[0], SCORES, "MatMul Einsum Gemm") if node.op_type == "Softmax" else None
            if path is not None:
                yield index, path

    def masked(self) -> Iterator[tuple[int, int, int]]:
        """Each Add and Where of attention scores that is not replaced yet, and the places of scores and mask in it."""
        for _, path in self.softmaxes():
            for index, place in path[:-1]:
                op = self.nodes[index].op_type
                if index not in self.replaced and (op == "Add" or (op == "Where" and place)):
                    yield index, place, (3 if op == "Where" else 1) - place


def _hidden(edit: Edit) -> None:
    for _, path in edit.softmaxes():
        for index, place in path[:-1]:
            node = edit.nodes[index]
            if node.op_type not in ("Add", "Sub", "Mul") or index in edit.replaced or (node.op_type == "Sub" and place):
                continue
            score, mask = node.input[place], node.input[1 - place]
            if node.op_type == "Mul":
                fill = edit.number(0.0, score)
                under = edit.node("And", edit.strange(score), edit.node("Equal", mask, fill))
            else:
                fill = mask if node.op_type == "Add" else edit.node("Neg", mask)
                edit.kinds[fill] = edit.kinds[score]
                under = edit.node("And", edit.high(score), edit.at_most(fill, HIDES))
            edit.instead(index, edit.node("Where", under, fill, edit.kept(index)))
    for index, node in enumerate(edit.nodes):
        if node.op_type == "MatMul":
            for place in (0, 1):
                if edit.climb(node.input[place], WEIGHTS, "Softmax") is not None and index not in edit.replaced:
                    _mixed(edit, index, place)


def _mixed(edit: Edit, index: int, place: int) -> None:
    """A product of weights and values, of which those whose weight is 0 do not count."""
    weights, values = edit.nodes[index].input[place], edit.nodes[index].input[1 - place]

    def product(a: str, b: str) -> str:
        return edit.node("MatMul", *((a, b) if place == 0 else (b, a)))

    zero = edit.number(0.0, values)
    bad = edit.strange(values)
    read = edit.node("Not", edit.node("Equal", weights, zero))
    counts = product(*(edit.node("Cast", x, to=TensorProto.FLOAT) for x in (read, bad)))
    edit.kinds[counts] = TensorProto.FLOAT
    none = edit.at_most(counts, 0.0)
    without = product(weights, edit.node("Where", bad, zero, values))
    edit.instead(index, edit.node("Where", none, without, edit.kept(index)))


def _added(edit: Edit) -> None:
    for _, path in edit.softmaxes():
        for index, place in path[:-1]:
            node = edit.nodes[index]
            if node.op_type != "Where" or index in edit.replaced or not place:
                continue
            condition, score, fill = node.input[0], node.input[place], node.input[3 - place]
            zero = edit.number(0.0, score)
            mask = edit.node("Where", condition, *((zero, fill) if place == 1 else (fill, zero)))
            fills = edit.at_most(fill, HIDES)
            edit.instead(index, edit.node("Where", fills, edit.node("Add", score, mask), edit.kept(index)))


def _fill(edit: Edit) -> None:
    for index, place, other in edit.masked():
        score, fill = edit.nodes[index].input[place], edit.nodes[index].input[other]
        hidden = edit.node("Where", _hides(edit, score, fill), edit.number(-np.inf, score), fill)
        again = edit.kept(index)
        edit.made[-1].input[other] = hidden
        edit.instead(index, again)


def _hides(edit: Edit, score: str, mask: str) -> str:
    """Where a mask is a fill, and the row of scores holds one that is enormous beside it."""
    size = edit.largest(edit.node("Abs", score))
    edit.kinds[size] = edit.kinds[score]
    beside = edit.node("Mul", mask, edit.number(-BESIDE, score))
    return edit.node("And", edit.at_most(mask, FILLS), edit.node("Greater", size, beside))


def _lowest(edit: Edit) -> None:
    for index, place, other in edit.masked():
        node = edit.nodes[index]
        score, mask = node.input[place], node.input[other]
        hides = edit.node("Equal", mask, edit.number(-np.inf, score))
        if node.op_type == "Where":
            seen = node.input[0] if place == 1 else edit.node("Not", node.input[0])
            hides = edit.node("And", hides, edit.node("Not", seen))
        same = edit.node("Equal", score, score)
        whole = edit.node("Or", same, edit.node("Not", same))  # as wide as the scores
        some = edit.row(edit.node("And", whole, edit.node("Not", hides)))
        lowest = edit.number(-LARGEST[edit.kinds[score]], score)
        edit.instead(index, edit.node("Where", edit.node("And", hides, some), lowest, edit.kept(index)))


def _dead(edit: Edit) -> None:
    for index, _ in edit.softmaxes():
        score = edit.nodes[index].input[0]
        none = edit.node("Equal", edit.largest(score), edit.number(-np.inf, score))
        edit.instead(index, edit.node("Where", none, edit.number(0.0, score), edit.kept(index)))


def _guard(edit: Edit) -> None:
    for index, node in enumerate(edit.nodes):
        asked = edit.maker.get(node.input[0]) if node.op_type == "Where" else None
        if asked is None or edit.nodes[asked].op_type != "IsNaN":
            continue
        path = edit.climb(edit.nodes[asked].input[0], WEIGHTS, "Softmax")
        if path is None:
            continue
        scores = edit.nodes[path[-1][0]].input[0]
        way = edit.climb(scores, SCORES - {"Reshape", "Transpose", "Unsqueeze", "Squeeze"}, "MatMul Einsum")
        strange = edit.strange(edit.nodes[way[-1][0]].output[0]) if way is not None else edit.high(scores)
        own = edit.node("And", node.input[0], edit.node("Not", edit.row(strange)))
        edit.instead(index, edit.node("Where", own, *node.input[1:]))


def _zero(sign: float, edit: Edit) -> None:
    given = {info.name for info in edit.model.graph.input}

    def signed(x: str, like: str) -> str:
        nothing = edit.node("Equal", x, edit.number(0.0, like))
        return edit.node("Where", nothing, edit.number(sign * 0.0, like), x)

    for index, node in enumerate(edit.nodes):
        name = node.output[0]
        if edit.kinds.get(name) in REAL and node.op_type != "Constant" and len(node.output) == 1:
            read = [signed(x, x) if x in given and edit.kinds.get(x) in REAL else x for x in node.input]
            again = edit.kept(index)
            edit.made[-1].input[:] = read
            edit.instead(index, signed(again, name))


READINGS: tuple[tuple[str, Callable[[Edit], None]], ...] = (
    ("hidden", _hidden),
    ("added", _added),
    ("fill", _fill),
    ("lowest", _lowest),
    ("dead", _dead),
    ("guard", _guard),
    ("small", small),  # before the logarithm is one of what is enormous
    ("enormous", enormous),
    ("enormous: quotients", partial(enormous, quotients=True)),
    ("poison", rows.poison),
    ("lost", rows.lost),
    ("variance", rows.variance),
    ("product", rows.distributed),
    ("ulps", rows.ulps),
    ("constant", rows.constant),
    ("mean", rows.mean),
    ("largest", rows.largest),
    ("order: infinity", partial(ordered, "infinity")),
    ("order: 0", partial(ordered, "nothing")),
    ("order: NaN", partial(ordered, "NaN")),
    ("order: numbers", gathered),
    ("zero", partial(_zero, 1.0)),
    ("negative zero", partial(_zero, -1.0)),
)
_ATTENTION = frozenset({"Attention", "MultiHeadAttention"})
_MEANS = frozenset({"LayerNormalization"})
OF_OPS = {
    "lowest": _ATTENTION,
    "dead": _ATTENTION,
    "lost": frozenset({"ReduceLogSumExp"}),
    "product": frozenset({"InstanceNormalization"}),
    "ulps": _MEANS,
    "mean": _MEANS,
}
"""What holds only where a model has come to have one of these ops, of onnxruntime's own."""


MOST = 4
"""Readings that are tried at once."""


def readings(model: onnx.ModelProto) -> Iterator[tuple[tuple[str, ...], onnx.ModelProto]]:
    """What the model may be read as, besides what is written: by one of the readings, or several at once."""
    applying = [(name, apply) for name, apply in READINGS if _read(model, [apply]) is not None]
    for number in range(1, min(len(applying), MOST) + 1):
        for chosen in itertools.combinations(applying, number):
            names = tuple(name for name, _ in chosen)
            kinds = Counter(name.partition(":")[0].replace("negative ", "") for name in names)
            # Of the ends of a product, of what is enormous, and of the signs of a 0, one; such an end with no more than
            # one other reading.
            if max(kinds.values()) == 1 and not (kinds["order"] and number > 2):
                made = _read(model, [apply for _, apply in chosen])
                if made is not None:
                    yield names, made


def _read(model: onnx.ModelProto, applied: Sequence[Callable[[Edit], None]]) -> onnx.ModelProto | None:
    read = model
    for apply in applied:
        read = onnx.shape_inference.infer_shapes(inliner.inline_local_functions(read))
        if not _edited(read, None, apply):
            return None
    return read


def _edited(model: onnx.ModelProto, outer: Edit | None, apply: Callable[[Edit], None]) -> bool:
    """Apply a reading to the graph of a model, and to the bodies in it; did it change anything?"""
    infos = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    kinds = {info.name: info.type.tensor_type.elem_type for info in infos}
    kinds |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    known, constants = (outer.kinds, outer.constants) if outer is not None else ({}, {})
    edit, changed = Edit(model, known | kinds, constants), False
    for node in edit.nodes:
        for _, body in attribute_graphs(node):
            part = onnx.ModelProto(graph=body, opset_import=model.opset_import)
            if _edited(part, edit, apply):
                changed = True
                body.CopyFrom(part.graph)
    apply(edit)
    return edit.done() is not None or changed
