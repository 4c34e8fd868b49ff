"""Views inside of what is computed element by element: bytes are moved in place of numbers."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from tests.terms.normal.test_quantized import INT8, UINT8, Bytes


@pytest.fixture
def t() -> Bytes:
    return Bytes()


def test_views_of_what_was_dequantized_are_of_bytes(t: Bytes) -> None:
    q, scale, zero = t.input("q", 2, 3, 4, dtype=UINT8), t.number(0.5), t.zero(7)
    d = t.op("DequantizeLinear", q, scale, zero)
    assert t.transpose(d, 0, 2, 1) is t.op("DequantizeLinear", t.transpose(q, 0, 2, 1), scale, zero)
    assert t.reshape(d, 6, 4) is t.op("DequantizeLinear", t.reshape(q, 6, 4), scale, zero)
    assert t.slice(d, 2, 1, 3) is t.op("DequantizeLinear", t.slice(q, 2, 1, 3), scale, zero)
    assert t.reshape(t.reshape(d, 6, 4), 2, 3, 4) is d


def test_a_scale_for_each_index_moves_with_its_axis(t: Bytes) -> None:
    q, scales = t.input("q", 2, 3, 4, dtype=INT8), t.scales(0.1, 0.2, 0.3)
    d = t.op("DequantizeLinear", q, scales, axis=1)
    turned = t.transpose(d, 1, 2, 0)
    assert turned is t.op("DequantizeLinear", t.transpose(q, 1, 2, 0), scales, axis=0)
    assert turned is not t.op("DequantizeLinear", t.transpose(q, 1, 2, 0), scales, axis=1)
    assert t.transpose(t.op("DequantizeLinear", q, scales, axis=-2), 1, 2, 0) is turned
    assert t.reshape(d, 6, 4).op == "Reshape", "the axis may be gone"
    assert t.slice(d, 1, 0, 2).op == "Slice", "so may its scales"


@pytest.mark.parametrize("dtype", [TensorProto.INT4, TensorProto.INT16, TensorProto.FLOAT8E4M3FN])
def test_what_runtimes_may_not_move_stays_behind(t: Bytes, dtype: int) -> None:
    d = t.op("DequantizeLinear", t.input("q", 2, 3, dtype=int(dtype)), t.number(0.5))
    assert t.transpose(d, 1, 0).op == "Transpose"


def test_blocks_stay_where_they_are(t: Bytes) -> None:
    q, scales = t.input("q", 4, 8, dtype=UINT8), t.input("scales", 2, 8)
    d = t.op("DequantizeLinear", q, scales, axis=0, block_size=2)
    assert t.transpose(d, 1, 0).op == "Transpose"
