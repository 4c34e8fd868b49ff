"""Bodies: what stands in them, what they read, and what they are called."""

from __future__ import annotations

import onnx
import pytest

from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.pointwise.expressions.trace import NODES
from onnxfuse.language.catalogue import load
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.regions import spelled
from onnxfuse.regions.reading import read
from onnxfuse.regions.spelled import body, content, refusal, words

from .written import model, scope

TEXT = """g (float[N,6] x, float[N,6] z) => (float[N,3,2] y)
<float number = {2}, float[6] vector = {1, 2, 3, 4, 5, 6}, int64[3] target = {-1, 3, 2}> {
    a = Mul(x, number) b = Add(a, vector) r = Reshape(b, target) y = Exp(r) }"""


def test_a_body_has_the_views_between_and_the_small_constants() -> None:
    found = scope(TEXT)
    made = body(found, [launch.index for launch in found.launches], ["y"])
    assert [node.op_type for node in made.nodes] == ["Constant", "Mul", "Add", "Constant", "Reshape", "Exp"]
    assert made.inputs == ("x", "vector")


def test_equal_bodies_have_one_name_whatever_their_values_are_called() -> None:
    names = set()
    for text in (TEXT, TEXT.replace(" b ", " other ").replace("(b,", "(other,").replace("z", "given")):
        found = scope(text)
        made = content(body(found, [launch.index for launch in found.launches], ["y"]), 20, ["float32", "float32"])
        names.add(made.name)
    assert len(names) == 1
    assert names.pop().startswith("Region_MulAddExp_")


def test_nodes_of_a_body_have_names_of_their_own() -> None:
    """A fusion of onnxruntime 1.20 calls what it makes after them, and refuses two of one name."""
    found = scope(TEXT)
    made = content(body(found, [launch.index for launch in found.launches], ["y"]), 20, ["float32"])
    assert len({node.name for node in made.node}) == len(made.node)


def test_another_number_or_element_type_is_another_name() -> None:
    names = []
    for text, kind in ((TEXT, "float32"), (TEXT.replace("{2}", "{3}"), "float32"), (TEXT, "float16")):
        found = scope(text)
        made = content(body(found, [launch.index for launch in found.launches], ["y"]), 20, [kind, kind])
        names.append(made.name)
    assert len(set(names)) == 3


def test_a_body_is_a_valid_function() -> None:
    found = scope(TEXT)
    made = content(body(found, [launch.index for launch in found.launches], ["y"]), 20, ["float32"])
    context = onnx.checker.DEFAULT_CONTEXT
    context.ir_version, context.opset_imports = 8, {"": 20}
    onnx.checker.check_function(made, context)


def test_what_the_generator_refuses_has_a_reason() -> None:
    found = scope("g (float[N,6] x) => (float[N,6] y, float[N] z) { y = Exp(x) z = ReduceProd<keepdims = 0>(y) }")
    assert not refusal(found, body(found, [0], ["y"]), whole=True)
    assert (
        refusal(found, body(found, [0, 1], ["w", "y"]))
        == "ReduceProd neither computes elements nor moves them, nor reduces rows"
    )


def test_outputs_of_two_sizes_are_two_loops() -> None:
    found = scope("g (float[2,6] x, float[6] z) => (float[2,6] y, float[6] w) { w = Exp(z) y = Add(x, w) }")
    assert refusal(found, body(found, [0, 1], ["w", "y"]), whole=True) == "it is more than one loop"


def test_outputs_of_two_sizes_that_have_nothing_in_common_are_parts_of_one_launch() -> None:
    found = scope("g (float[2,6] x, float[6] z) => (float[2,6] y, float[6] w) { w = Exp(z) y = Add(x, z) }")
    assert refusal(found, body(found, [0, 1], ["w", "y"]), whole=True) == ""


def test_inner_values_have_names_of_their_own() -> None:
    """Whatever the values of a graph are called: here one is called after the other's node and inner value."""
    function = onnx.parser.parse_function(
        '<opset_import: ["": 20], domain: "onnxfuse"> Twice_1 (x) => (y) { inner = Neg(x) y = Add(inner, x) }'
    )
    before = model("g (float[N,6] x, float[N,6] z) => (float[N,6] y) { a = Neg(x) y = Mul(a, z) }")
    before.graph.node[0].op_type, before.graph.node[0].domain = "Twice_1", "onnxfuse"
    before.graph.node[1].input[1] = before.graph.input[1].name = "0/inner"
    before.functions.append(function)
    before.opset_import.add(domain="onnxfuse", version=1)
    view = Lifted.of(before, None, load()).views[0]
    found = read(view, view, {"Twice_1": function})
    made = body(found, [0, 1], ["y"])
    assert made.inputs == ("x", "0/inner")
    assert [list(node.input) for node in content(made, 20, ["float32"] * 2).node] == [
        ["x0"],
        ["v0", "x0"],
        ["v1", "x1"],
    ]


