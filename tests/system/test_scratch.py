"""Folders for what is being made are gone, at the latest when the next is made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onnxfuse.system import scratch

HOLD = """
import sys, time
from pathlib import Path
from onnxfuse.system import scratch
with scratch.folder(Path(sys.argv[1])) as folder:
    (folder / "weights").write_bytes(b"many")
    print(folder, flush=True)
    time.sleep(60)
"""


def hidden(parent: Path) -> list[Path]:
    return sorted(parent.glob(".*"))


def test_a_folder_is_gone_with_what_is_in_it(tmp_path: Path) -> None:
    with scratch.folder(tmp_path / "m.onnx") as folder:
        (folder / "part").write_bytes(b"half")
        assert hidden(tmp_path) == [folder]
        assert folder.name.startswith(".m.onnx.")
    assert hidden(tmp_path) == []
    with pytest.raises(KeyboardInterrupt), scratch.folder(tmp_path / "m.onnx"):
        raise KeyboardInterrupt
    assert hidden(tmp_path) == []


@pytest.mark.skipif(scratch.fcntl is None, reason="this system has no locks that go with a process")
def test_what_a_killed_process_has_left_is_swept_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    held = [subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / name], stdout=subprocess.PIPE) for name in "ab"]
    try:
        folders = [Path(os.fsdecode(process.stdout.readline().strip())) for process in held if process.stdout]
        held[0].send_signal(signal.SIGKILL)
        held[0].wait()
        assert hidden(tmp_path) == sorted(folders), "it had no last word"
        with scratch.folder(tmp_path / "c") as own:
            assert hidden(tmp_path) == sorted([folders[1], own])
            scratch.sweep(tmp_path)
            assert hidden(tmp_path) == sorted([folders[1], own])
        assert (folders[1] / "weights").read_bytes() == b"many"
    finally:
        for process in held:
            process.kill()
            process.communicate()
    scratch.sweep(tmp_path)
    assert hidden(tmp_path) == []


def test_other_hidden_files_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / f".file.a1b2c3d4{scratch.SUFFIX}").write_bytes(b"a file")
    (tmp_path / "target").mkdir()
    (tmp_path / f".link.a1b2c3d4{scratch.SUFFIX}").symlink_to(tmp_path / "target")
    before = hidden(tmp_path)
    scratch.sweep(tmp_path)
    assert hidden(tmp_path) == before
    assert (tmp_path / "target").exists()


def test_folders_of_other_names_stay(tmp_path: Path) -> None:
    """What ends as ours do may be somebody's own."""
    for name in (f".notes{scratch.SUFFIX}", f".m.onnx.kept{scratch.SUFFIX}"):
        (tmp_path / name).mkdir()
    there = hidden(tmp_path)
    with scratch.folder(tmp_path / "m.onnx"):
        pass
    assert hidden(tmp_path) == there


def test_a_system_without_locks_makes_folders_and_sweeps_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "fcntl", None)
    (tmp_path / f".left.a1b2c3d4{scratch.SUFFIX}").mkdir()
    with scratch.folder(tmp_path / "m") as folder:
        assert len(hidden(tmp_path)) == 2
        assert folder.is_dir()
    assert [path.name for path in hidden(tmp_path)] == [f".left.a1b2c3d4{scratch.SUFFIX}"]


@pytest.mark.skipif(scratch.fcntl is None, reason="this system has no locks that go with a process")
def test_where_a_sweeper_is_faster_another_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really, tried = scratch._lock, []

    def late(path: Path) -> int:
        tried.append(path)
        if len(tried) == 1:
            path.rmdir()
        if len(tried) == 2:
            raise BlockingIOError
        return really(path)

    monkeypatch.setattr(scratch, "_lock", late)
    monkeypatch.setattr(scratch, "sweep", lambda parent: None)
    with scratch.folder(tmp_path / "m") as folder:
        assert folder == tried[2]
