"""What runs together: the cases that a partition stands and falls by."""

from __future__ import annotations

import pytest

from onnxfuse.regions.partition import separated

from .written import groups, ops, parts

CHAIN = (
    "g (float[N,8] x) => (float[N,8] y) { one = Constant<value = float {1}>() e = Exp(x) s = Add(e, one) y = Log(s) }"
)
UNSQUEEZED = """g (float[N,8] x, float[N,1,8] z) => (float[N,1,8] y) {
    e = Exp(x) axes = Constant<value = int64[1] {1}>() u = Unsqueeze(e, axes) y = Mul(u, z) }"""
SIBLINGS = "g (float[N,8] x) => (float[N,8] a, float[N,8] b) { a = Relu(x) b = Neg(x) }"
TURNED = "g (float[4,8] x) => (float[4,8] a, float[8,4] b) { a = Relu(x) b = Transpose(a) }"
DIAMOND = """g (float[N,8] x, float[8,8] w) => (float[N,8] y) {
    a = Relu(x) m = MatMul(a, w) y = Add(a, m) }"""
WIDENED = """g (float[8] x, float[64,8] z) => (float[64,8] y) { e = Exp(x) y = Add(e, z) }"""
WIDENED_CHEAPLY = """g (float[8] x, float[64,8] z) => (float[64,8] y) { e = Neg(x) y = Add(e, z) }"""
TWO_SIZES = """g (float[N,8] x, float[M,8] z) => (float[N,8] a, float[M,8] b) {
    a = Relu(x) c = ReduceMax<keepdims = 0, noop_with_empty_axes = 0>(a) b = Add(z, c) }"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(CHAIN, ["Exp Add Log"], id="log(exp(x) + 1) is one"),
        pytest.param(UNSQUEEZED, ["Exp Mul"], id="a view in the middle is none"),
        pytest.param(SIBLINGS, ["Relu Neg"], id="siblings of one input"),
        pytest.param(TURNED, ["Relu Transpose"], id="two outputs of one size, in another order"),
        pytest.param(DIAMOND, ["Relu", "MatMul Add"], id="what lies between would wait for both"),
        pytest.param(WIDENED, ["Exp", "Add"], id="a transcendental is not computed for each row"),
        pytest.param(WIDENED_CHEAPLY, ["Neg Add"], id="what costs nothing is"),
        pytest.param(TWO_SIZES, ["Relu ReduceMax", "Add"], id="outputs of sizes that are not those of rows"),
    ],
)
def test_what_runs_together(text: str, expected: list[str]) -> None:
    assert parts(text) == expected


def test_a_value_with_two_users_is_computed_in_both_where_that_moves_no_more() -> None:
    # Two kernels read a, and one writes it: three times its bytes beside two readings of x.
    text = """g (float[N,8] x, float[N,8] p, float[N,8] q, float[8,8] w) => (float[N,8] y, float[N,8] z) {
        a = Neg(x) c = Mul(a, p) m = MatMul(c, w) n = MatMul(m, w) r = Add(n, q) y = Mul(a, r) z = Identity(m) }"""
    assert parts(text) == ["Neg Mul", "MatMul", "Neg MatMul Add Mul"]


def test_a_value_with_two_users_is_kept_where_computing_it_moves_more() -> None:
    text = """g (float[N,8] x, float[N,8] o, float[N,8] t, float[N,8] p, float[N,8] q, float[8,8] w)
        => (float[N,8] y, float[N,8] z) {
        b = Add(x, o) a = Mul(b, t) c = Mul(a, p) m = MatMul(c, w) n = MatMul(m, w) r = Add(n, q) y = Mul(a, r)
        z = Identity(m) }"""
    found = groups(text)
    assert [ops(group) for group in found] == ["Add Mul Mul", "MatMul", "MatMul Add Mul"]
    assert not list(separated(found))  # nothing is lost, and what lies between would wait for both


def test_a_transcendental_is_computed_twice_at_most() -> None:
    lines = "".join(f"c{i} = Mul(a, p{i}) m{i} = MatMul(c{i}, w) " for i in range(3))
    names = ", ".join(f"float[N,8] p{i}" for i in range(3))
    outputs = ", ".join(f"float[N,8] m{i}" for i in range(3))
    text = "g (float[N,8] x, {names}, float[8,8] w) => ({outputs}) {{ a = {op}(x) {lines} }}"
    kept = parts(text.format(op="Tanh", names=names, outputs=outputs, lines=lines))
    assert kept == ["Tanh Mul Mul Mul", "MatMul", "MatMul", "MatMul"]  # siblings write all three at once


def test_no_group_waits_for_another_that_waits_for_it() -> None:
    text = """g (float[4,4] x, float[4,4] w) => (float[4,4] y) {
        a = Relu(x) b = MatMul(a, w) c = Neg(a) d = Add(b, c) e = MatMul(d, w) f = Mul(e, c) y = Add(f, a) }"""
    found = groups(text)
    for group in found:
        assert not any(found.reaches(found.of[number], group) for number in found.targets(group))


def test_the_same_scope_gives_the_same_groups() -> None:
    assert parts(TURNED) == parts(TURNED)
    assert parts(DIAMOND) == parts(DIAMOND)


ROWS = "g0 (float[N,4,8] x, float[N,4,8] z, float[8] g, float[8] b, float[8,8] w) => ({outputs}) {{ {lines} }}"


@pytest.mark.parametrize(
    ("lines", "outputs", "expected"),
    [
        pytest.param(
            "a = Constant<value = int64[1] {-1}>() e = Exp(x) y = ReduceSum<keepdims = 0>(e, a)",
            "float[N,4] y",
            ["Exp ReduceSum"],
            id="y = sum(exp(x))",
        ),
        pytest.param(
            "a = Constant<value = int64[1] {-1}>() m = Exp(x) s = ReduceSum(m, a) y = Div(m, s)",
            "float[N,4,8] y",
            ["Exp ReduceSum Div"],
            id="softmax from its parts",
        ),
        pytest.param(
            "t = Transpose<perm = [0, 2, 1]>(x) n = Softmax(t) u = Transpose<perm = [0, 2, 1]>(n) y = Neg(u)",
            "float[N,4,8] y",
            ["Transpose Softmax Transpose Neg"],
            id="moves around rows",
        ),
        pytest.param(
            "s = Add(x, z) n = LayerNormalization(s, g, b) m = MatMul(n, w) y = Add(m, s)",
            "float[N,4,8] y",
            ["Add LayerNormalization", "MatMul Add"],
            id="a residual sum that goes on",
        ),
        pytest.param(
            "n = LayerNormalization(x, g, b) m = LayerNormalization(n, g, b) y = Tanh(m)",
            "float[N,4,8] y",
            ["LayerNormalization LayerNormalization Tanh"],
            id="a norm of a norm",
        ),
        pytest.param(
            "a = Constant<value = int64[1] {-1}>() t = ReduceMax(x, a) d = Sub(x, t) e = Exp(d) s = ReduceSum(e, a) "
            "y = Div(e, s)",
            "float[N,4,8] y",
            ["ReduceMax Sub Exp ReduceSum Div"],
            id="all parts of a softmax",
        ),
        pytest.param(
            "a = Constant<value = int64[1] {-1}>() y = ReduceMax(x, a) s = ReduceMean(x, a)",
            "float[N,4,1] y, float[N,4,1] s",
            ["ReduceMax ReduceMean"],
            id="two reductions side by side",
        ),
        pytest.param(
            "t = Softmax<axis = 1>(x) y = Softmax(t)",
            "float[N,4,8] y",
            ["Softmax", "Softmax"],
            id="of rows along one axis alone",
        ),
        pytest.param(
            "n = LayerNormalization(x, g, b) k = Constant<value = int64[4] {0, 4, 2, 4}>() r = Reshape(n, k) "
            "y = Softmax(r)",
            "float[N,4,2,4] y",
            ["LayerNormalization", "Softmax"],
            id="of rows of one length alone",
        ),
        pytest.param(
            "a = Constant<value = int64[1] {0}>() e = Exp(x) y = ReduceSum<keepdims = 0>(e, a)",
            "float[4,8] y",
            ["Exp", "ReduceSum"],
            id="columns are no rows",
        ),
        pytest.param(
            "n = Softmax(x) y = Add(n, z) s = Neg(z)",
            "float[N,4,8] y, float[N,4,8] s",
            ["Softmax Add Neg"],
            id="a sibling of what is behind",
        ),
        pytest.param(
            "a = Constant<value = int64[1] {-2}>() e = Exp(x) y = ReduceSum<keepdims = 0>(e, a)",
            "float[N,8] y",
            ["Exp ReduceSum"],
            id="along an axis in the middle",
        ),
    ],
)
def test_reductions_of_rows(lines: str, outputs: str, expected: list[str]) -> None:
    assert parts(ROWS.format(lines=lines, outputs=outputs)) == expected


def test_sums_over_dims_of_tensors_that_exist_and_of_virtual_ones() -> None:
    text = """g (float[4,1,8] x, float[1,6,8] z) => (float[4,6] s, float[4,6,8] t) {
        a = Constant<value = int64[1] {-1}>() t = Add(x, z) e = Mul(x, z) f = Add(e, t)
        s = ReduceSum<keepdims = 0>(f, a) }"""
    assert parts(text) == ["Add Mul Add ReduceSum"]


def test_a_product_takes_what_is_elementwise_behind_it() -> None:
    text = """g (float[B,S,8] x, float[8,12] w, float[B,S,12] z) => (float[B,2,S,6] y) {
        m = MatMul(x, w) s = Sigmoid(m) t = Mul(s, z) n = Constant<value = int64[4] {0, 0, 2, 6}>()
        r = Reshape(t, n) y = Transpose<perm = [0, 2, 1, 3]>(r) }"""
    assert parts(text) == ["MatMul Sigmoid Mul Transpose"]


def test_a_product_that_two_read_goes_with_one_of_them_and_is_written() -> None:
    text = """g (float[N,8] x, float[8,8] w) => (float[N,8] y) {
        m = MatMul(x, w) a = Sigmoid(m) n = MatMul(a, w) y = Add(n, m) }"""
    assert parts(text) == ["MatMul Sigmoid", "MatMul Add"]


def test_what_is_turned_before_a_product_is_read_turned() -> None:
    text = (
        "g (float[B,4,8] x, float[B,6,8] k) => (float[B,4,6] y) { t = Transpose<perm = [0, 2, 1]>(k) y = MatMul(x, t) }"
    )
    assert parts(text) == ["Transpose MatMul"]


NORMED = """g (float[N,8] x, float[8,8] w, float[N,8] r, float[8] g, float[8,8] v) => (float[N,8] y, float[N,8] s) {
    m = MatMul(x, w) s = Add(m, r) n = LayerNormalization(s, g) y = MatMul(n, v) }"""


def test_the_norm_behind_a_product_goes_into_it_and_not_into_the_next() -> None:
    assert parts(NORMED) == ["MatMul Add LayerNormalization", "MatMul"]


def test_the_norm_of_two_products_goes_into_the_second() -> None:
    text = NORMED.replace("s = Add(m, r)", "t = MatMul(r, v) u = Add(m, t) s = Add(u, r)")
    assert parts(text) == ["MatMul", "MatMul Add Add LayerNormalization", "MatMul"]


def test_rows_that_are_not_those_of_the_product_stay_apart() -> None:
    text = NORMED.replace("LayerNormalization(s, g)", "Transpose(s)").replace("MatMul(n, v)", "Softmax(n)")
    text = text.replace("float[N,8] y", "float[8,N] y")
    assert parts(text) == ["MatMul", "Add Transpose Softmax"]
