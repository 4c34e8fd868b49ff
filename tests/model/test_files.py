"""Reading leaves external data alone; writing is whole or not at all, and moves no byte it need not move."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfuse.errors import ModelError, OutputError
from onnxfuse.model import external_data, files
from onnxfuse.model.tensors import tensors
from tests import broken


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model in a folder of its own, with its weights in weights.bin beside it."""
    folder = tmp_path / "source"
    folder.mkdir()
    broken.write_weights(folder / "weights.bin")
    path = folder / "model.onnx"
    path.write_bytes(broken.external().SerializeToString())
    return path


def weight(path: Path) -> np.ndarray:
    """The weight of the model `path`, external data loaded as any user of the file would."""
    return numpy_helper.to_array(onnx.load(path).graph.initializer[0])


def locations(path: Path) -> list[str]:
    return external_data.places(onnx.load(path, load_external_data=False))


def test_reading_leaves_external_data_on_disk(external: Path) -> None:
    tensor = files.read(external).graph.initializer[0]
    assert not tensor.HasField("raw_data")
    assert tensor.data_location == onnx.TensorProto.EXTERNAL


def test_reading_follows_the_links_of_a_download_cache(external: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "model.onnx").symlink_to(external)
    (cache / "weights.bin").symlink_to(external.with_name("weights.bin"))
    assert files.read(cache / "model.onnx") == broken.external()


def test_what_is_read_is_written_back_byte_for_byte(tmp_path: Path) -> None:
    source, target = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(broken.custom_op_in_the_middle(), source)
    assert files.write(files.read(source), target, source=source) == [target]
    assert target.read_bytes() == source.read_bytes()


def test_the_same_model_is_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    source = tmp_path / "a.onnx"
    onnx.save(broken.custom_op_in_the_middle(), source)
    script = "import sys; from pathlib import Path; from onnxfuse.model import files; a, b = map(Path, sys.argv[1:]); "
    script += "files.write(files.read(a), b, source=a)"
    for seed in ("0", "1", "77"):
        target = tmp_path / f"{seed}.onnx"
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", script, source, target], check=True, env=environment)
        assert target.read_bytes() == source.read_bytes()


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
    monkeypatch.setattr(external_data, "_copy", lambda *_: pytest.fail("copied again"))
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


def test_an_interrupt_leaves_the_old_output_and_nothing_else(
    external: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "fused.onnx"
    target.write_bytes(b"old")
    really = os.replace

    def interrupt(source: Path, place: Path) -> None:
        if place == target:
            raise KeyboardInterrupt
        really(source, place)

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write(files.read(external), target, source=external)
    assert target.read_bytes() == b"old"
    assert sorted(tmp_path.iterdir()) == [target, external.parent]


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_another_name_of_the_model_is_not_overwritten_either(link: object, external: Path) -> None:
    alias = external.with_name("alias.onnx")
    link(external, alias)  # type: ignore[operator]
    with pytest.raises(OutputError, match="is the model itself"):
        files.write(files.read(external), alias, source=external)


def test_external_data_is_not_overwritten_by_the_model(external: Path) -> None:
    data = external.with_name("weights.bin")
    with pytest.raises(OutputError, match="holds the external data of"):
        files.write(files.read(external), data, source=external)
    assert data.stat().st_size == 256


def test_an_output_that_is_a_folder(external: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a folder: name a file in it"):
        files.write(files.read(external), tmp_path, source=external)
    assert list(tmp_path.iterdir()) == [external.parent]


def test_weights_too_large_for_one_file_move_out(tmp_path: Path) -> None:
    model = broken.good()
    model.graph.initializer.append(numpy_helper.from_array(np.arange(1024, dtype=np.float32), "large"))
    model.graph.initializer.append(numpy_helper.from_array(np.arange(512, dtype=np.float64), "larger"))
    target = tmp_path / "big.onnx"
    data = external_data.spill(model, target, taken={"big.onnx.data"})
    target.write_bytes(model.SerializeToString())
    assert data == tmp_path / "big.onnx.2.data"
    small, large, larger = onnx.load(target, load_external_data=False).graph.initializer
    assert small.HasField("raw_data")
    assert int(larger.external_data[1].value) % 4096 == 0
    assert not large.HasField("raw_data")
    loaded = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(target).graph.initializer}
    assert (loaded["large"] == np.arange(1024)).all()
    assert (loaded["larger"] == np.arange(512)).all()


def test_tensors_are_found_everywhere() -> None:
    def constant(name: str) -> onnx.NodeProto:
        tensor = numpy_helper.from_array(np.zeros(1, np.float32), name)
        return helper.make_node("Constant", [], [name], value=tensor)

    body = helper.make_graph([constant("in body")], "body", [], [broken.value("in body", (1,))])
    body.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "of body"))
    branch = helper.make_node("If", ["c"], ["b"], then_branch=body, else_branch=body)
    model = broken.model([constant("in graph"), branch], initializers=broken.norm_constants())
    model.functions.append(
        helper.make_function("d", "F", [], ["in function"], [constant("in function")], [helper.make_opsetid("", 17)])
    )
    names = sorted(tensor.name for tensor in tensors(model))
    twice = ["in body", "of body"]
    assert names == sorted([*twice, *twice, "two", "eps", "gamma", "beta", "in graph", "in function"])


@pytest.mark.parametrize("missing", [1, 4, 4096])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64])
def test_a_large_weight_that_is_too_short(missing: int, dtype: type, tmp_path: Path) -> None:
    """The checker does not get to see large weights."""
    model, path = broken.good(), tmp_path / "model.onnx"
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((400, 400), dtype), "large"))
    onnx.save(model, path)
    assert files.read(path) == model
    large = model.graph.initializer[1]
    large.raw_data = large.raw_data[:-missing]
    onnx.save(model, path)
    with pytest.raises(ModelError, match=r"'large' has too few bytes for \[400, 400\]: export it again"):
        files.read(path)
