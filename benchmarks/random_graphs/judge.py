"""Whether a fused model computes what the original does, with infinities, NaN, and nothing at all among its inputs.

The original, with every optimization of onnxruntime off, is right.  Another result is right as well where

    rounding   the original changes as much if the result of each of its nodes is wrong by some ulps (Monte Carlo
               arithmetic, Parker 1997): nobody may rely on such a number
    spelling   it is what the original computes in float64: an intermediate of it overflowed, as in log(1 + exp(x)) at
               100, which no op with that meaning does; or it is finite where only the original in float32 is not, since
               ops round enormous numbers in their own ways.  What float64 cannot hold either, such as exp(1000), or
               infinity divided by itself in a hyperbolic tangent of exponentials, says nothing of finite results
    guard      it is NaN in a model that asks IsNaN of weights of attention, and infinities, NaN or enormous numbers
               came in: the guard is for rows that are masked throughout, and only those keep it
    mask       one of the two is NaN, there is attention, and such numbers came in: what a mask hides does not count,
               but adding -inf to infinity does; by Where the original hides what a mask that is added does not
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, inliner, numpy_helper

from onnxfuse.proof import float64
from onnxfuse.runtime.quiet import Session, SessionError

from .feeds import ENORMOUS, Feed

Array = NDArray[Any]
TOLERANCE = {"float16": (4e-3, 1e-4), "float32": (5e-5, 1e-35), "float64": (1e-9, 1e-300)}
"""Of an element, relative and absolute: rounding in another order where nothing cancels."""
NOISE = {"float16": 2.0**-10, "float32": 2.0**-22}
"""How far the result of a node may be off, relatively."""
FAR = 1e-3
"""How far the original is from float64, relatively, if something overflowed."""
TAIL = 1e-7
"""How far a quotient may be off where exponentials are written out: onnxruntime's Sigmoid is 0 from -18 on or so."""
FEW, MANY = 4, 24
"""Runs with noise, before and after something looks wrong."""
SLACK = 8.0
"""How many times the spread of those runs a result may be away from the original."""
REAL = (TensorProto.FLOAT, TensorProto.FLOAT16)


@dataclass(frozen=True)
class Wrong:
    """A difference that nothing explains."""

    feed: Feed
    output: str
    text: str

    def __str__(self) -> str:
        return f"output {self.output!r} {self.text} ({self.feed.name})"


