"""Weights that are not there: a report needs none, and nothing is ever written from weights that nobody read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.cli.main import main
from onnxfuse.errors import ModelError
from onnxfuse.model import external_data
from tests import broken

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder for models whose weights all lie outside of them, in one file each."""
    return tmp_path


def without_data(name: str, folder: Path) -> Path:
    """A model of models/ whose weights are in a file that is gone; numbers stay inside, as exporters leave them."""
    path = folder / f"{name}.onnx"
    onnx.save(onnx.load(MODELS / f"{name}.onnx"), path, save_as_external_data=True, size_threshold=64)
    for data in folder.iterdir():
        if data != path:
            data.unlink()
    assert external_data.places(onnx.load(path, load_external_data=False))
    return path


@pytest.mark.parametrize("name", ["conv_batchnorm", "mobilenet.dynamo", "external_data", "convnext.ts"])
@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_a_report_is_the_same_without_the_weights(name: str, target: str, saved: Path) -> None:
    path = without_data(name, saved)
    report = onnxfuse.report(path, target=target)  # type: ignore[arg-type]
    whole = onnxfuse.report(MODELS / f"{name}.onnx", target=target)  # type: ignore[arg-type]
    assert report.census == whole.census
    assert report.nodes_after == whole.nodes_after
    assert report.unread or name == "external_data" or not {"ConvBatchNormalization"} & whole.census.keys()


def test_check_and_report_say_in_one_line_what_they_did_not_know(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = without_data("conv_batchnorm", saved)
    assert main(["check", str(path), "--expect", "ConvBatchNormalization>=1"]) == 0
    error = capsys.readouterr().err
    assert error.startswith(f"onnxfuse: {path}: its external data is missing, and the values of ")
    assert error.endswith(" were wanted: taken for unknown\n")
    assert error.count("\n") == 1
    assert main(["report", str(path), "--format", "json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["unread"] == onnxfuse.report(path).unread
    assert told.err == error


def test_nothing_is_said_where_no_value_was_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(MODELS / "external_data.onnx", tmp_path)
    assert main(["report", str(tmp_path / "external_data.onnx")]) == 0
    assert capsys.readouterr().err == ""


def test_a_condition_on_unknown_values_does_not_hold(tmp_path: Path) -> None:
    """Of two weights that are not there nobody knows that they are equal, or of one that it is all ones."""
    weights = [numpy_helper.from_array(np.ones(8, np.float32), name) for name in ("one", "other")]
    nodes = [
        helper.make_node("Mul", ["x", "one"], ["a"], "a"),
        helper.make_node("Mul", ["x", "other"], ["b"], "b"),
        helper.make_node("Sub", ["a", "b"], ["y"], "y"),
    ]
    onnx.save(
        broken.model(nodes, initializers=weights), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0
    )
    for data in tmp_path.glob("*-*-*"):
        data.unlink()
    assert onnxfuse.report(tmp_path / "m.onnx", level=1).nodes_after == 3


def test_indices_that_are_not_there_are_unknown(tmp_path: Path) -> None:
    """A Gather of all rows in order is a no-op, if one can see that it is."""
    order = numpy_helper.from_array(np.arange(2), "order")
    nodes = [helper.make_node("Gather", ["x", "order"], ["g"], "g"), helper.make_node("Tan", ["g"], ["y"], "t")]
    path = tmp_path / "m.onnx"
    model = broken.model(nodes, initializers=[order])
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="d")
    assert onnxfuse.report(path, level=1).nodes_after == 1
    (tmp_path / "d").unlink()
    report = onnxfuse.report(path, level=1)
    assert (report.nodes_after, report.unread) == (2, ["order"])


def test_optimize_needs_what_it_must_prove_read_or_copy(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = without_data("conv_batchnorm", saved)
    for arguments, said in (
        ([], "is missing (tensor "),
        (["--no-validate"], "are needed, and its external data is missing: put it beside the model"),
    ):
        assert main(["optimize", str(path), *arguments]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert [file.name for file in saved.iterdir()] == ["conv_batchnorm.onnx"]
    with pytest.raises(ModelError, match="its external data is missing"):
        onnxfuse.optimize(path, validate="off")


def test_optimize_does_without_what_it_neither_reads_nor_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(MODELS / "external_data.onnx", tmp_path)
    path = str(tmp_path / "external_data.onnx")
    assert main(["optimize", path, "--no-validate", "-q"]) == 0
    shutil.copy(MODELS / "external_data.onnx.data", tmp_path)
    fused = onnx.load(tmp_path / "external_data.fused.onnx")
    whole = onnxfuse.optimize(MODELS / "external_data.onnx", validate="off").model
    onnx.load_external_data_for_model(whole, str(MODELS))
    weights = {t.name: numpy_helper.to_array(t).tobytes() for t in whole.graph.initializer}
    assert {t.name: numpy_helper.to_array(t).tobytes() for t in fused.graph.initializer} == weights
    reals = [t for t in fused.graph.initializer if t.data_type == TensorProto.FLOAT]
    assert all(np.isfinite(numpy_helper.to_array(t)).all() for t in reals)
    (tmp_path / "external_data.onnx.data").unlink()
    (tmp_path / "elsewhere").mkdir()
    assert main(["optimize", path, "--no-validate", "-o", str(tmp_path / "elsewhere"), "-q"]) == 2
    error = capsys.readouterr().err
    assert "external_data.onnx.data is missing and cannot be copied: put it there" in error
    assert error.count("\n") == 1
    assert not list((tmp_path / "elsewhere").iterdir())
