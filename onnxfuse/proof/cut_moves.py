"""What other last digits of their numbers do to sites in float64: whether two equations are apart by more than that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse.runtime.quiet import SessionError

from . import cut_feeds, cuts, float64
from .cut_tolerance import Equation
from .cuts import Cut
from .last_digits import moved, moved_alone
from .roundings import FACTOR, FACTORS, rounded_otherwise

_MOVES = "nntnntttttttnnnnnnnn"
"""Of what other last digits are tried, before an equation is another: single numbers, or tensors of numbers."""
_ALONE = 2
"""How often then those move that the fused model alone holds."""
_SINGLE = np.dtype(np.float32).itemsize


@dataclass(frozen=True, slots=True)
class Models:
    """What sites are cut from, and how they are run."""

    original: onnx.ModelProto
    fused: onnx.ModelProto
    base_dir: Path | None = None
    kernels: Mapping[str, Any] = field(default_factory=dict)
    optimize: bool = True
    """Does onnxruntime's optimizer work on the fused model's cuts?"""


def apart(
    models: Models, part: Sequence[Cut], equations: Mapping[int, Equation], feeds: Mapping[str, Any]
) -> list[int]:
    """Which equations, by the number of their site, are apart by more than the last digits of numbers account for."""
    left = list(equations)
    moves = list(enumerate(_MOVES))
    if any(_folds(models, part[number]) for number in left):
        # What is allowed only grows: which comes first decides how soon an equation holds, and not whether.
        moves.sort(key=lambda move: move[1] != "t")
    for seed, kind in moves:
        if not left:
            break
        alike: dict[np.dtype[Any] | None, list[int]] = {}
        for number in left:
            own = equations[number].precision
            alike.setdefault(own if own.itemsize < _SINGLE else None, []).append(number)
        for coarse, numbers in alike.items():
            for number, (truth, same) in _moved(models, part, numbers, feeds, seed, kind == "t", coarse).items():
                equations[number].move(truth, same, kind == "t")
        left = [number for number in left if not equations[number].holds]
    for seed in range(_ALONE if left else 0):
        for number, same in _moved_alone(models, part, left, feeds, seed).items():
            equations[number].move(equations[number].truth, same, True)
    left = [number for number in left if not equations[number].holds]
    for number in left:
        for truth in _rounded_otherwise(models, part, number, feeds):
            equations[number].round(truth)
    return [number for number in left if not equations[number].holds]


def _folds(models: Models, site: Cut) -> bool:
    """Does the fused model read a tensor of numbers that the original does not have?"""
    own = {tensor.name for tensor in models.original.graph.initializer}
    read = {name for index in site.fused for name in models.fused.graph.node[index].input}
    tensors = (tensor for tensor in models.fused.graph.initializer if tensor.name in read - own)
    return any(math.prod(tensor.dims) > 1 for tensor in tensors)


def _rounded_otherwise(
    models: Models, part: Sequence[Cut], number: int, feeds: Mapping[str, Any]
) -> Iterator[np.ndarray]:
    """What the original gives at one site in float64 with other roundings; nothing where it does not run so."""
    (site,), own = _own(part, [number], feeds, float64.widened)
    own = weights(models, [site], float64.widened) | own
    before = cuts.cut(models.original, [site.of_original()], [site.original], own)
    try:
        exactly = evaluator(rounded_otherwise(before), models.base_dir)
    except SessionError:
        return
    for factor in FACTORS:
        given = cut_feeds.given(before, own) | {FACTOR: np.array(factor)}
        if (found := run(exactly, given)) is not None:
            yield found[0]


def _moved_alone(
    models: Models, part: Sequence[Cut], numbers: Sequence[int], feeds: Mapping[str, Any], seed: int
) -> dict[int, Any]:
    """What the fused model gives in float64 where those numbers of tensors move that it alone holds.

    Coins that fall alike for a folded number and for what it was folded from hide what its rounding does: of a thousand
    channels, in a few they do so in every move."""
    chosen, own = _own(part, numbers, feeds, float64.widened)
    held = [np.empty(0)]

    def widen(array: np.ndarray) -> np.ndarray:
        held.append(np.unique(float64.widened(array)))
        return float64.widened(array)

    before = cuts.cut(models.original, [site.of_original() for site in chosen], [s.original for s in chosen], own)
    float64.to_float64(before, models.base_dir, widen)
    known = np.unique(np.concatenate(held))

    def alone(array: np.ndarray) -> np.ndarray:
        return moved_alone(array, seed, known) if array.size > 1 else float64.widened(array)

    after = cuts.cut(models.fused, [site.of_fused() for site in chosen], [site.fused for site in chosen], own)
    exactly = evaluator(after, models.base_dir, alone)
    same = run(exactly, cut_feeds.given(after, own))
    return dict(zip(numbers, same, strict=True)) if same is not None else {}


def _own(
    part: Sequence[Cut], numbers: Sequence[int], feeds: Mapping[str, Any], widen: float64.Widen
) -> tuple[list[Cut], dict[str, Any]]:
    """Some of the sites by themselves, and what they are fed; constants that have other values are widened."""
    chosen = [part[number] for number in numbers]
    own = {f"{i}/{name}": feeds[f"{n}/{name}"] for i, n in enumerate(numbers) for name in _fed(part[n])}
    fed = {f"{number}/{name}" for number, site in enumerate(part) for name in _fed(site)}
    return chosen, own | {name: widen(value) for name, value in feeds.items() if name not in fed}


def _moved(
    models: Models,
    part: Sequence[Cut],
    numbers: Sequence[int],
    feeds: Mapping[str, Any],
    seed: int,
    tensors: bool,
    coarse: np.dtype[Any] | None,
) -> dict[int, tuple[Any, Any]]:
    """What both models give in float64 with other last digits, by the number of the site; of those that run.

    Numbers of the `coarse` type that these sites compute in, if that is less than float32, have its last digits."""

    def widen(array: np.ndarray) -> np.ndarray:
        return moved(array, seed, coarse) if (array.size > 1) == tensors else float64.widened(array)

    chosen, own = _own(part, numbers, feeds, widen)
    own = weights(models, chosen, widen) | own
    pair = both(models, chosen, [own])
    truth, same = (run(evaluator(cut, models.base_dir, widen), cut_feeds.given(cut, own)) for cut in pair)
    if truth is None:
        halves = (numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :])
        parts = [_moved(models, part, half, feeds, seed, tensors, coarse) for half in halves if len(numbers) > 1]
        return {number: pair for found in parts for number, pair in found.items()}
    return {number: (truth[i], same and same[i]) for i, number in enumerate(numbers)}


def both(
    models: Models, sites: Sequence[Cut], feeds: Sequence[Mapping[str, Any]]
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The sites of both models, cut out, each with what it is fed."""
    before = cuts.cut(
        models.original, [site.of_original() for site in sites], [site.original for site in sites], *feeds
    )
    return before, cuts.cut(models.fused, [site.of_fused() for site in sites], [site.fused for site in sites], *feeds)


