"""Predicted times of fused nodes: what bounds them, on which card, from which figures."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

import onnxfuse
from benchmarks.gpu import report as gpu_report
from onnxfuse.cli.main import main
from onnxfuse.errors import UsageError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.gemm import autotune
from onnxfuse.kernels.gemm.autotune import TMA, Class
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from onnxfuse.kernels.gemm.proof import Proofs, _digest
from onnxfuse.kernels.gemm.samples import ACTIVATIONS
from onnxfuse.kernels.gemm.tiles import HALF, TENSOR_MEMORY, WARPGROUPS
from onnxfuse.kernels.inspect.launches import resident
from onnxfuse.kernels.inspect.nvrtc import committed
from onnxfuse.performance import estimate
from onnxfuse.performance.gpus import CARDS, card
from onnxfuse.reporting.records import Estimate

MODELS = Path(__file__).parents[2] / "models"
H200 = CARDS["h200"]


@pytest.fixture(autouse=True)
def _nothing_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONNXFUSE_CACHE", str(tmp_path / "cache"))
    autotune.verdicts.cache_clear()
    monkeypatch.setattr(estimate, "verdicts", autotune.verdicts)


def linear(m: int | str, k: int, n: int, dtype: int = TensorProto.FLOAT16) -> ModelProto:
    """Relu(x w + b)."""
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    arrays = {"w": np.resize(np.arange(7), (k, n)).astype(kind), "b": np.resize(np.arange(5), (n,)).astype(kind)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", dtype, [m, k])],
        [helper.make_tensor_value_info("y", dtype, [m, n])],
        [helper.make_tensor(name, dtype, a.shape, a.tobytes(), raw=True) for name, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def only(model: ModelProto, **options: Any) -> Estimate:
    (fusion,) = onnxfuse.report(model, card=options.pop("card", "h200"), **options).fusions
    assert fusion.estimate is not None
    return fusion.estimate


def test_a_large_product_is_the_vendors_with_a_pass_where_that_is_faster() -> None:
    """wgmma multiplies faster than mma.sync, and ours by warpgroups has accesses of 16 bytes alone."""
    found = only(linear(8192, 1024, 2044))
    flops = 2 * 8192 * 1024 * 2044 + 2 * 8192 * 2044
    assert (found.source, found.bound, found.launches) == ("gemm", "flops", 1)
    assert found.flops == flops
    assert found.bytes == 2 * (8192 * 1024 + 1024 * 2044 + 2044 + 8192 * 2044)
    blocks = 64 * 16
    assert found.seconds == pytest.approx(flops / 989e12 * (math.ceil(blocks / 132) * 132 / blocks) + 2 * 2.5e-6)


def test_a_large_product_is_ours_by_warpgroups_where_there_are_any() -> None:
    """No pass behind it, no second launch; on another card it is by warps."""
    found, blocks = only(linear(8192, 1024, 2048)), 64 * 8
    (launch,) = found.kernels
    assert (launch.kernel, launch.blocks, launch.threads) == ("gemm.cu gemm", blocks, 256)
    assert launch.shared == WARPGROUPS[0].shared(2, False)
    (on,) = launch.occupancy
    assert (on.architecture, on.resident) == ("sm_90", 1)
    assert launch.instructions
    (other,) = only(linear(8192, 1024, 2048), card="a100").kernels
    assert other.threads == 128
    short, without = (only(linear(2048, 768, n)).seconds or 0.0 for n in (768, 764))
    assert 2 * 2048 * 768 * 768 / H200.warpgroup_tensor < short < 0.95 * without


def test_where_there_is_tensor_memory_sums_are_there() -> None:
    """At the tensor cores' rate, and no faster; by warps they take longer than the vendor's."""
    blackwell, size = CARDS["b200"], (8192, 4096, 4096)
    found = only(linear(*size), card="b200")
    (launch,) = found.kernels
    assert (launch.kernel, launch.blocks, launch.threads) == ("gemm.cu gemm", 64 * 16, 288)
    assert launch.shared == TENSOR_MEMORY[0].shared(2, False)
    (on,) = launch.occupancy
    assert (on.architecture, on.resident) == ("sm_100", 1)
    assert blackwell.warpgroup_tensor == blackwell.tensor > blackwell.warp_tensor
    assert found.seconds is not None
    assert found.seconds > 2 * math.prod(size) / blackwell.tensor
    narrow = only(linear(2048, 768, 768), card="b200")
    assert [(one.threads, one.blocks, one.occupancy[0].resident) for one in narrow.kernels] == [(288, 16 * 6, 2)]
    assert (narrow.seconds or 1.0) < (only(linear(2048, 768, 764), card="b200").seconds or 0.0)


def test_a_refused_form_does_not_count_and_the_reason_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept, model = Proofs(tmp_path / "proofs.json"), linear(8192, 1024, 2048)
    monkeypatch.setattr(estimate.proof, "proofs", lambda: kept)
    which = Class("float16", 1, 8192, 2048, 1024, False, 16, "Relu bias")
    card, why = "NVIDIA H200 sm_90, driver 13000", "3 numbers are others"
    vendor: Any = SimpleNamespace(card=card)
    kept._keep(vendor, card, _digest(which), why)
    found = only(model)
    assert found.refused == (f"products by warpgroups (float16) are refused on {card}: {why}",)
    assert found.kernels[0].threads == 288, "they may come by tensor maps, of which nothing is known"
    kept._keep(vendor, card, _digest(which, TMA), why)
    kept._read = None
    found = only(model)
    assert found.refused[1] == f"products by warpgroups and tensor maps (float16) are refused on {card}: {why}"
    assert found.kernels[0].threads == 128, "by warps"
    assert only(model, card="h100").refused == ()
    path = tmp_path / "linear.onnx"
    onnx.save(model, path)
    assert main(["report", str(path), "--estimate"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert found.refused[0] in told


def test_float32_is_computed_without_tensor_cores() -> None:
    half, single = only(linear(2048, 512, 512)), only(linear(2048, 512, 512, TensorProto.FLOAT))
    assert single.bound == "flops"
    assert half.seconds is not None
    assert single.seconds is not None
    assert single.seconds > 3 * half.seconds


def test_few_rows_are_bound_by_bytes_and_tiny_ones_by_their_launch() -> None:
    found = only(linear(1, 1024, 8448, TensorProto.FLOAT16))
    assert found.bound == "bytes"
    assert found.seconds == pytest.approx((found.bytes or 0) / 4.8e12 + 2.5e-6)
    assert only(linear(1, 16, 16)).bound == "launches"


def test_a_grid_that_does_not_fill_the_card_gets_its_share() -> None:
    few, many = only(linear(1, 256, 64)), only(linear(1, 256, 64 * 132))
    assert few.seconds is not None
    assert few.seconds - 2.5e-6 == pytest.approx((few.bytes or 0) / 4.8e12 * 132)
    assert many.seconds is not None
    assert many.seconds - 2.5e-6 == pytest.approx((many.bytes or 0) / 4.8e12)


def test_another_card_takes_another_time() -> None:
    model = linear(1, 1024, 8448)
    times = {name: only(model, card=name).seconds or 0 for name in CARDS}
    assert times["a100"] > times["h100"] > times["h200"]


def test_sizes_that_nobody_gave_are_those_of_generated_inputs() -> None:
    model = linear("rows", 64, 64)
    report = onnxfuse.report(model, card="h200")
    assert report.assumed == "rows=3"
    assert report.fusions[0].estimate == only(linear(3, 64, 64))
    report = onnxfuse.report(model, card="h200", shapes={"x": [128, 64]})
    assert report.assumed == ""
    assert report.fusions[0].estimate == only(linear(128, 64, 64))
    assert onnxfuse.report(model).assumed == "rows=3"


def test_a_shape_that_depends_on_values_is_an_unknown_time() -> None:
    model = linear("rows", 64, 64)
    model.graph.node.insert(0, helper.make_node("Compress", ["all", "which"], ["x"], axis=0))
    del model.graph.input[:]
    model.graph.input.extend(
        [helper.make_tensor_value_info("all", 10, [8, 64]), helper.make_tensor_value_info("which", 9, [8])]
    )
    assert only(model) == Estimate("gemm")


def test_what_each_launch_takes_of_a_multiprocessor() -> None:
    (launch,) = only(linear(8192, 1024, 2048), card="a100").kernels
    assert (launch.kernel, launch.blocks, launch.threads) == ("gemm.cu gemm", 64 * 16, 128)
    assert launch.shared == HALF[0].shared(2, False)
    found = {on.architecture: on for on in launch.occupancy}
    assert found.keys() == {"sm_80", "sm_90", "sm_100"}
    compiled = [committed()[f"FusedMatMul float16 large {activation}"] for activation in ACTIVATIONS]
    for name in ("sm_80", "sm_90"):
        on, needs = found[name], max((one[name]["gemm"] for one in compiled), key=lambda one: one.registers)
        assert (on.registers, on.shared) == (needs.registers, needs.shared)
        assert on.resident == resident(name, 128, needs.registers, needs.shared + launch.shared)


def test_an_op_without_a_kernel_is_the_nodes_of_its_body() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Sigmoid", ["c"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "conv",
        [helper.make_tensor_value_info("x", 1, [2, 8, 16, 16])],
        [helper.make_tensor_value_info("y", 1, [2, 4, 16, 16])],
        [helper.make_tensor("w", 1, [4, 8, 3, 3], np.ones((4, 8, 3, 3), np.float32).tobytes(), raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    report = onnxfuse.report(model, card="h200")
    (fusion,) = report.fusions
    count = 2 * 4 * 16 * 16
    assert fusion.estimate is not None
    assert fusion.estimate.source == "function body"
    assert fusion.estimate.launches == 2
    assert fusion.estimate.flops == 2 * count * 8 * 9 + count
    assert fusion.estimate.bytes == 4 * (2 * 8 * 256 + 4 * 8 * 9 + count + 2 * count)
    assert fusion.estimate.bound == "launches"
    assert "left to onnxruntime" in report.bodies["FusedConv"]


def test_a_product_that_was_measured_takes_what_was_measured() -> None:
    model = linear(1, 1024, 8448)
    predicted = only(model)
    kernel = FusedMatMul({"activation": "Relu"})
    half = np.dtype(np.float16)
    which = kernel.which([TensorType(half, shape) for shape in ((1, 1024), (1024, 8448), (8448,))])
    autotune.verdicts()._keep("NVIDIA H200 sm_90, driver 13000", which, {"tiled": 5e-3, "vendor": 7e-3})
    found = only(model)
    assert (found.seconds, found.measured) == (5e-3, True)
    assert replace(found, seconds=predicted.seconds, measured=False) == predicted
    assert only(model, card="a100").measured is False


@pytest.mark.parametrize("name", ["bert.dynamo", "llama_half.ts", "gpt2.ts"])
def test_every_fused_node_of_a_model_has_a_time(name: str) -> None:
    sizes = {"input_ids": [2, 16], "attention_mask": [2, 16]}
    report = onnxfuse.report(MODELS / f"{name}.onnx", card="h100", shapes=sizes)
    assert report.card == "h100"
    assert [f.op for f in report.fusions if f.estimate is None or not f.estimate.seconds] == []
    assert {f.estimate.source for f in report.fusions if f.estimate} >= {"attention", "gemm"}
    rules = onnxfuse.report(MODELS / f"{name}.onnx", card="h100", shapes=sizes, level=1)
    assert {f.estimate.source for f in rules.fusions if f.estimate} >= {"row_norm"}


def test_without_a_card_there_are_no_estimates() -> None:
    report = onnxfuse.report(linear(4, 8, 8))
    assert report.card is None
    assert [fusion.estimate for fusion in report.fusions] == [None]


# ---------------------------------------------------------------------------------------------------------- occupancy


# -------------------------------------------------------------------------------------------------------------- cards


def test_measured_figures_take_the_place_of_the_data_sheets(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"bandwidth": 4.0e12, "like": "h200"}))
    assert card(str(path)) == replace(H200, name="mine", bandwidth=4.0e12)
    path.write_text(json.dumps({"name": "box", "like": "a100", "multiprocessors": 98, "launch": 3e-6}))
    assert card(str(path)) == replace(CARDS["a100"], name="box", multiprocessors=98, launch=3e-6)
    slow = only(linear(1, 1024, 8448), card=str(path)).seconds
    assert slow is not None
    assert slow > (only(linear(1, 1024, 8448)).seconds or 0)


def test_the_check_on_a_gpu_writes_such_a_file(tmp_path: Path) -> None:
    machine = {"card": "NVIDIA A100", "compute_capability": "8.0", "multiprocessors": 108}
    row = {"section": "floor", "outcome": "ok", "bytes_per_second": 1.7e12}
    path = tmp_path / "card.json"
    path.write_text(json.dumps(gpu_report.card({"machine": machine, "rows": [row]})))
    assert card(str(path)) == replace(CARDS["a100"], name="NVIDIA A100", bandwidth=1.7e12)
    assert gpu_report.card({"machine": machine, "rows": [row | {"outcome": "hung"}]}) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ("[]", "an object with the figures of a card"),
        ('{"like": "v100"}', '"like" one of a100, h100, h200, b200'),
        ('{"speed": 1}', "speed is not one of name, architecture"),
        ('{"bandwidth": "fast"}', "bandwidth is 'fast'"),
        ('{"bandwidth": 0}', "bandwidth is 0"),
        ('{"architecture": 90}', "architecture is 90"),
    ],
)
def test_a_file_with_a_mistake(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        card(str(path))


def test_cards_that_are_none() -> None:
    with pytest.raises(UsageError, match="--card v100: it is a100, h100, h200, b200"):
        card("v100")
    with pytest.raises(UsageError, match="No such file"):
        card("nowhere.json")


# --------------------------------------------------------------------------------------------------------- the command


def test_the_command_prints_estimates(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(MODELS / "bert.dynamo.onnx")
    assert main(["report", path, "--estimate", "--shape", "input_ids:8,128", "--shape", "attention_mask:8,128"]) == 0
    out = capsys.readouterr().out
    assert "predicted on h200" in out
    assert "gemm" in out
    assert "for 18 fused nodes" in out
    assert main(["report", path, "--estimate", "--card", "a100", "-v"]) == 0
    out = capsys.readouterr().out
    assert "predicted on a100" in out
    assert "at batch=3 sequence=7, assumed: --shape input_ids:3,7" in out
    assert "gemm.cu gemm: 2 × 256 threads" in out
    assert re.search(r"sm_90: \d+ registers, [\d.]+ kB shared, \d+ blocks at a time", out)
    assert main(["report", path]) == 0
    assert "predicted" not in capsys.readouterr().out


def test_the_command_writes_estimates_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(MODELS / "bert.dynamo.onnx")
    shapes = ["--shape", "input_ids:8,128", "--shape", "attention_mask:8,128"]
    assert main(["report", path, "--estimate", "--format", "json", *shapes]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["card"] == "h200"
    assert all(fusion["estimate"]["seconds"] > 0 for fusion in found["fusions"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--estimate", "--card", "h1000"], "--card h1000: it is a100, h100, h200, b200, or a .json file"),
        (["--estimate", "--target", "onnx"], "estimates are for --target onnxfuse"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(MODELS / "bert.dynamo.onnx"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_region_that_reads_no_real_number_has_a_time() -> None:
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Cast", ["n"], ["y"], to=TensorProto.INT32)]
    ends = [value("x", TensorProto.INT64, [64, 64])], [value("y", TensorProto.INT32, [64, 64])]
    found = only(helper.make_model(helper.make_graph(nodes, "g", *ends), opset_imports=[helper.make_opsetid("", 20)]))
    assert (found.source, found.launches) == ("pointwise", 1)
    assert found.seconds is not None
