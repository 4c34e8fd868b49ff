"""Values that the fused model has in another shape than the original, under a name that both have.

A fused model may carry [rows, columns] from block to block where the original has [batch, sequence, columns], as a Gemm
wants it.  Then the two have no name in common between the first block and the last, each cut reaches back to where the
one before it did and further, and work grows with the square of the depth.  So the original is written with the fused
model's values on its way, which changes nothing that it computes:

    v = f(..)   g(v)    becomes    v = f(..)   v' = Reshape(v)   w = Reshape(v')   g(w)

Which values these may be, a run of both models shows; of equal ones, such as a residual stream has whose branches end
in zeros before training, where they stand among the names that both have.  That they are the same computation neither
shows: v' is one value more for cuts to compare, and where a coincidence made the pair, its cut differs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfuse.model.graph import Names, opset_of
from onnxfuse.model.op_traits import MOVEMENT
from onnxfuse.runtime.quiet import SessionError

from . import numerics
from .cuts import Cut
from .input_values import Case
from .inside import Inside
from .observed import telling
from .outlines import SAMPLE, Outline, outlines

_AGAIN = 2
"""Cuts are long where a node of the original is part of more of them."""
_RESHAPE = 5
"""The first opset whose Reshape takes a shape as its input."""
_EQUAL = 1e-7
"""The distance, relative to the length, up to which two values cannot be told apart by their numbers."""

Values: TypeAlias = Callable[[set[str], set[str]], list[dict[str, Any]]]
"""What values of some names are, run by run; those of other names as they are, and not only of their shape and sign."""


@dataclass(frozen=True, slots=True)
class _View:
    """A value of the fused model as a Reshape of the original's, and that as a Reshape of it."""

    name: str
    there: list[int]
    back: list[int]


class Views(NamedTuple):
    """An original that has values of the fused model, and the original's values that each is a Reshape of."""

    model: onnx.ModelProto
    pairs: dict[str, _View]

    @property
    def names(self) -> set[str]:
        """The values of the fused model."""
        return {view.name for view in self.pairs.values()}

    def known(self, values: Values) -> Values:
        """What tells the values of this model, given what does those of the original."""
        own = {view.name: (old, view.there) for old, view in self.pairs.items()}

        def told(names: set[str], exact: set[str]) -> list[dict[str, Any]]:
            given = ({own[name][0] if name in own else name for name in some} for some in (names, exact))
            shaped = {name: own[name] for name in names if name in own}
            return [
                run | {name: _reshaped(run[old], there) for name, (old, there) in shaped.items()}
                for run in values(*given)
            ]

        return told


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is kept of a value in one run."""

    shape: tuple[int, ...]
    numbers: np.ndarray
    """Some of its elements, in row-major order."""
    rounding: float
    """How far computing them in another order may be off, relative to their length."""


_Runs: TypeAlias = tuple[_Seen, ...]
"""What is kept of one value, run by run."""


def with_fused_values(
    original: onnx.ModelProto,
    fused: onnx.ModelProto,
    found: Sequence[Cut],
    cases: Sequence[Case],
    inside: Inside,
) -> Views | None:
    """A copy of the original, whose values are `inside`, that has values of the fused model, and runs at the sizes of
    the `telling` cases; None where the cuts that were `found` are short as they are, where one of the models does not
    run, or no values are alike."""
    old = candidates(original, fused, found)
    if not old:
        return None
    both = _names(original), _names(fused)
    common = both[0] & both[1]
    new = _again(fused, (cut.fused for cut in found), common)
    own_sizes = _of_own_sizes(telling(cases))
    try:
        seen = [
            _seen(old, inside.outlines(old, own_sizes)),
            _seen(new, outlines(fused, new, own_sizes, inside.base_dir)),
        ]
    except SessionError:
        return None
    pairs = dict(_pairs(seen[0], seen[1], _places(original, common), _places(fused, common)))
    if not pairs:
        return None
    return Views(_written(original, pairs, Names(both[0] | both[1])), pairs)


def candidates(original: onnx.ModelProto, fused: onnx.ModelProto, found: Sequence[Cut]) -> list[str]:
    """The values of the original that may be one of the fused model's in another shape, in order; none where the cuts
    that were `found` are short as they are."""
    times = Counter(index for cut in found for index in cut.original)
    if max(times.values(), default=0) <= _AGAIN or opset_of(original) < _RESHAPE:
        return []
    return _again(original, (cut.original for cut in found), _names(original) & _names(fused))


def _names(model: onnx.ModelProto) -> set[str]:
    given = (value.name for value in (*model.graph.input, *model.graph.initializer))
    return {*given, *(name for node in model.graph.node for name in node.output)}


def _again(model: onnx.ModelProto, cones: Iterable[tuple[int, ...]], common: set[str]) -> list[str]:
    """What nodes of more than one cut give, in order, but what is `common` to both models or moved from that."""
    count = Counter(index for cone in cones for index in cone)
    nodes = (model.graph.node[index] for index, times in sorted(count.items()) if times > 1)
    computed = (node for node in nodes if node.op_type not in MOVEMENT or node.input[0] not in common)
    return [name for node in computed for name in node.output if name and name not in common]


def _places(model: onnx.ModelProto, common: set[str]) -> dict[str, str]:
    """For each value the last `common` one that is computed before it."""
    found: dict[str, str] = {}
    last = ""
    for node in model.graph.node:
        found.update(dict.fromkeys(node.output, last))
        last = next((name for name in node.output if name in common), last)
    return found


def _seen(names: Sequence[str], runs: Iterable[Mapping[str, Any]]) -> dict[str, _Runs]:
    """By name, in order, of those that are finite numbers, and not all zero, in each run."""
    found: dict[str, list[_Seen]] = {name: [] for name in names}
    for values in runs:
        for name in list(found):
            one = _one(values[name])
            if one is None:
                del found[name]
            else:
                found[name].append(one)
    return {name: tuple(runs) for name, runs in found.items()}


def _of_own_sizes(cases: Sequence[Case]) -> list[Case]:
    """One of each sizes: of a second, only the shapes are of interest."""
    sizes = [[getattr(value, "shape", None) for value in case.inputs.values()] for case in cases]
    return [case for at, case in enumerate(cases) if sizes[at] not in sizes[:at]]


def _one(value: Any) -> _Seen | None:
    if isinstance(value, Outline):
        numbers = value.sample.astype(np.float64)
    elif isinstance(value, np.ndarray) and numerics.is_float(value.dtype) and value.dtype.kind != "c":
        numbers = value.reshape(-1)[:: max(1, value.size // SAMPLE)].astype(np.float64)
    else:
        return None
    if not np.isfinite(numbers).all() or not numbers.any():
        return None
    return _Seen(value.shape, numbers, numerics.epsilon(value.dtype) ** 0.5)


def _pairs(
    old: Mapping[str, _Runs], new: Mapping[str, _Runs], before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[tuple[str, _View]]:
    """The values of the original that one of the fused model's is a Reshape of: the nearest.  Of equal ones that which
    comes `before` what the other comes `after`, and of these the first that either model computes."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for name, runs in old.items():
        alike.setdefault(_counts(runs), []).append(name)
    known = {counts: np.array([_numbers(old[name]) for name in names]) for counts, names in alike.items()}
    taken: set[str] = set()
    for name, runs in new.items():
        others, own = alike.get(_counts(runs)), _numbers(runs)
        if others is None:
            continue
        numbers = known[_counts(runs)]
        apart = np.linalg.norm(numbers - own, axis=1)
        apart /= np.maximum(np.linalg.norm(numbers, axis=1), np.linalg.norm(own))
        apart[[other in taken for other in others]] = np.inf
        equal = [others[at] for at in np.flatnonzero(apart <= max(apart.min(), _EQUAL)).tolist()]
        nearest = next((other for other in equal if before.get(other) == after.get(name)), others[int(apart.argmin())])
        if apart.min() > max(seen.rounding for seen in (*old[nearest], *runs)):
            continue
        there, back = _shape(old[nearest], runs), _shape(runs, old[nearest])
        if there is not None and back is not None:
            taken.add(nearest)
            yield nearest, _View(name, there, back)


