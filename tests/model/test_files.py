"""Reading leaves external data alone; writing is whole or not at all, and moves no byte it need not move."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfuse
from onnxfuse.errors import ModelError, OutputError
from onnxfuse.model import files
from tests import broken


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


def test_an_output_of_unknown_rank_has_no_shape(tmp_path: Path) -> None:
    """onnxruntime runs such a file, onnx.checker refuses it."""
    model, path = broken.good(), tmp_path / "model.onnx"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    assert files.read(path) == model
    made = onnxfuse.optimize(path, tmp_path / "fused.onnx")
    assert made.report.validation is not None
    assert made.report.validation.verdict == "equal"
    assert list(onnx.load(tmp_path / "fused.onnx").graph.output) == list(model.graph.output)


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
