"""Why two groups may not be one."""

from __future__ import annotations

import pytest

from onnxfuse.regions import legality
from onnxfuse.regions.groups import Groups
from onnxfuse.regions.partition import partition

from .written import calls, fused, ops, scope


def pair(text: str) -> str:
    """The reason for the first launch not to go into the last."""
    groups = Groups(scope(text))
    first, *_, last = groups
    return legality.obstacle(groups, first, last)


def test_a_producer_and_its_consumer_are_one() -> None:
    assert pair("g (float[N,8] x) => (float[N,8] y) { a = Exp(x) y = Neg(a) }") == ""


def test_not_an_op_that_no_loop_computes() -> None:
    text = "g (float[N,8] x) => (float[N,8] y) { zero = Constant<value = int64 {0}>() a = CumSum(x, zero) y = Neg(a) }"
    assert pair(text) == legality.FIXED


PRODUCT = "g (float[N,8] x, float[8,8] w) => (float[N,8] y) {{ {} }}"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("a = MatMul(x, w) y = Neg(a)", ""),
        ("a = MatMul(x, w) y = MatMul(a, w)", legality.PRODUCT),
        ("a = MatMul(x, w) y = Softmax(a)", ""),
        ("a = Softmax(x) y = MatMul(a, w)", legality.PRODUCT),
        ("a = Exp(x) y = MatMul(a, w)", "an operand of the product is computed, or a part of what lies in memory"),
    ],
)
def test_a_product_is_followed_by_what_is_elementwise_and_by_rows(nodes: str, expected: str) -> None:
    assert pair(PRODUCT.format(nodes)) == expected


def test_a_product_and_what_reads_the_same_stay_apart() -> None:
    groups = Groups(scope(PRODUCT.format("a = MatMul(x, w) b = Exp(x) y = Add(a, b)")))
    first, second, _ = groups
    assert legality.apart(groups, first, second) == legality.PRODUCT


def test_no_product_is_computed_twice() -> None:
    text = "g (float[N,8] x, float[8,8] w) => (float[N,8] y, float[N,8] z) { a = MatMul(x, w) y = Neg(a) z = Abs(a) }"
    groups = Groups(scope(text))
    assert legality.kept(groups, groups.of[0], ["a"]) == legality.TWICE


def test_not_around_another() -> None:
    text = "g (float[N,8] x, float[8,8] w) => (float[N,8] y) { a = Neg(x) b = MatMul(a, w) y = Add(a, b) }"
    assert pair(text) == legality.CYCLE


def test_not_around_another_that_waits_for_a_shape_alone() -> None:
    text = """g (float[B,8] x, float[C,8] z, float[N] v, float[8,8] w) => (float[M,8] y) {
        a = Concat<axis = 0>(x, z) s = Shape(a) r = Reshape(v, s) b = MatMul(r, w) y = Add(a, b) }"""
    assert pair(text) == legality.CYCLE


def test_not_where_a_view_inside_would_ask_the_shape_of_what_waits() -> None:
    text = """g (float[N,8] x, float[8,8] w) => (float[M,K] y) {
        a = Neg(x) b = MatMul(a, w) s = Shape(b) r = Reshape(a, s) y = Abs(r) }"""
    assert pair(text) == legality.CYCLE


def test_not_with_outputs_that_may_differ_in_size() -> None:
    text = "g (float[N,8] x, float[M,1,8] z) => (float[N,8] a, float[M,N,8] y) { a = Neg(x) y = Add(a, z) }"
    assert pair(text) == legality.SIZES


def test_sizes_are_equal_as_polynomials() -> None:
    text = """g (float[N,2,8] x) => (float[N,2,8] a, float[2,N,8] y) { a = Neg(x) y = Transpose<perm = [1,0,2]>(a) }"""
    assert pair(text) == ""


def test_no_transcendental_for_each_element_it_is_broadcast_to() -> None:
    text = "g (float[1,8] x, float[{rows},8] z) => (float[{rows},8] y) {{ a = Exp(x) y = Add(a, z) }}"
    assert pair(text.format(rows=legality.BROADCAST)) == legality.RECOMPUTED
    assert pair(text.format(rows=legality.BROADCAST - 1)) == ""


def test_not_without_end() -> None:
    chain = "".join(f"a{i + 1} = Neg(a{i}) " for i in range(legality.LARGEST))
    text = f"g (float[N,8] a0) => (float[N,8] y) {{ {chain} y = Abs(a{legality.LARGEST}) }}"
    groups = Groups(scope(text))
    numbers = sorted(groups.of)
    while not (reason := legality.obstacle(groups, groups.of[0], groups.of[numbers[1]])):
        groups.join(groups.of[0], groups.of[numbers.pop(1)])
    assert reason == legality.TOO_MANY


def test_an_output_is_kept() -> None:
    groups = Groups(scope("g (float[N,8] x) => (float[N,8] a, float[N,8] y) { a = Neg(x) y = Abs(a) }"))
    assert legality.kept(groups, groups.of[0], ["a"]) == "an output of the graph"


