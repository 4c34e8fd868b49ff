"""What users hand over as a model: a file, a ModelProto, a graphsurgeon Graph, or something else by mistake."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

import onnx
import onnx_graphsurgeon
import pytest

import onnxfuse
from benchmarks.synthetic import mlp
from onnxfuse.errors import UsageError
from onnxfuse.model import external_data, inside, sources
from tests import broken


def test_a_file_is_read_and_known_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(broken.good(), path)
    for given in (path, str(path)):
        found = sources.opened(given)
        assert (found.proto, found.path, found.name, found.folder) == (broken.good(), path, str(path), tmp_path)


def test_a_model_in_memory_is_known_by_the_name_of_its_graph() -> None:
    model = broken.good()
    found = sources.opened(model)
    assert found.proto is model
    assert (found.name, found.path, found.folder) == ("g", None, None)


def test_nodes_out_of_order_are_put_in_order_in_a_copy() -> None:
    model = broken.unsorted()
    assert [node.op_type for node in sources.opened(model).proto.graph.node] == ["Relu", "Neg"]
    assert model == broken.unsorted()


def test_a_graph_of_graphsurgeon_is_a_model_and_gets_one_back() -> None:
    graph = onnx_graphsurgeon.import_onnx(broken.good())
    proto = sources.opened(graph).proto
    assert [node.op_type for node in proto.graph.node] == ["Relu", "MatMul"]
    assert isinstance(sources.like(graph, proto, None), onnx_graphsurgeon.Graph)
    assert sources.like(proto, proto, None) is proto


@pytest.mark.parametrize("given", [None, 3, b"model.onnx", onnx.GraphProto()], ids=lambda given: type(given).__name__)
def test_anything_else_is_refused_with_what_it_is(given: object) -> None:
    with pytest.raises(UsageError, match=f"or an onnx_graphsurgeon.Graph, not {type(given).__name__}$"):
        sources.opened(given)  # type: ignore[arg-type]


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> onnx.ModelProto:
    """A model in memory whose weights are large, as `inside` counts here."""
    monkeypatch.setattr(inside, "LARGE_FILE", 1000)
    monkeypatch.setattr(inside, "LARGE", 1000)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    mlp(tmp_path / "mlp.onnx", layers=2, hidden=32, inside=True)
    return onnx.load(tmp_path / "mlp.onnx")


def test_large_weights_in_memory_are_in_a_file_meanwhile(large: onnx.ModelProto) -> None:
    before = large.SerializeToString()
    with sources.in_file(large, in_place=True) as found:
        assert found.path is not None
        assert found.path.exists()
        assert found.name == large.graph.name
        assert external_data.places(found.proto) == [found.path.name]
        assert not external_data.places(sources.like(large, found.proto, found.path))
    assert not found.path.exists()
    assert large.SerializeToString() == before


@pytest.mark.parametrize("precision", [None, "fp16"])
def test_what_is_made_of_them_is_what_a_file_gives(
    large: onnx.ModelProto, tmp_path: Path, precision: Literal["fp16"] | None
) -> None:
    fused = onnxfuse.optimize(large, tmp_path / "memory.onnx", precision=precision)
    assert fused.report.validation.verdict == "equal"
    assert fused.report.model == large.graph.name
    onnxfuse.optimize(tmp_path / "mlp.onnx", tmp_path / "file.onnx", precision=precision)
    assert (tmp_path / "memory.onnx").read_bytes() == (tmp_path / "file.onnx").read_bytes()
    assert fused.model == onnx.load(tmp_path / "file.onnx")
    assert not list((tmp_path / "temporary").iterdir())


def test_small_ones_and_those_for_which_there_is_no_room_stay_in_memory(
    large: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = broken.good()
    with sources.in_file(small, in_place=True) as found:
        assert found.proto is small
    with sources.in_file(large) as found:
        assert found.proto is large

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(inside, "left_there", full)
    with sources.in_file(large, in_place=True) as found:
        assert found.proto is large
