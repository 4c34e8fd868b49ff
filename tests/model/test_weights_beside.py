"""A model and the weights that are written beside it are a pair at any time, whatever ends the process."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.errors import OutputError
from onnxfuse.model import external_data, files, spool
from onnxfuse.proof import oracle
from onnxfuse.system import scratch
from onnxfuse.system.isolation import Tell
from tests import broken

STEPS = ("replace", "link", "unlink", "rmdir", "fsync", "mkdir")
"""Functions of os by which files change their places."""
Writer = Callable[[Path, float], None]


def by_spool(path: Path, number: float) -> None:
    """Weights of this number, as a conversion stores them."""
    source = path.with_name("source.onnx")
    if not source.exists():
        broken.write_weights(path.with_name("weights.bin"))
        source.write_bytes(broken.external().SerializeToString())
    model = files.read(source)
    with spool.beside(path, model) as data:
        assert data is not None
        tensor = model.graph.initializer[0]
        tensor.CopyFrom(data.store(tensor, tensor.data_type, np.full((8, 8), number, np.float32).tobytes))
        files.write(model, path, source=source, spool=data)


def by_spilling(path: Path, number: float) -> None:
    """Weights of this number, of a model that is too large for one file."""
    model = broken.good()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full((8, 64), number, np.float32), "w"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_PROTOBUF_LIMIT", 1000)
        files.write(model, path)


def number_in(path: Path) -> float:
    (tensor,) = onnx.load(path).graph.initializer
    values = np.unique(numpy_helper.to_array(tensor))
    assert len(values) == 1
    return float(values[0])


@contextmanager
def counted(at: int, what: Callable[[], None], *, after: bool) -> Iterator[list[int]]:
    """Before the step of this number, or after it, something happens."""
    done = [0]

    def stepping(function: Callable[..., object]) -> Callable[..., object]:
        def step(*given: object, **options: object) -> object:
            done[0] += 1
            number = done[0]
            if number == at and not after:
                what()
            result = function(*given, **options)
            if number == at and after:
                what()
            return result

        return step

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, stepping(getattr(os, name)))
        yield done


def killed_at(at: int, write: Writer, path: Path, *, after: bool) -> bool:
    """Write in a process that is gone at a step, without a last word; False if it has no such step."""
    child = os.fork()
    if not child:
        code = 1
        try:
            with counted(at, lambda: os._exit(3), after=after):
                write(path, 2.0)
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 3)
    return code == 3


def all_kills_leave_a_pair(write: Writer, after: bool, folder: Path, tell: Tell) -> None:
    """At any step of writing."""
    path = folder / "m.onnx"
    write(path, 1.0)
    names = sorted(file.name for file in folder.iterdir())
    assert "m.onnx.data" in names
    seen, at = set(), 1
    while killed_at(at, write, path, after=after):
        # onnx refuses data that has two names, which it may have for a moment: an error is no wrong number.
        links = [file for file in folder.iterdir() if file.is_file() and file.stat().st_nlink > 1]
        for file in links:
            file.write_bytes(file.read_bytes()) if file.stat().st_nlink == 1 else _alone(file)
        seen.add(number_in(path))
        write(path, 1.0)
        assert number_in(path) == 1
        assert not list(folder.glob(".*")), "what was left is swept"
        at += 1
    assert seen == {1.0, 2.0}
    assert at > 5
    write(path, 1.0)
    assert sorted(file.name for file in folder.iterdir() if file.name != "m.onnx.2.data") == names


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes that it forks, which this system cannot")
@pytest.mark.parametrize("write", [by_spool, by_spilling])
@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_is_killed_leaves_a_pair(write: Writer, after: bool, tmp_path: Path) -> None:
    """Done where a fork costs little (`small_process`)."""
    oracle.isolated(partial(all_kills_leave_a_pair, write, after, tmp_path), 120)


def _alone(file: Path) -> None:
    """Let a name have a file of its own."""
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)


@pytest.mark.parametrize("write", [by_spool, by_spilling])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_error_leaves_a_pair(write: Writer, after: bool, error: type[BaseException], tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device") if error is OSError else error

    path, at, seen = tmp_path / "m.onnx", 1, set()
    write(path, 1.0)
    names = {file.name for file in tmp_path.iterdir()}
    while True:
        with counted(at, fail, after=after) as done, suppress(KeyboardInterrupt, OutputError, OSError):
            write(path, 2.0)
        seen.add(number_in(path))
        left = {file.name for file in tmp_path.iterdir() if not file.name.endswith(scratch.SUFFIX)}
        assert left - {"m.onnx.2.data"} == names - {"m.onnx.data"} | left & {"m.onnx.data"}
        if done[0] < at:
            break
        write(path, 1.0)
        assert not list(tmp_path.glob(".*")), "what could not be removed is swept"
        at += 1
    assert seen == {1.0, 2.0}
    assert {file.name for file in tmp_path.iterdir()} == names


@pytest.mark.parametrize("write", [by_spool, by_spilling])
def test_written_again_it_has_its_names_and_bytes_again(write: Writer, tmp_path: Path) -> None:
    write(tmp_path / "m.onnx", 1.0)
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    write(tmp_path / "m.onnx", 2.0)
    assert number_in(tmp_path / "m.onnx") == 2
    write(tmp_path / "m.onnx", 1.0)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == first
    assert all(file.stat().st_nlink == 1 for file in tmp_path.iterdir())


@pytest.mark.parametrize("write", [by_spool, by_spilling])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_link_to_the_weights_stays_one(
    write: Writer, devices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it leads to another device, to which nothing can be renamed or linked."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = tmp_path / "here"
    folder.mkdir()
    link = folder / "m.onnx.data"
    link.symlink_to(elsewhere / "large.bin")

    def between(function: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def step(source: Path, target: Path) -> None:
            if ("elsewhere" in str(source)) != ("elsewhere" in str(target)):
                raise OSError(errno.EXDEV, "Invalid cross-device link")
            function(source, target)

        return step

    if devices == 2:
        for name in ("replace", "link"):
            monkeypatch.setattr(os, name, between(getattr(os, name)))
    for number in (1.0, 2.0, 3.0):
        write(folder / "m.onnx", number)
        assert link.is_symlink()
        (tensor,) = onnx.load(folder / "m.onnx", load_external_data=False).graph.initializer
        assert external_data.entries(tensor)["location"] == "m.onnx.data"
        assert [file.name for file in elsewhere.iterdir()] == ["large.bin"]
        assert number.hex() in {float(v).hex() for v in np.fromfile(elsewhere / "large.bin", np.float32)[-64:]}
        assert not (folder / "m.onnx.2.data").exists()


def test_weights_that_nobody_there_reads_are_replaced_at_once(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(broken.good().SerializeToString())
    (tmp_path / "m.onnx.data").write_bytes(b"left by something")
    assert external_data.beside(tmp_path / "m.onnx", ()) == (tmp_path / "m.onnx.data",) * 2
    (tmp_path / "m.onnx").write_bytes(b"")
    assert not external_data.mentions(tmp_path / "m.onnx", "m.onnx.data")
    by_spilling(tmp_path / "m.onnx", 2.0)
    assert number_in(tmp_path / "m.onnx") == 2
    assert external_data.mentions(tmp_path / "m.onnx", "m.onnx.data")
