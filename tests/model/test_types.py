"""Types that nobody declares: by the signatures of operators, and by the calls of a function."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, parser

from onnxfuse.model.graph import Graph, declared, roots
from onnxfuse.model.types import element_types, parameter_types, type_name, type_of


def model(graph: str, *functions: str) -> onnx.ModelProto:
    head = '<ir_version: 8, opset_import: ["": 17, "d": 1]>'
    return parser.parse_model("\n".join([head, graph, *functions]))


def function_types(proto: onnx.ModelProto) -> dict[str, tuple[int, object]]:
    """Input of the model's function → its type."""
    main, function = Graph(proto.graph, proto, 17), Graph(proto.functions[0], proto, 17)
    return {name: declared(kind, name) for name, kind in parameter_types(function, [main]).items()}


@pytest.mark.parametrize("name", ["float", "float16", "bfloat16", "int64", "bool", "string", "float8e4m3fn"])
def test_a_name_of_a_type_is_that_of_schemas(name: str) -> None:
    assert type_name(type_of(name)) == name
    assert any(f"tensor({name})" in schema.inputs[0].types for schema in [onnx.defs.get_schema("Identity")])


def test_an_unknown_type_has_no_name() -> None:
    assert type_name(TensorProto.UNDEFINED) == ""


def test_what_shares_a_type_variable_shares_a_type() -> None:
    """d.F hides what it gives, but Add wants its operands to be alike, and so do those that it meets."""
    proto = model("g (float16[2] x, int64[2] i) => (y) { u = d.F (i)  s = Add (u, x)  v = d.F (s)  y = Mul (v, s) }")
    kinds = element_types(Graph(proto.graph, proto, 17))
    assert {name: type_name(kinds.get(name, 0)) for name in "uvsy"} == dict.fromkeys("uvsy", "float16")


def test_types_do_not_pass_where_they_may_change() -> None:
    """Shape's result is int64 whatever it reads, Cast's is what it says, and of d.F nothing is known."""
    proto = model("g (x) => (y) { s = Shape (x)  c = Cast <to = 10> (s)  n = Neg (c)  f = d.F (n)  y = Abs (f) }")
    kinds = element_types(Graph(proto.graph, proto, 17))
    assert kinds["n"] == TensorProto.FLOAT16
    assert not {"x", "f", "y"} & kinds.keys()


def test_where_two_disagree_nothing_is_said() -> None:
    proto = model("g (float[2] x, double[2] z) => (y) { u = d.F (x)  a = Add (u, x)  y = Add (u, z) }")
    assert "u" not in element_types(Graph(proto.graph, proto, 17))


def test_a_parameter_has_the_type_on_which_all_calls_agree() -> None:
    proto = model(
        """g (float[N, 4] x, float[M, 4] z, int64[3] i) => (a, b) { a = d.F (x, i, x)  b = d.F (z, x, z) }""",
        '<domain: "d", opset_import: ["": 17]> F (p, q, r, s) => (t) { t = Mul (p, r) }',
    )
    found = function_types(proto)
    assert found.keys() == {"p", "r"}, "an int64 in one call and a float in the other; one that nobody gives"
    kind, shape = found["p"]
    assert kind == TensorProto.FLOAT
    assert isinstance(shape, tuple)
    assert str(shape[0]) not in {"N", "M"}, "it differs from call to call"
    assert shape[1] == 4
    assert found["r"] == found["p"], "dimensions that are equal in every call have one name"


def test_the_rank_of_a_parameter_may_be_unknown() -> None:
    proto = model(
        "g (float[4] x, float[2, 4] z) => (a, b) { a = d.F (x)  b = d.F (z) }",
        '<domain: "d", opset_import: ["": 17]> F (p) => (t) { t = Neg (p) }',
    )
    assert function_types(proto) == {"p": (TensorProto.FLOAT, None)}


def test_of_a_function_that_another_one_calls_nothing_is_known() -> None:
    proto = model(
        "g (float[4] x) => (a) { a = d.F (x) }",
        '<domain: "d", opset_import: ["": 17]> F (p) => (t) { t = Neg (p) }',
        '<domain: "d", opset_import: ["": 17, "d": 1]> G (p) => (t) { t = d.F (p) }',
    )
    assert function_types(proto) == {}
    assert all("p" not in graph.types for graph in roots(proto))


def test_a_weight_that_is_handed_over_has_its_own_type() -> None:
    proto = model(
        "g (x) => (a) <float[2] w = {1, 2}> { a = d.F (w) }",
        '<domain: "d", opset_import: ["": 17]> F (p) => (t) { t = Neg (p) }',
    )
    assert function_types(proto) == {"p": (TensorProto.FLOAT, (2,))}


def test_constants_casts_and_weights_say_what_they_are_where_onnx_infers_nothing() -> None:
    """In a function, of whose values nothing is declared or inferred."""
    proto = model(
        "g (float[4] x) => (a) { a = d.F (x) }",
        '<domain: "d", opset_import: ["": 17, "d": 1]> F (p) => (t) '
        "{ c = Constant <value_ints = [1]> ()  i = Neg (c)  k = Cast <saturate = 1, to = 10> (p)  h = Abs (k)  "
        "v = Constant <value = double[1] {2}> ()  e = Neg (v)  j = Concat <axis = 0> (u, c, w)  t = Neg (p) "
        "s = Shape (p)  n = Neg (s) }",
    )
    kinds = element_types(Graph(proto.functions[0], proto, 17))
    said = {"i": "int64", "u": "int64", "w": "int64", "j": "int64", "h": "float16", "e": "double", "n": "int64"}
    assert {name: type_name(kinds.get(name, 0)) for name in (*said, "t", "p")} == said | {"t": "", "p": ""}
