"""Attention at a shape that comes again: its launches are repeated, with other arrays, and not worked out anew."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.attention.plan import Plan
from onnxfuse.kernels.device.device import Buffer, Launch
from onnxfuse.kernels.device.recorder import ADDRESS
from onnxfuse.kernels.emulator.device import Emulated
from tests.attention_cases import Case, expected
from tests.kernel_runs import run
from tests.row_cases import assert_close

HALF = np.dtype(np.float16)
CASES = {
    "one launch": Case(20, 20, 32, heads=4, mask=(2, 1, 20, 20)),
    "the parts of a row put together": Case(1, 300, 32, batches=1, heads=4),
    "a past": Case(1, 1, 32, past=40, heads=4, mask=(2, 1, 1, 41)),
    "keys turned apart": Case(5, 5, 32, angles="given"),
    "keys turned apart, and parts": Case(1, 1, 32, batches=1, past=300, angles="chosen"),
}


class Elsewhere(Emulated):
    """Many multiprocessors, and scratch memory that is never where it was."""

    multiprocessors = 132

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    @contextmanager
    def scratch(self, count: int) -> Iterator[Any]:
        with super().scratch(count) as memory:
            self.kept.append(memory)
            yield memory


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_repeated_computes_the_same_as_what_is_worked_out(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    worked, real = list[int](), Plan._work_out
    monkeypatch.setattr(Plan, "_work_out", lambda self, *arguments: (worked.append(1), real(self, *arguments))[1])
    kernel, device = Attention(case.node), Elsewhere()
    for seed in range(4):
        inputs = replace(case, seed=seed).inputs(HALF)
        # Outputs at other addresses, and presents among them.
        for got, want in zip(run(kernel, inputs, device), expected(case.node, inputs), strict=True):
            assert_close(got, want)
    assert len(worked) == 2, "once to run, once to be written down"


def test_lengths_that_come_once_are_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, device = Attention({}), Elsewhere()
    for past in (4, 5, 5, 5, 6, 5, 6, 6):
        inputs = Case(1, 1, 32, past=past, seed=past).inputs(HALF)
        for got, want in zip(run(kernel, inputs, device), expected({}, inputs), strict=True):
            assert_close(got, want)
    (plan,) = kernel._plans.values()
    assert plan._repeated[0] == 6


class Nowhere:
    """A device that launches nothing, and makes numbers its own."""

    multiprocessors, vendor = 132, None

    def __init__(self) -> None:
        self.launched: list[tuple[str, Sequence[Any]]] = []

    def number(self, value: np.generic) -> Any:
        return ("own", value)

    def launch(self, launch: Launch, arguments: Sequence[Any]) -> None:
        self.launched.append((launch.entry, arguments))

    @contextmanager
    def scratch(self, count: int) -> Iterator[Buffer]:
        yield Buffer(2 * ADDRESS, (count,), np.dtype(np.uint8))


def test_numbers_are_made_the_devices_own_once() -> None:
    q, k = (Buffer(ADDRESS, (1, 1, rows, 64), HALF) for rows in (1, 16384))
    device, kernel = Nowhere(), Attention({})
    for _ in range(3):
        kernel.launch(device, [q, k, k], [q, None, None])
    (_, first), *_, (entry, arguments), (last, _) = device.launched
    assert (entry, last) == ("attention", "attention_combine")
    assert [a[1] for a in arguments if isinstance(a, tuple) and a[0] == "own"] == [
        a for a in first if isinstance(a, np.generic)
    ]
    assert [a for a in arguments if isinstance(a, Buffer)] == [a for a in first if isinstance(a, Buffer)]


def test_a_call_at_a_known_shape_is_a_look_up() -> None:
    """Python's calls are counted: three for each launch and array, and none for numbers."""
    q = Buffer(ADDRESS, (1, 12, 128, 64), HALF)
    device, kernel, calls = Nowhere(), Attention({}), list[str]()

    def count(frame: Any, event: str, argument: Any) -> None:
        calls.extend([event] if event in ("call", "c_call") else [])

    for _ in range(3):
        kernel.launch(device, [q, q, q], [q, None, None])
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        kernel.launch(device, [q, q, q], [q, None, None])
    finally:
        sys.setprofile(before)
    assert len(calls) < 35


@pytest.mark.parametrize("length", [70, 130, 300])
def test_keys_behind_a_length_are_not_read_from_a_past_that_goes_on(length: int) -> None:
    """Whole tiles are copied as they are: one that a length ends in, or before, is none."""
    case = Case(1, 1, 80, batches=1, past=300, lengths=(length,))
    inputs = case.inputs(HALF)
    for array in inputs[4:6]:
        assert array is not None
        array[:, :, length:] = np.nan
    outputs = [None if a is None else np.empty((1, 2, 1, 80), HALF) for a in (inputs[0],)]
    Attention({}).launch(Elsewhere(), inputs, [*outputs, None, None])
    known = [None if a is None else np.nan_to_num(a) for a in inputs[4:6]]
    assert_close(outputs[0], expected({}, [*inputs[:4], *known, *inputs[6:]])[0])
