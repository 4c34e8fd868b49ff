"""The committed models are sound, complete, small, and what models/README.md and truth.json say of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models import make
from models.catalogue import ARCHITECTURES, EXPORTS, OPSETS, Export
from models.handmade import HANDMADE

MODELS = Path(__file__).parents[2] / "models"
FILES = sorted(MODELS.glob("*.onnx"))
TRUTH: dict[str, dict[str, int]] = json.loads((MODELS / "truth.json").read_text())

SIZES = {"batch": 2, "sequence": 6, "encoder_sequence": 9}
DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


def session(path: Path) -> ort.InferenceSession:
    """An unoptimized CPU session: the model as it stands, and quick to open."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def feeds(model: ort.InferenceSession) -> dict[str, np.ndarray]:
    """An input of SIZES for each graph input: masks of 0 and 1, ids that every table here holds, a loop of 3 steps."""
    random = np.random.default_rng(3)
    result: dict[str, np.ndarray] = {}
    for value in model.get_inputs():
        shape = [SIZES.get(size, size) for size in value.shape]
        if value.type in ("tensor(float)", "tensor(float16)"):
            array: np.ndarray = random.normal(size=shape)
        elif not shape:
            array = np.array(3)
        elif "mask" in value.name:
            array = np.arange(shape[1]) < np.array([[shape[1]], [shape[1] - 2]])
        else:
            array = random.integers(2 if value.name == "token_type_ids" else 101, size=shape)
        result[value.name] = array.astype(DTYPES[value.type])
    return result


def run(path: Path) -> dict[str, np.ndarray]:
    """The model's outputs by name, on feeds()."""
    model = session(path)
    return dict(zip([value.name for value in model.get_outputs()], model.run(None, feeds(model)), strict=True))


def count(path: Path, *op_types: str) -> int:
    """How many nodes of these types the top graph has."""
    return sum(node.op_type in op_types for node in onnx.load(path, load_external_data=False).graph.node)


# ---- Every file


@every_file
def test_model_is_valid(path: Path) -> None:
    onnx.checker.check_model(path, full_check=True)


@every_file
def test_shapes_infer_to_the_outputs_declared(path: Path) -> None:
    model = onnx.load(path)
    # A Loop may change the shape of its state from step to step, so inference knows nothing after it.
    after_loop = any(node.op_type == "Loop" for node in model.graph.node)
    ranks = [0 if after_loop else len(value.type.tensor_type.shape.dim) for value in model.graph.output]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    assert [len(value.type.tensor_type.shape.dim) for value in inferred.graph.output] == ranks


@every_file
def test_model_runs(path: Path) -> None:
    declared = {value.name: value.shape for value in session(path).get_outputs()}
    for name, array in run(path).items():
        assert array.shape == tuple(SIZES.get(size, size) for size in declared[name])
        assert np.isfinite(array).all()
        assert array.std() > 1e-3


@every_file
def test_model_has_a_row_in_the_readme(path: Path) -> None:
    rows = {line.split("|")[1].strip(): line for line in (MODELS / "README.md").read_text().splitlines() if "|" in line}
    _, _, what, exporter, *_ = (cell.strip() for cell in rows[path.name].split("|"))
    assert rows[path.name] == make.row(path, what, exporter, TRUTH[path.name.split(".")[0]])


@every_file
def test_model_names_no_folder_of_its_makers_machine(path: Path) -> None:
    content = path.read_bytes()
    for folder in (b"site-packages", b"/home/", b"/root/", b"/tmp/", b"/usr/", b"/Users/"):
        assert folder not in content


# ---- The collection


def test_collection_is_small() -> None:
    assert sum(path.stat().st_size for path in MODELS.iterdir() if path.is_file()) <= 20_000_000


def test_collection_is_what_the_catalogues_list() -> None:
    assert {path.name for path in FILES} == {export.file for export in EXPORTS} | {f"{name}.onnx" for name in HANDMADE}


def test_truth_has_an_entry_for_every_model_and_no_other() -> None:
    assert set(TRUTH) == {path.name.split(".")[0] for path in FILES}
    assert all(blocks and all(number > 0 for number in blocks.values()) for blocks in TRUTH.values())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architecture_comes_from_both_exporters(architecture: str) -> None:
    for exporter, opset in OPSETS.items():
        model = onnx.load(MODELS / f"{architecture}.{exporter}.onnx")
        assert [entry.version for entry in model.opset_import if not entry.domain] == [opset]
        assert model.producer_name == "pytorch"


# ---- The exports hold what they are there for


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.file)
def test_truth_agrees_with_the_operators_that_exporters_cannot_hide(export: Export) -> None:
    path, blocks = MODELS / export.file, TRUTH[export.name]
    assert count(path, "Softmax") == blocks.get("attention", 0)
    assert count(path, "Erf", "Gelu") + count(path, "Tanh") - (export.architecture == "bert") == blocks.get("gelu", 0)
    norms = count(path, "LayerNormalization") or count(path, "Sqrt", "Rsqrt")
    if "layernorm" in blocks:
        assert norms == blocks["layernorm"]


