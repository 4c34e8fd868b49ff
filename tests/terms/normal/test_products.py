"""Products of matrices: scalars and merged rows leave them, and a Gemm is one."""

from __future__ import annotations

from tests.terms.normal.space import Space, b, s


def test_rows_merged_for_a_dense_layer_come_apart(t: Space) -> None:
    x, w = t.input("x", b, s, 8), t.input("w", 8, 3)
    assert t.op("MatMul", t.reshape(x, b * s, 8), w) is t.reshape(t.op("MatMul", x, w), b * s, 3)
    pairs = t.reshape(t.input("pairs", b, 2, 4), b, 8)
    assert t.op("MatMul", pairs, w).args == (pairs, w)
    heads = t.input("heads", b, s, 2, 4)
    rows = t.op("MatMul", t.reshape(heads, b, s, 8), w)
    assert t.op("MatMul", t.reshape(heads, b * s, 8), w) is t.reshape(rows, b * s, 3)
    windows = t.reshape(t.input("windows", b, s, 5, 2, 4), b * s, 5, 8)
    assert t.op("MatMul", windows, w).args == (windows, w)
    bias = t.input("bias", 3)
    gemm = t.op("Gemm", t.reshape(x, b * s, 8), t.transpose(w, 1, 0), bias, transB=1)
    assert gemm is t.op("Add", t.reshape(t.op("MatMul", x, w), b * s, 3), bias)


def test_a_merge_of_rows_and_columns_stays_where_a_bias_has_rows(t: Space) -> None:
    x, w, c = t.input("x", 2, 8), t.input("w", 8, 3), t.input("c", 2, 1)
    assert t.op("Gemm", x, w, c, alpha=2.0, beta=0.5) is t.op(
        "Add", t.op("Mul", t.op("MatMul", x, w), t.number(2)), t.op("Mul", c, t.number(0.5))
    )
    assert t.op("Gemm", t.transpose(x, 1, 0), w, transA=1) is t.op("MatMul", x, w)


def test_factors_that_may_go_out_of_range_stay_inside(t: Space) -> None:
    x, w = t.input("x", b, 8), t.input("w", 8, 3)
    for factor in (2.0**25, 0.0, 2.0**-25):
        assert t.op("MatMul", t.op("Mul", x, t.number(factor)), w).op == "MatMul"
    assert t.op("MatMul", t.op("Mul", x, t.number(2.0**24)), w).op == "Mul"
