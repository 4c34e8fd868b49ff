"""What has been seen of a model's values is not run for again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxfuse.proof import inside, outlines
from onnxfuse.proof.cut_feeds import stand_in
from onnxfuse.proof.input_values import Case
from onnxfuse.proof.inside import Inside, Told
from onnxfuse.proof.observed import observe
from onnxfuse.proof.outlines import SAMPLE, is_stood_for
from onnxfuse.runtime.quiet import SessionError

ROWS = 2 * SAMPLE
MODEL = """<ir_version: 9, opset_import: ["": 18]> g (float[n, 8] x) => (float[n, 8] y)
    <float zero = {0}, float many = {1e4}, float half = {0.5}, float low = {-1e30}, int64[1] last = {-1}> {
    signed = Tanh(x) unsigned = Abs(x) square = Mul(x, x) seen = Less(x, half) wide = Cast<to = 10>(x)
    mask = Where(seen, zero, low) ones = Cast<to = 1>(seen) flat = Mul(x, zero) nan = Div(flat, flat)
    row = ReduceSum<keepdims = 0>(x, last) y = Add(signed, unsigned) }"""
"""Values of every sort, and beside them a small one."""
KEPT = {"signed", "unsigned", "square", "wide", "flat"}
WHOLE = {"x", "mask", "ones", "seen", "nan", "row"}
SIZES = {"x": (ROWS, 8)}


def case(name: str, seed: int, unusual: bool = False) -> Case:
    return Case(name, {"x": np.random.default_rng(seed).standard_normal((ROWS, 8)).astype(np.float32)}, unusual)


CASES = [case("usual", 0), case("other", 1, True)]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A value of a few thousand elements is large, and of those one is too much to hold."""
    monkeypatch.setattr(outlines, "_LARGE", ROWS)
    monkeypatch.setattr(outlines, "_HELD", ROWS)
    return iter(())


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """For each run that is made to see values, their names."""
    made: list[set[str]] = []
    given = inside.outlines

    def counted(model: onnx.ModelProto, names: set[str], *rest: object) -> Iterator[dict[str, object]]:
        made.append(set(names))
        yield from given(model, names, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(inside, "outlines", counted)
    return made


def parse() -> onnx.ModelProto:
    return onnx.parser.parse_model(MODEL)


def watching(model: onnx.ModelProto, exact: set[str] | frozenset[str] = frozenset()) -> tuple[Inside, Told]:
    made = Inside(model)
    made.watch(KEPT | WHOLE, SIZES, exact)
    return made, Told(model, None, made)


def test_what_noise_stands_in_for_takes_no_memory_and_the_rest_is_seen_whole(runs: list[set[str]]) -> None:
    model = parse()
    told_of = Inside(model).values(KEPT | WHOLE, CASES)
    for told, values in zip(told_of, observe(model, KEPT | WHOLE, CASES), strict=True):
        assert told.keys() == values.keys()
        for name, value in values.items():
            assert (told[name].shape, told[name].dtype) == (value.shape, value.dtype)
            assert stand_in(told[name]) == stand_in(value)
            assert is_stood_for(told[name]) == (name in KEPT)
        for name in WHOLE | {"flat"}:
            np.testing.assert_array_equal(told[name], values[name])
    assert runs == [(KEPT | WHOLE) - {"x"}, {"mask", "ones", "nan"}]
    assert model == parse()


def test_exact_values_are_kept() -> None:
    told, *_ = Inside(parse()).values(KEPT, CASES, exact={"unsigned"})
    np.testing.assert_array_equal(told["unsigned"], np.abs(CASES[0].inputs["x"]))
    assert is_stood_for(told["square"])


def test_what_is_known_is_not_run_for_again(runs: list[set[str]]) -> None:
    seen = Inside(parse())
    seen.values({"signed", "row"}, CASES)
    seen.values({"row"}, CASES[:1])
    seen.values({"signed", "square"}, CASES)
    assert runs == [{"signed", "row"}, {"square"}]
    found, _ = seen.values({"signed"}, CASES, exact={"signed"})
    assert runs[2:] == [{"signed"}]
    np.testing.assert_array_equal(found["signed"], next(observe(parse(), {"signed"}, CASES))["signed"])


def test_runs_that_give_the_outputs_tell_of_the_rest(runs: list[set[str]]) -> None:
    model = parse()
    seen, session = watching(model, exact={"mask", "nan", "ones"})
    assert model == parse()
    for one in CASES:
        (y,) = session.run(one)
        np.testing.assert_array_equal(y, next(observe(model, {"y"}, [one]))["y"])
    for told, values in zip(seen.values(KEPT | WHOLE, CASES), observe(model, KEPT | WHOLE, CASES), strict=True):
        for name, value in values.items():
            assert stand_in(told[name]) == stand_in(value)
    assert runs == []


def test_the_first_and_the_last_of_such_runs_are_kept(runs: list[set[str]]) -> None:
    seen, session = watching(parse())
    cases = [case(name, seed) for seed, name in enumerate("abcd")]
    for one in cases:
        session.run(one)
    seen.values({"row"}, [cases[0], cases[3]])
    assert runs == []
    seen.values({"row"}, [cases[0], cases[1]])
    assert runs == [{"row"}]


def test_a_model_that_does_not_run_so_gives_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked besides is to refuse no model: here a Slice in steps of 0."""
    monkeypatch.setattr(outlines, "_large", lambda *_: {"signed": outlines._Type(1, 1)})
    _, session = watching(parse())
    monkeypatch.undo()
    (y,) = session.run(CASES[0])
    np.testing.assert_array_equal(y, next(observe(parse(), {"y"}, CASES))["y"])
    with pytest.raises(SessionError):
        session.run(Case("wrong", {"x": np.zeros((2, 3, 4), np.float32)}))
