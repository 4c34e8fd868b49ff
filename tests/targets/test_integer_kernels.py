"""Which nodes run on integers: as onnxruntime's optimizer says itself."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from onnx import TensorProto

from benchmarks import integer_kernels as asked
from benchmarks.quantized_models import kernels
from onnxfuse.model.graph import roots
from onnxfuse.targets.integer_kernels import TABLE, integer_nodes, table
from onnxfuse.targets.target import KINDS
from tests.quantized_models import quantized

Q = "q = QuantizeLinear(x, s, z)   d = DequantizeLinear(q, s, z)"
W = "wf = DequantizeLinear(w, s2, z2)"
CASES = {
    "a sum": (f"{Q} t = Add(d, d) y = QuantizeLinear(t, s2, z2)", {"t"}),
    "a sum that is read as it is": (f"{Q} t = Add(d, d) r = QuantizeLinear(t, s2, z2) y = Cast<to = 1>(t)", set()),
    "a sum with what is no integer": (f"{Q} t = Add(d, x) y = QuantizeLinear(t, s2, z2)", set()),
    "a product, rounded": (f"{Q} {W} t = MatMul(d, wf) y = QuantizeLinear(t, s2, z2)", {"t"}),
    "a product, not rounded": (f"{Q} {W} t = MatMul(d, wf) y = Add(t, g)", {"t"}),
    "a product of weights alone": (f"{W} y = MatMul(x, wf)", {"y"}),
    "of weights that are transposed": (f"{W} u = Transpose<perm = [1, 0]>(wf) y = MatMul(x, u)", {"y"}),
    "of transposed weights with a scale for each row": (
        "wf = DequantizeLinear<axis = 0>(w, ss) u = Transpose<perm = [1, 0]>(wf) y = MatMul(x, u)",
        {"y"},
    ),
    "of weights that are computed": (f"{W} u = Add(wf, m) y = MatMul(x, u)", set()),
    "behind views": (f"{Q} u = Transpose<perm = [0, 2, 1]>(d) y = MatMul(d, u)", {"y"}),
    "before a view": (f"{Q} t = Add(d, d) u = Transpose<perm = [0, 2, 1]>(t) y = QuantizeLinear(u, s2, z2)", {"t"}),
    "of weights with a scale for each column": ("wf = DequantizeLinear<axis = 1>(w, ss) y = MatMul(x, wf)", {"y"}),
    "of weights with a scale for each row": ("wf = DequantizeLinear<axis = 0>(w, ss) y = MatMul(x, wf)", set()),
    "a softmax": (f"{Q} t = Softmax<axis = -1>(d) y = QuantizeLinear(t, s3, z)", {"t"}),
    "a root": (f"{Q} t = Sqrt(d) y = QuantizeLinear(t, s3, z)", set()),
    "a quotient": (f"{Q} t = Div(d, d) y = QuantizeLinear(t, s3, z)", set()),
    "dynamic": (
        """q, a, c = DynamicQuantizeLinear(x)  t = MatMulInteger(q, w, c, z2)  f = Cast<to = 1>(t)  u = Mul(a, s2)
        r = Mul(f, u)  y = Add(r, g)""",
        {"f", "r"},
    ),
}
IMAGES = {
    "a convolution": ("c = Conv(d, kf) y = QuantizeLinear(c, s2, z2)", {"c"}),
    "a convolution with an activation": ("c = Conv(d, kf) r = Relu(c) y = QuantizeLinear(r, s2, zero)", {"c"}),
    "a convolution with floats behind it": ("c = Conv(d, kf) y = Relu(c)", set()),
}


@pytest.mark.parametrize("name", [*CASES, *IMAGES])
def test_nodes_on_integers_are_those_of_which_onnxruntime_makes_such_kernels(name: str) -> None:
    if name in CASES:
        nodes, wanted = CASES[name]
        model = quantized(nodes)
    else:
        nodes, wanted = IMAGES[name]
        ahead = f"{Q} kf = DequantizeLinear(k, s2, z2)"
        model = quantized(f"{ahead} {nodes}", inputs="float[b,2,8,8] x", constants="uint8 zero = {0}")
    graph = next(roots(model))
    found = {graph.nodes[index].output[0]: kernel for index, kernel in integer_nodes(graph, "cpu").items()}
    assert found.keys() == wanted
    run = kernels(model)
    assert bool(run) == bool(wanted), "as onnxruntime has it"
    if wanted and name != "dynamic":
        assert set(run) == set(found.values())


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
@pytest.mark.parametrize("scaled", asked.SCALED)
def test_weights_of_few_bits_are_multiplied_as_they_are(op: str, scaled: str) -> None:
    for kind in (TensorProto.INT4, TensorProto.UINT8, TensorProto.INT16):
        model = asked.packed(op, kind, scaled)
        assert Counter(integer_nodes(next(roots(model)), "cpu").values()) == kernels(model)


MICROSOFT = "q = com.microsoft.QuantizeLinear(x, s, z)   d = com.microsoft.DequantizeLinear(q, s, z)"


def test_the_steps_of_com_microsoft_are_those_of_ai_onnx() -> None:
    model = quantized(f"{MICROSOFT} t = Add(d, d) y = com.microsoft.QuantizeLinear(t, s2, z2)")
    graph = next(roots(model))
    assert [graph.nodes[index].op_type for index in integer_nodes(graph, "cpu")] == ["Add"]
    assert kernels(model).total()


@pytest.mark.parametrize("name", ["a softmax", "behind views", "before a view", "dynamic", "of transposed weights"])
def test_an_op_of_another_domain_is_another_op(name: str) -> None:
    """Not even where it is called Cast, Mul, Transpose, DequantizeLinear or MatMulInteger."""
    model = quantized(next(nodes for case, (nodes, _) in CASES.items() if case.startswith(name)))
    graph = next(roots(model))
    before = integer_nodes(graph, "cpu")
    assert before
    model.opset_import.add(domain="strange", version=1)
    for node in model.graph.node:
        if node.op_type in ("Transpose", "DequantizeLinear", "Cast", "MatMulInteger"):
            node.domain = "strange"
    assert not integer_nodes(next(roots(model)), "cpu")


def test_the_table_is_what_onnxruntime_says_of_these() -> None:
    known = table("cpu")["ops"]
    for probe in (probe for probe in asked.PROBES if probe.op in {"Add", "Softmax", "MatMul", "Sqrt", "Where"}):
        for rounded, word in ((True, "rounded"), (False, "floats")):
            found = asked.kernel(probe.op, asked.left(asked.model(probe, TensorProto.UINT8, rounded, False)))
            assert [found] == (known.get(probe.op, {}).get(word) or [""])


def test_the_table_is_made_of_what_is_left_of_each_question() -> None:
    answers = {question: [question[1]] for question in asked.questions("FLOAT")}
    assert asked.table(answers) == {"ops": {}, "weights": {}, "scaled": ""}
    answers["rounded", "Add", "UINT8", "computed"] = ["QLinearAdd"]
    answers["scaled", "MatMulInteger", "", ""] = ["DynamicQuantizeLinear", "MatMulIntegerToFloat"]
    known = asked.table(answers)
    assert known["ops"] == {"Add": {"operands": [0, 1], "rounded": ["QLinearAdd"], "floats": []}}
    assert known["scaled"] == "MatMulIntegerToFloat"


def test_the_cuda_provider_has_kernels_of_weights_alone() -> None:
    assert not table("cuda")["ops"]
    assert table("cuda")["weights"].keys() == {"MatMul", "Gemm"}
    between = quantized(CASES["a sum"][0])
    alone = quantized(f"{W} y = MatMul(x, wf)")
    assert integer_nodes(next(roots(between)), "cpu")
    assert not integer_nodes(next(roots(between)), "cuda")
    assert list(integer_nodes(next(roots(alone)), "cuda").values()) == ["MatMulNBits"]


def test_half_precision_has_kernels_of_weights_on_cuda_alone() -> None:
    weights = next(roots(asked.packed("MatMul", TensorProto.INT4, "blocks", "FLOAT16")))
    assert not integer_nodes(weights, "cpu")
    assert list(integer_nodes(weights, "cuda").values()) == list(integer_nodes(weights, "cpu", "cuda").values())
    assert list(integer_nodes(weights, "cuda").values()) == ["MatMulNBits"]
    add = next(probe for probe in asked.PROBES if probe.op == "Add")
    for real, found in (("FLOAT", ["QLinearAdd"]), ("FLOAT16", [])):
        model = asked.model(add, TensorProto.UINT8, True, False, real)
        assert list(integer_nodes(next(roots(model)), "cpu", "cuda").values()) == found
        assert (asked.kernel("Add", asked.left(model)) == "QLinearAdd") == bool(found)


def test_releases_are_named_that_were_asked() -> None:
    told = json.loads(TABLE.read_text())
    assert told["onnxruntime"] in told["source"]
    assert told["providers"].keys() == {provider for _, provider in KINDS}
    assert all(known.keys() == asked.OPSET.keys() for known in told["providers"].values())
