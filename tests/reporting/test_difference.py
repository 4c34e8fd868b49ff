"""Fusions gained and lost, wherever the op was written already, and when a model is worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from onnx import ModelProto, TensorProto, helper

from onnxfuse.model.graph import RULE_KEY
from onnxfuse.reporting.difference import Change, Difference, Side, difference
from onnxfuse.reporting.records import Fusion, NearMiss, Report, Totals
from tests.fake_engine import fusion, near_miss


def model(*nodes: tuple[str, str, bool]) -> ModelProto:
    """A model of nodes: name, op, and whether onnxfuse wrote it."""
    made = []
    for name, op, fused in nodes:
        node = helper.make_node(op, ["x"], [f"{name}.out"], name=name, domain="onnxfuse" if fused else "")
        if fused:
            node.metadata_props.add(key=RULE_KEY, value=op)
        made.append(node)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    return helper.make_model(helper.make_graph(made, "g", [x], []))


def side(
    *fusions: Fusion,
    nodes: Sequence[tuple[str, str, bool]] = (),
    launches: int = 10,
    moved: int = 1000,
    unsized: int = 0,
    misses: Sequence[NearMiss] = (),
) -> Side:
    after = Totals(launches, moved, unsized)
    found = Report("m.onnx", before=Totals(50, 5000), after=after, fusions=list(fusions), near_misses=list(misses))
    return Side(found, model(*nodes))


def layers(rule: str = "LayerNormalization", count: int = 3) -> list[Fusion]:
    return [fusion(rule, scope=f"/layers.{i}/norm") for i in range(count)]


def between(before: Side, after: Side) -> Difference:
    return difference(before, after, "x:2")


def test_nothing_is_different() -> None:
    found = between(side(*layers()), side(*layers()))
    assert (found.verdict, found.gained, found.lost, found.worse) == ("same", (), (), ())


def test_layers_are_lost_together() -> None:
    found = between(side(*layers(), replace(fusion("Gelu", scope="/top"), code="net.py:3")), side())
    assert found.lost == (
        Change("LayerNormalization", "/layers.0-2/norm", 3),
        Change("Gelu", "/top", 1, code="net.py:3"),
    )
    assert (found.verdict, found.worse) == ("worse", ("4 fusions lost",))
    back = between(side(), side(*layers()))
    assert (back.verdict, back.gained) == ("better", (Change("LayerNormalization", "/layers.0-2/norm", 3),))


def test_an_op_that_the_exporter_wrote_is_not_lost() -> None:
    written = side(nodes=[(f"/layers.{i}/norm/LayerNormalization", "LayerNormalization", False) for i in range(3)])
    assert between(side(*layers()), written).verdict == "same"
    assert between(written, side(*layers())).verdict == "same"


def test_an_op_that_is_fused_further_is_no_node_of_its_own() -> None:
    inside = replace(fusion("FusedMatMul", scope="/mlp/act"), replaced=("/mlp/act/Gelu", "/mlp/MatMul"))
    then = side(fusion("FusedMatMul", scope="/mlp/act"), fusion("Gelu", scope="/other"))
    now = side(inside, fusion("Gelu", scope="/other"), nodes=[("/mlp/act/Gelu", "Gelu", False)])
    assert between(then, now).verdict == "same"


def test_what_onnxfuse_wrote_is_in_the_module_where_it_was_found() -> None:
    found = replace(fusion(scope="/layers.0/norm"), node="/other/name")
    after = side(nodes=[("/other/name", "LayerNormalization", True)])
    assert between(side(found), after).verdict == "same"


def test_a_larger_fusion_instead_is_not_worse() -> None:
    found = between(side(*layers()), side(*layers("SkipLayerNormalization")))
    assert found.lost == (Change("LayerNormalization", "/layers.0-2/norm", 3, ("SkipLayerNormalization",)),)
    assert found.gained == (Change("SkipLayerNormalization", "/layers.0-2/norm", 3, ("LayerNormalization",)),)
    assert found.verdict == "same"
    fewer = between(side(*layers(), launches=10), side(*layers("SkipLayerNormalization"), launches=7))
    assert fewer.verdict == "better"


@pytest.mark.parametrize(
    ("after", "reasons"),
    [
        (side(launches=11), ("1 more launch",)),
        (side(launches=13), ("3 more launches",)),
        (side(moved=1500), ("50% more traffic",)),
        (side(moved=1009), ()),
        (side(moved=9000, unsized=1), ()),
        (side(launches=12, moved=1500), ("2 more launches", "50% more traffic")),
    ],
)
def test_what_is_worse(after: Side, reasons: tuple[str, ...]) -> None:
    assert between(side(), after).worse == reasons


def test_traffic_at_other_sizes_says_nothing() -> None:
    found = difference(side(), side(moved=9000), "")
    assert found.worse == ()
    assert [figure.name for figure in found.figures] == ["nodes", "nodes, fused", "launches", "launches, fused"]


def test_near_misses_that_are_new_and_gone() -> None:
    kept = [near_miss(scope="/a")]
    then, now = [*kept, near_miss("Gelu", scope="/b")], [*kept, *(near_miss(scope=f"/c.{i}") for i in range(3))]
    found = between(side(misses=then), side(misses=now))
    assert [(miss.rule, miss.place, miss.count) for miss in found.missed] == [("LayerNormalization", "/c.0-2/Div", 3)]
    assert [(miss.rule, miss.place, miss.count) for miss in found.gone] == [("Gelu", "/b/Div", 1)]
    assert found.verdict == "same"


def test_json() -> None:
    data = between(side(*layers()), side(launches=11)).to_json()
    assert (data["schema"], data["verdict"], data["worse"]) == (1, "worse", ("3 fusions lost", "1 more launch"))
    assert data["figures"][3] == {"name": "launches, fused", "before": 10, "after": 11}
    assert data["lost"][0]["scope"] == "/layers.0-2/norm"


def test_fewer_regions_are_not_worse_by_themselves() -> None:
    """One that takes another in is one less; launches and bytes say what it is worth."""
    two = [fusion(name, scope=f"/{name}", op="onnxfuse.Region") for name in ("Mul", "Add")]
    found = between(side(*two), side(two[0], launches=9))
    assert [change.op for change in found.lost] == ["Region"]
    assert (found.verdict, found.worse) == ("better", ())
    assert between(side(*two), side(two[0], launches=11)).worse == ("1 more launch",)
