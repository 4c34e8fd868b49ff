"""External data: it must be there, goes along with a file written elsewhere, and no byte moves needlessly."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfuse.errors import ModelError
from onnxfuse.model import external_data, files, inside
from tests import broken


def weight(path: Path) -> np.ndarray:
    """The weight of the model `path`, external data loaded as any user of the file would."""
    return numpy_helper.to_array(onnx.load(path).graph.initializer[0])


def locations(path: Path) -> list[str]:
    return external_data.places(onnx.load(path, load_external_data=False))


def test_external_data_stays_where_it_is_beside_the_output(external: Path) -> None:
    target = external.with_name("fused.onnx")
    assert files.write(files.read(external), target, source=external) == [target, external.with_name("weights.bin")]
    assert sorted(path.name for path in external.parent.iterdir()) == ["fused.onnx", "model.onnx", "weights.bin"]
    assert (weight(target) == np.eye(8)).all()


def test_external_data_goes_along_to_another_folder(external: Path, tmp_path: Path) -> None:
    target, copy = tmp_path / "fused.onnx", tmp_path / "weights.bin"
    assert files.write(files.read(external), target, source=external) == [target, copy]
    assert (weight(target) == np.eye(8)).all()
    assert copy.read_bytes() == external.with_name("weights.bin").read_bytes()
    assert copy.stat().st_nlink == 1, "onnx refuses external data with two hard links"


def test_external_data_keeps_its_subfolder(external: Path, tmp_path: Path) -> None:
    (external.parent / "data").mkdir()
    external.with_name("weights.bin").rename(external.parent / "data" / "w")
    external.write_bytes(broken.external("data/w").SerializeToString())
    files.write(files.read(external), tmp_path / "fused.onnx", source=external)
    assert locations(tmp_path / "fused.onnx") == ["data/w"]
    assert (weight(tmp_path / "fused.onnx") == np.eye(8)).all()


def test_only_data_that_the_output_still_needs_goes_along(external: Path, tmp_path: Path) -> None:
    model = files.read(external)
    model.graph.initializer[0].CopyFrom(broken.good().graph.initializer[0])
    assert files.write(model, tmp_path / "fused.onnx", source=external) == [tmp_path / "fused.onnx"]
    assert not (tmp_path / "weights.bin").exists()


def test_copied_data_never_takes_the_name_of_another_file(external: Path, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"someone else's")
    (tmp_path / "fused.weights.bin").write_bytes(b"also someone else's")
    model = files.read(external)
    files.write(model, tmp_path / "fused.onnx", source=external)
    assert (tmp_path / "weights.bin").read_bytes() == b"someone else's"
    assert locations(tmp_path / "fused.onnx") == ["fused.2.weights.bin"]
    assert (weight(tmp_path / "fused.onnx") == np.eye(8)).all()
    assert model == broken.external(), "the model in memory still means its source"


def test_data_that_was_copied_before_is_used_again(
    external: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(files.read(external), tmp_path / "fused.onnx", source=external)
    first = (tmp_path / "fused.onnx").read_bytes()
    monkeypatch.setattr(external_data, "copy", lambda *_: pytest.fail("copied again"))
    files.write(files.read(external), tmp_path / "fused.onnx", source=external)
    assert (tmp_path / "fused.onnx").read_bytes() == first


def test_data_is_copied_where_the_kernel_cannot_do_it(
    external: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    files.write(files.read(external), tmp_path / "fused.onnx", source=external)
    assert (weight(tmp_path / "fused.onnx") == np.eye(8)).all()


def test_a_sparse_file_stays_sparse(external: Path, tmp_path: Path) -> None:
    """6 GiB of zeros: copied byte by byte they would fill a disk."""
    os.truncate(external.with_name("weights.bin"), 6 * 2**30)
    files.write(files.read(external), tmp_path / "fused.onnx", source=external)
    copy = (tmp_path / "weights.bin").stat()
    assert copy.st_size == 6 * 2**30
    assert copy.st_blocks * 512 < 2**20
    assert (weight(tmp_path / "fused.onnx") == np.eye(8)).all()


def test_weights_too_large_for_one_file_move_out(tmp_path: Path) -> None:
    model = broken.good()
    model.graph.initializer.append(numpy_helper.from_array(np.arange(1024, dtype=np.float32), "large"))
    model.graph.initializer.append(numpy_helper.from_array(np.arange(512, dtype=np.float64), "larger"))
    target = tmp_path / "big.onnx"
    first, final = external_data.beside(target, taken={"big.onnx.data"})
    assert first == final == tmp_path / "big.onnx.2.data"
    external_data.spill(model, final, partial(inside.numbers, places={}))
    target.write_bytes(model.SerializeToString())
    assert external_data.beside(target, ()) == (tmp_path / "big.onnx.data",) * 2
    assert external_data.beside(target, {"big.onnx.data"}) == (tmp_path / "big.onnx.3.data", final)
    small, large, larger = onnx.load(target, load_external_data=False).graph.initializer
    assert small.HasField("raw_data")
    assert int(larger.external_data[1].value) % 4096 == 0
    assert not large.HasField("raw_data")
    loaded = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(target).graph.initializer}
    assert (loaded["large"] == np.arange(1024)).all()
    assert (loaded["larger"] == np.arange(512)).all()


@pytest.mark.parametrize("place", ["", "/etc/passwd", "../weights.bin", "data/../../weights.bin"])
def test_data_outside_the_folder_of_the_model_is_refused(place: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'w' lies at '.*', outside the model's folder: save it beside the model"):
        external_data.check(broken.external(place), tmp_path / "model.onnx", weights=False)


@pytest.mark.parametrize("offset", ["-1", "here", "1.5"])
def test_an_offset_that_is_no_number_is_refused(offset: str, external: Path) -> None:
    with pytest.raises(ModelError, match="offset and length of the external data of 'w' are not numbers"):
        external_data.check(broken.external(offset=offset), external, weights=True)


def test_a_tensor_that_ends_behind_its_file_is_cut_off_whether_its_length_is_said_or_follows_from_its_shape(
    external: Path,
) -> None:
    assert external_data.check(broken.external(), external, weights=True)
    said = broken.external(offset="4")
    followed = broken.external(offset="4")
    del followed.graph.initializer[0].external_data[2:]
    for model in (said, followed):
        with pytest.raises(ModelError, match=r"weights.bin is cut off: 'w' ends at byte 260, the file at 256"):
            external_data.check(model, external, weights=True)


def test_an_attribute_that_is_external_data_is_refused(tmp_path: Path) -> None:
    """That of a Constant is a weight; what another op fills with is asked for before any file is read."""
    number = numpy_helper.from_array(np.array([2], np.float32))
    fill = helper.make_node("ConstantOfShape", ["n"], ["f"], value=number)
    weight = helper.make_node("Constant", [], ["f"], value=number)
    for node in (weight, fill):
        graph = helper.make_graph([node], "g", [broken.value("n", (1,), onnx.TensorProto.INT64)], [broken.value("f")])
        model, path = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "model.onnx"
        options = {"size_threshold": 0, "convert_attribute": True, "location": f"data.{node.op_type}"}
        onnx.save(model, path, save_as_external_data=True, **options)
        assert locations(path) == [f"data.{node.op_type}"]
        if node is weight:
            files.read(path)
    with pytest.raises(ModelError, match=r"'value' of node 'f' \(ConstantOfShape\) is external data"):
        files.read(path)


def test_data_may_be_missing_where_no_weights_are_asked_for(external: Path) -> None:
    external.with_name("weights.bin").unlink()
    assert external_data.check(broken.external(), external, weights=False)
    with pytest.raises(ModelError, match=r"weights.bin is missing \(tensor 'w'\): put it beside the model"):
        external_data.check(broken.external(), external, weights=True)
    with pytest.raises(ModelError, match=r"weights.bin is missing and cannot be copied: put it there"):
        external_data.refuse_missing(external, ["weights.bin"])


def test_a_model_without_external_data_has_none() -> None:
    assert not external_data.check(broken.good(), Path("nowhere.onnx"), weights=True)
    assert external_data.places(broken.good()) == []
    assert external_data.places(broken.external("data/w")) == ["data/w"]


def interrupted(model: onnx.ModelProto) -> None:
    assert external_data.places(model) == ["w2"]
    raise KeyboardInterrupt


def test_names_of_data_are_others_only_within_the_block() -> None:
    model = broken.external()
    with pytest.raises(KeyboardInterrupt), external_data.relocated(model, {"weights.bin": "w2", "other": "w3"}):
        interrupted(model)
    assert model == broken.external()
