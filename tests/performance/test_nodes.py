"""Each node before and after: what it takes, what it reads, and what stands for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import ModelProto, helper, parser

from onnxfuse import pipeline
from onnxfuse.fusing.build import Build
from onnxfuse.language.catalogue import RULES
from onnxfuse.model import files
from onnxfuse.performance.gpus import CARDS
from onnxfuse.reporting.records import Node, Nodes, Report

MODELS = Path(__file__).parents[2] / "models"


def told(model: ModelProto, **options: object) -> tuple[Report, Nodes]:
    found = pipeline.report(model, nodes=True, **options)  # type: ignore[arg-type]
    assert found.nodes is not None
    return found, found.nodes


def named(body: str, inputs: str = "float[2, 8] x") -> ModelProto:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> g ({inputs}) => (float[m, n] y) {{ {body} }}')
    for node in model.graph.node:
        node.name = f"/enc/{node.output[0]}"
    return model


SWISH = "s = Sigmoid(x)  m = Mul(x, s)  t = Transpose<perm = [1, 0]>(m)  y = MatMul(t, x)"


def test_what_becomes_of_each() -> None:
    found, nodes = told(named(SWISH), build=Build(level=RULES))
    (fusion,) = found.fusions
    swish, transposed, product = nodes.after
    assert [node.name for node in nodes.before] == ["/enc/s", "/enc/m", "/enc/t", "/enc/y"]
    assert [node.becomes for node in nodes.before] == [0, 0, 1, 2]
    assert [node.reads for node in nodes.before] == [(), (0,), (1,), (2,)]
    assert [node.reads for node in nodes.after] == [(), (0,), (1,)]
    assert [node.fusion for node in nodes.after] == [0, None, None]
    assert (swish.name, swish.op, swish.scope) == (fusion.node, "onnxfuse.Swish", fusion.scope)
    assert (product.reason, swish.reason) == ("a product by itself", "")
    assert {node.scope for node in (*nodes.before, transposed)} == {"/enc"}


def test_what_each_takes() -> None:
    _, nodes = told(named(SWISH))
    h200, product = CARDS["h200"], nodes.before[3]
    assert nodes.card == "h200"
    assert (product.bytes, product.flops, product.launches) == (4 * (16 + 16 + 64), 2 * 64 * 2, 1)
    assert product.memory_seconds == product.bytes / h200.bandwidth
    assert product.compute_seconds == product.flops / h200.float32
    assert product.seconds == max(product.memory_seconds, product.compute_seconds) + h200.launch
    assert product.bound == "launches"
    _, nodes = told(named(SWISH), card=CARDS["a100"])
    assert nodes.card == "a100"


def test_what_bounds_it() -> None:
    _, nodes = told(named("y = MatMul(x, w)", "float[4096, 4096] x, float[4096, 4096] w"))
    assert nodes.before[0].bound == "flops"
    _, nodes = told(named("y = Relu(x)", "float[4096, 4096] x"))
    assert nodes.before[0].bound == "bytes"


def test_views_and_unknown_sizes() -> None:
    _, nodes = told(named("r = Reshape(x, s)  i = NonZero(r)  y = Cast<to = 1>(i)", "float[2, 8] x, int64[2] s"))
    view, unknown, _ = nodes.before
    assert (view.launches, view.seconds, view.bound, view.bytes) == (0, 0.0, None, 0)
    assert (unknown.launches, unknown.bound, unknown.bytes, unknown.flops) == (1, "launches", None, None)


def test_bodies_read_what_is_around_them() -> None:
    body = parser.parse_graph("b () => (float[2, 8] z) { z = Relu(a) }")
    model = named("a = Exp(x)  y = Neg(x)", "float[2, 8] x, bool c")
    branch = helper.make_node("If", ["c"], ["y"], "/enc/if", then_branch=body, else_branch=body)
    model.graph.node[1].CopyFrom(branch)
    _, nodes = told(model)
    assert [(node.op, node.reads, node.launches) for node in nodes.before] == [
        ("Exp", (), 1),
        ("If", (0,), 0),
        ("Relu", (0,), 1),
        ("Relu", (0,), 1),
    ]
    assert nodes.before[2].scope != nodes.before[3].scope


def test_what_is_written_anew_stands_where_it_is_read() -> None:
    model = files.read(MODELS / "llama.dynamo.onnx", weights=False)
    _, nodes = told(model, build=Build(level=RULES))
    assert {node.scope for node in nodes.after if node.op in ("Cos", "Sin")} == {"/model"}
    for _, nodes in (told(model), told(model, build=Build(level=RULES))):
        assert not [node for node in nodes.after if node.scope.startswith("/onnxfuse")]


@pytest.mark.parametrize("name", ["bert.ts", "t5_decoder.dynamo", "control_loop", "function_layernorm"])
def test_nodes_add_up_to_the_totals(name: str) -> None:
    found, nodes = told(files.read(MODELS / f"{name}.onnx", weights=False))

    def whole(side: tuple[Node, ...]) -> tuple[int, int, int]:
        sizes = [node.bytes for node in side]
        return sum(node.launches for node in side), sum(size or 0 for size in sizes), sizes.count(None)

    assert whole(nodes.before) == (found.before.launches, found.before.bytes, found.before.unsized)
    assert whole(nodes.after) == (found.after.launches, found.after.bytes, found.after.unsized)
    assert (len(nodes.before), len(nodes.after)) == (found.nodes_before, found.nodes_after)
    assert {node.fusion for node in nodes.after} - {None} == set(range(len(found.fusions)))
    seconds = sum(node.seconds for node in nodes.after)
    shares = {(each.op, each.reason): each.share for each in found.remaining}
    for op, reason in shares:
        alone = sum(node.seconds for node in nodes.after if (node.op, node.reason) == (op, reason))
        assert alone / seconds == pytest.approx(shares[op, reason])