@pytest.mark.parametrize("name", ["bert_opset13", "bert_opset16", "convnext_opset13"])
def test_older_operator_sets_have_layernorm_written_out(name: str) -> None:
    path = MODELS / f"{name}.ts.onnx"
    assert count(path, "LayerNormalization") == 0
    assert count(path, "Pow") == TRUTH[name]["layernorm"]


@pytest.mark.parametrize("exporter", OPSETS)
def test_unfused_resnet_keeps_its_batchnorms(exporter: str) -> None:
    assert count(MODELS / f"resnet_unfused.{exporter}.onnx", "BatchNormalization") == TRUTH["resnet"]["batchnorm"]
    assert count(MODELS / f"resnet.{exporter}.onnx", "BatchNormalization") == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_exporters_agree(architecture: str) -> None:
    ts, dynamo = (run(MODELS / f"{architecture}.{exporter}.onnx") for exporter in OPSETS)
    assert ts.keys() == dynamo.keys()
    for name in ts:
        np.testing.assert_allclose(ts[name], dynamo[name], rtol=1e-4, atol=1e-4)


# ---- The hand-made ones compute what they claim


@pytest.mark.parametrize("name", HANDMADE)
def test_handmade_model_is_what_its_script_makes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "FOLDER", tmp_path)
    make.make_handmade(name, HANDMADE[name])
    for path in tmp_path.iterdir():
        committed = MODELS / path.name
        if path.suffix == ".data":
            assert path.read_bytes() == committed.read_bytes()
        else:
            assert onnx.load(path, load_external_data=False) == onnx.load(committed, load_external_data=False)


def test_make_names_an_unknown_model_and_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        make.main(["brt"])
    assert stop.value.code == 2
    assert "no model is called brt; the names are bert, gpt2" in capsys.readouterr().err


def test_activations_and_softmaxes_compute_what_their_outputs_are_called() -> None:
    x = feeds(session(MODELS / "activations.onnx"))["x"].astype(np.float64)
    sigmoid, softplus = 1 / (1 + np.exp(-x)), np.log1p(np.exp(x))
    tanh_gelu = 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    want = {
        "elu": np.where(x > 0, x, np.expm1(x)),
        "gelu_tanh": tanh_gelu,
        "hardswish": x * np.clip(x / 6 + 0.5, 0, 1),
        "mish": x * np.tanh(softplus),
        "silu": x * sigmoid,
        "silu_exp": x * sigmoid,
        "softplus": softplus,
    }
    got = run(MODELS / "activations.onnx")
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["gelu"], tanh_gelu, atol=1e-3)

    x = feeds(session(MODELS / "softmax.onnx"))["x"].astype(np.float64)
    probability = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    for name, value in run(MODELS / "softmax.onnx").items():
        np.testing.assert_allclose(value, np.log(probability) if "log" in name else probability, rtol=1e-5)


def test_tensorflow_layernorm_normalizes() -> None:
    model = onnx.load(MODELS / "layernorm_tensorflow.onnx")
    bias, scale = (
        next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == name)
        for name in (last_operand(model, "Sub", 0), last_operand(model, "Mul", 1, skip=2))
    )
    hidden = run(MODELS / "layernorm_tensorflow.onnx")["hidden"]
    normal = (hidden - bias) / scale
    np.testing.assert_allclose(normal.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(normal.std(-1), 1, atol=1e-3)


def last_operand(model: onnx.ModelProto, op_type: str, index: int, skip: int = 0) -> str:
    """The name of an operand of the last node of this type but `skip`."""
    return str([node for node in model.graph.node if node.op_type == op_type][-1 - skip].input[index])


def test_control_flow_bodies_and_functions_hold_the_patterns() -> None:
    def types(nodes: Iterable[onnx.NodeProto]) -> set[str]:
        return {node.op_type for node in make.every_node(nodes)}

    for name in ("control_if", "control_loop"):
        graph = onnx.load(MODELS / f"{name}.onnx").graph
        assert {"ReduceMean", "Erf"} <= types(graph.node)
        assert not {"ReduceMean", "Erf"} & {node.op_type for node in graph.node}
    for name in ("function_layernorm", "function_attribute"):
        model = onnx.load(MODELS / f"{name}.onnx")
        assert sum(node.op_type == "LayerNorm" for node in model.graph.node) == 2
        assert "ReduceMean" in types(model.functions[0].node)
    assert list(onnx.load(MODELS / "function_attribute.onnx").functions[0].attribute) == ["epsilon"]


def test_external_data_lies_beside_its_model() -> None:
    model = onnx.load(MODELS / "external_data.onnx", load_external_data=False)
    outside = [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    assert len(outside) == 4
    assert {entry.value for t in outside for entry in t.external_data if entry.key == "location"} == {
        "external_data.onnx.data"
    }
