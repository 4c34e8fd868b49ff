"""Runs in turns: the judgement is right on times that are made up; no test asserts a real one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from onnxfuse.performance.interleaved import Ratio, measure, ratio


class Machine:
    """A clock that only the calls of its sides advance, each by its own time times the machine's present slowness."""

    def __init__(self, slowness: Callable[[float], float] = lambda now: 1.0) -> None:
        self.now = 0.0
        self.slowness = slowness
        self.calls: list[str] = []

    def clock(self) -> float:
        return self.now

    def side(self, name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.calls.append(name)
            self.now += seconds * self.slowness(self.now)

        return call

    def sides(self, **seconds: float) -> dict[str, Callable[[], None]]:
        return {name: self.side(name, took) for name, took in seconds.items()}


def test_the_ratio_is_how_many_times_as_fast() -> None:
    assert ratio([4.0] * 20, [2.0] * 20) == Ratio(2.0, 2.0, 2.0)


def test_the_interval_ends_at_order_statistics() -> None:
    # Of ten values, a median lies below the second smallest or above the second largest in 22 of 1,024 cases, and
    # beyond the third in 112: more than 5 %.
    found = ratio([float(n) for n in range(10, 0, -1)], [1.0] * 10)
    assert found == Ratio(5.5, 2.0, 9.0)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_rounds_give_their_range(count: int) -> None:
    found = ratio([float(n) for n in range(1, count + 1)], [1.0] * count)
    assert (found.low, found.high) == (1.0, float(count))


def test_the_interval_of_very_many_rounds() -> None:
    found = ratio([1 + n / 1e4 for n in range(10_001)], [1.0] * 10_001)
    # 1.96 standard deviations of the rank of a median, sqrt(n) / 2, to either side.
    assert found.median == pytest.approx(1.5)
    assert (found.low, found.high) == pytest.approx((1.4902, 1.5098), abs=2e-4)


@pytest.mark.parametrize("count", [9, 30])
def test_the_interval_holds_the_true_median_in_95_of_100_cases(count: int) -> None:
    generator = random.Random(count)
    held = 0
    for _ in range(1000):
        found = ratio([generator.lognormvariate(0, 0.5) for _ in range(count)], [1.0] * count)
        held += found.low <= 1 <= found.high
    assert held >= 940


def test_a_machine_that_becomes_slower_changes_no_ratio() -> None:
    machine = Machine(lambda now: 1.0 if now < 2 else 3.7)
    samples = measure(machine.sides(a=0.02, b=0.01), "a", rounds=101, clock=machine.clock)
    assert ratio(samples["a"], samples["b"]).median == pytest.approx(2.0)


def test_disturbed_rounds_change_no_median() -> None:
    generator = random.Random(1)
    machine = Machine(lambda now: 40.0 if generator.random() < 0.15 else 1.0)
    samples = measure(machine.sides(a=0.03, b=0.02), "a", rounds=100, clock=machine.clock)
    assert ratio(samples["a"], samples["b"]).median == pytest.approx(1.5)


def test_it_ends_as_soon_as_all_intervals_are_narrow() -> None:
    machine = Machine()
    samples = measure(machine.sides(a=0.02, b=0.01), "a", seconds=1e9, clock=machine.clock)
    assert [len(times) for times in samples.values()] == [9, 9]


def test_it_ends_in_time_where_no_interval_becomes_narrow() -> None:
    generator = random.Random(2)
    machine = Machine(lambda now: generator.uniform(0.2, 5.0))
    measure(machine.sides(a=0.02, b=0.01), "a", seconds=5.0, precision=1e-9, clock=machine.clock)
    assert 5.0 < machine.now < 6.0


def test_a_slow_model_has_nine_rounds_whatever_they_take() -> None:
    machine = Machine()
    samples = measure(machine.sides(a=50.0, b=60.0), "a", seconds=1.0, precision=0.0, clock=machine.clock)
    assert len(samples["a"]) == 9


def test_rounds_are_as_many_as_asked_for() -> None:
    machine = Machine()
    assert len(measure(machine.sides(a=1.0, b=1.0), "a", rounds=3, seconds=0.0, clock=machine.clock)["b"]) == 3


def test_every_round_has_each_side_once_in_changing_order() -> None:
    machine = Machine()
    measure(machine.sides(a=1.0, b=1.0, c=1.0), "a", rounds=40, clock=machine.clock)
    rounds = machine.calls[-120:]
    orders = {tuple(rounds[start : start + 3]) for start in range(0, 120, 3)}
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len(orders) == 6


def test_fast_sides_are_called_more_often_in_a_round() -> None:
    machine = Machine()
    measure(machine.sides(a=1e-4, b=1e-4), "a", rounds=1, clock=machine.clock)
    warm_up = 4
    assert machine.calls.count("a") == machine.calls.count("b") == warm_up + 20
