"""A file that is optimized again stays as it is, under every target."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from onnxfuse.fusing import fuse as fusing
from onnxfuse.fusing.fuse import fuse, lower
from onnxfuse.fusing.fused import Fused
from onnxfuse.fusing.naming import Naming
from onnxfuse.fusing.settle import State, settle
from onnxfuse.language.catalogue import load
from onnxfuse.model.graph import roots
from onnxfuse.rewriting.plan import Draft
from onnxfuse.rewriting.provenance import origin
from onnxfuse.rewriting.restore import Entry, restore
from onnxfuse.rewriting.writer import Writer
from onnxfuse.targets.target import DEFAULT, KINDS, Target
from tests.fused_models import FusedModel
from tests.whole.test_whole_models import TARGETS

MODELS = Path(__file__).parents[2] / "models"
OTHERS = [Target(*kind) for kind in KINDS if kind[0] not in TARGETS]


def fused(model: onnx.ModelProto, target: Target = DEFAULT) -> Fused:
    return lower(model, load().serving(target), base_dir=MODELS)[1]


@pytest.mark.parametrize("target", OTHERS, ids=lambda target: f"{target.name}-{target.provider}")
def test_a_fused_file_stays_as_it_is(target: Target, fused_model: FusedModel) -> None:
    """Those of TARGETS are fused once more where they are optimized, with proof: tests/whole/test_whole_models.py."""
    changed = {}
    for path in sorted(MODELS.glob("*.onnx")):
        once = fused_model(path.name, target)
        again = fused(once, target)
        if again.model != once:
            changed[path.name] = [site.node.name for site in again.sites]
    assert changed == {}


@pytest.mark.parametrize("name", ["vit.ts.onnx", "gemm_batchnorm.onnx"])
def test_what_a_pass_drafted_goes_with_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The cycle collector does not run meanwhile: what holds itself would stay until all is done."""
    drafts: list[weakref.ref[Draft]] = []

    def noted(*given: Any) -> Writer:
        assert [draft() for draft in drafts] == [None] * len(drafts)
        writer = Writer(*given)
        drafts.append(weakref.ref(writer.draft))
        return writer

    monkeypatch.setattr(fusing, "Writer", noted)
    model = onnx.load(MODELS / name)
    gc.disable()
    try:
        after = fused(model)
        assert len(drafts) > 1
        assert [draft() for draft in drafts] == [None] * len(drafts)
    finally:
        gc.enable()
    assert after.sites


def test_what_a_second_pass_finds_names_the_nodes_of_the_original() -> None:
    before = onnx.load(MODELS / "gemm_batchnorm.onnx")
    after = fused(before)
    originals = {node.name for node in before.graph.node}
    told = [name for site in after.sites for name in site.replaced]
    assert len(told) == len(set(told))
    assert set(told) <= originals
    written = [name for node in after.model.graph.node for name in origin(node)[1]]
    assert sorted(written) == sorted(told)


def test_a_ban_holds_in_every_pass() -> None:
    before = onnx.load(MODELS / "gemm_batchnorm.onnx")
    after = fused(before)
    banned = frozenset(
        (site.scope, match.rule.name, value) for site in after.sites for match in site.matches for value in match.values
    )
    left = fuse(before, load(), base_dir=MODELS, banned=banned)
    assert not banned & {
        (site.scope, match.rule.name, value) for site in left.sites for match in site.matches for value in match.values
    }


ADD = helper.make_node("Add", ["a", "b"], ["s"], name="sum")
RELU = helper.make_node("Relu", ["s"], ["y"], name="relu")


def small(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "aby"]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_new_nodes_that_compute_what_old_ones_did_are_those() -> None:
    graph = next(roots(small(ADD, RELU)))
    new = helper.make_node("Add", ["b", "a"], ["t"], name="other")
    entries: list[Entry] = [(-0.5, 0, new), (1, 0, helper.make_node("Relu", ["t"], ["y"], name="more"))]
    alias = {"s": "t"}
    restore(graph, entries, alias, {"y"})
    assert [entry[2] for entry in entries] == [ADD, RELU]
    assert alias == {"t": "s"}


def test_a_value_that_another_node_has_taken_is_not_given_back() -> None:
    graph = next(roots(small(ADD, RELU)))
    taken = helper.make_node("Neg", ["a"], ["s"], name="negated")
    new = helper.make_node("Add", ["a", "b"], ["t"], name="other")
    entries: list[Entry] = [(-0.5, 0, taken), (0, 1, new)]
    restore(graph, entries, {}, {"y"})
    assert [entry[2] for entry in entries] == [taken, new]


def test_passes_that_go_around_in_a_circle_end_with_the_lightest_model() -> None:
    """From wherever they begin."""
    light, heavy = small(ADD, RELU), small(ADD, helper.make_node("Neg", ["s"], ["n"]), RELU)

    def once(given: onnx.ModelProto) -> Fused:
        after = heavy if len(given.graph.node) == 2 else light
        copy = onnx.ModelProto()
        copy.CopyFrom(after)
        return Fused(copy, [], [], frozenset())

    assert settle(light, once, Naming.of(light)).model == light
    assert settle(heavy, once, Naming.of(heavy)).model == light


def test_passes_without_an_end_end() -> None:
    def once(given: onnx.ModelProto) -> Fused:
        copy = onnx.ModelProto()
        copy.CopyFrom(given)
        last = copy.graph.node[-1].output[0]
        copy.graph.node.add(op_type="Neg", input=[last], output=[f"{last}n"], name=f"{last}n")
        return Fused(copy, [], [], frozenset())

    start = small(ADD, RELU)
    assert len(settle(start, once, Naming.of(start)).model.graph.node) == 3


def test_states_are_equal_where_a_pass_sees_the_same() -> None:
    model = onnx.load(MODELS / "softmax.onnx")
    other = onnx.ModelProto()
    other.CopyFrom(model)
    assert State(model) == State(other)
    other.graph.node[-1].name += "_again"
    assert State(model) != State(other)
    other.CopyFrom(model)
    other.graph.value_info.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, []))
    assert State(model) != State(other)
