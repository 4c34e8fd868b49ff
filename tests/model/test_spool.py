"""Weights of a model that is being made, on disk one after the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.errors import OutputError
from onnxfuse.model import files, spool

W = np.arange(600, dtype=np.float32)


def stored(folder: Path) -> onnx.ModelProto:
    """A model with three weights in a file beside it, of which the last two are the same bytes."""
    value = helper.make_tensor_value_info
    names = ("a", "b", "c")
    nodes = [helper.make_node("Sum", names, ["y"])]
    tensors = [numpy_helper.from_array(W + (name == "a"), name) for name in names]
    graph = helper.make_graph(nodes, "g", [], [value("y", TensorProto.FLOAT, [600])], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    read = onnx.load(folder / "m.onnx", load_external_data=False)
    del read.graph.initializer[2].external_data[:]
    read.graph.initializer[2].external_data.extend(read.graph.initializer[1].external_data)
    onnx.save(read, folder / "m.onnx")
    return files.read(folder / "m.onnx")


def test_what_was_converted_is_there_once_and_renamed_into_place(tmp_path: Path) -> None:
    model, asked = stored(tmp_path), []
    output = tmp_path / "out.onnx"
    with spool.beside(output, model) as data:
        assert data is not None

        def half() -> bytes:
            asked.append(1)
            return W.astype(np.float16).tobytes()

        first, second, third = model.graph.initializer
        data.keep(first, tmp_path)
        for tensor in (second, third):
            tensor.CopyFrom(data.store(tensor, TensorProto.FLOAT16, half))
        assert asked == [1]
        written = files.write(model, output, source=tmp_path / "m.onnx", spool=data)
        temporary = data.path.parent
    assert written == [output, tmp_path / "out.onnx.data"]
    assert {entry.value for t in model.graph.initializer for entry in t.external_data[:1]} == {"out.onnx.data"}
    assert not temporary.exists()
    a, b, c = (numpy_helper.to_array(t) for t in onnx.load(output).graph.initializer)
    np.testing.assert_array_equal(a, W + 1)
    for made in (b, c):
        np.testing.assert_array_equal(made, W.astype(np.float16))
    assert (tmp_path / "out.onnx.data").stat().st_size == 4096 + W.size * 2


def test_what_was_read_is_never_replaced(tmp_path: Path) -> None:
    model = stored(tmp_path)
    before = (tmp_path / "m.data").read_bytes()
    with spool.beside(tmp_path / "m", model) as data:
        assert data is not None
        for tensor in model.graph.initializer:
            data.keep(tensor, tmp_path)
        _, made = files.write(model, tmp_path / "m", source=tmp_path / "m.onnx", spool=data)
    assert made == tmp_path / "m.2.data"
    assert (tmp_path / "m.data").read_bytes() == before


def test_nothing_is_left_where_the_model_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, output = stored(tmp_path), tmp_path / "out.onnx"
    before = sorted(tmp_path.iterdir())

    def full(path: Path, pieces: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "replace", full)
    with spool.beside(output, model) as data:
        assert data is not None
        for tensor in model.graph.initializer:
            data.keep(tensor, tmp_path)
        with pytest.raises(OutputError, match="no space left"):
            files.write(model, output, source=tmp_path / "m.onnx", spool=data)
    assert sorted(tmp_path.iterdir()) == before


def test_nothing_is_made_for_a_model_in_one_file_or_for_none(tmp_path: Path) -> None:
    model = stored(tmp_path)
    with spool.beside(None, model) as data:
        assert data is None
    onnx.load_external_data_for_model(model, str(tmp_path))
    with spool.beside(tmp_path / "x.onnx", model) as data:
        assert data is None
    with (
        pytest.raises(OutputError, match="there is no folder"),
        spool.beside(tmp_path / "no" / "x.onnx", stored(tmp_path)),
    ):
        pass


def test_what_attempts_have_left_is_noticed_and_can_be_dropped(tmp_path: Path) -> None:
    model = stored(tmp_path)
    with spool.beside(tmp_path / "out.onnx", model) as data:
        assert data is not None
        assert not data.wastes(model)
        for tensor in model.graph.initializer:
            data.store(tensor, TensorProto.FLOAT16, W.astype(np.float16).tobytes)
            data.keep(tensor, tmp_path)
        assert data.wastes(model)
        data.clear()
        model = stored(tmp_path)
        for tensor in model.graph.initializer:
            data.keep(tensor, tmp_path)
        assert not data.wastes(model)
