"""Every model of models/ is optimized with proof: what can be fused is, nothing has to be left out."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import NodeProto

from onnxfuse import optimize, pipeline
from onnxfuse.fusing.build import Build
from onnxfuse.fusing.fuse import lower
from onnxfuse.fusing.fused import Fused
from onnxfuse.fusing.source import Source
from onnxfuse.model.graph import family_of
from onnxfuse.model.walk import attribute_graphs
from onnxfuse.pipeline import Optimized
from onnxfuse.reporting.records import REGION
from onnxfuse.targets.target import Target

MODELS = Path(__file__).parents[2] / "models"
TRUTH: dict[str, dict[str, int]] = json.loads((MODELS / "truth.json").read_text())
PATHS = sorted(MODELS.glob("*.onnx"))
TARGETS = ("onnxfuse", "onnx")

OPS = {
    "attention": {"Attention"},
    "layernorm": {"LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization"},
    "rmsnorm": {"RMSNormalization", "SkipSimplifiedLayerNormalization", "EmbedSimplifiedLayerNormalization"},
    "gelu": {"Gelu", "FastGelu", "QuickGelu", "GeGLU"},
    "silu": {"Swish", "SwiGLU"},
    "softmax": {"Softmax"},
    "logsoftmax": {"LogSoftmax"},
    "elu": {"Elu"},
    "hardswish": {"HardSwish"},
    "mish": {"Mish"},
    "softplus": {"Softplus"},
}
"""The fused ops that stand for what truth.json counts; as an `activation` of a linear op they count too."""

SINCE = {
    "layernorm": 17,
    "mish": 18,
    "gelu": 20,
    "attention": 23,
    "rmsnorm": 23,
    "silu": 24,
    "hardswish": 14,
    "elu": 1,
    "softmax": 1,
    "logsoftmax": 1,
    "softplus": 1,
}
"""First opset of ai.onnx with such an op."""

SAME_TWICE = {("activations", "silu"): 1, ("softmax", "softmax"): 1, ("softmax", "logsoftmax"): 1}
"""Two spellings of one op over the same input: one node computes both."""

PER_CALL = {("function_attribute", "layernorm"): 0}
"""What depends on an attribute of a function's call cannot become an attribute of a node within it."""


def name_of(path: Path) -> str:
    """The key in truth.json: the file without the exporter."""
    return path.name.split(".")[0]


def every_node(model: onnx.ModelProto) -> list[NodeProto]:
    """All nodes that run: those of bodies too, those of a local function once per call, of onnxfuse's own none."""
    functions = {(f.domain, f.name): f for f in model.functions if f.domain != "onnxfuse"}
    found, pending = [], list(model.graph.node)
    while pending:
        node = pending.pop()
        function = functions.get((node.domain, family_of(node)))
        if function is not None:
            pending += function.node
            continue
        found.append(node)
        for _, body in attribute_graphs(node):
            pending += body.node
    return found


def census(model: onnx.ModelProto) -> Counter[str]:
    """How often each op runs, alone or as the activation of another."""
    nodes = every_node(model)
    activations = (a.s.decode() for node in nodes for a in node.attribute if a.name == "activation")
    return Counter(family_of(node) for node in nodes) + Counter(activations)


def taken(result: Optimized) -> Counter[str]:
    """How often each op is part of a region, whose words say so."""
    words = (word for fusion in result.report.fusions if fusion.kind == REGION for word in fusion.rule.split())
    return sum((Counter({op: int(often or 1)}) for op, _, often in (w.partition("×") for w in words)), Counter())


def reachable(path: Path, target: str) -> dict[str, int]:
    """What of truth.json the target has an op for, at the opset of the model."""
    opset = onnx.load(path, load_external_data=False).opset_import[0].version
    wanted = {}
    for kind, count in TRUTH[name_of(path)].items():
        for special in (SAME_TWICE, PER_CALL):
            count = special.get((name_of(path), kind), count)
        standard = SINCE.get(kind, opset + 1) <= opset and name_of(path) != "quick_gelu"
        if kind in OPS and (target == "onnxfuse" or standard):
            wanted[kind] = count
    return wanted


def run(path: Path, target: str) -> Optimized:
    return optimize(onnx.load(path, load_external_data=False), target=target, base_dir=path.parent)


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[onnx.ModelProto]:
    """What `optimize` fuses, as it is before it is proved."""
    models: list[onnx.ModelProto] = []

    def kept(*given: Any, **options: Any) -> tuple[Source, Fused]:
        source, fused = lower(*given, **options)
        models.append(fused.model)
        return source, fused

    monkeypatch.setattr(pipeline, "lower", kept)
    return models


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_model_is_fused_and_computes_the_same(
    path: Path, target: str, tmp_path: Path, lowered: list[onnx.ModelProto]
) -> None:
    """And what was fused, before its proof may have left something out, stays as it is when it is fused once more."""
    before = onnx.load(path, load_external_data=False)
    result = run(path, target)

    assert result.report.validation.verdict == "equal", result.report.validation.note
    assert result.report.left_out == []
    found = census(result.model) + taken(result)
    counts = {kind: sum(found[op] for op in OPS[kind]) for kind in reachable(path, target)}
    missing = {kind: count for kind, count in reachable(path, target).items() if counts[kind] < count}
    assert missing == {}, found

    norms, kept = census(before)["BatchNormalization"], found["BatchNormalization"]
    assert norms - kept == min(norms, TRUTH[name_of(path)].get("batchnorm", 0))

    if target == "onnx":
        known = {function.domain for function in before.functions}
        assert {node.domain for node in every_node(result.model)} <= {"", "ai.onnx", *known}
        assert len(result.model.functions) == len(before.functions)
    assert result.model.graph.input == before.graph.input
    assert result.model.graph.output == before.graph.output

    for data in MODELS.glob(f"{path.name}.data"):
        shutil.copy(data, tmp_path)
    (tmp_path / path.name).write_bytes(result.model.SerializeToString())
    onnx.checker.check_model(str(tmp_path / path.name), full_check=True)

    (once,) = lowered
    again = lower(once, Build(Target(target)).catalogue, base_dir=path.parent)[1]
    assert again.model == once, [site.node.name for site in again.sites]


def test_a_model_is_not_changed_by_optimizing_it() -> None:
    model = onnx.load(MODELS / "bert.ts.onnx")
    content = model.SerializeToString(deterministic=True)
    optimize(model, validate="off")
    assert model.SerializeToString(deterministic=True) == content


def test_an_optimized_model_has_nothing_left_to_fuse() -> None:
    once = optimize(onnx.load(MODELS / "gpt2.dynamo.onnx"), validate="off")
    again = optimize(once.model, validate="off")
    assert again.report.fusions == []
    assert again.report.nodes_after == once.report.nodes_after
    assert again.model.SerializeToString(deterministic=True) == once.model.SerializeToString(deterministic=True)


def test_the_report_counts_what_the_model_has() -> None:
    result = optimize(onnx.load(MODELS / "bert.ts.onnx"), validate="off")
    nodes = [node for node in result.model.graph.node if node.domain == "onnxfuse"]
    assert Counter(family_of(node) for node in nodes) == Counter(fusion.kind for fusion in result.report.fusions)
    assert {node.name for node in nodes} == {fusion.node for fusion in result.report.fusions}
    for node in nodes:
        props = {entry.key: entry.value for entry in node.metadata_props}
        assert props["onnxfuse.rule"] in {fusion.rule for fusion in result.report.fusions}
        assert props["onnxfuse.replaced"]
        assert props["onnxfuse.version"]