def test_where_all_has_one_shape_no_code_is_written_to_see_that_rows_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> str:
        raise AssertionError("asked")

    monkeypatch.setattr(legality, "refusal", never)
    text = "g (float[N,8] x) => (float[N,8] y) { a = Exp(x) b = Softmax(a) c = Tanh(b) y = Mul(c, x) }"
    (group,) = partition(scope(text))
    assert ops(group) == "Exp Softmax Tanh Mul"


def test_a_user_that_reads_rows_as_well_does_not_reduce_them_again() -> None:
    text = """g (float[N,8] x) => (float[N,8] y, float[N,8] z) {
        a = Neg(x) s = Softmax(a) b = Abs(a) y = Add(b, s) z = Sub(b, s) }"""
    groups = Groups(scope(text))
    whole = groups.join(groups.join(groups.of[0], groups.of[1]), groups.of[2])
    assert legality.kept(groups, whole, ["b"]) == legality.TWICE


def test_backward_is_not_computed_before_the_loss_for_one_launch_less() -> None:
    """The factor of a gradient, beside what reads the same: with it, it would live until the gradient is computed."""
    text = """g (float[6,8] x, float[6,8] w) => (float loss, float[6,8] dw)
    { a = Mul(x, w) s = Sin(a) loss = ReduceSum<keepdims = 0>(s) c = Cos(a) t = CumSum(c, one) dw = Mul(t, a) }"""
    text = text.replace("\n", "\n<int64 one = {1}>\n", 1)
    groups = Groups(scope(text))
    early, late = (groups.of[groups.writer[name]] for name in ("s", "c"))
    assert legality.apart(groups, early, late) == legality.LONGER


SOFTMAXES = "g (float[N,5,8] x) => (float[N,5,8] y) {{ a = Softmax<axis = {}>(x) y = Softmax<axis = {}>(a) }}"


@pytest.mark.parametrize(("axes", "reason"), [((2, -1), ""), ((1, 1), ""), ((1, 2), "Softmax reduces other rows")])
def test_rows_of_one_shape_are_together_along_the_same_axes(axes: tuple[int, int], reason: str) -> None:
    assert pair(SOFTMAXES.format(*axes)).startswith(reason)
    assert bool(pair(SOFTMAXES.format(*axes))) == bool(reason)


@pytest.mark.parametrize(
    ("nodes", "planned"),
    [
        ("a = Softmax(x) y = Exp(a)", False),
        ("a = Softmax(x) y = Softmax(a)", False),
        ("a = Softmax(x) y = LayerNormalization(a, w)", False),
        ("a = Softmax(x) y = LayerNormalization<axis = 0>(a, z)", True),
        ("a = Softmax(x) y = Add(a, w)", False),
        ("a = Softmax(x) y = Transpose(a)", True),
    ],
)
def test_kernels_are_planned_only_where_places_may_differ(
    nodes: str, planned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = Groups(scope(f"g (float[8,8] x, float[8] w, float[8,8] z) => (float[8,8] y) {{ {nodes} }}"))
    monkeypatch.setattr(legality, "refusal", lambda *given, **more: "asked")
    first, last = groups
    assert legality.obstacle(groups, first, last) == ("asked" if planned else "")


def test_what_may_have_too_many_nodes_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = groups = Groups(scope("g (float[8,8] x) => (float[8,8] y) { a = Softmax(x) y = Exp(a) }"))
    monkeypatch.setattr(legality, "NODES", 1)
    monkeypatch.setattr(legality, "refusal", lambda *given, **more: "too many")
    assert legality.obstacle(groups, first, last) == "too many"


def narrowing(steps: int) -> str:
    """Each step multiplies two Slices of what is before, whose bounds are constants of their own."""
    bounds, nodes = ["int64[1] one = {1}"], []
    for i in range(steps):
        width = 2 * (steps - i) + 2
        for name, bound in (("a", 0), ("b", width - 2), ("c", 2), ("d", width)):
            bounds.append(f"int64[1] {name}{i} = {{{bound}}}")
        nodes.append(f"p{i} = Slice(x{i}, a{i}, b{i}, one) q{i} = Slice(x{i}, c{i}, d{i}, one)")
        nodes.append(f"x{i + 1} = Mul(p{i}, q{i})")
    head = f"g (float[N,{2 * steps + 2}] x0) => (float[N,2] x{steps})"
    return f"{head} <{', '.join(bounds)}> {{ {' '.join(nodes)} }}"


def test_what_would_have_too_many_nodes_is_two() -> None:
    """All of it would be no kernel: a body has views and constants besides."""
    made = fused(narrowing(40))
    assert calls(made.model) == ["Region", "Region"]
    assert made.report.validation.verdict == "equal"
    assert all(ops(group).count(" ") + 1 < legality.LARGEST for group in partition(scope(narrowing(40))))