class Original:
    """A model, and what it computes of each feed that it runs on."""

    def __init__(self, model: onnx.ModelProto, feeds: Sequence[Feed]) -> None:
        self.model = model
        self.names = [output.name for output in model.graph.output]
        session = Session(model, optimize=False, threads=1)
        self.expected: list[tuple[Feed, list[Array]]] = []
        for feed in feeds:
            if feed.empty and (_counts_from_the_end(model) or _refuses_empty(model)):
                continue  # onnxruntime itself is wrong then
            try:
                self.expected.append((feed, session.run(feed.inputs)))
            except SessionError:
                continue  # it does not take empty tensors, say
        self._guarded = any(n.op_type == "IsNaN" for n in _nodes(model))
        self._noisy: list[Session] = []
        self._exact: dict[int, list[Array] | None] = {}

    def wrong(self, fused: onnx.ModelProto, *, optimize: bool = False) -> Wrong | None:
        """The first output that is not what it should be; None if all are."""
        nowhere = Feed("loading", {})
        try:
            session = Session(fused, optimize=optimize, threads=1)
        except SessionError as error:
            return Wrong(nowhere, "", f"cannot be had: {error}")
        if session.outputs != self.names:
            return Wrong(nowhere, "", f"are {session.outputs} instead of {self.names}")
        for number, (feed, expected) in enumerate(self.expected):
            if feed.empty and _refuses_empty(fused):
                continue
            try:
                actual = session.run(feed.inputs)
            except SessionError as error:
                if feed.empty and "re-use buffer" in str(error):
                    continue  # onnxruntime plans its memory without thinking of empty tensors
                return Wrong(feed, "", f"cannot be computed: {error}")
            for index, name in enumerate(self.names):
                if feed.empty and actual[index].shape != expected[index].shape and _counts_from_the_end(fused):
                    continue  # onnxruntime's reductions in function bodies, which do not know a rank
                text = self._difference(number, index, actual[index], expected[index], _has(fused, "Attention"))
                if text:
                    return Wrong(feed, name, text)
        return None

    def _difference(self, number: int, index: int, actual: Array, expected: Array, masks: bool) -> str:
        if actual.dtype != expected.dtype or actual.shape != expected.shape:
            return f"is {actual.dtype}{list(actual.shape)} instead of {expected.dtype}{list(expected.shape)}"
        bad = ~_close(actual, expected, 0.0)
        if not bad.any():
            return ""
        for runs in (FEW, MANY):
            bad &= ~self._rounding(number, index, actual, expected, runs)
            if not bad.any():
                return ""
        if expected.dtype.kind == "f":
            bad &= ~self._spelling(number, index, actual, expected)
        if expected.dtype.kind == "f" and bad.any() and (masks or self._guarded) and self._strange(number):
            bad &= ~(np.isnan(actual) & self._guarded)
            bad &= ~((np.isnan(expected) | np.isnan(actual)) & masks)
        if not bad.any():
            return ""
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        return f"has {actual[place]} instead of {expected[place]} at {list(place)}, {int(bad.sum())} such elements"

    def _strange(self, number: int) -> bool:
        """Are there numbers that are not finite, or enormous, in the feed or behind a product of matrices?"""
        feed = self.expected[number][0]
        products = [name for node in _nodes(self.model) if node.op_type == "MatMul" for name in node.output]
        values = inner_values(self.model, feed)
        reals = [values[name] for name in products if name in values]
        return feed.strange or any(not (np.abs(array) < ENORMOUS).all() for array in reals)

    def _rounding(self, number: int, index: int, actual: Array, expected: Array, runs: int) -> Array:
        """Where the original itself is no steadier."""
        while len(self._noisy) < runs:
            self._noisy.append(Session(_noisy(self.model, len(self._noisy)), optimize=False, threads=1))
        feed = self.expected[number][0]
        spread, unsteady = np.zeros(expected.shape), np.zeros(expected.shape, bool)
        for seed, session in enumerate(self._noisy[:runs]):
            try:
                other = session.run(_shaken(feed, seed))[index]
            except SessionError:
                continue
            if other.shape != expected.shape:
                return np.ones(expected.shape, bool)
            unsteady |= ~_same_kind(other, expected)
            with np.errstate(all="ignore"):
                apart = np.abs(other.astype(np.float64) - expected.astype(np.float64))
            spread = np.maximum(spread, np.where(np.isfinite(apart), apart, 0.0))
        if expected.dtype.kind != "f":
            return np.asarray(unsteady | (spread > 0))
        return np.asarray(unsteady | _close(actual, expected, SLACK * spread))

    def _spelling(self, number: int, index: int, actual: Array, expected: Array) -> Array:
        """Where the result is finite, and right in float64, or the original is not finite even there by overflow."""
        if number not in self._exact:
            feed = {name: _widened(array) for name, array in self.expected[number][0].inputs.items()}
            try:
                self._exact[number] = float64.evaluate(float64.to_float64(self.model), [feed])[0]
            except Exception:  # the reference evaluator raises whatever its operators raise
                self._exact[number] = None
        exact = self._exact[number]
        if exact is None or exact[index].shape != expected.shape:
            return np.asarray(np.isfinite(actual) & ~np.isfinite(expected) & _exponentials(self.model))
        wide = np.asarray(exact[index], np.float64)
        near = _close(actual.astype(np.float64), wide, np.abs(wide) * FAR)
        near &= ~_close(expected.astype(np.float64), wide, np.abs(wide) * FAR)
        lost = ~np.isfinite(expected) & (_exponentials(self.model) | np.isfinite(wide))
        return np.asarray(near | (~np.isnan(actual) & lost))


def _exponentials(model: onnx.ModelProto) -> bool:
    """May float64 overflow?"""
    return any(node.op_type in ("Exp", "ReduceLogSumExp") for node in _nodes(model))


def inner_values(model: onnx.ModelProto, feed: Feed) -> dict[str, Array]:
    """Every result of the graph's nodes."""
    inferred = onnx.shape_inference.infer_shapes(model)
    known = {output.name for output in model.graph.output}
    extended = onnx.ModelProto.FromString(model.SerializeToString())
    extended.graph.output.extend(info for info in inferred.graph.value_info if info.name not in known)
    try:
        session = Session(extended, optimize=False, threads=1)
        return dict(zip(session.outputs, session.run(feed.inputs), strict=True))
    except SessionError:
        return {}


def _has(model: onnx.ModelProto, family: str) -> bool:
    """Does an op of this name, or one that is fused around it, stand in the model?"""
    return any(family in node.op_type for node in _nodes(model))


def _refuses_empty(model: onnx.ModelProto) -> bool:
    """Are there ops that onnxruntime (1.31) refuses empty tensors of, or crashes?"""
    return any(_has(model, op) for op in ("Attention", "InstanceNormalization", "Einsum"))


def _counts_from_the_end(model: onnx.ModelProto) -> bool:
    """Are there reductions over axes that count from the end?"""
    nodes = _nodes(model)
    tensors = {t.name: t for t in model.graph.initializer}
    tensors |= {n.output[0]: n.attribute[0].t for n in nodes if n.op_type == "Constant"}
    axes = list[int]()
    for node in nodes:
        if node.op_type.startswith("Reduce"):
            axes += [i for a in node.attribute if a.name == "axes" for i in a.ints]
            axes += [
                i for name in node.input[1:] if name in tensors for i in numpy_helper.to_array(tensors[name]).ravel()
            ]
    return min(axes, default=0) < 0


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    found = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    return found + [n for node in found for a in node.attribute if a.HasField("g") for n in a.g.node]


