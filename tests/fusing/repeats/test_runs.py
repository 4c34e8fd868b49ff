"""Where ops come again, and which runs are taken of what does."""

from __future__ import annotations

import pytest

from onnxfuse.fusing.repeats.runs import HEAD, TAIL, Run, periods, runs

BLOCK = "MatMul Add Relu MatMul Add Softmax Mul Sub Neg Exp".split()


def of(ops: list[str], alone: tuple[int, ...] = ()) -> list[Run]:
    def matches(node: int, period: int) -> int | None:
        other = node + period
        return None if ops[node] != ops[other] or {node, other} & {*alone} else 0

    return runs(periods(ops), matches)


def test_nothing_comes_again() -> None:
    assert periods(BLOCK) == []
    assert periods([f"Op{n}" for n in range(1000)]) == []
    assert of(BLOCK * 5) == []


def test_a_run_is_as_long_as_it_comes_again() -> None:
    (run,) = of(["Cast", "Identity", *BLOCK * 9, "Relu"])
    assert (run.period, run.count) == (10, 9)
    assert run.left_out == range(run.start + HEAD * 10, run.stop - TAIL * 10)


def test_a_run_ends_at_what_stands_alone() -> None:
    first, second = of(BLOCK * 20, alone=(95,))
    assert (first.stop, second.start) == (90, 96)


def test_two_runs_of_different_blocks() -> None:
    other = "Conv Relu Conv Add Sqrt Div Erf".split()
    assert [(run.period, run.count) for run in of(BLOCK * 8 + other * 9)] == [(10, 8), (7, 9)]


@pytest.mark.parametrize("every", [2, 5, 6])
def test_blocks_of_which_each_so_many_th_reads_something_else(every: int) -> None:
    """Layers with a window and without: their ops are the same in each."""
    ops = BLOCK * (every * 8)

    def matches(node: int, period: int) -> int | None:
        read = [(at // 10 + 1) % every == 0 for at in (node, node + period) if at % 10 == 3]
        return None if ops[node] != ops[node + period] or len(set(read)) > 1 else 0

    (run,) = runs(periods(ops), matches)
    assert (run.period, run.count) == (10 * every, 8)


def test_blocks_are_counted_without_those_left_out() -> None:
    run = Run(start=4, period=10, count=9)
    assert [run.block(node) for node in (3, 4, 13, 14, 33, 74, 84, 93, 94)] == [-1, 0, 0, 1, 2, 3, 4, 4, 5]
