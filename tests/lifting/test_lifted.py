"""A model is read once, and no try to fuse it sees what another one did."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfuse import optimize
from onnxfuse.fusing.fuse import fuse, lower
from onnxfuse.fusing.fused import Banned, Fused
from onnxfuse.language.catalogue import load
from onnxfuse.lifting import lifted
from onnxfuse.lifting.lift import View
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.model.graph import Graph
from onnxfuse.rewriting.provenance import keys
from onnxfuse.targets.target import Target
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.term import UnknownValueError
from tests.exports import MODELS

TARGETS = [Target("onnxfuse"), Target("onnx"), Target("ort")]
LARGE = dict(zip(("bert.ts", "gpt2.dynamo", "llama_half.dynamo"), TARGETS, strict=True))
SMALL = ("mobilenet.ts", "control_if", "control_loop", "function_layernorm", "function_attribute", "external_data")


def written(fused: Fused) -> bytes:
    return fused.model.SerializeToString(deterministic=True)


def last_half(fused: Fused) -> Banned:
    """What bans every second fusion, and all that is simplified."""
    return frozenset(key for site in fused.sites[::2] for key in keys(site, site.matches[-1:])) | fused.simplified


@pytest.mark.parametrize(("name", "target"), [*product(SMALL, TARGETS), *LARGE.items()], ids=str)
def test_a_try_is_what_it_would_be_of_a_model_just_read(name: str, target: Target) -> None:
    catalogue = load().serving(target)
    source, first = lower(onnx.load(MODELS / f"{name}.onnx", load_external_data=False), catalogue, base_dir=MODELS)
    before = source.model.SerializeToString(deterministic=True)
    banned = last_half(first)
    without = fuse(source, catalogue, banned=banned)
    assert written(without) == written(fuse(source.model, catalogue, base_dir=MODELS, banned=banned))
    assert written(fuse(source, catalogue)) == written(first)
    assert written(fuse(source, catalogue, banned=banned)) == written(without)
    assert source.model.SerializeToString(deterministic=True) == before
    if banned:
        assert written(without) != written(first)


def test_terms_of_one_copy_are_unknown_to_the_next() -> None:
    source = Lifted.of(onnx.load(MODELS / "bert.ts.onnx"))
    (_, (first, *_)), (_, (second, *_)) = source.copy(), source.copy()
    (own, *_) = source.views
    size = len(own.terms)
    number = first.terms.number(0.123, onnx.TensorProto.FLOAT)
    first.term("a value of nobody")
    first.terms.bit("an op of nobody")
    shape = first.terms.fresh_dim()
    assert (len(own.terms), len(second.terms)) == (size, size)
    assert "a value of nobody" not in own.terms_of.keys() | second.terms_of.keys()
    # What comes next is what would have come first.
    assert second.terms.fresh_dim() == shape
    assert second.terms.number(0.123, onnx.TensorProto.FLOAT).id == number.id
    assert second.terms.bit("another op") == first.terms.bit("an op of nobody")


def test_a_copy_edits_protos_of_its_own() -> None:
    source = Lifted.of(onnx.load(MODELS / "control_if.onnx"))
    model, views = source.copy()
    assert len(views) > 1
    for view, original in zip(views, source.views, strict=True):
        assert view.graph.path == original.graph.path
        assert [node.output for node in view.graph.nodes] == [node.output for node in original.graph.nodes]
        assert not {id(node) for node in view.graph.nodes} & {id(node) for node in original.graph.nodes}
        view.graph.nodes[0].name = "edited"
    assert views[1].parent is views[0]
    assert views[1].graph.parent is views[0].graph
    assert b"edited" in model.SerializeToString()
    assert b"edited" not in source.model.SerializeToString()


def test_that_a_constant_has_no_value_is_found_out_by_each() -> None:
    """Indices beyond the table: known only where somebody asks, since the result is large."""
    indices = numpy_helper.from_array(np.full(2000, 7, np.int64), "indices")
    table = numpy_helper.from_array(np.ones(3, np.float32), "table")
    nodes = [
        helper.make_node("Gather", ["table", "indices"], ["taken"]),
        helper.make_node("Add", ["x", "taken"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2000]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [indices, table])
    source = Lifted.of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    for _ in range(2):
        _, (view,) = source.copy()
        taken = view.term("taken")
        assert taken.constant
        with pytest.raises(UnknownValueError):
            value_of(taken)
        assert not taken.constant


def test_the_original_is_read_once_however_often_it_is_fused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sloppy.rule").write_text(
        "# Attention without its scale.\nSloppy(Q, K, V, mask=None, *, scale=1, softcap=0, is_causal=0)\n\n"
        "match:  Y = Attention(Q, K, V, mask, scale=scale, **rest)\n"
        "emit:   Y = Attention(Q, K, V, mask, scale=scale * 3, **rest)\n"
    )
    model = onnx.load(MODELS / "bert.ts.onnx")
    read, tries = list[onnx.ModelProto](), list[onnx.ModelProto]()
    lift, copy = lifted.lift, Lifted.copy

    def lifting(graph: Graph, *rest: Any, **options: Any) -> View:
        read.append(graph.model)
        return lift(graph, *rest, **options)

    def copying(source: Lifted) -> tuple[onnx.ModelProto, list[View]]:
        tries.append(source.model)
        return copy(source)

    monkeypatch.setattr(lifted, "lift", lifting)
    monkeypatch.setattr(Lifted, "copy", copying)
    assert optimize(model, rules=[tmp_path]).report.left_out
    assert sum(one is model for one in read) == 1
    assert sum(one is model for one in tries) > 1


def test_another_reading_knows_the_initializers_that_are_the_same() -> None:
    numbers = {"kept": [1.0, 2.0], "changed": [3.0, 4.0], "half": [1.0, 2.0]}
    stored = [
        numpy_helper.from_array(np.array(values, np.float16 if name == "half" else np.float32), name)
        for name, values in numbers.items()
    ]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Add", ["kept", "changed"], ["y"])], "g", [], [output], stored)
    first = Lifted.of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    model, _ = first.copy()
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.array([5, 6], np.float32), "changed"))
    del model.graph.initializer[0]
    again, anew = first.again(model).views[0], Lifted.of(model).views[0]
    assert value_of(again.term("changed")).tolist() == [5, 6]
    # It was one with the float32 that came before it.
    assert again.term("half").dtype == anew.term("half").dtype == onnx.TensorProto.FLOAT16
    both = first.again(first.model).views[0]
    assert both.term("kept").load is first.views[0].term("kept").load
    assert [(term.id, term.op, term.key) for term in both.terms] == [
        (term.id, term.op, term.key) for term in first.views[0].terms
    ]