def _same_kind(a: Array, b: Array) -> Array:
    """Are both finite, both NaN, or the same infinity?"""
    if a.dtype.kind != "f":
        return np.ones(a.shape, bool)
    return np.asarray((np.isnan(a) == np.isnan(b)) & (np.isinf(a) == np.isinf(b)) & (~np.isinf(b) | (a == b)))


def _close(actual: Array, expected: Array, more: Any) -> Array:
    if expected.dtype.kind != "f":
        return np.asarray(actual == expected)
    relative, absolute = TOLERANCE[expected.dtype.name]
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(a - e) <= relative * np.abs(e) + absolute + more
    return np.asarray(_same_kind(actual, expected) & (near | ~np.isfinite(e)))


def _widened(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _shaken(feed: Feed, seed: int) -> dict[str, Array]:
    """Inputs that are off by some ulps: what cancels inside a product of matrices shows."""
    rng = np.random.default_rng(seed)
    return {name: _shake(rng, a) if a.dtype.kind == "f" else a for name, a in feed.inputs.items()}


def _shake(rng: np.random.Generator, array: Array) -> Array:
    noise = NOISE[array.dtype.name]
    with np.errstate(all="ignore"):
        return np.asarray(array * (1 + rng.uniform(-noise, noise, array.shape))).astype(array.dtype)


def _noisy(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with a factor near 1 on each element of each real result, as good as random."""
    inferred = onnx.shape_inference.infer_shapes(inliner.inline_local_functions(model))
    known = {v.name: v.type.tensor_type for v in (*inferred.graph.value_info, *inferred.graph.output)}
    types = {name: kind.elem_type for name, kind in known.items() if not _is_empty(kind)}
    nodes, count = list[onnx.NodeProto](), 0
    for node in inferred.graph.node:
        maker = onnx.NodeProto.FromString(node.SerializeToString())
        nodes.append(maker)
        for i, name in enumerate(node.output):
            if types.get(name) in REAL and node.op_type not in ("Constant", "Identity"):
                count += 1
                maker.output[i] = f"{name}/exact"
                tail = (-TAIL if seed % 2 else TAIL) * (node.op_type in ("Div", "Reciprocal") and _exponentials(model))
                nodes += _factor(name, types[name], 1000.0 * seed + 17 * count, tail)
    del inferred.graph.node[:]
    inferred.graph.node.extend(nodes)
    del inferred.graph.value_info[:]
    return inferred


def _is_empty(kind: onnx.TypeProto.Tensor) -> bool:
    return any(d.HasField("dim_value") and not d.dim_value for d in kind.shape.dim)


def _factor(name: str, dtype: int, phase: float, tail: float) -> list[onnx.NodeProto]:
    """name = name/exact * (1 + noise * wave) + tail * wave, wave = sin(phase + 78 * place): onnxruntime lacks random
    numbers in some opsets.  A negative tail makes 0 of what is smaller, instead."""

    def number(text: str, value: Any) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [f"{name}/{text}"], value=numpy_helper.from_array(np.array(value)))

    def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, [f"{name}/{i}" for i in inputs.split()], [f"{name}/{output}"], **attributes)

    noise = NOISE["float16" if dtype == TensorProto.FLOAT16 else "float32"]
    constants = [
        number("zero", 0),
        number("one", 1),
        number("often", np.float32(78.233)),
        number("whole", np.float32(1)),
    ]
    nodes = [
        *constants,
        number("phase", np.float32(phase)),
        number("noise", np.float32(noise)),
        node("Shape", "exact", "shape"),
        node("Size", "exact", "size"),
        node("Range", "zero size one", "place"),
        node("Cast", "place", "real", to=TensorProto.FLOAT),
        node("Mul", "real often", "angle"),
        node("Add", "angle phase", "turned"),
        node("Sin", "turned", "wave"),
        node("Mul", "wave noise", "small"),
        node("Add", "small whole", "near"),
        node("Reshape", "near shape", "shaped"),
        node("Cast", "shaped", "factor", to=dtype),
        helper.make_node("Mul", [f"{name}/exact", f"{name}/factor"], [f"{name}/shaken" if tail else name]),
    ]
    if tail > 0:
        nodes += [
            number("tail", np.float32(tail)),
            node("Mul", "wave tail", "end"),
            node("Reshape", "end shape", "ends"),
            node("Cast", "ends", "last", to=dtype),
            helper.make_node("Add", [f"{name}/shaken", f"{name}/last"], [name]),
        ]
    elif tail:
        nodes += [
            number("tail", np.float32(-tail)),
            node("Abs", "shaken", "absolute"),
            node("Cast", "absolute", "wide", to=TensorProto.FLOAT),
            node("Greater", "wide tail", "counts"),
            node("Cast", "counts", "kept", to=dtype),
            helper.make_node("Mul", [f"{name}/shaken", f"{name}/kept"], [name]),
        ]
    return nodes
