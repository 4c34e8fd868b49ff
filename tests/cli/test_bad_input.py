"""Whatever is wrong with what a user gives, there is one line that says so, exit code 2, and no traceback."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from onnxfuse.cli.main import main
from onnxfuse.errors import ModelError
from onnxfuse.model import files
from tests import broken
from tests.fake_engine import Engine

pytestmark = pytest.mark.usefixtures("engine")

CUT_OFF = broken.good().SerializeToString()[:-40]

FILES: dict[str, tuple[bytes | onnx.ModelProto, str]] = {
    "empty": (b"", "is empty: export it again"),
    "text": (b"import torch\nprint('hello')\n", "is text, not an ONNX model: onnxfuse reads the binary form"),
    "zip": (
        b"PK\x03\x04" + bytes(99),
        "a zip archive, as torch.save writes it: export the model with torch.onnx.export",
    ),
    "pickle": (b"\x80\x02}q\x00." + bytes(99), "a Python pickle"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(99), "a TensorFlow Lite model: convert it"),
    "ort": (b"\x1c\0\0\0ORTM" + bytes(99), "a model in ORT format: use the .onnx file"),
    "keras": (b"\x89HDF\r\n\x1a\n" + bytes(99), "an HDF5 file, as Keras writes it"),
    "safetensors": (
        b"\x40\0\0\0\0\0\0\0" + b'{"w":{}}' + bytes(99),
        "a safetensors file, which holds weights but no graph",
    ),
    "gzip": (b"\x1f\x8b\x08" + bytes(99), "compressed with gzip: run gunzip first"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer, not the file itself"),
    "noise": (bytes(range(255, 0, -1)), "is not an ONNX model: give a file that onnx.save"),
    "other protobuf": (b"\xf8\x07\x05\x80\x08\x07", "is not an ONNX model: give a file that onnx.save"),
    "truncated": (CUT_OFF, "is cut off: at least 34 bytes are missing at its end; copy or export it again"),
    "no graph": (onnx.ModelProto(ir_version=8), "is not an ONNX model"),
    "future opset": (broken.future_opset(), "uses opset 999 of ai.onnx, but the installed onnx"),
    "future IR": (broken.future_ir(), "has IR version 999, but the installed onnx"),
    "cycle": (
        broken.cyclic(),
        "is not valid: the graph has a cycle: relu -> add -> relu; ONNX graphs must not have one",
    ),
    "dangling": (broken.dangling(), "node 'add' reads 'ghost', which nothing produces: export the model again"),
    "attribute": (broken.unknown_attribute(), "is not valid: node 'relu' (Relu): Unrecognized attribute: slope"),
    "short weight": (broken.short_weight(), "is not valid: 'w' has too few bytes for [8, 8]: export it again"),
    "outside": (broken.external("../weights.bin"), "lies at '../weights.bin', outside the model's folder"),
    "absolute": (broken.external("/etc/passwd"), "lies at '/etc/passwd', outside the model's folder"),
    "offset": (broken.external("present.bin", offset="many"), "offset and length of the external data of 'w' are not"),
    "short data": (
        broken.external("present.bin", offset="64"),
        "'w' ends at byte 320, the file at 256; copy or export",
    ),
    "deep": (broken.nested_ifs(300), "If, Loop and Scan bodies), and readers stop at 100: flatten them"),
}


@pytest.mark.parametrize("command", ["optimize", "report", "check"])
@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_no_valid_model(
    what: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, message = FILES[what]
    path = tmp_path / "model.onnx"
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    broken.write_weights(tmp_path / "present.bin")
    before = sorted(tmp_path.iterdir())

    _expect(main([command, str(path)]), capsys, str(path), message, output=command == "check")
    assert sorted(tmp_path.iterdir()) == before


def _expect(code: int, capsys: pytest.CaptureFixture[str], *parts: str, output: bool = False) -> None:
    """Exit code 2 and one line on stderr with all of `parts`; `check` may speak of its missing demands as well."""
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not (output and "nothing is demanded" in line)]
    assert code == 2
    assert out == ""
    assert len(lines) == 1
    assert lines[0].startswith("onnxfuse: error: ")
    assert all(part in lines[0] for part in parts), lines[0]
    assert not any(leak in err for leak in ("Traceback", "google", "DecodeError", "ValidationError", "==> Context"))


def test_no_such_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _expect(main(["optimize", str(tmp_path / "gone.onnx")]), capsys, "gone.onnx: no such file: check the name")


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _expect(main(["report", str(tmp_path)]), capsys, "is a folder: name the models in it, such as", "*.onnx")


def test_a_file_that_may_not_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path = tmp_path / "model.onnx"
    onnx.save(broken.good(), path)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    _expect(main(["report", str(path)]), capsys, "cannot be read (permission denied): make it readable")


def test_more_than_protobuf_can_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(broken.good().SerializeToString())
    os.truncate(path, 3 * 2**30)  # sparse: takes no space
    _expect(main(["report", str(path)]), capsys, "one file of 3.0 GiB", "export it with external data")


def test_a_truncated_model_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    whole = broken.good().SerializeToString()
    path = tmp_path / "model.onnx"
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(ModelError):
            files.read(path)


@pytest.mark.parametrize("depth", [1, 10, 31])
def test_nested_ifs_that_protobuf_can_read(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(broken.nested_ifs(depth))
    body = files.read(path).graph
    for _ in range(depth):
        body = body.node[0].attribute[0].g
    assert body.node[0].op_type == "Relu"


@pytest.mark.parametrize(
    "build",
    [broken.custom_op_in_the_middle, broken.nan_weights, broken.zero_sized, broken.good],
    ids=lambda f: f.__name__,
)
def test_strange_but_valid_models_are_read(build: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(build(), path)
    assert files.read(path) == build()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(broken.good(), path)
    return path


def test_output_equal_to_input(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = model.read_bytes()
    _expect(main(["optimize", str(model), "-o", str(model)]), capsys, "is the model itself", "another file with -o")
    assert model.read_bytes() == content


def test_output_in_a_folder_that_does_not_exist(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = model.parent / "no" / "out.onnx"
    _expect(main(["optimize", str(model), "-o", str(place)]), capsys, "there is no folder", "make it first")


def test_output_below_a_file(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _expect(main(["optimize", str(model), "-o", f"{model}/"]), capsys, str(model), "is a file", "name a folder")


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EACCES, "cannot be written (permission denied): choose another folder"),
        (errno.EROFS, "cannot be written (read-only file system): choose another folder"),
        (errno.ENOSPC, "no space left in"),
    ],
)
def test_a_place_that_cannot_be_written(
    number: int, message: str, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    _expect(main(["optimize", str(model)]), capsys, "model.fused.onnx", message)
    assert list(model.parent.iterdir()) == [model]


def test_a_model_without_fusable_nodes_is_written_and_said_to_be_unchanged(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", str(model)]) == 0
    assert "nothing to fuse: 2 nodes, unchanged" in capsys.readouterr().out
    assert model.with_name("model.fused.onnx").read_bytes() == model.read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file: check the name"),
        (b"not numpy", "is not an .npz file of plain arrays: write it with numpy.savez"),
        (b"PK\x03\x04 broken", "is not an .npz file of plain arrays: write it with numpy.savez"),
        (b"\x93NUMPY\x01\x00", "is not an .npz file of plain arrays: write it with numpy.savez"),
    ],
)
def test_inputs_that_are_no_arrays(
    content: bytes | None, message: str, model: Path, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = model.with_name("inputs.npz")
    if content is not None:
        inputs.write_bytes(content)
    _expect(main(["optimize", str(model), "--inputs", str(inputs)]), capsys, str(inputs), message)
    assert engine.calls == []