def weights(models: Models, sites: Sequence[Cut], widen: float64.Widen) -> dict[str, np.ndarray]:
    """The large weights that sites of both models read, in float64: fed, they are there once."""
    cones = ((models.original, [site.original for site in sites]), (models.fused, [site.fused for site in sites]))
    read = {name for model, own in cones for cone in own for i in cone for name in model.graph.node[i].input}
    others = {tensor.name: tensor for tensor in models.fused.graph.initializer if tensor.name in read}
    large = (tensor for tensor in float64.large_weights(models.original.graph) if tensor.name in read)
    folder = str(models.base_dir or Path.cwd())
    return {t.name: widen(numpy_helper.to_array(t, folder)) for t in large if others.get(t.name, t) == t}


def _fed(site: Cut) -> tuple[str, ...]:
    return (*site.stops, *site.observed)


def evaluator(
    model: onnx.ModelProto, base_dir: Path | None, widen: float64.Widen = float64.widened
) -> float64.Evaluator | None:
    try:
        return float64.Evaluator(float64.to_float64(model, base_dir, widen), base_dir, threads=1)
    except Exception:  # the reference evaluator raises whatever its operators raise
        return None


def run(exactly: float64.Evaluator | None, feeds: Mapping[str, Any]) -> list[Any] | None:
    """The outputs in float64, or None where some op has no such kernel."""
    if exactly is None:
        return None
    try:
        return exactly.run(feeds)
    except Exception:  # as above
        return None