def test_words() -> None:
    assert words(["Mul", "Add", "Transpose"]) == "Mul Add Transpose"
    assert words(["Slice", "Slice", "Concat", "Slice"]) == "Slice×2 Concat Slice"
    assert words(["Mul", "Add"] * 9 + ["Exp"]) == "Mul×9 Add×9 Exp"


def test_a_kernel_that_would_give_another_type_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads it takes the buffer for what the graph says."""
    found = scope(TEXT)
    indices = [launch.index for launch in found.launches]
    assert not refusal(found, body(found, indices, ["y"]), whole=True)
    kind = found.kind
    monkeypatch.setattr(found, "kind", lambda name: "float16" if name == "y" else kind(name))
    for whole in (True, False):
        assert (
            refusal(found, body(found, indices, ["y"]), whole=whole)
            == "the kernel would give float32 where float16 is read"
        )


def test_results_of_products_have_their_types_too() -> None:
    text = """g (float[N,6] x, float[6,4] w, float[6,4] v, float[4] g, float[N,4] z)
        => (float[N,4] a, float[N,4] b) {{ {} }}"""
    for nodes in (
        "p = MatMul(x, w) a = Relu(p) b = MatMul(x, v)",
        "p = MatMul(x, w) b = Add(p, z) a = LayerNormalization(b, g)",
        "p = MatMul(x, w) a = Relu(p) b = Tanh(p)",
    ):
        found = scope(text.format(nodes))
        assert not refusal(found, body(found, [launch.index for launch in found.launches], ["a", "b"]), whole=True)
    found = scope(text.format("p = MatMul(x, w) q = MatMul(x, v) r = Sigmoid(p) a = Mul(r, q) b = Abs(x)"))
    assert not refusal(found, body(found, [launch.index for launch in found.launches][:4], ["a"]), whole=True)


def test_so_many_nodes_are_too_many_for_one_loop_and_not_for_several() -> None:
    chain = " ".join(f"a{k + 1} = Sin(a{k})" for k in range(NODES // 2 + 5)).replace("Sin(a0)", "Sin(x)")
    other = chain.replace("a", "b").replace("(x)", "(z)")
    last = NODES // 2 + 5
    both = scope(f"g (float[4] x, float[7] z) => (float[4] a{last}, float[7] b{last}) {{ {chain} {other} }}")
    assert refusal(both, body(both, range(2 * last), [f"a{last}", f"b{last}"]), whole=True) == ""
    one = scope(f"g (float[7] x, float[7] z) => (float[7] y) {{ {chain} {other} y = Add(a{last}, b{last}) }}")
    assert (
        refusal(one, body(one, range(2 * last + 1), ["y"]), whole=True)
        == f"{2 * last + 1} nodes are too many for one kernel"
    )


def planned(monkeypatch: pytest.MonkeyPatch, text: str) -> tuple[str, list[tuple[tuple[int, ...], ...]]]:
    """Why a scope is no kernel, and the sizes of its operands that this was asked of."""
    found, tried = scope(text), list[tuple[tuple[int, ...], ...]]()
    made = body(found, [launch.index for launch in found.launches], ["y"])

    def told(nodes: object, given: dict[str, TensorType], *rest: object) -> object:
        tried.append(tuple(type.shape for type in given.values()))
        return plan(nodes, given, *rest)  # type: ignore[arg-type]

    plan = spelled._planned
    spelled._tried.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(spelled, "_planned", told)
        return refusal(found, made), tried


def test_one_plan_tells_whether_rows_lie_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[N,N] x, float[N] w) => (float[N,N] y) {n = RMSNormalization(x, w) t = Transpose(n) y = Add(n, x)}"
    reason, sizes = planned(monkeypatch, text)
    assert (reason, len(sizes)) == ("", 1)
    reason, sizes = planned(monkeypatch, text.replace("Add(n, x)", "Add(n, t)"))
    assert (reason, len(sizes)) == ("what is behind the matrix is written at no one place", 1)


def test_where_unlike_sizes_do_not_fit_they_are_taken_for_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[N,8] x, float[8] w, float[M,8] z) => (float[N,8] y) { n = RMSNormalization(x, w) y = Add(n, z) }"
    reason, sizes = planned(monkeypatch, text)
    assert not reason
    assert [len({shape[0] for shape in shapes if shape[1:]}) for shapes in sizes] == [2, 1]


def test_sizes_leave_a_window_to_read_from() -> None:
    """What is one window of a sound is none of a short one (a voice detector of a convolution and LSTM cells)."""
    found = scope(
        """g (float[N,3,T] x, float[4,3] w) => (float[N,4] y) <int64 first = {0}, int64[2] order = {1, 0}> {
        c = MaxPool<kernel_shape = [1024], strides = [1024]>(x) g = Gather<axis = 2>(c, first)
        t = Transpose(w) m = MatMul(g, t) y = Exp(m) }"""
    )
    at = {launch.node.op_type: launch.index for launch in found.launches}
    assert refusal(found, body(found, [at["Gather"], at["MatMul"], at["Exp"]], ["y"])) == ""
