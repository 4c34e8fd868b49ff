"""Attention at a shape that comes again: its launches are repeated, with other arrays, and not worked out anew."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import parser

from onnxfuse.errors import KernelError
from onnxfuse.kernels import find, of_region
from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.attention.plan import Plan
from onnxfuse.kernels.device.device import Buffer, Launch, TensorMap, TensorType
from onnxfuse.kernels.device.packed import MAP_WORDS, WORD, Start
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
    worked, real = list[int](), Plan._write_down
    monkeypatch.setattr(Plan, "_write_down", lambda self, *arguments: (worked.append(1), real(self, *arguments))[1])
    kernel, device = Attention(case.node), Elsewhere()
    for seed in range(3):
        inputs = replace(case, seed=seed).inputs(HALF)
        # Outputs at other addresses, and presents among them.
        for got, want in zip(run(kernel, inputs, device), expected(case.node, inputs), strict=True):
            assert_close(got, want)
    assert len(worked) == 1


def test_lengths_of_a_past_are_written_down_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worked, real = list[int](), Plan._write_down
    monkeypatch.setattr(Plan, "_write_down", lambda self, *arguments: (worked.append(1), real(self, *arguments))[1])
    kernel, device = Attention({}), Elsewhere()
    for past in (4, 5, 5, 6, 5, 7):
        inputs = Case(1, 1, 32, past=past, seed=past).inputs(HALF)
        for got, want in zip(run(kernel, inputs, device), expected({}, inputs), strict=True):
            assert_close(got, want)
    assert len(worked) == len(kernel._plans) == 1


class Nowhere:
    """A device that launches nothing, and takes what is packed."""

    multiprocessors, architecture, maps, vendor = 132, "", False, None

    def launch(self, launch: Launch, arguments: Sequence[Any]) -> None:
        raise AssertionError("what is repeated is packed")

    def starter(self, launch: Launch) -> Start:
        return int.__add__

    def encoded(self, map: TensorMap, address: int) -> bytes:
        return bytes(WORD * MAP_WORDS)

    def scratch(self, count: int) -> AbstractContextManager[Buffer]:
        return nullcontext(Buffer(2 * ADDRESS, (count,), np.dtype(np.uint8)))

    def counters(self, count: int) -> AbstractContextManager[Buffer]:
        return nullcontext(Buffer(3 * ADDRESS, (count,), np.dtype(np.uint32)))


def calls_of(run: Callable[[], object]) -> int:
    """How many calls Python makes, once shapes are known."""
    calls = list[str]()

    def count(frame: Any, event: str, argument: Any) -> None:
        calls.extend([event] if event in ("call", "c_call") else [])

    for _ in range(3):
        run()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
    return len(calls)


def test_a_call_at_a_known_shape_is_a_look_up() -> None:
    """However many numbers a launch has."""
    q, fresh = (Buffer(ADDRESS, (1, 12, rows, 64), HALF) for rows in (128, 1))
    past, present = (Buffer(ADDRESS, (1, 12, rows, 64), HALF) for rows in (999, 1000))
    x, weight, device = Buffer(ADDRESS, (128, 64), HALF), Buffer(ADDRESS, (64, 64), HALF), Nowhere()
    attention, gelu, product = Attention({}), find("Gelu")({}), find("FusedMatMul")({})
    assert calls_of(lambda: attention.launch(device, [q, q, q], [q, None, None])) < 20
    assert calls_of(lambda: gelu.launch(device, [x], [x])) < 20
    assert calls_of(lambda: product.launch(device, [x, weight], [x])) < 20
    norm = parser.parse_function(
        """<opset_import: ["": 20], domain: "onnxfuse"> Region_1 (a, b, g) => (y) {
        p = MatMul(a, b) y = LayerNormalization(p, g) }"""
    )
    reduced, scale = of_region(norm, ["float16"] * 3, ["float16"])({}), Buffer(ADDRESS, (64,), HALF)
    assert calls_of(lambda: reduced.launch(device, [x, weight, scale], [x])) < 35
    cached = [fresh, fresh, fresh, None, past, past]
    assert calls_of(lambda: attention.launch(device, cached, [fresh, present, present])) < 30


def test_a_length_never_seen_is_a_few_sums() -> None:
    attention, device, lengths = Attention({}), Nowhere(), iter(range(1000, 2000))
    fresh = Buffer(ADDRESS, (1, 12, 1, 64), HALF)

    def grow() -> None:
        length = next(lengths)
        past, present = (Buffer(ADDRESS, (1, 12, rows, 64), HALF) for rows in (length, length + 1))
        inputs = [fresh, fresh, fresh, None, past, past]
        assert attention.outputs([None if a is None else TensorType(a.dtype, a.shape) for a in inputs])
        attention.launch(device, inputs, [fresh, present, present])

    assert calls_of(grow) < 75


def test_a_past_that_grows_too_long_is_refused() -> None:
    attention = Attention({})

    def outputs(past: int) -> Any:
        fresh, cached = TensorType(HALF, (1, 1, 1, 64)), TensorType(HALF, (1, 1, past, 64))
        return attention.outputs([fresh, fresh, fresh, None, cached, cached])

    assert outputs(2**28 - 2)[1].shape == (1, 1, 2**28 - 1, 64)
    with pytest.raises(KernelError, match="longer than 2"):
        outputs(2**28 - 1)


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
