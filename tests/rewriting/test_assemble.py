"""A scope put together again: what nobody reads is gone, and the rest stands as near to where it stood as it can."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import onnx
import pytest
from onnx import TensorProto, helper, parser

import onnxfuse
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language.catalogue import load
from onnxfuse.model.graph import family_of
from onnxfuse.rewriting.assemble import _declare, import_domains
from onnxfuse.rewriting.plan import Draft
from onnxfuse.terms.term import Terms

CATALOGUE = load()
MODELS = Path(__file__).parents[2] / "models"
SILU = "s = Sigmoid (x)  w = Mul (x, s)"


def model(body: str, inputs: str = "float[n, 8] x", outputs: str = "float[n, 8] y") -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => ({outputs}) {{ {body} }}')


def left(body: str, **given: str) -> list[str]:
    """The ops after fusing, in their order."""
    return [family_of(node) for node in fuse(model(body, **given), CATALOGUE).model.graph.node]


def test_a_fused_node_stands_where_its_last_node_stood() -> None:
    assert left(f"c = Cos (x)  {SILU}  t = Tan (w)  y = Add (c, t)") == ["Cos", "Swish", "Tan", "Add"]
    assert left(f"{SILU}  c = Cos (x)  t = Tan (w)  y = Add (c, t)") == ["Swish", "Cos", "Tan", "Add"]


def test_what_nobody_reads_is_gone_with_its_constants() -> None:
    body = f"k = Constant <value = float {{3.0}}> ()  d = Mul (x, k)  {SILU}  y = Tan (w)"
    assert left(body) == ["Swish", "Tan"]


def test_what_others_read_of_the_inside_stays() -> None:
    both = {"outputs": "float[n, 8] y, float[n, 8] s"}
    assert left(f"{SILU}  y = Tan (w)", **both).count("Sigmoid") == 1


def test_constants_that_a_new_node_reads_become_initializers_and_no_others() -> None:
    """Quantizers look for the weights of an op among them."""
    weights = ", ".join(map(str, range(64)))
    made = fuse(
        model(
            f"""w = Constant<value = float[8, 8] {{{weights}}}>()
            b = Constant<value = float[8] {{1, 2, 3, 4, 5, 6, 7, 8}}>()
            v = Constant<value = float[8] {{8, 7, 6, 5, 4, 3, 2, 1}}>()
            p = MatMul(x, w) q = Add(p, b) e = Exp(q) y = Pow(v, e)"""
        ),
        CATALOGUE,
    ).model.graph
    assert [(node.op_type, list(node.output)) for node in made.node if node.op_type == "Constant"] == [
        ("Constant", ["v"])
    ]
    assert {tensor.name for tensor in made.initializer} == {"w", "b"}
    assert {name for node in made.node for name in node.input} >= {"w", "b"}


def test_declarations_of_values_that_are_gone_go() -> None:
    before = model(f"{SILU}  y = Tan (w)")
    before = onnx.shape_inference.infer_shapes(before)
    assert {info.name for info in before.graph.value_info} == {"s", "w"}
    after = fuse(before, CATALOGUE).model
    assert {info.name for info in after.graph.value_info} == {"w"}
    onnx.checker.check_model(after, full_check=True)


@pytest.mark.parametrize("name", ["bert.ts", "gpt2.dynamo", "control_if"])
def test_every_node_stands_behind_what_it_reads(name: str) -> None:
    after = fuse(onnx.load(MODELS / f"{name}.onnx"), CATALOGUE).model
    made = {"", *(value.name for value in (*after.graph.input, *after.graph.initializer))}
    for node in after.graph.node:
        assert set(node.input) <= made, node.name
        made.update(node.output)


@pytest.mark.parametrize("domains", [["onnxfuse"], ["onnxfuse", "com.microsoft", "onnxfuse"], ["", "ai.onnx.ml"]])
def test_domains_are_imported_once_and_those_that_are_stay(domains: list[str]) -> None:
    made = model("y = Tan (x)")
    made.opset_import.add(domain="ai.onnx.ml", version=3)
    import_domains(made, [helper.make_node("Op", ["x"], ["y"], domain=domain) for domain in domains])
    found = [(entry.domain, entry.version) for entry in made.opset_import]
    new = sorted(set(domains) - {"", "ai.onnx.ml"})
    assert found == [("", 18), ("ai.onnx.ml", 3), *((domain, 1) for domain in new)]


def test_an_output_of_unknown_shape_is_declared_as_the_model_declares_it() -> None:
    """The branches of the If have other ranks, so that the fused op behind it has none."""
    branches = (
        "then_branch = t () => (float[n, 8] a) { a = Exp (x) }, else_branch = f () => (float[8] b) { b = Neg (r) }"
    )
    body = f"r = ReduceMax <keepdims = 0> (x, zero)  v = If <{branches}> (c)  s = Sigmoid (v)  y = Mul (v, s)"
    made = model(f"zero = Constant <value = int64[1] {{0}}> ()  {body}", "float[n, 8] x, bool c", "float[?, 8] y")
    result = onnxfuse.optimize(made, target="ort", validate="off").model
    assert "QuickGelu" in [node.op_type for node in result.graph.node]
    assert len(result.graph.output[0].type.tensor_type.shape.dim) == 2


def test_what_was_drafted_and_is_gone_again_is_not_declared() -> None:
    term = Terms().input("x", (2, 8), TensorProto.FLOAT)
    draft = SimpleNamespace(declared=dict.fromkeys(("kept", "gone"), (term, TensorProto.FLOAT)))
    graph = model("y = Tan (x)").graph
    _declare(cast(Draft, draft), graph, {"gone"})
    assert [info.name for info in graph.value_info] == ["kept"]
