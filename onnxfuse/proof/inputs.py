"""Inputs on which a model runs and means something, at several consistent sizes, and some that users feed besides."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from .input_shapes import (
    LADDERS,
    Input,
    Sizes,
    UnsupportedError,
    as_weights_say,
    cover_past,
    evaluate,
    fixed_sizes,
    impossible,
    kinds_of,
    named,
    read,
    sizes_of,
    symbols_of,
)
from .input_values import Case, given_case, unusual_case, usual_case

__all__ = ["Case", "assumed", "generate"]

_ATTEMPTS = 48
"""Sizes of the ladders that are tried, and again as many that errors tell of."""
_STEPS = 4
"""Symbols that are set one after the other to what errors tell."""
_GUESSED = (4, 2, 8, 1, 16, 32, 64, 128, 256, 512)
"""Sizes to try where an error names none."""
_FURTHER = 2
"""Steps from a batch to one of another size.  The next is 1, which would be broadcast and run where sizes are equal."""
_SHARED = 4
"""Sizes to try that errors at different sizes name in common."""
_LARGEST = 4096
"""A number in an error above this is no size of a test."""


def generate(
    model: onnx.ModelProto,
    runs: Callable[[Case], str],
    *,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    given: Mapping[str, np.ndarray] | None = None,
    one: bool = False,
) -> tuple[list[Case], str]:
    """Cases that `model` runs on; without any, the reason why.

    `runs` runs the model on a case and returns an error in one line, or "".  Integer inputs stay inside the tables
    they index, masks are 0 and 1 with at least one 1 a row, equal symbols get equal sizes.  A model with dynamic axes
    gets two cases at different sizes and, where its inputs may differ in axes that bear one name, others in which they
    do: in their lengths, and in their batches.  Where it runs on them, unusual cases follow: all sizes 1, each kind of
    axis without a single element, and a batch with a sample that is masked throughout or zero, and one that is large.
    Booleans that decide what an If does hold, and do not hold in a case each.  With `one`, the first case is enough.
    `shapes` fixes the dims of inputs by name; `given` replaces generation altogether.

    Raises UsageError where `shapes` or `given` do not fit the model.
    """
    try:
        inputs = read(model, shapes or {})
    except UnsupportedError as unsupported:
        return [], str(unsupported)
    fixed = fixed_sizes(inputs, shapes or {})
    if given is None and inputs:
        inputs = as_weights_say(inputs, shapes or {})
        return _searched(_Search(inputs, kinds_of(inputs, fixed), fixed, runs, seed), one)
    case = Case("no inputs", {}) if given is None else given_case(inputs, given, shapes or {})
    failure = runs(case)
    return ([], failure) if failure else ([case], "")


def assumed(
    model: onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    given: Mapping[str, np.ndarray] | None = None,
) -> tuple[dict[str, tuple[int, ...]], str]:
    """Shapes of all inputs as `generate` tries them first, and the sizes among them that neither `shapes` nor the
    values `given` say, such as ``batch=3 sequence=7``.  Nothing is run; both are empty where nothing can be generated.

    Raises UsageError where `shapes` or `given` do not fit the model.
    """
    try:
        inputs = read(model, shapes or {})
    except UnsupportedError:
        return {}, ""
    if given is not None:
        given_case(inputs, given, shapes or {})
        return {item.name: given[item.name].shape for item in inputs if not item.sequence}, ""
    fixed = fixed_sizes(inputs, shapes or {})
    inputs = as_weights_say(inputs, shapes or {})
    search = _Search(inputs, kinds_of(inputs, fixed), fixed, lambda case: "", 0)
    search.covers_past = any(item.past for item in inputs)
    sizes = search.sizes(dict.fromkeys(search.kinds.values(), 0))
    free = {
        name: {dim: size for dim, size in own.items() if dim not in fixed and f"{name}:{dim}" not in fixed}
        for name, own in sizes.items()
    }
    return {item.name: sizes_of(item, sizes) for item in inputs}, named(free)


def known_sizes(
    model: onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    given: Mapping[str, np.ndarray] | None = None,
) -> dict[str, tuple[int, ...]] | None:
    """The shapes of all inputs, if each case that `generate` makes has these; None where some are to be found.

    Raises UsageError where `shapes` or `given` do not fit the model."""
    sizes, free = assumed(model, shapes, given)
    return sizes if sizes and not free else None


@dataclass(slots=True)
class _Search:
    """The walk over sizes until the model has run on enough of them."""

    inputs: list[Input]
    kinds: dict[str, str]
    fixed: Sizes
    runs: Callable[[Case], str]
    seed: int
    covers_past: bool = True
    """A mask beside a key/value cache spans the cached positions and the new ones, whatever its symbol says."""
    careful: bool = False
    """Integers whose use could not be traced are 0 and 1 only."""
    off: str = ""
    """The switch that is off."""
    pinned: Sizes = field(default_factory=dict)
    """Sizes of symbols that the model does not run without, whatever the ladders say."""
    cases: list[Case] = field(default_factory=list)
    tried: list[dict[str, Sizes]] = field(default_factory=list)
    first_error: str = ""
    error: str = ""
    """Of the last attempt."""

    def attempt(self, rung: dict[str, int], split: frozenset[str] = frozenset(), kind: str = "") -> bool:
        """Runs the model at the sizes of `rung`, inputs or symbols in `split` one step on in axes of `kind`."""
        return self.run(self.sizes(rung, split, kind), again=not kind)

    def run(self, shapes: dict[str, Sizes], again: bool = False, unusual: bool = False) -> bool:
        """Runs the model at these sizes, unless it has; with `again` even then."""
        if not again and shapes in self.tried:
            return False
        self.tried.append(shapes)
        if error := impossible(self.inputs, shapes):
            self.error = error
            self.first_error = self.first_error or error
            return False
        case = usual_case(self.inputs, shapes, self.seed, len(self.cases), self.careful, self.off)
        return self.feed(replace(case, unusual=unusual))

    def feed(self, case: Case) -> bool:
        self.error = self.runs(case)
        self.first_error = self.first_error or self.error
        if not self.error:
            self.cases.append(case)
        return not self.error

    def sizes(self, rung: dict[str, int], split: frozenset[str] = frozenset(), kind: str = "") -> dict[str, Sizes]:
        """The size of each dynamic dim, by input."""
        shapes = {item.name: self._sizes(item, rung, split, kind) for item in self.inputs}
        if self.covers_past:
            cover_past(self.inputs, self.fixed, shapes)
        return shapes

    def _sizes(self, item: Input, rung: dict[str, int], split: frozenset[str], kind: str) -> Sizes:
        """The size of each dynamic dim of `item`."""
        symbols = {}
        for symbol, own_kind in self.kinds.items():
            other = own_kind == kind and (item.name in split or symbol in split)
            step = rung[own_kind] + (_FURTHER if kind == "batch" else 1) * other
            symbols[symbol] = self.pinned.get(symbol, LADDERS[own_kind][step % len(LADDERS[own_kind])])
        sizes = {}
        for dim in item.dims:
            if isinstance(dim, str):
                own = self.fixed.get(f"{item.name}:{dim}")
                sizes[dim] = evaluate(dim, self.fixed | symbols) if own is None else own
        return sizes


def _searched(search: _Search, one: bool) -> tuple[list[Case], str]:
    axes = sorted(set(search.kinds.values()))
    steps = itertools.product(*(range(len(LADDERS[kind])) for kind in axes))
    ladder = sorted((dict(zip(axes, step, strict=True)) for step in steps), key=lambda rung: sum(rung.values()))
    ladder = ladder[:_ATTEMPTS]
    # A branch of an If may want other sizes than its other one: each switch is off once.
    ways = ["", *(item.name for item in search.inputs if item.switch)]
    first: dict[str, int] | None = None
    while ways and first is None:
        search.off = ways.pop(0)
        first = _run_first(search, ladder)
    if first is None:
        return [], search.first_error
    if one:
        return search.cases, ""
    any(search.run(search.sizes(rung)) for rung in _apart(ladder, first, axes))
    _add_differing(search, first, [kind for kind in axes if kind != "batch"])
    batches = LADDERS["batch"]
    if "batch" in axes and 1 not in (batches[(first["batch"] + step) % len(batches)] for step in (0, _FURTHER)):
        _add_differing(search, first, ["batch"])
    _add_unusual(search, first)
    for search.off in ways:
        search.pinned = {}
        _run_first(search, ladder)
    return search.cases, ""


def _apart(ladder: list[dict[str, int]], first: dict[str, int], axes: list[str]) -> list[dict[str, int]]:
    """The other rungs, most different first; behind the very first those that share one axis with `first`, which the
    model may fix inside (one state for one sample), before all the others are tried in vain."""

    def shared(rung: dict[str, int]) -> list[str]:
        return [axis for axis in axes if rung[axis] == first[axis]]

    others = [rung for rung in ladder if rung != first]
    others.sort(key=lambda rung: (len(shared(rung)), sum(rung.values())))
    fixed = [next((rung for rung in others if shared(rung) == [axis]), None) for axis in axes]
    early = [*others[:1], *(rung for rung in fixed if rung is not None)]
    return [rung for at, rung in enumerate(early) if rung not in early[:at]] + [r for r in others if r not in early]


def _run_first(search: _Search, ladder: list[dict[str, int]]) -> dict[str, int] | None:
    """The first sizes at which the model runs, and a case of these."""
    has_past = any(item.past for item in search.inputs)
    for search.careful, search.covers_past in ((False, has_past), (False, False), (True, has_past)):
        errors = list[str]()
        for rung in ladder:
            if search.attempt(rung):
                return rung
            errors.append(search.error)
        search.attempt(ladder[0])  # what the largest sizes end in names larger ones
        if _learn(search, ladder[0], _common(errors)):
            return ladder[0]
    return None


def _learn(search: _Search, rung: dict[str, int], common: list[int]) -> bool:
    """Whether the model runs where symbols have sizes that its errors tell: a 4 that it wants where it was given a 7.

    Those in `common` come first: what all sizes fail at is fixed inside, as the length of a loop is that an exporter
    wrote out.  What is pinned stays so.  Errors name what meets inside the model, which may be a multiple of a size:
    quotients of their numbers are tried, too, then small sizes and powers of two.  An error of other words is a step on
    the way, and the next is made from there; one of other numbers only may be."""
    pending: list[tuple[Sizes, str]] = [({}, search.error)]
    seen = {search.error, _words(search.error)}
    left = _ATTEMPTS
    while pending:
        pinned, error = pending.pop(0)
        sizes = _told(error) or _GUESSED
        for size, symbol in itertools.product(dict.fromkeys([*common, *sizes]) if not pinned else sizes, search.kinds):
            if symbol in pinned or not left:
                continue
            left -= 1
            search.pinned = pinned | {symbol: size}
            if search.run(search.sizes(rung)):
                return True
            if search.error and search.error not in seen and len(search.pinned) < _STEPS:
                place = len(pending) if _words(search.error) in seen else 0
                pending.insert(place, (search.pinned, search.error))
                seen |= {search.error, _words(search.error)}
        if not pending and _told(error):
            pending.append(({}, ""))
    search.pinned = {}
    return False


def _words(error: str) -> str:
    return re.sub(r"\d+", "#", error)


def _told(error: str) -> list[int]:
    """Sizes that an error may be about, those that it names first; 1, which broadcasts, is none."""
    said = _said(error)
    quotients = [a // b for a, b in itertools.permutations(said, 2) if b > 1 and a % b == 0]
    return [size for size in dict.fromkeys([*said, *quotients]) if 1 < size <= _LARGEST]


def _said(error: str) -> list[int]:
    return [int(number) for number in re.findall(r"(?<![\w.:])\d{1,7}(?![\w.])", error)]


def _common(errors: list[str]) -> list[int]:
    """Sizes that errors at different sizes name in common, those first that most of them do."""
    counts = Counter(size for error in dict.fromkeys(errors) for size in dict.fromkeys(_said(error)))
    return [size for size, number in counts.most_common(_SHARED) if number > 1 and 1 < size <= _LARGEST]


def _add_unusual(search: _Search, first: dict[str, int]) -> None:
    """Adds what users feed and nobody names: one of everything, nothing of something, padding and large numbers."""
    usual, pinned = search.cases[0], search.pinned
    free = [symbol for symbol in search.kinds if symbol not in pinned]
    search.pinned = pinned | dict.fromkeys(free, 1)
    search.run(search.sizes(first))
    for kind in sorted({search.kinds[symbol] for symbol in free}):
        search.pinned = pinned | {symbol: 0 for symbol in free if search.kinds[symbol] == kind}
        search.run(search.sizes(first), unusual=True)
    search.pinned = pinned
    search.feed(unusual_case(search.inputs, usual))


def _add_differing(search: _Search, first: dict[str, int], kinds: list[str]) -> None:
    """Adds sizes at which some inputs differ from the rest in axes of one kind, if there are any, and the other way
    about: of an encoder and a decoder onnxruntime may run the longer one first, and not the shorter."""
    splits = ((kind, split) for kind in kinds for split in _splits(search.inputs, search.kinds, kind))
    chosen = next(((kind, split) for kind, split in splits if search.attempt(first, split, kind)), None)
    if chosen is not None and (rest := _namesakes(search.inputs, chosen[1])):
        search.attempt(first, rest, chosen[0])


def _namesakes(inputs: list[Input], split: frozenset[str]) -> frozenset[str]:
    """The inputs beside a set of them, if they share a symbol with one of it."""
    inside = {dim for item in inputs if item.name in split for dim in item.dims if isinstance(dim, str)}
    others = [item for item in inputs if item.name not in split]
    return frozenset(item.name for item in others if any(inside.intersection(map(str, item.dims)) for item in others))


def _splits(inputs: list[Input], kinds: dict[str, str], kind: str) -> Iterator[frozenset[str]]:
    """Sets of inputs, or symbols, that may take another size than the rest: inputs can share a symbol by mistake."""
    if kind in ("image", "features"):
        widths = (symbol for item in inputs for dim in item.dims[-1:] for symbol in symbols_of(dim))
        yield frozenset(symbol for symbol in widths if kinds.get(symbol) == kind)
    groups: dict[tuple[Any, ...], list[str]] = {}
    for item in inputs:
        if any(kinds.get(symbol) == kind for dim in item.dims for symbol in symbols_of(dim)):
            groups.setdefault((item.dims, item.dtype.str) if item.past else (item.name,), []).append(item.name)
    members = list(groups.values())
    # Every division in two once: the first group stays where it is.
    for count in range(1, len(members)) if len(members) <= 4 else (1,):
        for chosen in itertools.combinations(members[1:], count):
            yield frozenset(itertools.chain.from_iterable(chosen))
