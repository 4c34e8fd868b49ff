"""Values that several computations use, where nodes that compute the same count as one."""

from __future__ import annotations

from onnx import parser

from onnxfuse.lifting.effects import Effects
from onnxfuse.lifting.sharing import alike, shared_values
from onnxfuse.model.graph import Graph
from onnxfuse.terms.normal.normal import closed
from tests.terms.normal.space import Space


def shared(nodes: str, outputs: str = "y") -> set[str]:
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (bool c, float[2] x, float[2] z) => ({outputs}) {{ {nodes} }}'
    )
    graph, effects = Graph(model.graph, model, 17), Effects.of(model)
    return shared_values(graph, [effects(node, 17) for node in graph.nodes])


def test_what_two_nodes_read_is_shared_and_what_one_reads_is_not() -> None:
    assert shared("a = Add (x, z)  b = Tanh (a)  y = Mul (b, a)") == {"a"}
    assert shared("a = Add (x, z)  y = Tanh (a)") == set()


def test_who_asks_for_a_shape_alone_does_not_share() -> None:
    assert shared("a = Add (x, z)  s = Shape (a)  e = Expand (z, s)  y = Mul (a, e)") == set()


def test_what_one_node_reads_twice_is_shared() -> None:
    assert shared("a = Add (x, z)  y = Mul (a, a)") == {"a"}
    assert shared("a = Add (x, z)  y = ReduceSumSquare (a)") == {"a"}, "it is its square"


def test_an_output_that_something_reads_is_shared() -> None:
    assert shared("a = Add (x, z)  y = Tanh (a)", "a, y") == {"a"}


def test_readers_that_compute_the_same_are_one() -> None:
    assert shared("a = Add (x, z)  b = Tanh (a)  d = Tanh (a)  y = Sub (b, d)") == {"b", "d"}
    assert shared("a = Add (x, z)  b = Add (z, x)  p = Tanh (a)  q = Exp (b)  y = Sub (p, q)") == {"a", "b"}
    assert shared("a = Add (x, z)  b = RandomNormalLike (a)  d = RandomNormalLike (a)  y = Sub (b, d)") == {"a"}


def test_a_value_that_only_passes_another_on_shares_it() -> None:
    assert shared("a = Add (x, z)  i = Identity (a)  b = Tanh (i)  y = Mul (b, i)") >= {"a", "i"}
    assert "a" not in shared("a = Add (x, z)  r = Neg (a)  b = Tanh (r)  y = Mul (b, r)")


def test_what_a_body_captures_is_used() -> None:
    body = "y = If (c) <then_branch = t () => (p) { p = Tanh (a) }, else_branch = e () => (q) { q = Neg (a) }>"
    assert shared(f"a = Add (x, z)  b = Exp (a)  {body}", "b, y") == {"a"}


def test_sums_that_are_written_again_are_those_that_are_closed() -> None:
    t = Space()
    x, y = t.input("x", 2, 3), t.input("y", 2, 3)
    total, other = t.op("Add", x, y), t.op("Mul", x, y)
    whole = closed(t.terms, total)
    values = {"whole": whole, "again": total, "seen": t.transpose(total, 1, 0), "other": other}
    assert alike(t.terms, values) == {"again", "seen"}
    assert alike([total, other], values) == frozenset()
