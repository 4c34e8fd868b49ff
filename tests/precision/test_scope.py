"""What a conversion sees of a scope: its constants, who reads what, and what comes of what."""

from __future__ import annotations

from dataclasses import replace

from onnx import TensorProto, helper

from onnxfuse.precision.ports import ANY, SINGLE
from onnxfuse.precision.scope import Scope

from .models import parse, scope_of

HEAD = """g (float[2, 4] x, int64[2, 4] ids, bool again) => (float[2, 4] y)
    <float[4, 4] w, float two = {2}, int64[1] axes = {0}> { NODES }"""


def scope(nodes: str) -> Scope:
    return scope_of(parse(HEAD.replace("NODES", nodes)))


def made(scope: Scope, numbers: set[int]) -> set[str]:
    return {scope.nodes[number].output[0] for number in numbers}


def test_constants_are_those_of_float32_wherever_they_stand() -> None:
    nodes = "a = Constant<value_float = 3.0>() b = Constant<value = float {4}>() c = Constant<value_ints = [1, 2]>()"
    seen = scope(f"{nodes} p = Add(x, a) q = Mul(p, b) y = Mul(q, two)")
    assert seen.constants.keys() == {"two", "a", "b"}
    assert [seen.array(name) for name in ("a", "b", "two")] == [3, 4, 2]
    assert seen.read(3) == ["x"]
    assert seen.read(5) == ["q"]


def test_an_initializer_that_is_an_input_is_no_constant() -> None:
    model = parse(HEAD.replace("NODES", "y = Mul(x, two)"))
    assert scope_of(model).read(0) == ["x"]
    model.graph.input.append(helper.make_tensor_value_info("two", TensorProto.FLOAT, []))
    seen = scope_of(model)
    assert "two" not in seen.constants
    assert seen.read(0) == ["x", "two"]


def test_a_constant_that_is_an_attribute_of_a_call_is_not_known() -> None:
    model = parse(HEAD.replace("NODES", "a = Constant<value_float = 3.0>() y = Add(x, a)"))
    model.graph.node[0].attribute[0].ref_attr_name = "given"
    assert "a" not in scope_of(model).constants


def test_who_reads_a_value_and_who_makes_it() -> None:
    seen = scope("p = Relu(x) q = Gather(p, ids) y = Add(p, x)")
    assert [index for index, _ in seen.readers["x"]] == [0, 2]
    assert [index for index, _ in seen.readers["p"]] == [1, 2]
    assert "ids" not in seen.readers
    assert [seen.producer[name] for name in "pqy"] == [0, 1, 2]
    assert not seen.real("ids")


def test_what_bodies_read_has_the_type_that_they_know() -> None:
    then = helper.make_graph(
        [helper.make_node("Neg", ["p"], ["t"])], "then", [], [helper.make_tensor_value_info("t", 1, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["t"])], "other", [], [helper.make_tensor_value_info("t", 1, None)]
    )
    model = parse(HEAD.replace("NODES", "p = Relu(x) y = Identity(p)"))
    model.graph.node.pop()
    model.graph.node.append(helper.make_node("If", ["again"], ["y"], then_branch=then, else_branch=other))
    seen = scope_of(model)
    assert seen.captured == {"p", "x"}
    assert dict(seen.readers["p"]) == {1: SINGLE}
    converted = replace(seen, converts=lambda node: True, producer={}, readers={}, captured=set())
    assert converted.captured == set(), "what is converted with it reads either type"
    assert dict(converted.readers["p"]) == {1: ANY}

    loop = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["p"], ["t"])],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", 9, [])],
        [helper.make_tensor_value_info("on", 9, []), helper.make_tensor_value_info("t", 1, None)],
    )
    model.graph.node[1].CopyFrom(helper.make_node("Loop", ["", "again"], ["y"], body=loop))
    seen = scope_of(model)
    assert seen.captured == {"p"}
    assert dict(seen.readers["p"]) == {1: SINGLE}


def test_scores_are_the_products_behind_a_softmax() -> None:
    seen = scope(
        "k = MatMul(x, w) s = MatMul(k, w) t = Mul(s, two) m = Add(t, x) a = Softmax(m) v = MatMul(a, w) y = Relu(v)"
    )
    assert made(seen, seen.scores) == {"s"}


def test_what_is_counted_comes_from_integers_alone() -> None:
    seen = scope("p = Cast<to = 1>(ids) q = Mul(p, two) r = Unsqueeze(q, axes) s = Add(q, x) y = Relu(s)")
    assert seen.counted == {"p", "q", "r"}
    assert scope("p = Gather(w, ids) y = Add(p, x)").counted == set()


def test_the_type_of_a_value_that_a_node_makes() -> None:
    seen = scope("p = Cast<to = 1>(ids) values, places = TopK(p, axes) y = Add(values, x)")
    assert seen.port_of("p") == seen.ports[0].outputs[0]
    assert [seen.port_of(name) for name in ("values", "places")] == [*seen.ports[1].outputs]
