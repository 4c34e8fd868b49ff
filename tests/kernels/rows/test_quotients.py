"""Quotients by what is the same throughout a row: how they are computed, and at the ends of the range."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.kernels.pointwise.expressions.elementwise import FORMULAS
from onnxfuse.kernels.pointwise.expressions.index import variable
from onnxfuse.kernels.pointwise.expressions.scalars import FLOAT, INT, Scalars
from onnxfuse.kernels.rows.quotients import Quotients
from tests.region_runs import given

LAST = "a = Constant<value = int64[1] {-1}>()"
TEXTS = {
    "one reduction": f"(x, z) => (y) {{ {LAST} m = ReduceSum(z, a) y = Div(x, m) }}",
    "several": f"(x, z) => (y, n) {{ {LAST} m = ReduceSum(z, a) n = ReduceMax(x, a) y = Div(x, m) }}",
}
SIZES = (0.0, 1e-44, 1e-38, 3e-31, 1.0, 7e15, 2e30, 8e37, 3.4e38, np.inf, np.nan)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("divisor", SIZES)
def test_quotients_are_those_of_a_division(name: str, divisor: float) -> None:
    x = np.array([[sign * size for size in SIZES for sign in (1, -1)]] * 2, np.float32)
    z = np.zeros_like(x)
    z[0, 3], z[1, 5] = divisor, -divisor
    with np.errstate(all="ignore"):
        exact = x / z.sum(1, keepdims=True)
    found = given((TEXTS[name], ()), [x, z])[0]
    np.testing.assert_allclose(found, exact, rtol=3e-7, atol=3e-45)


def test_only_what_one_row_shares_is_inverted_once() -> None:
    scalars = Scalars()
    x = scalars.load(0, FLOAT, variable("column", 8), 8, ())
    m, n = (scalars.load(k, FLOAT, variable("row", 4), 4, ()) for k in (1, 2))
    made = Quotients(scalars, lambda s: s is not x and x not in s.args)

    def divided(a: object, b: object) -> str:
        return str(made.scalar(scalars.call("Div", FORMULAS["Div"], [a, b])).payload[0])  # type: ignore[list-item]

    assert [divided(*pair) for pair in ((x, m), (m, x), (m, n), (x, x))] == ["Mul", "Div", "Div", "Div"]
    i, j = (scalars.load(k, INT, variable("column", 8), 8, ()) for k in (3, 4))
    assert divided(i, j) == "Div"
