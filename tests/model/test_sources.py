"""What users hand over as a model: a file, a ModelProto, a graphsurgeon Graph, or something else by mistake."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_graphsurgeon
import pytest

from onnxfuse.errors import UsageError
from onnxfuse.model import sources
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
    assert isinstance(sources.like(graph, proto), onnx_graphsurgeon.Graph)
    assert sources.like(proto, proto) is proto


@pytest.mark.parametrize("given", [None, 3, b"model.onnx", onnx.GraphProto()], ids=lambda given: type(given).__name__)
def test_anything_else_is_refused_with_what_it_is(given: object) -> None:
    with pytest.raises(UsageError, match=f"or an onnx_graphsurgeon.Graph, not {type(given).__name__}$"):
        sources.opened(given)  # type: ignore[arg-type]
