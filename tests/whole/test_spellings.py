"""Each spelling is valid, small, and computes its operator: the ground under every test of what gets fused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice

import numpy as np
import onnx
import pytest

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from tests.side_by_side import TOGETHER, batched, behind, fed, side_by_side
from tests.spellings import FAMILIES, LEAST, build, gelu, spellings
from tests.spellings.build import Array, Case, Spelling, covering, everything
from tests.spellings.mutants import feeds, mutants, run

TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 2e-3}
"""Largest |got - definition| / max|definition|, by the dtype of the output."""

MOST_NODES = 44
FOLDING = {"conv_bn"}
"""Families whose fused operator is one that the spelling has already, and of which nothing else may be left."""

CATALOGUE = catalogue.load()


def census(nodes: Iterable[onnx.NodeProto]) -> Counter[str]:
    """How often each operator occurs, Constants left out."""
    return Counter(family_of(node) for node in nodes if family_of(node) != "Constant")


def error(spelling: Spelling, results: Sequence[Array]) -> float:
    """Largest relative error of results against the definition, in units of the tolerance."""
    errors = []
    for got, want in zip(results, spelling.outputs.values(), strict=True):
        assert got.shape == want.shape, spelling.name
        assert np.isfinite(got).all(), spelling.name
        errors.append(np.abs(got - want).max() / np.abs(want).max() / TOLERANCE[got.dtype])
    return float(max(errors))


def errors(some: Sequence[Spelling], together: onnx.ModelProto) -> Iterator[tuple[Spelling, float]]:
    """The error of each, in a model in which they stand side by side."""
    results = iter(run(together, fed([spelling.inputs for spelling in some])))
    for spelling in some:
        yield spelling, error(spelling, list(islice(results, len(spelling.outputs))))


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_spelling_is_valid_and_is_its_operator(family: str, opset: int) -> None:
    wrong = {}
    for some in batched(spellings(family, opset), TOGETHER):
        for spelling in some:
            onnx.checker.check_model(spelling.model, full_check=True)
        together = side_by_side([spelling.model for spelling in some])
        for spelling, worst in errors(some, together):
            if worst > 1:
                wrong[spelling.name] = worst
    assert wrong == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_spelling_is_small_and_different(family: str) -> None:
    models = [spelling.model for spelling in spellings(family)]
    assert max(census(model.graph.node).total() for model in models) <= MOST_NODES
    assert max(max(tensor.dims, default=1) for model in models for tensor in model.graph.initializer) <= 64
    assert len({spelling.name for spelling in spellings(family)}) == len(models) >= LEAST[family]
    assert len({model.SerializeToString(deterministic=True) for model in models}) == len(models)


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - FOLDING))
def test_no_spelling_has_the_operator_already(family: str) -> None:
    assert [s.name for s in spellings(family) if census(s.model.graph.node) & Counter(s.expect)] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_spellings_are_the_same_every_time(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    once = spellings(family)
    monkeypatch.setattr(build, "chosen", build.chosen.__wrapped__)  # chosen anew, and kept for other tests
    assert [s.model for s in FAMILIES[family](17)] == [s.model for s in once]


@pytest.mark.parametrize(("opset", "step"), [(17, 1), (20, 3), (13, 9), (18, 9), (23, 9), (24, 9)])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_spelling_is_fused_and_computes_the_same(family: str, opset: int, step: int) -> None:
    chosen = spellings(family, opset)[::step]
    assert len(chosen) >= LEAST[family] // step
    unmatched, wrong = {}, {}
    for some in batched(chosen, TOGETHER):
        fused = fuse(side_by_side([spelling.model for spelling in some]), CATALOGUE).model
        for place, (spelling, worst) in enumerate(errors(some, fused)):
            found, expected = census(behind(fused, place)), Counter(spelling.expect)
            if found != expected if family in FOLDING else Counter({op: found[op] for op in expected}) != expected:
                unmatched[spelling.name] = dict(found)
            if worst > 1:
                wrong[spelling.name] = worst
    assert unmatched == {}
    assert wrong == {}


def test_a_covering_selection_starts_plain_and_has_every_pair_of_choices() -> None:
    selected = list(covering(gelu.QUICK, 32))
    assert selected[0][0] == "plain"
    assert len({name for name, _ in selected}) == 32

    def pairs(cases: Iterable[tuple[str, Case]]) -> set[tuple[tuple[str, str], ...]]:
        return {pair for _, case in cases for pair in combinations(vars(case).items(), 2)}

    assert pairs(selected) == pairs(everything(gelu.QUICK))


def some_mutants() -> Iterator[tuple[str, Spelling, str, onnx.ModelProto]]:
    for family in FAMILIES:
        for spelling in spellings(family)[:3]:
            for description, mutant in islice(mutants(spelling.model, seed=1), 10):
                yield family, spelling, description, mutant


def test_mutants_are_valid_and_mostly_compute_something_else() -> None:
    made: Counter[str] = Counter()
    different: Counter[str] = Counter()
    for family, spelling, _, mutant in some_mutants():
        onnx.checker.check_model(mutant, full_check=True)
        inputs = feeds(spelling.model)
        made[family] += 1
        pairs = zip(run(spelling.model, inputs), run(mutant, inputs), strict=True)
        different[family] += any(a.shape != b.shape or not np.allclose(a, b, rtol=1e-4) for a, b in pairs)
    assert made.keys() == FAMILIES.keys()
    assert all(different[family] > made[family] / 2 for family in FAMILIES)


def test_mutants_come_in_the_order_of_their_seed() -> None:
    model = spellings("layer_norm")[0].model
    once, again, other = ([what for what, _ in mutants(model, seed)] for seed in (1, 1, 2))
    assert once == again
    assert once != other
    assert sorted(once) == sorted(other)


def test_mutants_have_every_kind_of_edit() -> None:
    models = [spellings(family)[0].model for family in ("attention", "layer_norm")]
    edits = " ".join(what for model in models for what, _ in mutants(model, seed=1))
    for kind in ("off by 1 %", "perm of", "axis of", "axes of", "swapped", "input 0 of"):
        assert kind in edits
