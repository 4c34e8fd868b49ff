"""A fused file is fused anew for another target, from what its functions say."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse.cli.main import main
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of, roots
from onnxfuse.rewriting.inline import expand
from tests import exports
from tests.exports import MODELS

CATALOGUE = catalogue.load()
FILES = ["bert.ts.onnx", "llama.dynamo.onnx", "convnext.ts.onnx", "control_if.onnx", "function_layernorm.onnx"]


def fused(name: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    before = exports.load(MODELS / name)
    return before, fuse(before, CATALOGUE).model


@pytest.mark.parametrize("name", FILES)
def test_no_fused_node_is_left_and_the_numbers_are_the_same(name: str) -> None:
    before, after = fused(name)
    copy = after.SerializeToString(deterministic=True)
    plain = expand(after)
    assert after.SerializeToString(deterministic=True) == copy
    onnx.checker.check_model(plain, full_check=True)
    nodes = [node for root in roots(plain) for scope in root.scopes() for node in scope.nodes]
    assert "onnxfuse" not in {node.domain for node in nodes} | {entry.domain for entry in plain.opset_import}
    assert not any(function.domain == "onnxfuse" for function in plain.functions)
    assert exports.changed_outputs(before, plain, exports.feeds(before)) == {}


def test_a_model_without_fused_nodes_is_itself() -> None:
    before = exports.load(MODELS / "bert.ts.onnx")
    assert expand(before) is before


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_a_fused_file_becomes_one_for_another_target(target: str) -> None:
    before, after = fused("bert.ts.onnx")
    direct, again = (onnxfuse.optimize(model, target=target) for model in (before, after))
    assert again.report.validation.verdict == "equal"
    assert again.report.census["Attention"] == direct.report.census["Attention"] == 3
    assert again.report.nodes_before > again.report.nodes_after
    assert not again.model.functions


def test_fusing_again_changes_nothing() -> None:
    for name in FILES:
        after = fused(name)[1]
        assert fuse(after, CATALOGUE).model.SerializeToString() == after.SerializeToString()


def test_nodes_keep_the_module_of_the_node_that_they_come_from() -> None:
    plain = expand(fused("bert.ts.onnx")[1])
    softmax = [node.name for node in plain.graph.node if family_of(node) == "Softmax"]
    assert all("/encoder/layer." in name and name.endswith("/shares") for name in softmax)
    assert len(softmax) == 3


def test_a_fused_node_is_explained_by_what_it_stands_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(fused("bert.ts.onnx")[1], tmp_path / "fused.onnx")
    name = "/bert/encoder/layer.0/attention/self/Attention"
    assert main(["report", str(tmp_path / "fused.onnx"), "--explain", name]) == 0
    out = capsys.readouterr().out
    assert f"{name} (Attention) in " in out
    assert "is fused already, by the rule Attention" in out
    assert "it stands for: " in out
    assert "attention/self/Softmax" in out
