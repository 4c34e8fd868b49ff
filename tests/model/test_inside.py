"""Weights that stay in a model's one file: what is written is what it would be, had they been in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import onnxfuse
from benchmarks.synthetic import mlp
from onnxfuse.errors import ModelError, OutputError
from onnxfuse.fusing.build import Build
from onnxfuse.model import external_data, files, inside, protobuf, spool
from onnxfuse.pipeline import optimize
from onnxfuse.precision.wanted import Precision
from tests import broken


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "LARGE_FILE", 1000)
    monkeypatch.setattr(inside, "LARGE", 1000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.onnx"
    mlp(path, layers=2, hidden=32, inside=True)
    return path


def test_large_weights_stay_in_the_file(source: Path) -> None:
    whole, model = files.read(source), files.read(source, in_place=True)
    left = [tensor for tensor in model.graph.initializer if external_data.is_external(tensor)]
    assert {tuple(tensor.dims) for tensor in left} == {(32, 128), (128, 32)}
    assert external_data.places(model) == ["mlp.onnx"]
    assert model.ByteSize() < 8000 < whole.ByteSize()
    for tensor, same in zip(model.graph.initializer, whole.graph.initializer, strict=True):
        assert tensor.name == same.name
        read = numpy_helper.to_array(tensor, str(source.parent))
        np.testing.assert_array_equal(read, numpy_helper.to_array(same))


def test_written_again_it_is_the_same_file(source: Path, tmp_path: Path) -> None:
    model = files.read(source, in_place=True)
    there = tmp_path / "other"
    there.mkdir()
    for target in (source.with_name("copy.onnx"), there / "copy.onnx"):
        assert files.write(model, target, source=source) == [target]
        assert target.read_bytes() == source.read_bytes()
    assert sorted(path.name for path in there.iterdir()) == ["copy.onnx"]
    assert b"".join(files.one_piece(model, source)) == source.read_bytes()
    with pytest.raises(OutputError, match="no single file"):
        files.one_piece(model)


@pytest.mark.parametrize("precision", [None, Precision("fp16"), Precision("bf16")], ids=str)
def test_it_is_fused_and_converted_as_in_memory(source: Path, tmp_path: Path, precision: Precision | None) -> None:
    made = []
    for in_place in (False, True):
        target = tmp_path / f"{in_place}.onnx"
        model = files.read(source, in_place=in_place)
        with spool.beside(target if precision is not None else None, model) as weights:
            assert (weights is not None) == (in_place and precision is not None)
            done = optimize(model, Build(base_dir=source.parent), precision=precision, spool=weights)
            assert done.report.validation.verdict == "equal"
            assert files.write(done.model, target, source=source, spool=weights) == [target]
        made.append(target.read_bytes())
    assert made[0] == made[1]


@pytest.mark.parametrize("precision", [None, "fp16"])
@pytest.mark.parametrize("output", [None, "out.onnx"])
def test_who_gets_the_model_gets_its_weights(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Literal["fp16"] | None, output: str | None
) -> None:
    place = tmp_path / output if output else None
    seen = []
    really = inside.left_there
    monkeypatch.setattr(inside, "left_there", lambda path: seen.append(really(path)) or seen[-1])
    left = onnxfuse.optimize(source, place, precision=precision)
    assert seen != [None]
    written = place.read_bytes() if place else b""
    monkeypatch.setattr(inside, "left_there", lambda path: None)
    whole = onnxfuse.optimize(source, place, precision=precision)
    assert left.model == whole.model
    assert not external_data.places(left.model)
    assert written == (place.read_bytes() if place else b"")


def test_a_report_is_the_same(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = onnxfuse.report(source)
    monkeypatch.setattr(inside, "left_there", lambda path: None)
    whole = onnxfuse.report(source)
    assert (left.fusions, left.after) == (whole.fusions, whole.after)


def test_what_is_too_large_for_one_file_moves_out(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, target = files.read(source, in_place=True), tmp_path / "large.onnx"
    monkeypatch.setattr(files, "_PROTOBUF_LIMIT", 20_000)
    assert files.write(model, target, source=source) == [target, tmp_path / "large.onnx.data"]
    for tensor, same in zip(onnx.load(target).graph.initializer, onnx.load(source).graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(same))


def test_a_file_that_has_become_shorter_is_no_model(source: Path, tmp_path: Path) -> None:
    model, target = files.read(source, in_place=True), tmp_path / "out.onnx"
    source.write_bytes(source.read_bytes()[:20_000])
    with pytest.raises(ModelError, match="has changed since it was read"):
        files.write(model, target, source=source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlp.onnx"]


@pytest.mark.parametrize("precision", [None, Precision("fp16")], ids=str)
def test_a_file_that_is_another_by_now_is_not_mixed_with_it(
    source: Path, tmp_path: Path, precision: Precision | None
) -> None:
    model, target = files.read(source, in_place=True), tmp_path / "out.onnx"
    with spool.beside(target, model) as weights:
        done = optimize(model, Build(base_dir=tmp_path), precision=precision, spool=weights)
        again = source.with_name("again")
        again.write_bytes(source.read_bytes())
        again.replace(source)
        with pytest.raises(ModelError, match=r"mlp\.onnx has changed since it was read: optimize it again"):
            files.write(done.model, target, source=source, spool=weights)
        with pytest.raises(ModelError, match="has changed since it was read"):
            files.load_own(done.model, source, weights)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlp.onnx"]


def _many(count: int = 2000) -> onnx.ModelProto:
    """A model with a large weight."""
    model = broken.good()
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(count, np.float32), "many"))
    return model


def test_what_is_unusual_is_read_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    usual = _many().SerializeToString()
    cut_off = usual[:-100]
    unknown = usual + b"\xfa\x3f\x03new"
    for content in (cut_off, unknown, b"\x38\x01" * 1000, usual + b"\x07"):
        path.write_bytes(content)
        assert inside.left_there(path) is None
    path.write_bytes(usual)
    assert inside.left_there(path) is not None
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    assert inside.left_there(link) is None
    link.unlink()
    link.hardlink_to(path)  # onnx refuses external data that has two names
    assert inside.left_there(link) is None
    assert onnxfuse.optimize(link).report.validation.verdict == "equal"
    link.unlink()
    wrong = _many()
    wrong.graph.initializer[-1].dims[:] = [3]
    path.write_bytes(wrong.SerializeToString())
    with pytest.raises(ModelError, match="'many' has too many bytes"):
        files.read(path, in_place=True)


def test_what_goes_where_a_weight_is_stored_anew_is_no_growth(tmp_path: Path) -> None:
    """The weight in the file goes, and its transpose comes."""
    source = tmp_path / "model.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 32, 5, 5] x) => (float[n, 64, 3, 3] y) {
        k = Transpose<perm = [3, 2, 0, 1]>(w) y = Conv(x, k) }"""
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((3, 3, 32, 64)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, source)
    made = []
    for in_place in (False, True):
        read = files.read(source, in_place=in_place)
        assert sum(map(inside.size, read.graph.initializer)) == model.graph.initializer[0].ByteSize()
        done = optimize(read, Build(base_dir=tmp_path, growth=0))
        assert [node.op_type for node in done.model.graph.node] == ["Conv"]
        target = tmp_path / f"{in_place}.onnx"
        files.write(done.model, target, source=source)
        made.append(target.read_bytes())
    assert made[0] == made[1]


def test_a_weight_in_another_file_is_no_part_of_the_model(source: Path) -> None:
    tensor = onnx.TensorProto(name="w", data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.bin")
    assert inside.size(tensor) == 0


def test_a_small_file_is_in_memory(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "LARGE_FILE", source.stat().st_size + 1)
    assert inside.left_there(source) is None
    assert files.read(source, in_place=True) == files.read(source)


def test_a_tensor_with_its_numbers_is_written_as_it_is(tmp_path: Path) -> None:
    for tensor in _many().graph.initializer:
        tensor.doc_string = "behind the numbers"
        size, pieces = inside.written(tensor, {})
        content = b"".join(pieces)
        assert (len(content), content) == (size, tensor.SerializeToString(deterministic=True))
        data = tmp_path / "numbers"
        data.write_bytes(b"four" + tensor.raw_data)
        place = onnx.TensorProto.FromString(content)
        place.ClearField("raw_data")
        place.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "m"), ("offset", 4), ("length", len(tensor.raw_data))):
            place.external_data.add(key=key, value=str(value))
        size, pieces = inside.written(place, {"m": data})
        assert b"".join(pieces) == content
        assert size == len(content)
    assert protobuf.whole(place)[0] == place.ByteSize()
