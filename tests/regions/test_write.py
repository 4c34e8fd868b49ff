"""Regions as nodes: what is left, what is gone, and that the numbers are the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxfuse
from onnxfuse.language.catalogue import load
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.regions.write import Asked, Regions, regions, standing

from .written import calls, model, run
from .written import regions as of_model

TURNED = "g (float[N,8] x) => (float[N,8] a, float[8,N] b) { a = Exp(x) b = Transpose(a) }"
MIXED = """g (float[2,3,8] x, float[8,8] w) => (float[2,8,3] y)
<float number = {0.5}, float[8] bias = {1, 2, 3, 4, 5, 6, 7, 8}> {
    m = MatMul(x, w) a = Mul(m, number) b = Add(a, bias) y = Transpose<perm = [0, 2, 1]>(b) }"""
INNER = """g (float[4] x, bool c) => (float[4] y) {
    a = Neg(x)
    y = If (c) <then_branch = t () => (float[4] p) { q = Exp(a) p = Abs(q) },
                else_branch = e () => (float[4] r) { r = Identity(a) }> }"""


def made(text: str, asked: Asked | None = None) -> tuple[onnx.ModelProto, Regions]:
    before = model(text)
    return before, regions(Lifted.of(before, None, load()), asked or Asked())


@pytest.mark.parametrize(
    ("text", "left", "feeds"),
    [
        (TURNED, ["Region"], {"x": (5, 8)}),
        (MIXED, ["Region"], {"x": (2, 3, 8), "w": (8, 8)}),
    ],
)
def test_the_numbers_are_the_same(text: str, left: list[str], feeds: dict[str, tuple[int, ...]]) -> None:
    before, found = made(text)
    assert calls(found.model) == left
    onnx.checker.check_model(found.model, full_check=True)
    given = {n: np.random.default_rng(1).standard_normal(s).astype(np.float32) for n, s in feeds.items()}
    for one, other in zip(run(before, given), run(found.model, given), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_node_of_which_another_output_has_its_shape_asked_for_writes_no_value_twice() -> None:
    before = onnx.parser.parse_model(
        """<ir_version: 7, opset_import: ["" : 12]> g (float[b,4,s,t] x) => (float[?,?] q, float[?,2,?,?] y)
        <float[1] two = {2}, int64 i = {2}, int64 z = {0}, int64 o = {1}, float low = {-inf}, float zero = {0}> {
            n = Shape(x) e = Expand(two, n) a, b = Split<axis = 1, split = [2, 2]>(e) y = LogSoftmax<axis = -1>(a)
            m = Shape(b) k = Gather<axis = 0>(m, i) r = Range(z, k, o) u = Unsqueeze<axes = [1]>(r) c = Greater(r, u)
            q = Where(c, low, zero) }"""
    )
    found = regions(Lifted.of(before, None, load()), Asked())
    assert "Region" in calls(found.model)
    onnx.checker.check_model(found.model, full_check=True)
    given = {"x": np.zeros((3, 4, 2, 5), np.float32)}
    for one, other in zip(run(before, given), run(found.model, given), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_nobody_reads_any_more_is_gone() -> None:
    _, found = made(MIXED)
    assert [tensor.name for tensor in found.model.graph.initializer] == ["bias"]
    (node,) = of_model(found.model)
    assert list(node.input) == ["x", "w", "bias"]
    assert [function.name for function in found.model.functions] == [node.op_type]


def test_a_site_says_what_it_stands_for() -> None:
    _, found = made(MIXED)
    (site,) = found.sites
    assert site.matches[-1].rule.name == "MatMul Mul Add Transpose"
    assert site.replaced == ("m", "a", "b", "y")
    assert [node.term.op for node in site.dead] == ["MatMul", "Mul", "Add", "Transpose"]


def test_a_region_in_a_branch_reads_what_is_around_it() -> None:
    before, found = made(INNER)
    assert [site.scope for site in found.sites] == ["/If_y.then_branch"]
    onnx.checker.check_model(found.model)
    feeds = {"x": np.arange(4, dtype=np.float32), "c": np.array(True)}
    np.testing.assert_array_equal(run(before, feeds)[0], run(found.model, feeds)[0])


def test_what_is_banned_is_not_made() -> None:
    banned = Asked(banned={("", "MatMul Mul Add Transpose", "y")})
    assert calls(made(MIXED, banned)[1].model) == ["MatMul", "Mul", "Add", "Transpose"]
    assert calls(made(MIXED, Asked(barred={""}))[1].model) == ["MatMul", "Mul", "Add", "Transpose"]


def test_near_misses_say_what_kept_two_apart() -> None:
    text = "g (float[N,8] x, int64[M] i) => (float[N,8] a, float[M,8] y) { a = Abs(x) y = Gather(a, i) }"
    _, found = made(text)
    assert [(miss.rule, miss.node, miss.reason) for miss in found.near_misses] == [
        ("Region", "y", "not with Abs before it: they write numbers of elements that are not proved equal")
    ]


def test_that_one_has_more_elements_than_the_other_is_no_near_miss() -> None:
    text = "g (float[N,1,8] x, float[M,8] z) => (float[N,1,8] a, float[N,M,8] y) { a = Abs(x) y = Add(a, z) }"
    assert not made(text)[1].near_misses


def test_what_a_product_lies_between_is_no_near_miss() -> None:
    _, found = made("g (float[N,8] x, float[8,8] w) => (float[N,8] y) { a = Exp(x) b = MatMul(a, w) y = Add(a, b) }")
    assert not found.near_misses


def test_equal_regions_call_one_function() -> None:
    text = """g (float[N,8] x) => (float[N,8] y) { zero = Constant<value = int64 {0}>()
        a = Exp(x) b = Neg(a) m = CumSum(b, zero) c = Exp(m) d = Neg(c) y = CumSum(d, zero) }"""
    _, found = made(text)
    first, second = of_model(found.model)
    assert first.op_type == second.op_type
    assert len(found.model.functions) == 1


def test_the_type_of_what_an_op_that_onnx_does_not_know_gives_is_declared() -> None:
    """Behind a region nothing else tells it, and its kernel is generated for it."""
    text = """<ir_version: 8, opset_import: ["": 20, "com.microsoft": 1]>
        g (float[N,8] x) => (float[N,8] y) { a = com.microsoft.QuickGelu<alpha = 1.5>(x) b = Sin(a) y = Neg(b) }"""
    found = regions(Lifted.of(onnx.parser.parse_model(text), None, load()), Asked()).model
    assert calls(found) == ["QuickGelu", "Region"]
    (told,) = found.graph.value_info
    assert (told.name, told.type.tensor_type.elem_type) == ("a", onnx.TensorProto.FLOAT)
    assert not told.type.tensor_type.HasField("shape")


def test_which_nodes_are_part_of_nothing_that_is_launched_anyway() -> None:
    text = "g (float[n,8] x) => (float[n,8] y) <int64 i = {1}> { a = Neg(x) b = Exp(a) y = CumSum(b, i) }"
    made = model(text)
    for number, node in enumerate(made.graph.node):
        node.name = f"n{number}"
    found = Lifted.of(made, None, load())
    assert standing(found, ["n0"]) == set()
    assert standing(found, ["n0", "n2"]) == {"n2"}
    assert standing(found, ["n0", "n1"]) == {"n0", "n1"}, "a launch of nothing else"
    assert standing(found, ["n0"], [("", "Neg Exp", "b")]) == {"n0"}, "the region that has it must not be made"


@pytest.mark.parametrize(("opset", "launches"), [(13, 2), (17, 1)])
def test_a_normalization_that_is_no_op_yet_says_from_which_opset_on_it_is(opset: int, launches: int) -> None:
    text = """g (float[3, 8] x, float[8, 8] w, float[3, 8] z) => (float[3, 8] y)
        <float e = {0.00001}, float[8] a = {1, 2, 3, 4, 5, 6, 7, 8}, float[8] b = {8, 7, 6, 5, 4, 3, 2, 1}> {
        p = MatMul (x, w)  s = Add (p, z)  m = ReduceMean <axes = [-1]> (s)  d = Sub (s, m)  q = Mul (d, d)
        v = ReduceMean <axes = [-1]> (q)  ve = Add (v, e)  r = Sqrt (ve)  n = Div (d, r)  f = Mul (n, a)  y = Add (f, b)
    }"""
    told = onnxfuse.report(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}'))
    assert told.after.launches == launches
    reasons = [miss.reason for miss in told.near_misses if miss.rule == "Region"]
    assert reasons == [
        "not with MatMul before it: ReduceMean is a second reduction of rows, unless LayerNormalization is one op: "
        "--opset 17"
    ] * (launches - 1)
