"""Writing replaces a file in one step, follows links, and leaves alone what is no file."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from onnxfuse.cli.main import main
from onnxfuse.errors import OutputError
from onnxfuse.system import atomic_write
from tests import broken


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def device(path: Path) -> None:
    """The null device under another name; only root may make one."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make a device")


@pytest.fixture(params=[("pipe", pipe), ("socket", listener), ("device", device)], ids=lambda param: param[0])
def strange(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """What it is, and where it lies."""
    kind, make = request.param
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    make(Path("strange"))
    return kind, Path("strange")


def test_what_is_no_file_is_refused_and_stays(strange: tuple[str, Path]) -> None:
    kind, path = strange
    mode = path.stat().st_mode
    with pytest.raises(OutputError, match=f"strange is a {kind}, not a file: name a file"):
        atomic_write.replace(path, [b"new"])
    assert path.stat().st_mode == mode
    assert os.listdir() == ["strange"]


def test_so_is_a_link_to_it(strange: tuple[str, Path]) -> None:
    kind, path = strange
    os.symlink(path, "link")
    with pytest.raises(OutputError, match=f"link is a {kind}"):
        atomic_write.replace(Path("link"), [b"new"])
    assert os.readlink("link") == "strange"


@pytest.mark.parametrize("option", ["-o", "--report"])
@pytest.mark.usefixtures("engine")
def test_the_command_says_so_before_it_works(
    option: str, strange: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    kind, path = strange
    onnx.save(broken.good(), "m.onnx")
    assert main(["optimize", "m.onnx", option, str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"strange is a {kind}, not a file" in err
    assert sorted(os.listdir()) == ["m.onnx", "strange"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_replaced(there: bool, tmp_path: Path) -> None:
    folder, link, last = tmp_path / "store", tmp_path / "link", tmp_path / "last"
    folder.mkdir()
    if there:
        (folder / "file").write_bytes(b"old")
    link.symlink_to("store/file")
    last.symlink_to("link")
    atomic_write.replace(last, [b"new", b"er"])
    assert (folder / "file").read_bytes() == b"newer"
    assert (os.readlink(last), os.readlink(link)) == ("link", "store/file")
    assert sorted(tmp_path.iterdir()) == [last, link, folder]
    assert list(folder.iterdir()) == [folder / "file"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.symlink_to(path), "cannot be written"),
        (lambda path: path.symlink_to(path.parent), "is a folder: name a file in it"),
        (lambda path: path.symlink_to(path.parent / "no" / "file"), "there is no folder"),
    ],
)
def test_a_link_that_leads_nowhere(make: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    path = tmp_path / "link"
    make(path)
    with pytest.raises(OutputError, match=message):
        atomic_write.replace(path, [b"new"])
    with pytest.raises(OutputError, match=message):
        atomic_write.refuse(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("arguments", [["optimize", "m.onnx", "--report"], ["run", "m.onnx", "--outputs"]])
@pytest.mark.parametrize("name", ["m.onnx", "alias"])
@pytest.mark.usefixtures("engine")
def test_what_was_given_to_read_is_not_written(
    arguments: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(broken.good(), "m.onnx")
    os.symlink("m.onnx", "alias")
    before = Path("m.onnx").read_bytes()
    assert main([*arguments, name]) == 2
    assert capsys.readouterr().err == (
        f"onnxfuse: error: {name} is a file that was given to read: name another to write to\n"
    )
    assert Path("m.onnx").read_bytes() == before
