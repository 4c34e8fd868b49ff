"""What no fusion touches leaves as it came, byte for byte: nodes, metadata, functions, tensors, external data."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse import optimize
from onnxfuse.cli.main import main
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model import files
from onnxfuse.model.graph import family_of
from onnxfuse.targets.target import Target
from tests import broken

MODELS = Path(__file__).parents[2] / "models"
CATALOGUE = catalogue.load()

EXOTIC = {
    "strings": helper.make_tensor("strings", TensorProto.STRING, [2], [b"\xff\x00raw", b"text"]),
    "float8": helper.make_tensor("float8", TensorProto.FLOAT8E4M3FN, [3], b"\x01\x7f\x80", raw=True),
    "int4": helper.make_tensor("int4", TensorProto.INT4, [3], b"\x21\x0f", raw=True),
    "bfloat16": helper.make_tensor("bfloat16", TensorProto.BFLOAT16, [1], b"\x80\x3f", raw=True),
    "complex": helper.make_tensor("complex", TensorProto.COMPLEX64, [1], [1 + 2j]),
}


def curious() -> onnx.ModelProto:
    """Layer normalization among everything else that a model can have."""
    nodes = broken.layer_norm("x", "normal", "/norm/")
    nodes += [helper.make_node("Identity", [name], [f"{name}_out"], f"/pass/{name}") for name in EXOTIC]
    nodes += [
        helper.make_node("Tan", ["normal"], ["tangent"], "/tan", doc_string="kept"),
        helper.make_node("Twice", ["tangent"], ["plain"], "/plain", domain="local"),
        helper.make_node("Twice", ["plain"], ["other"], "/other", domain="local", overload="sum"),
        helper.make_node("Scale", ["other"], ["scaled"], "/scale", domain="com.example", by=[0.1, 0.2]),
        helper.make_node("Add", ["scaled", "sparse"], ["y"], "/add"),
    ]
    nodes[-1].metadata_props.add(key="pkg.torch.onnx.stack_trace", value='File "m.py", line 3')
    dims = ["batch", "sequence", 8]
    outputs = [helper.make_tensor_value_info(f"{n}_out", t.data_type, list(t.dims)) for n, t in EXOTIC.items()]
    graph = helper.make_graph(
        nodes,
        "curious",
        [broken.value("x", dims)],
        [broken.value("y", dims), *outputs],
        [*broken.norm_constants(), *EXOTIC.values()],
        doc_string="a graph",
        value_info=[broken.value(name, dims) for name in ("normal", "tangent", "scaled", "/norm/d")],
        sparse_initializer=[
            helper.make_sparse_tensor(
                numpy_helper.from_array(np.array([2.5], np.float32), "sparse"),
                numpy_helper.from_array(np.array([3]), "sparse_indices"),
                [8],
            )
        ],
    )
    graph.metadata_props.add(key="graph", value="kept")
    for info in (graph.input[0], graph.output[0], graph.value_info[0]):
        info.doc_string, info.type.denotation = f"what {info.name} is", "AUDIO"
        info.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
        info.metadata_props.add(key="unit", value="V")
    for tensor in graph.initializer:
        tensor.doc_string = f"what {tensor.name} is"
        tensor.metadata_props.add(key="from", value="someone")
    annotation = graph.quantization_annotation.add(tensor_name="tangent")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="eps")
    opsets = [helper.make_opsetid(*pair) for pair in (("", 21), ("local", 1), ("com.example", 7), ("unused", 2))]
    functions = [
        helper.make_function(
            "local",
            "Twice",
            ["a"],
            ["b"],
            [helper.make_node(op, ["a", "a"] if op == "Add" else ["a"], ["b"], f"/{op}")],
            [helper.make_opsetid("", 21)],
            overload=overload,
            doc_string=op,
        )
        for op, overload in (("Tan", ""), ("Add", "sum"))
    ]
    model = helper.make_model(
        graph,
        opset_imports=opsets,
        functions=functions,
        ir_version=10,
        producer_name="someone",
        producer_version="1.2",
        doc_string="a model",
        model_version=5,
        domain="com.example.models",
    )
    model.metadata_props.add(key="license", value="MIT")
    model.training_info.add().algorithm.name = "training"
    return model


def rest(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without what a fusion may change: nodes, initializers, value_info, onnxfuse's own functions, and the IR
    version, which functions need to be at least 8."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for field in ("node", "initializer", "value_info"):
        bare.graph.ClearField(field)
    kept = [function for function in model.functions if function.domain != "onnxfuse"]
    imports = [entry for entry in model.opset_import if entry.domain != "onnxfuse"]
    del bare.functions[:], bare.opset_import[:]
    bare.ClearField("ir_version")
    bare.functions.extend(kept)
    bare.opset_import.extend(imports)
    return bare


def untouched(before: onnx.ModelProto, after: onnx.ModelProto) -> tuple[list[bytes], list[bytes]]:
    """The serialised nodes of `after` that no fusion made, and the nodes of `before` of the same names, in order."""
    made = {node.name for node in after.graph.node if any(p.key == "onnxfuse.rule" for p in node.metadata_props)}
    new = [node for node in after.graph.node if node.name not in made]
    names = {node.name for node in new}
    old = [node for node in before.graph.node if node.name in names]
    return [n.SerializeToString() for n in old], [n.SerializeToString() for n in new]


def test_a_fusion_changes_only_what_it_replaces() -> None:
    before = curious()
    fused = fuse(before, CATALOGUE)
    after = fused.model
    assert [site.matches[-1].rule.name for site in fused.sites] == ["LayerNormalization"]
    assert [family_of(node) for node in after.graph.node][:1] == ["LayerNormalization"]
    assert rest(after) == rest(before)
    old, new = untouched(before, after)
    assert len(new) == len(after.graph.node) - 1 == len(before.graph.node) - 9
    assert new == old


def test_initializers_that_annotations_and_training_graphs_name_are_kept() -> None:
    before = curious()
    names = ["scale", "trained", "read", "nobody"]
    before.graph.initializer.extend(numpy_helper.from_array(np.ones(1, np.float32), name) for name in names)
    before.graph.quantization_annotation[0].quant_parameter_tensor_names.add(key="ZERO_POINT_TENSOR", value="scale")
    before.training_info[0].update_binding.add(key="trained", value="new")
    before.training_info[0].algorithm.node.append(helper.make_node("Neg", ["read"], ["new"]))
    kept = {tensor.name for tensor in fuse(before, CATALOGUE).model.graph.initializer}
    assert kept & {*names, "eps", "two"} == {"scale", "trained", "read", "eps"}


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_other_targets_lose_nothing_either(target: str) -> None:
    before = curious()
    after = fuse(before, CATALOGUE.serving(Target(target))).model
    assert rest(after) == rest(before)
    assert after.ir_version == before.ir_version
    old, new = untouched(before, after)
    assert len(new) >= len(before.graph.node) - 9
    assert new == old


def test_exotic_tensors_and_the_types_of_surviving_values_are_kept() -> None:
    before, after = curious(), fuse(curious(), CATALOGUE).model
    given = {tensor.name: tensor.SerializeToString() for tensor in before.graph.initializer}
    kept = {tensor.name: tensor.SerializeToString() for tensor in after.graph.initializer}
    assert kept.keys() >= {*EXOTIC, "gamma", "beta"}
    assert kept.items() <= given.items()
    assert [info.name for info in after.graph.value_info] == ["normal", "tangent", "scaled"]
    assert all(info in before.graph.value_info for info in after.graph.value_info)


def test_a_body_without_a_fusion_is_kept_byte_for_byte() -> None:
    before = onnx.load(MODELS / "control_if.onnx")
    after = fuse(before, CATALOGUE.choose(["Mish"], [])).model
    assert after.SerializeToString(deterministic=True) == before.SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", ["bert.dynamo", "gpt2.ts", "resnet.dynamo", "control_loop", "function_layernorm"])
def test_nodes_of_real_models_that_no_fusion_touched_are_the_same(name: str) -> None:
    """Inputs may be renamed, to what a node that did nothing passed on."""
    before = onnx.load(MODELS / f"{name}.onnx")
    after = fuse(before, CATALOGUE).model
    assert rest(after) == rest(before) or name in ("control_loop", "function_layernorm")
    originals = {node.name: node for node in before.graph.node if node.name}
    values = {output for node in before.graph.node for output in node.output}
    same = 0
    for node in after.graph.node:
        original = originals.get(node.name)
        if original is None or family_of(original) != family_of(node):
            continue
        renamed = onnx.NodeProto()
        renamed.CopyFrom(node)
        renamed.input[:] = original.input
        if not any(attribute.HasField("g") for attribute in node.attribute):
            assert renamed.SerializeToString(deterministic=True) == original.SerializeToString(deterministic=True)
        same += node.SerializeToString() == original.SerializeToString()
        assert set(node.output) <= values
    assert same > 1  # or nothing has been compared


# ---- External data


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes it an error to read a tensor from its external file."""
    real = numpy_helper.to_array

    def to_array(tensor: TensorProto, base_dir: str = "") -> np.ndarray:
        assert tensor.data_location != TensorProto.EXTERNAL, f"{tensor.name} is read"
        return real(tensor, base_dir)

    monkeypatch.setattr(numpy_helper, "to_array", to_array)
    monkeypatch.setattr("onnx.external_data_helper.load_external_data_for_tensor", None)


