"""Whether a fused model computes what the original does, with infinities, NaN, and nothing at all among its inputs.

The original, with every optimization of onnxruntime off, is right.  Another result is right as well, element by
element, where

    rounding   the original changes as much if the result of each of its nodes is wrong by some ulps (`noise`): nobody
               may rely on such a number; a reading of it may change as well
    spelling   it is what the original computes in float64, and the original in its own type does not: an intermediate
               of it overflowed, as in log(1 + exp(x)) at 100, which no op with that meaning does, or lost digits; or it
               is as near to that as the original
    reading    it is what the original computes, itself or in float64, where it is read in another way that the README
               names, of masks that hide infinities, say (`readings`)
    storing    it is what the original computes in half precision where each result is rounded to that: onnxruntime's
               CPU provider keeps the float32 that it computes with between some nodes
    brink      it is infinite or NaN, and where the original's nodes are wrong by some ulps, one of them overflows that
               does not else: a mean of 25 times 1e30 that is an ulp away from it, whose square is out of range
    deciding   it hangs on the condition of an If that float64 answers the other way (`decided`)

Empty tensors are run in a process of their own, where onnxruntime may crash.  It gives what is reduced of them along
axes that count from the end the wrong shape: outside our functions, such axes are counted from the first on, as the
standard means it.  Where a Reshape of the original takes a size of 0 for a dimension to copy, what it means is right as
well (`copied`).  Of the fused model, onnxruntime's attention may refuse them, its normalizations rows of none, and a
Reshape before opset 14 what it cannot say, if it gives it no other shape; where an Attention or an
InstanceNormalization is new, it may crash.  docs/limits.md says all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import inliner
from onnx.reference import ReferenceEvaluator

from onnxfuse.model.walk import nodes_of
from onnxfuse.proof import float64
from onnxfuse.runtime.quiet import Session, SessionError

from .alone import Answer, CrashError, alone, each_alone
from .copied import meant
from .decided import undecided
from .defects import crashing, reads_scores
from .exact import bounded, wide_runs, widened
from .feeds import Feed
from .hollow import as_declared, is_hollow, sized
from .noise import noisy, parity, shaken
from .readings import OF_OPS, readings

Array = NDArray[Any]
TOLERANCE = {"float16": (4e-3, 1e-4), "float32": (5e-5, 1e-35), "float64": (1e-9, 1e-300)}
"""Of an element, relative and absolute: rounding in another order where nothing cancels."""
NEAR, FAR = {"float16": 4e-3, "float32": 1e-4, "float64": 1e-9}, 1e-3
"""How far from float64, relatively, what is right is at most, and what overflowed at least."""
FEW, MANY, MOST = 4, 24, 96
"""Runs with noise: before something looks wrong, after it does, and where nothing else explains it."""
_REFUSED = "Attention node", "X.shape[axis:] must be at least 1", "ReshapeHelper"
"""What onnxruntime (1.31) says where its attention, or a normalization of rows of nothing, takes no empty tensors; and
where a Reshape, which before opset 14 copies a dimension for a 0, does not fit."""
SLACK = 8.0
"""How many times the spread of those runs a result may be away from the original."""


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

    def __init__(self, model: onnx.ModelProto, fed: Sequence[Feed]) -> None:
        self.model = model
        self.names = [output.name for output in model.graph.output]
        self.expected: list[tuple[Feed, list[Array]]] = []
        session = Session(model, optimize=False, threads=1)
        self._hollow = is_hollow(model)
        self._hollow_at: dict[tuple[tuple[int, ...], ...], bool] = {}
        self._copies = any(not entry.domain and entry.version < 14 for entry in model.opset_import)
        apart = each_alone(model, [feed for feed in fed if self._is_empty(feed)])
        for feed in fed:
            try:
                outputs = next(apart)() if self._is_empty(feed) else session.run(feed.inputs)
            except (SessionError, CrashError):
                continue  # it does not take such numbers, or empty tensors
            if as_declared(model, outputs):
                self.expected.append((feed, outputs))
        self._noisy: dict[tuple[tuple[str, ...], int], Session] = {}
        self._sessions: dict[tuple[str, ...], Session] = {}
        self._readings: list[tuple[tuple[str, ...], onnx.ModelProto]] = []
        self._unread = readings(model)
        self._exact: dict[tuple[int, tuple[str, ...]], list[Array] | None] = {}
        self._wide: dict[tuple[int, tuple[str, ...]], list[list[Array]]] = {}
        self._meant: dict[int, list[Array] | None] = {}

    def wrong(self, fused: onnx.ModelProto, *, optimize: bool = False) -> Wrong | None:
        """The first output that is not what it should be; None if all are."""
        nowhere = Feed("loading", {})
        try:
            session = Session(fused, optimize=optimize, threads=1)
        except SessionError as error:
            if "ShapeInferenceError" in str(error) and reads_scores(fused):
                return None  # the proof leaves it out; the README (Limits) says so
            return Wrong(nowhere, "", f"cannot be had: {error}")
        if session.outputs != self.names:
            return Wrong(nowhere, "", f"are {session.outputs} instead of {self.names}")
        crashes = crashing(fused) > crashing(self.model)
        new = set(_ops(fused) - _ops(self.model))
        unsaid = self._copies and _ops(fused)["Reshape"] > _ops(self.model)["Reshape"]
        empty = [feed for feed, _ in self.expected if self._is_empty(feed)]
        apart = each_alone(fused, empty, self.model, optimize=optimize)
        for number, (feed, expected) in enumerate(self.expected):
            try:
                actual = self._empty(fused, feed, next(apart)) if self._is_empty(feed) else session.run(feed.inputs)
            except (SessionError, CrashError) as error:
                crashed = isinstance(error, CrashError) and crashes
                refused = _REFUSED if self._copies else _REFUSED[:-1]
                if (self._is_empty(feed) or is_hollow(sized(self.model, feed))) and (
                    crashed or any(text in str(error) for text in refused)
                ):
                    continue
                return Wrong(feed, "", f"cannot be computed: {error}")
            for index, name in enumerate(self.names):
                if unsaid and self._is_empty(feed) and actual[index].shape != expected[index].shape:
                    continue
                text = self._difference(number, index, actual[index], expected[index], new)
                if text and not (self._is_empty(feed) and self._is_meant(number, index, actual[index])):
                    return Wrong(feed, name, text)
        return None

    def _is_empty(self, feed: Feed) -> bool:
        """Is something without elements, whatever is fed or at these sizes?"""
        if feed.empty or self._hollow:
            return True
        sizes = tuple(array.shape for array in feed.inputs.values())
        if sizes not in self._hollow_at:
            self._hollow_at[sizes] = is_hollow(sized(self.model, feed))
        return self._hollow_at[sizes]

    def _empty(self, fused: onnx.ModelProto, feed: Feed, answer: Answer) -> list[Array]:
        """The outputs of a feed without elements, which `answer` has.

        Without its optimizations, onnxruntime may give an untouched node of the original a buffer in which nothing
        empty fits: then with them."""
        try:
            return answer()
        except SessionError as error:
            written = {node.SerializeToString() for node in fused.graph.node}
            untouched = [node for node in self.model.graph.node if node.SerializeToString() in written]
            if "re-use buffer" not in str(error) or not any(f"Name:'{n.name}'" in str(error) for n in untouched):
                raise
            return alone(fused, feed, self.model, optimize=True)

    def _difference(self, number: int, index: int, actual: Array, expected: Array, new: set[str]) -> str:
        if actual.dtype != expected.dtype or actual.shape != expected.shape:
            return f"is {actual.dtype}{list(actual.shape)} instead of {expected.dtype}{list(expected.shape)}"
        bad = ~_close(actual, expected, 0.0)
        reasons = self._explained(number, index, actual, expected, new, bad)
        while bad.any() and (explained := next(reasons, None)) is not None:
            bad &= ~explained
        if not bad.any():
            return ""
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        return f"has {actual[place]} instead of {expected[place]} at {list(place)}, {int(bad.sum())} such elements"

    def _explained(
        self, number: int, index: int, actual: Array, expected: Array, new: set[str], bad: Array
    ) -> Iterator[Array]:
        """Where a result is right, for one reason after the other; some are onnxruntime's own Attention's alone.  `bad`
        is where none has been found so far: what is dear is asked for these elements only."""
        for runs in (FEW, MANY):
            yield self._rounding(number, index, actual, expected, runs, (), self.model)
        yield self._spelling(number, index, actual, expected, (), self.model, bad)
        yield self._storing(number, index, actual)
        if actual.dtype.kind == "f" and (bad & ~np.isfinite(actual)).any():
            yield ~np.isfinite(actual) & self._on_brink(number)
        feed = self.expected[number][0]
        yield np.full(expected.shape, self.names[index] in undecided(self.model, feed.inputs))
        for names, model in self._read():
            if any(not OF_OPS[name] & new for name in names if name in OF_OPS):
                continue
            try:
                if self._is_empty(feed):
                    other = alone(model, feed, self.model)[index]
                else:
                    other = self._session_of(names, model).run(feed.inputs)[index]
            except (SessionError, CrashError):
                continue
            if other.shape == expected.shape:
                yield _close(actual, other, 0.0)
                yield self._spelling(number, index, actual, other, names, model, bad)
                yield self._rounding(number, index, actual, other, FEW, names, model)
        yield self._rounding(number, index, actual, expected, MOST, (), self.model)

    def _is_meant(self, number: int, index: int, actual: Array) -> bool:
        """Is it what the original means by a size of 0, where its Reshape copies another dimension (`copied`)?"""
        if number not in self._meant:
            feed = self.expected[number][0]
            try:
                read = meant(self.model, feed, alone)
                self._meant[number] = None if read is None else alone(read, feed)
            except (SessionError, CrashError):
                self._meant[number] = None  # another size is none that the original runs on
        other = self._meant[number]
        return (
            other is not None
            and (actual.dtype, actual.shape) == (other[index].dtype, other[index].shape)
            and bool(_close(actual, other[index], 0.0).all())
        )

    def _read(self) -> Iterator[tuple[tuple[str, ...], onnx.ModelProto]]:
        """The readings, the simplest first, each made when it is wanted."""
        yield from self._readings
        for reading in self._unread:
            self._readings.append(reading)
            yield reading

    def _session_of(self, names: tuple[str, ...], model: onnx.ModelProto) -> Session:
        """A session of a reading."""
        if names not in self._sessions:
            self._sessions[names] = Session(model, optimize=False, threads=1, generous=True)
        return self._sessions[names]

    def _rounding(
        self,
        number: int,
        index: int,
        actual: Array,
        expected: Array,
        runs: int,
        names: tuple[str, ...],
        model: onnx.ModelProto,
    ) -> Array:
        """Where the original itself, or what it is read as, is no steadier: of a reading that has NaN, only what it may
        be else."""
        feed = self.expected[number][0]
        spread, unsteady = np.zeros(expected.shape), np.zeros(expected.shape, bool)
        low, high = np.full(expected.shape, np.inf), np.full(expected.shape, -np.inf)
        for answer in self._shaken(feed, runs, names, model):
            try:
                other = answer()[index]
            except (SessionError, CrashError):
                continue
            if other.shape != expected.shape:
                return np.ones(expected.shape, bool)
            unsteady |= ~_same_kind(other, expected)
            seen = np.isfinite(other) if other.dtype.kind == "f" else np.zeros(other.shape, bool)
            low, high = np.minimum(low, other, where=seen, out=low), np.maximum(high, other, where=seen, out=high)
            with np.errstate(all="ignore"):
                apart = np.abs(other.astype(np.float64) - expected.astype(np.float64))
            spread = np.maximum(spread, np.where(np.isfinite(apart), apart, 0.0))
        if expected.dtype.kind != "f":
            return np.asarray(unsteady | (spread > 0))
        with np.errstate(invalid="ignore"):
            met = (actual - low >= SLACK * (low - high)) & (actual - high <= SLACK * (high - low))
        unsteady &= met | ~np.isnan(expected) | (not names)
        return np.asarray(unsteady | _close(actual, expected, SLACK * spread))

    def _shaken(self, feed: Feed, runs: int, names: tuple[str, ...], model: onnx.ModelProto) -> Iterator[Answer]:
        """What runs with noise give, those without elements in a process of their own."""
        fed = [replace(feed, inputs=shaken(feed, seed)) for seed in range(runs)]
        if self._is_empty(feed):
            for odd in sorted({parity(model, seed) for seed in range(runs)}):
                chosen = [given for seed, given in enumerate(fed) if parity(model, seed) == odd]
                yield from each_alone(noisy(model, odd), chosen, model)
            return
        for seed, given in enumerate(fed):
            yield partial(self._noise_of(names, model, parity(model, seed)).run, given.inputs)

    def _noise_of(self, names: tuple[str, ...], model: onnx.ModelProto, odd: int) -> Session:
        """A session of a reading's noisy model."""
        if (names, odd) not in self._noisy:
            self._noisy[names, odd] = Session(noisy(model, odd), optimize=False, threads=1, generous=True)
        return self._noisy[names, odd]

    def _spelling(
        self,
        number: int,
        index: int,
        actual: Array,
        expected: Array,
        names: tuple[str, ...],
        model: onnx.ModelProto,
        bad: Array,
    ) -> Array:
        """Where the result is right in float64, and what is expected is not."""
        key = number, names
        if key not in self._exact:
            feed = {name: widened(array) for name, array in self.expected[number][0].inputs.items()}
            try:
                self._exact[key] = float64.evaluate(float64.to_float64(bounded(model)), [feed])[0]
            except Exception:  # the reference evaluator raises whatever its operators raise
                self._exact[key] = None
        exact = self._exact[key]
        if exact is None or exact[index].shape != expected.shape:
            return np.zeros(expected.shape, bool)
        if expected.dtype.kind != "f":
            return np.asarray((actual == exact[index]) & (expected != exact[index]))
        wide = np.asarray(exact[index], np.float64)
        with np.errstate(over="ignore"):
            narrow = wide.astype(expected.dtype)  # what is out of its range is infinite
        other = ~_close(expected, narrow, np.abs(wide) * FAR)
        near = _close(actual, narrow, np.abs(wide) * NEAR[expected.dtype.name])
        if (bad & other & ~near & np.isfinite(narrow)).any():
            near |= _close(actual, narrow, SLACK * self._wide_spread(number, index, wide, names, model))
        # What is as near to it as the original is: both lose digits where a product is a denormal number on its way.
        with np.errstate(invalid="ignore"):
            gaps = [np.abs(x.astype(np.float64) - wide) for x in (actual, expected)]
        nearer = np.isfinite(gaps[1]) & (gaps[0] <= gaps[1])
        return np.asarray((near & other) | nearer)

    def _wide_spread(
        self, number: int, index: int, exact: Array, names: tuple[str, ...], model: onnx.ModelProto
    ) -> Array:
        """How far what float64 has of a reading moves where each of its results is off by some ulps of its own type."""
        if (number, names) not in self._wide:
            self._wide[number, names] = list(wide_runs(self.expected[number][0], model, FEW))
        spread = np.zeros(exact.shape)
        for outputs in self._wide[number, names]:
            if outputs[index].shape != exact.shape:
                continue
            with np.errstate(all="ignore"):
                apart = np.abs(outputs[index] - exact)
            spread = np.maximum(spread, np.where(np.isfinite(apart), apart, 0.0))
        return spread

    def _on_brink(self, number: int) -> bool:
        """Does a result in between overflow only if the others are off by some ulps?"""
        feed = self.expected[number][0]
        try:
            steady = _overflown(inliner.inline_local_functions(self.model), feed.inputs)
            return any(
                not _overflown(noisy(self.model, parity(self.model, seed)), shaken(feed, seed)) <= steady
                for seed in range(FEW)
            )
        except SessionError:
            return False

    def _storing(self, number: int, index: int, actual: Array) -> Array:
        """Where the result is right if each of the original's in half precision is rounded to that."""
        inputs = dict(self.expected[number][0].inputs)
        if not any(array.dtype == np.float16 for array in inputs.values()):
            return np.zeros(actual.shape, bool)
        try:
            with np.errstate(all="ignore"):
                outputs: Any = ReferenceEvaluator(inliner.inline_local_functions(self.model)).run(None, inputs)
            stored = outputs[index]
        except Exception:  # the reference evaluator raises whatever its operators raise
            return np.zeros(actual.shape, bool)
        same = (stored.dtype, stored.shape) == (actual.dtype, actual.shape)
        return _close(actual, stored, 0.0) if same else np.zeros(actual.shape, bool)


def _overflown(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> set[tuple[str, int]]:
    """(result, place) of each infinity in the model's main graph."""
    extended = onnx.shape_inference.infer_shapes(model)
    known = {output.name for output in extended.graph.output}
    noise = [info for info in extended.graph.value_info if "/" not in info.name and info.name not in known]
    extended.graph.output.extend(noise)
    outputs = Session(extended, optimize=False, threads=1, generous=True).run(inputs)
    found = zip((info.name for info in extended.graph.output), outputs, strict=True)
    floats = [(name, array) for name, array in found if array.dtype.kind == "f"]
    return {(name, int(place)) for name, array in floats for place in np.flatnonzero(np.isinf(array))}


def _ops(model: onnx.ModelProto) -> Counter[str]:
    """How often the model has which ops."""
    return Counter(node.op_type for node in nodes_of(model))


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
