"""What is run on tensors without elements in one process, and in several where that crashes; noise of all seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.random_graphs import alone as apart
from benchmarks.random_graphs.alone import CrashError, alone, each_alone
from benchmarks.random_graphs.feeds import Feed
from benchmarks.random_graphs.noise import NOISE, noisy, parity, shaken
from onnxfuse.errors import ModelError
from onnxfuse.runtime.quiet import Session, SessionError
from tests.benchmarks.test_random_graphs_judge import written

FEEDS = [Feed(f"{n} rows", {"x": np.ones((n, 2, 4), np.float32)}) for n in (0, 3, 1)]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many results each process gave."""
    made: list[int] = []
    isolated = apart.isolated

    def counted(work: Callable[[Any], list[Any]], seconds: float) -> list[Any]:
        found = isolated(work, seconds)
        made.append(len(found))
        return found

    monkeypatch.setattr(apart, "isolated", counted)
    return made


def test_all_feeds_of_a_model_run_in_one_process(processes: list[int]) -> None:
    model = written("y = Neg(x)")
    answers = [answer() for answer in each_alone(model, FEEDS)]
    assert [[y.shape for y in outputs] for outputs in answers] == [[(n, 2, 4)] for n in (0, 3, 1)]
    assert processes == [3]
    assert list(each_alone(model, [])) == []
    assert processes == [3]


def test_what_refuses_one_feed_takes_the_others(processes: list[int]) -> None:
    model = written("s = Constant<value = int64[3] {3, 4, 2}>()  y = Reshape(x, s)")
    first, second, third = each_alone(model, FEEDS)
    for refused in (first, third):
        with pytest.raises(SessionError, match="Reshape"):
            refused()
    assert second()[0].shape == (3, 4, 2)
    assert processes == [3]


def test_a_crash_costs_only_the_feed_that_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Session.run

    def isolated(work: Callable[[Any], list[Any]], seconds: float) -> list[Any]:
        return work(None)

    def crashing(session: Session, feeds: dict[str, Any]) -> list[Any]:
        if not feeds["x"].size:
            raise ModelError("killed by a signal")
        return run(session, feeds)

    monkeypatch.setattr(apart, "isolated", isolated)
    monkeypatch.setattr(Session, "run", crashing)
    first, second, third = each_alone(written("y = Neg(x)"), FEEDS)
    with pytest.raises(CrashError, match="killed by a signal"):
        first()
    assert [answer()[0].shape for answer in (second, third)] == [(3, 2, 4), (1, 2, 4)]
    with pytest.raises(CrashError):
        alone(written("y = Neg(x)"), FEEDS[0])


@pytest.mark.parametrize("body", ["y = Sin(x)", "e = Exp(x) z = Constant<value = float {1.0}>() y = Div(z, e)"])
def test_one_noisy_model_has_another_noise_for_each_seed(body: str) -> None:
    model = written(body)
    feed = Feed("ordinary", {"x": np.linspace(0.5, 2, 24, dtype=np.float32).reshape(2, 3, 4)})
    (exact,) = Session(model, optimize=False).run(feed.inputs)
    sessions = {odd: Session(noisy(model, odd), optimize=False, generous=True) for odd in (0, 1)}
    drawn = [sessions[parity(model, seed)].run(shaken(feed, seed))[0] for seed in range(6)]
    again = [sessions[parity(model, seed)].run(shaken(feed, seed))[0] for seed in range(6)]
    assert all(np.array_equal(a, b) for a, b in zip(drawn, again, strict=True))
    assert len({y.tobytes() for y in drawn}) == 6
    for y in drawn:
        assert 0 < np.abs(y / exact - 1).max() < 12 * NOISE["float32"]
    assert {parity(model, seed) for seed in range(6)} == ({0, 1} if "Exp" in body else {0})


@pytest.mark.parametrize("opset", [11, 13, 18, 23])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_results_of_one_size_have_noise_of_their_own(dtype: str, opset: int) -> None:
    """Also where their size is not known before, and each element another than its neighbours."""
    model = written("a = Neg(x) b = Neg(x) c = Neg(x) y = Sub(a, b) z = Sub(b, c)",
                    f"{dtype}[b,s,4] x", f"{dtype}[b,s,4] y, {dtype}[b,s,4] z", opset)  # fmt: skip
    with_noise = noisy(model, 0)
    assert sum(node.op_type == "Sin" for node in with_noise.graph.node) == 1
    session = Session(with_noise, optimize=False, generous=True)
    for shape in ((2, 3, 4), (3, 1, 4)):
        feed = Feed("ordinary", {"x": np.ones(shape, np.dtype("float32" if dtype == "float" else dtype))})
        y, z = session.run(shaken(feed, 1))
        assert y.shape == z.shape == shape
        assert np.abs([y, z]).max() <= 2.1 * NOISE[y.dtype.name]
        assert min(np.unique(y).size, np.unique(z).size) > 3


def test_a_session_that_shares_no_memory_computes_the_same() -> None:
    model = written("a = Neg(x) b = Relu(a) c = Add(b, x) y = Mul(c, b)")
    given = {"x": np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4)}
    (shared,), (generous,) = (Session(model, optimize=False, generous=g).run(given) for g in (False, True))
    np.testing.assert_array_equal(shared, generous)
