"""What a body of Loop or Scan is given has the shape that it has in the first step, where each step keeps it."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

import onnxfuse
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.model.dims import Shape, symbol
from onnxfuse.model.graph import family_of
from onnxfuse.model.walk import attribute_graphs

B, H1, K1, G0 = (symbol(name) for name in ("b", "h.1", "k.1", "h.0"))


def loop(body: str, declared: str = "float[?,?] h, float[?,?] k", results: str = "hn, kn") -> onnx.ModelProto:
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]> g (float[b,4] x, float[2,4] z, int64 n) => (float[?,?] y)
        <bool go_on = {{1}}, float[4] w = {{1, 2, 3, 4}}, float eps = {{1e-5}}> {{
        y, other = Loop (n, go_on, x, z) <body = s (int64 i, bool go, {declared}) => (again, {results}) {{
            again = Identity (go)  {body} }}> }}"""
    )


def shapes(model: onnx.ModelProto) -> dict[str, Shape | None]:
    _, inside = Lifted.of(model).views
    return {name: inside.terms_of[name].shape for name in ("h", "k")}


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("hn = Exp (h)  kn = Abs (k)", {"h": (B, 4), "k": (2, 4)}),
        ("hn = Exp (h)  kn = Concat <axis = 0> (k, k)", {"h": (B, 4), "k": (symbol("k.0"), 4)}),
        ("hn = Transpose (h)  kn = Transpose (k)", {"h": (G0, H1), "k": (symbol("k.0"), K1)}),
        # What each is in the next step hangs on the other: h may be of two rows, k of b.
        ("hn = Exp (k)  kn = Abs (h)", {"h": (G0, 4), "k": (symbol("k.0"), 4)}),
        # A step needs as many rows of both.
        ("hn = Concat <axis = 1> (h, k)  kn = Identity (k)", {"h": (G0, H1), "k": (2, 4)}),
    ],
)
def test_what_is_carried_keeps_what_each_step_keeps(body: str, wanted: dict[str, Shape]) -> None:
    assert shapes(loop(body)) == wanted


def test_what_depends_on_what_changes_is_open_as_well() -> None:
    """k takes its columns from h, which grows."""
    found = shapes(loop("hn = Concat <axis = 1> (h, h)  kn = MatMul (k, m)  t = Transpose (h)  m = MatMul (t, h)"))
    assert found == {"h": (B, H1), "k": (2, K1)}


def test_a_rank_that_is_declared_otherwise_is_the_declared_one() -> None:
    """Paddle's loops begin with what has fewer axes than what a step is said to be given."""
    found = shapes(loop("hn = Exp (h)  kn = Abs (k)", "float[?,?] h, float[2,?,3] k"))
    assert found == {"h": (B, 4), "k": (2, K1, 3)}


def test_a_rank_that_is_not_declared_is_that_of_the_first() -> None:
    model = loop("hn = Exp (h)  kn = Unsqueeze (k, one)  one = Constant <value_ints = [0]> ()")
    for info in model.graph.node[0].attribute[0].g.input[2:]:
        info.type.tensor_type.ClearField("shape")
    assert shapes(model) == {"h": (B, 4), "k": None}


def test_what_is_declared_is_believed() -> None:
    assert shapes(loop("hn = Exp (h)  kn = Abs (k)", "float[3,4] h, float[?,?] k"))["h"] == (3, 4)


def test_a_step_of_a_scan() -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[b,4] x, float[4,4,9] z) => (float[?,?] y) {
        y = Scan <num_scan_inputs = 1, scan_input_axes = [-1],
                  body = s (float[?,?] h, float[?,?] k) => (hn) { hn = MatMul (h, k) }> (x, z) }"""
    )
    assert shapes(model) == {"h": (B, 4), "k": (4, 4)}


def test_a_branch_is_given_nothing() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]> g (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = t () => (p) { p = Neg (x) }, else_branch = e () => (q) { q = Exp (x) }> }"""
    assert len(Lifted.of(parser.parse_model(text)).views) == 3


def test_a_normalization_in_a_loop_without_declared_sizes_is_fused() -> None:
    body = """m = ReduceMean <axes = [-1]> (h)  d = Sub (h, m)  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)
        ve = Add (v, eps)  r = Sqrt (ve)  u = Div (d, r)  hn = Mul (u, w)  kn = Identity (k)"""
    made = onnxfuse.optimize(loop(body))
    assert made.report.validation.verdict == "equal"
    (node,) = (node for node in made.model.graph.node if node.op_type == "Loop")
    ((_, inside),) = attribute_graphs(node)
    assert "LayerNormalization" in {family_of(each) for each in inside.node}
