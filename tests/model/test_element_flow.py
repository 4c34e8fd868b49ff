"""The element type of every value, and the coarsest that anything behind it was computed in."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest
from onnx import TensorProto

from onnxfuse.model.element_flow import HALF, UNKNOWN, Flow, coarser, mentions

FLOAT, HALVES, BRAIN = int(TensorProto.FLOAT), int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16)
INT64, DOUBLE = int(TensorProto.INT64), int(TensorProto.DOUBLE)


def parse(graph: str, tail: str = "", opset: int = 18) -> onnx.ModelProto:
    imports = f'["": {opset}, "own": 1, "com.microsoft": 1]'
    return onnx.parser.parse_model(f"<ir_version: 9, opset_import: {imports}>\n{graph}\n{tail}")


@pytest.mark.parametrize(
    ("nodes", "dtype", "coarsest"),
    [
        ("y = Add(x, x)", FLOAT, FLOAT),
        ("y = Transpose(x)", FLOAT, 0),
        ("h = Cast<to = 10>(x) y = Cast<to = 1>(h)", FLOAT, HALVES),
        ("h = Cast<to = 10>(x) g = Relu(h) w = Cast<to = 1>(g) v = Add(w, x) y = Exp(v)", FLOAT, HALVES),
        ("h = Cast<to = 16>(x) w = Cast<to = 10>(h) y = Cast<to = 1>(w)", FLOAT, BRAIN),
        ("h = Cast<to = 10>(x) i = Cast<to = 7>(h) y = Cast<to = 1>(i)", FLOAT, FLOAT),
        ("c = Cast<to = 1>(w) y = Add(c, x)", FLOAT, FLOAT),  # weights in half precision are what they are
        ("t = Gather(w, i) y = Cast<to = 1>(t)", FLOAT, 0),
        ("t = Gather(w, i) u = Mul(t, t) y = Cast<to = 1>(u)", FLOAT, HALVES),
        ("h = Cast<to = 10>(x) b = Less(h, w) y = Where(b, x, x)", FLOAT, 0),  # a condition is no number
        ("h = Cast<to = 10>(x) y = Shape(h)", INT64, 0),
        ("h = Cast<to = 10>(x) s = Shape(h) y = ConstantOfShape<value = float16[1] {1}>(s)", HALVES, 0),
        ("h = Cast<to = 10>(x) m = com.microsoft.BiasGelu(h, w) y = Cast<to = 1>(m)", FLOAT, HALVES),
        ("h = Cast<to = 10>(x) a, m, s = LayerNormalization(h, w) y = Identity(m)", FLOAT, HALVES),
        ("d = Cast<to = 11>(x) e = Add(d, d) y = Identity(e)", DOUBLE, DOUBLE),
        ("y = own.F(x)", FLOAT, HALVES),
        ("y = own.F(w)", FLOAT, HALVES),
    ],
)
def test_the_coarsest_computation_on_a_path(nodes: str, dtype: int, coarsest: int) -> None:
    head = "g (float[4] x) => (y) <float16[4] w = {1, 2, 3, 4}, int64[1] i = {0}>"
    tail = (
        '<domain: "own", opset_import: ["": 18]> F (a) => (c) { h = Cast<to = 10>(a) b = Neg(h) c = Cast<to = 1>(b) }'
    )
    model = parse(f"{head} {{ {nodes} }}", tail)
    assert Flow(model).main["y"] == (dtype, coarsest)
    assert mentions(model, HALF)


def test_what_an_output_is_worth_is_no_more_than_its_own_type() -> None:
    kinds = Flow(parse("g (float16[4] x) => (float16[4] y, int64[1] s) { y = Neg(x) s = Shape(x) }")).main
    assert (kinds["x"].coarsest, kinds["x"].precision) == (0, HALVES)
    assert kinds["s"].precision == 0
    assert UNKNOWN.precision == 0
    assert coarser(FLOAT, HALVES, INT64) == HALVES
    assert coarser() == 0


LOOP = """g (float[2] x, int64 n) => (float[2] y, float[k, 2] z) <bool go = {1}> {
    y, u, z = Loop (n, go, x, x) <body = b (int64 i, bool c, float[2] p, float[2] q)
        => (bool d, float[2] q, float[2] r, float[2] s) {
        d = Identity(c) h = Cast<to = 10>(p) r = Cast<to = 1>(h) s = Identity(q) }> }"""


def test_a_loop_carries_the_coarsest_of_all_that_it_carries() -> None:
    """In the second round, what was rounded in the first comes back as the other."""
    kinds = Flow(parse(LOOP)).main
    assert kinds["y"] == kinds["z"] == (FLOAT, HALVES)


def test_the_coarser_branch_of_an_if() -> None:
    branches = "then_branch = t () => (float[2] a) { a = Relu(x) }, else_branch = e () => (float[2] b) { NODES }"
    graph = f"g (float[2] x, bool c) => (float[2] y) {{ y = If(c) <{branches}> }}"
    same = parse(graph.replace("NODES", "b = Neg(x)"))
    half = parse(graph.replace("NODES", "h = Cast<to = 10>(x) n = Neg(h) b = Cast<to = 1>(n)"))
    assert Flow(same).main["y"] == (FLOAT, FLOAT)
    assert not mentions(same, HALF)
    assert Flow(half).main["y"] == (FLOAT, HALVES)
    assert mentions(half, HALF)


def test_the_values_of_bodies_are_known_with_those_around_them() -> None:
    model = parse(LOOP)
    flow = Flow(model)
    ((body, inside),) = flow.bodies(model.graph.node[0], flow.main)
    assert body.name == "b"
    assert inside["h"] == (HALVES, HALVES)
    assert inside["s"].coarsest == HALVES
    assert inside["x"] == flow.main["x"]
