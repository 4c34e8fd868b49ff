"""Mistakes that are compiled together: each is made when it is asked for, and none where none is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Launch, Source
from tests.kernel_mutants import Mutated, assert_caught
from tests.planted import Mistake, together

TEXT = """
template <int N> __device__ int several(int x) { return x + N; }
extern "C" __global__ void kernel(const int *x, int *y) {
  constexpr int STEP = 3;
  int sum = x[0] * STEP, last = sum > 4 ? sum - 1 : sum + 1;
  sum += several<2>(last);
  for (int i = 0; i < 4; i++) sum += i;
  if (sum > 100) sum = 0;
  y[0] = min(sum, 90);
}
"""
SOURCE = Source("k.cu", TEXT)
MISTAKES: dict[Mistake, bool] = {
    ("x[0] * STEP", "x[0]"): True,
    ("sum - 1", "sum - 2"): True,
    ("sum > 4 ? sum - 1", "sum > 90 ? sum - 1"): True,
    ("sum += several<2>(last);", ""): True,
    ("i < 4", "i <= 4"): True,
    ("(last)", "(last + 1)"): True,
    ("min(sum, 90)", "min(sum, 10)"): True,
    ("STEP = 3", "STEP = 4"): False,
    ("several<2>", "several<3>"): False,
    ("i++) sum += i", "i += 2) sum += i"): False,
    ("constexpr int STEP = 3;", "int STEP = x[0];"): False,
}
"""And whether it can be chosen when the kernel runs."""


def result(mistakes: tuple[Mistake, ...], number: int) -> int:
    device, y = Mutated(mistakes, number), np.zeros(1, np.int32)
    device.launch(Launch(SOURCE, "kernel", (1,), (1,)), [np.array([5], np.int32), y])
    assert device.applied == bool(number)
    return int(y[0])


def test_each_is_made_as_if_it_stood_in_the_text() -> None:
    mistakes = tuple(MISTAKES)
    right = result(mistakes, 0)
    assert right == 15 + 14 + 2 + 6
    for number, (before, after) in enumerate(mistakes, 1):
        wrong, y = Source("k.cu", TEXT.replace(before, after)), np.zeros(1, np.int32)
        Mutated((), 0).launch(Launch(wrong, "kernel", (1,), (1,)), [np.array([5], np.int32), y])
        assert result(mistakes, number) == int(y[0]) != right, before


def compiles(accepted: list[str]) -> Callable[[Source], None]:
    """A compiler that wants constants where they are wanted."""

    def compiled(source: Source) -> None:
        accepted.append(source.text)
        if "STEP =(" in source.text:
            raise KernelError("k.cu:4: not a constant")

    return compiled


def test_what_the_compiler_refuses_is_left_out() -> None:
    tried: list[str] = []
    planted, numbers = together(SOURCE, list(MISTAKES), compiles(tried))
    assert numbers == {number for number, can in enumerate(MISTAKES.values(), 1) if can}
    assert [text == planted.text for text in tried] == [False, True]
    assert planted.text.count("\n") == TEXT.count("\n")


def test_nothing_is_planted_where_nothing_can_be() -> None:
    def refuses(source: Source) -> None:
        raise KernelError("somewhere:1: nothing compiles here")

    assert together(SOURCE, list(MISTAKES), refuses) == (SOURCE, frozenset())
    assert together(SOURCE, [("STEP = 3", "STEP = 4")], compiles([])) == (SOURCE, frozenset())
    assert together(SOURCE, [("not there", "")], compiles([])) == (SOURCE, frozenset())


def test_who_notices_nothing_is_told() -> None:
    def notices(value: int | None) -> Callable[[Mutated], None]:
        def run(device: Mutated) -> None:
            y = np.zeros(1, np.int32)
            device.launch(Launch(SOURCE, "kernel", (1,), (1,)), [np.array([5], np.int32), y])
            assert value in (None, int(y[0]))

        return run

    mistake, others = ("sum - 1", "sum - 2"), list(MISTAKES)
    assert_caught(notices(37), *mistake, others)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        assert_caught(notices(None), *mistake, others)
    with pytest.raises(AssertionError):  # what is wrong without a mistake
        assert_caught(notices(36), *mistake, others)
