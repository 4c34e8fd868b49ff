"""Which nodes a runtime launches something for."""

from __future__ import annotations

from onnx import parser

from onnxfuse.lifting.launched import launched
from onnxfuse.lifting.lifted import Lifted


def ops(inputs: str, body: str, output: str = "y") -> list[str]:
    text = f'<ir_version: 9, opset_import: ["": 20]> g ({inputs}) => (float {output}) {{ {body} }}'
    (view,) = Lifted.of(parser.parse_model(text)).views
    return [node.op_type for node in launched(view)]


def test_views_constants_and_shape_arithmetic_are_not_launched() -> None:
    body = """
        s = Shape(a)  zero = Constant<value_ints = [0]>()  n = Gather(s, zero)  r = Reshape(a, n)
        k = Constant<value_floats = [1.0, 2.0]>()  e = Exp(k)  t = Sum(k, e)
        y = Relu(r)
    """
    assert ops("float[6] a", body) == ["Relu"]


def test_what_is_computed_between_two_reshapes_is_launched() -> None:
    body = """
        rows = Constant<value_ints = [-1, 4]>()  r = Reshape(a, rows)  g = Gemm(r, w)  h = Relu(g)
        one = Constant<value_ints = [0, 1, 4]>()  o = Reshape(h, one)  y = Transpose<perm = [1, 0, 2]>(o)
    """
    assert ops("float[batch, 2, 4] a, float[4, 4] w", body) == ["Gemm", "Relu"], "the Transpose moves nothing"


def test_what_computes_is_launched_though_a_view_moved_to_its_outside() -> None:
    body = """
        shape = Constant<value_ints = [2, 4, 24]>()  r = Reshape(x, shape)  t = Transpose<perm = [0, 2, 1]>(r)
        n = Tanh(t)  k = Identity(n)  y = Mul(k, s)
    """
    assert ops("float[2,4,8,3] x, float[4] s", body) == ["Transpose", "Tanh", "Mul"]


def test_what_draws_random_numbers_is_launched() -> None:
    train = "r = Constant<value_float = 0.5>()  t = Constant<value_ints = [1]>()  b = Cast<to = 9>(t)"
    body = f"{train}  d = Dropout(a, r, b)  n = RandomNormalLike(d)  k = Identity(n)  y = Relu(k)"
    assert ops("float[6] a", body) == ["Dropout", "RandomNormalLike", "Relu"]
    assert ops("float[6] a", "s = Sin(a)  d = Dropout(s)  y = Relu(d)") == ["Sin", "Relu"]


def test_what_sums_and_products_have_in_them_is_launched_by_itself() -> None:
    assert ops("float[6] a, float[6] b", "n = Neg(a)  r = Reciprocal(b)  y = Max(n, r)") == ["Neg", "Reciprocal", "Max"]
