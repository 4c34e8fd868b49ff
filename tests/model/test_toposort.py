"""Nodes in any order: onnxruntime loads them, and so do we."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import parser

import onnxfuse
from onnxfuse.cli.main import main
from onnxfuse.errors import ModelError
from onnxfuse.model import toposort
from onnxfuse.model.tensors import bodies
from tests import broken
from tests.spellings.mutants import feeds, run

MODELS = Path(__file__).parents[2] / "models"

INSIDE = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[2, 8] x, bool c) => (float[2, 8] y) {
    y = Add (z, u)
    z = If (c) <
        then_branch = t () => (float[2, 8] a) { a = Relu (b) b = Add (late, d) d = Neg (x) },
        else_branch = f () => (float[2, 8] e) { e = Identity (late) }
    >
    u = local.Twice (late)
    late = Tan (x)
}
<domain: "local", opset_import: ["" : 17]> Twice (p) => (q) { q = Add (r, p) r = Neg (s) s = Abs (p) }
"""


def names(nodes: object) -> list[str]:
    return [node.output[0] for node in nodes]  # type: ignore[attr-defined]


def shuffled(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    generator = random.Random(seed)
    for scope in bodies(copy):
        nodes = list(scope.node)
        generator.shuffle(nodes)
        del scope.node[:]
        scope.node.extend(nodes)
    return copy


def test_graph_bodies_and_functions_are_sorted_and_what_may_stay_stays() -> None:
    model = parser.parse_model(INSIDE)
    assert not toposort.is_sorted(model)
    toposort.sort(model)
    assert names(model.graph.node) == ["late", "z", "u", "y"]  # not before what its body captures
    branches = [attribute.g for attribute in model.graph.node[1].attribute]
    assert [names(branch.node) for branch in branches] == [["d", "b", "a"], ["e"]]
    assert names(model.functions[0].node) == ["s", "r", "q"]
    assert toposort.is_sorted(model)
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("name", ["bert.ts", "llama.dynamo", "control_loop", "function_layernorm"])
def test_a_sorted_model_is_left_as_it_is(name: str) -> None:
    model = onnx.load(MODELS / f"{name}.onnx")
    before = model.SerializeToString(deterministic=True)
    assert toposort.is_sorted(model)
    toposort.sort(model)
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("name", ["bert.ts", "llama.dynamo", "control_if", "control_loop", "function_layernorm"])
def test_a_shuffled_file_is_fused_as_its_sorted_one(name: str, tmp_path: Path) -> None:
    """And what is written is sorted, and computes the same."""
    model = onnx.load(MODELS / f"{name}.onnx")
    mixed = shuffled(model, 7)
    assert not toposort.is_sorted(mixed)
    path = tmp_path / "mixed.onnx"
    onnx.save(mixed, path)
    if name in ("bert.ts", "llama.dynamo"):  # it insists on the order of bodies and functions
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])  # it is a model that people have
    assert main(["optimize", str(path), "-q"]) == 0
    written = onnx.load(tmp_path / "mixed.fused.onnx")
    onnx.checker.check_model(written)
    mixed_census, census = (onnxfuse.report(each).census for each in (path, MODELS / f"{name}.onnx"))
    # Of regions that save as many bytes the first in the file is made: another may lead to one less.
    assert mixed_census - Counter(Region=99) == census - Counter(Region=99)
    assert abs(mixed_census["Region"] - census["Region"]) <= 1
    inputs = feeds(model)
    for got, want in zip(run(written, inputs), run(model, inputs), strict=True):
        assert abs(got - want).max() <= 1e-5 * max(abs(want).max(), 1)


@pytest.mark.parametrize("name", ["vit.ts", "t5_decoder.ts"])
def test_what_onnxruntime_s_float16_converter_writes_is_fused(name: str, tmp_path: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    half = convert_float_to_float16(onnx.load(MODELS / f"{name}.onnx"), keep_io_types=True)
    assert not toposort.is_sorted(half)
    onnx.save(half, tmp_path / "half.onnx")
    # Half precision behind outputs in float32 is judged as float32, so that the proof would leave fusions out.
    result = onnxfuse.optimize(tmp_path / "half.onnx", tmp_path / "fused.onnx", validate="off")
    assert result.report.census["Attention"] == onnxfuse.report(MODELS / f"{name}.onnx").census["Attention"] > 0
    assert toposort.is_sorted(onnx.load(tmp_path / "fused.onnx"))


def test_a_model_in_memory_is_sorted_in_a_copy() -> None:
    model = broken.unsorted()
    before = model.SerializeToString()
    assert names(onnxfuse.optimize(model, level=1).model.graph.node) == ["a", "y"]
    assert model.SerializeToString() == before
    with pytest.raises(ModelError, match="the graph has a cycle: relu -> add -> relu"):
        onnxfuse.report(broken.cyclic())


@pytest.mark.parametrize(
    ("old", "new", "cycle"),
    [
        ("late = Tan (x)", "late = Tan (y)", "late -> z -> y -> late"),
        ("d = Neg (x)", "d = Neg (a)", "d -> b -> a -> d"),
        ("s = Abs (p)", "s = Abs (q)", "s -> r -> q -> s"),
        ("late = Tan (x)", "late = Tan (late)", "late -> late"),
    ],
    ids=["around a body", "in a body", "in a function", "of one node"],
)
def test_a_cycle_is_one_line_that_names_it(
    old: str, new: str, cycle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(INSIDE.replace(old, new)), path)
    assert main(["report", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{path} is not valid: the graph has a cycle: {cycle}; ONNX graphs must not have one" in error


@pytest.mark.parametrize("old", ["d = Neg (x)", "s = Abs (p)"], ids=["body", "function"])
def test_a_value_that_nothing_produces_is_named_in_bodies_and_functions_too(
    old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(INSIDE.replace(old, f"{old[:-2]}ghost)")), path)
    assert main(["report", str(path)]) == 2
    assert f"node {old[0]!r} reads 'ghost', which nothing produces" in capsys.readouterr().err
