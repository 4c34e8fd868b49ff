"""Figures that weigh, and never decide what is right."""

from __future__ import annotations

from onnx import TensorProto

from onnxfuse.model.dims import floor_divide, symbol
from onnxfuse.regions import measure

N = symbol("n")


def test_numbers_of_elements_are_equal_as_polynomials() -> None:
    assert measure.numel((N, 4, 8)) == measure.numel((4, N, 2, 4))
    assert measure.numel((N, 4)) != measure.numel((symbol("m"), 4))


def test_bytes_take_symbols_for_one_size() -> None:
    assert measure.size((N, 4), TensorProto.FLOAT) == measure.NOMINAL * 16
    assert measure.size((2, 3), TensorProto.FLOAT16) == 12


def test_sizes_to_try_a_kernel_with() -> None:
    assert measure.tried([(N, 3, N * 2)], measure.Same(12)) == ((12, 3, 24),)
    assert measure.tried([(N, -3)], measure.Same(12)) == (None,)
    assert measure.tried([(N, 0)], measure.Same(12)) == ((12, 0),)


def test_sizes_to_try_leave_no_dimension_empty() -> None:
    windows = floor_divide(N + 160, 256)
    assert measure.tried([(N,), (windows, 2)], measure.Same(12)) == ((96,), (1, 2))
    assert measure.tried([(N + -20,)], measure.Same(12)) == ((76,),)
    assert measure.tried([(N + N * -1 + -1,)], measure.Same(12)) == (None,)