@pytest.mark.usefixtures("guarded")
def test_external_data_is_not_read_where_no_rule_asks_for_it() -> None:
    before = files.read(MODELS / "external_data.onnx")
    result = optimize(before, base_dir=MODELS, validate="off")
    made = result.report.census - Counter(Gelu=2)
    assert made == {"LayerNormalization": 2, "SkipLayerNormalization": 1, "FusedMatMul": 3, "Region": 1}
    outside = [t for t in before.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    kept = [t for t in result.model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    assert [t.SerializeToString() for t in kept] == [t.SerializeToString() for t in outside]
    assert len(kept) == 4


def test_external_data_stays_where_it_is_beside_the_model(tmp_path: Path) -> None:
    for suffix in ("onnx", "onnx.data"):
        (tmp_path / f"external_data.{suffix}").write_bytes((MODELS / f"external_data.{suffix}").read_bytes())
    data = tmp_path / "external_data.onnx.data"
    before = data.stat()
    assert main(["optimize", str(tmp_path / "external_data.onnx"), "-q"]) == 0
    after = data.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "external_data.fused.onnx",
        "external_data.onnx",
        "external_data.onnx.data",
    ]


# ---- The same bytes every time


def test_the_same_input_gives_the_same_bytes_under_every_hash_seed() -> None:
    code = (
        "import hashlib, sys, onnx\n"
        "from onnxfuse import optimize\n"
        "for path in sys.argv[1:]:\n"
        "    result = optimize(onnx.load(path), validate='off')\n"
        "    report = repr((result.report.fusions, result.report.near_misses))\n"
        "    print(hashlib.sha256(result.model.SerializeToString() + report.encode()).hexdigest())\n"
    )
    command = [sys.executable, "-c", code, *(str(MODELS / f"{name}.onnx") for name in ("llama.ts", "gpt2.dynamo"))]
    digests = set()
    for seed in ("0", "1", "4242"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(MODELS.parent)}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        digests.add(tuple(result.stdout.split()))
    assert len(digests) == 1
    assert len(set(*digests)) == 2
