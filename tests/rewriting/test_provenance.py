"""Each fused node knows what it replaced, and from which module it came."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from onnxfuse import pipeline
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language.catalogue import load
from onnxfuse.rewriting.provenance import origin

MODELS = Path(__file__).parents[2] / "models"
EXPORTS = sorted(path.name for path in MODELS.glob("*.onnx") if "_half" not in path.name)


@pytest.mark.parametrize("name", EXPORTS)
def test_every_site_replaces_nodes_and_no_two_the_same(name: str) -> None:
    model = onnx.load(MODELS / name, load_external_data=False)
    fused = fuse(model, load(), base_dir=MODELS)
    assert [site.node.name for site in fused.sites if not site.replaced] == []
    claimed = Counter((site.scope, replaced) for site in fused.sites for replaced in site.replaced)
    assert [place for place, count in claimed.items() if count > 1] == []
    left = {node.name for node in fused.model.graph.node if node.domain != "onnxfuse"}
    gone = {replaced for site in fused.sites if not site.scope for replaced in site.replaced}
    originals = {node.name for node in model.graph.node}
    assert not {node for node in gone & left if node in originals and _kept(node, model, fused.model)}


def _kept(name: str, before: onnx.ModelProto, after: onnx.ModelProto) -> bool:
    """Whether a node of this name left as it was."""
    old = next(node for node in before.graph.node if node.name == name)
    return any(node.SerializeToString() == old.SerializeToString() for node in after.graph.node)


def test_what_a_fused_node_still_gives_is_gone_as_a_node() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        g (float[2, 8] x, float[2, 8] skip, float[8] w, float[8] b) => (float[2, 8] y, float[2, 8] z) {
            total = Add (x, skip)  y = LayerNormalization (total, w, b)  z = Relu (total) }""")
    (site,) = fuse(model, load()).sites
    assert list(site.node.output)[:1] == ["y"]
    assert "total" in site.node.output
    assert [node.term.op for node in site.dead] == ["Add", "LayerNormalization"]


def test_what_a_pass_wrote_in_another_way_belongs_to_what_a_later_one_makes_of_it() -> None:
    """Two factors become one before there is a region that has it: both are gone for the region, and it says so."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]> g (float[2, 8] x) => (float[2, 8] z)
        <float half = {0.5}, float three = {3.0}> {
            a = Sin (x)  c = Mul (a, half)  d = Mul (c, three)  z = Cos (d) }""")
    names = [f"n{number}" for number in range(4)]  # as nodes in bodies of ours are called
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    fused = fuse(model, replace(load(), level=2))
    (site,) = fused.sites
    assert list(site.replaced) == names
    assert origin(fused.model.graph.node[0]) == ("Sin Mul Cos", names)
    assert len(site.dead) == 4


def test_both_torch_exporters_lead_to_the_same_modules() -> None:
    def modules(name: str) -> Counter[tuple[str, str]]:
        model = onnx.load(MODELS / name)
        return Counter((fusion.kind, fusion.scope) for fusion in pipeline.report(model).fusions)

    found = modules("bert.ts.onnx")
    mask = Counter({("Region", "/bert"): 1}), Counter({("Region", "/bert/encoder/layer.0/attention/self"): 1})
    assert found - mask[0] == modules("bert.dynamo.onnx") - mask[1], "it is computed of other nodes"
    assert found["Attention", "/bert/encoder/layer.1/attention/self"] == 1
    assert found["Region", "/bert/encoder/layer.1/output"] == 1


def test_a_mask_of_all_layers_is_no_part_of_the_first_layers_module() -> None:
    """Each layer fills the same mask itself; the first stands for the nodes of all, and of those around them."""
    layers = "".join(
        f"""
            k{i}t = Transpose <perm = [0, 1, 3, 2]> (x{i})  s{i} = MatMul (x{i}, k{i}t)  c{i} = Mul (s{i}, scale)
            w{i} = Where (shown, zero, low)  m{i} = Add (c{i}, w{i})  p{i} = Softmax <axis = -1> (m{i})
            n{i} = IsNaN (p{i})  o{i} = Where (n{i}, zero, p{i})  x{i + 1} = MatMul (o{i}, x{i})"""
        for i in range(6)
    )
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 23]>
        g (float[2, 4, 6, 8] x0, bool[2, 1, 6, 6] shown) => (float[2, 4, 6, 8] x6)
        <float scale = {{0.35}}, float zero = {{0.0}}, float low = {{-inf}}> {{
            {layers} }}""")
    for place, node in enumerate(model.graph.node):
        node.name = f"/m/layers.{place // 9}/attn/{place}"
    fused = fuse(model, load())
    modules = [site.module for site in fused.sites if site.node.op_type.startswith("Attention")]
    assert modules == [f"/m/layers.{i}/attn" for i in range(6)]