def _counts(runs: _Runs) -> tuple[int, ...]:
    """How many elements there are, run by run."""
    return tuple(math.prod(seen.shape) for seen in runs)


def _numbers(runs: _Runs) -> np.ndarray:
    return np.concatenate([seen.numbers for seen in runs])


def _shape(given: _Runs, wanted: _Runs) -> list[int] | None:
    """What Reshape takes to make of the given shapes those that are wanted, or None: only one size may change from run
    to run that is not at its place already."""
    made: list[int] = []
    for axis, sizes in enumerate(zip(*(seen.shape for seen in wanted), strict=True)):
        if len(set(sizes)) == 1:
            made.append(sizes[0])
        elif all(len(seen.shape) > axis and seen.shape[axis] == n for seen, n in zip(given, sizes, strict=True)):
            made.append(0)
        else:
            made.append(-1)
    return made if made.count(-1) <= 1 else None


def _reshaped(value: Any, shape: Sequence[int]) -> np.ndarray:
    """What Reshape gives, where 0 is the size at the same place."""
    sizes = [value.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    return np.asarray(value.reshape(sizes))


def _written(original: onnx.ModelProto, pairs: Mapping[str, _View], names: Names) -> onnx.ModelProto:
    """The original with these values on its way, and others of which nobody has the `names`."""
    made = onnx.ModelProto()
    made.CopyFrom(original)
    graph = made.graph
    nodes: list[onnx.NodeProto] = []
    instead: dict[str, str] = {}
    for node in graph.node:
        node.input[:] = [instead.get(name, name) for name in node.input]
        nodes.append(node)
        for name in node.output:
            if view := pairs.get(name):
                instead[name] = names.unique(f"{name}/again")
                for given, output, shape in ((name, view.name, view.there), (view.name, instead[name], view.back)):
                    constant = names.unique(f"{output}/shape")
                    graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), constant))
                    nodes.append(helper.make_node("Reshape", [given, constant], [output]))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return made
