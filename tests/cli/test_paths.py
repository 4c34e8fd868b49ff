"""Globs, and where the fused models go."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfuse.cli import paths
from onnxfuse.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.onnx", "b.onnx", "sub/a.onnx", "[1].onnx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["b.onnx", "a.onnx"], ["b.onnx", "a.onnx"]),
        (["?.onnx", "a.onnx"], ["a.onnx", "b.onnx"]),
        (["**/a.onnx"], ["a.onnx", "sub/a.onnx"]),
        (["[1].onnx"], ["[1].onnx"]),
        (["gone.onnx"], ["gone.onnx"]),
    ],
)
def test_globs(patterns: list[str], found: list[str]) -> None:
    assert paths.expand(patterns) == [Path(name) for name in found]


def test_a_glob_that_nothing_matches() -> None:
    with pytest.raises(UsageError, match=r"no file matches nothing\*\.onnx"):
        paths.expand(["nothing*.onnx"])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("models", "output", "places"),
    [
        (["a.onnx", "sub/a.onnx"], None, ["a.fused.onnx", "sub/a.fused.onnx"]),
        (["a.onnx"], "out.onnx", ["out.onnx"]),
        (["a.onnx"], "out/", ["out/a.onnx"]),
        (["a.onnx"], "sub", ["sub/a.onnx"]),
        (["a.onnx", "b.onnx"], "out/deep", ["out/deep/a.onnx", "out/deep/b.onnx"]),
        (["a.onnx", "b.onnx"], ".", ["a.fused.onnx", "b.fused.onnx"]),
        (["-"], None, ["-"]),
        (["-"], "-", ["-"]),
        (["a.onnx"], "-", ["-"]),
        (["-"], "b.onnx", ["b.onnx"]),
    ],
)
def test_destinations(models: list[str], output: str | None, places: list[str]) -> None:
    found = paths.destinations([Path(name) for name in models], output)
    assert found == [Path(name) for name in places]
    assert all(place.parent.is_dir() for place in found)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("models", "output", "message"),
    [
        (
            ["a.onnx", "sub/a.onnx"],
            "out/",
            "a.onnx and sub/a.onnx would both become out/a.onnx: give them a folder each",
        ),
        (["a.onnx", "b.onnx"], "[1].onnx", r"-o \[1\].onnx is a file, and there are 2 models: name a folder"),
        (["a.onnx", "b.onnx"], "-", r"-o - is one stream, and there are 2 models: name a folder"),
    ],
)
def test_destinations_that_collide(models: list[str], output: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        paths.destinations([Path(name) for name in models], output)


def test_no_folder_is_made_for_a_dry_run(folder: Path) -> None:
    paths.destinations([Path("a.onnx")], "out/", make_folder=False)
    assert not (folder / "out").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("models", "output", "places"),
    [
        (["a.onnx"], "report.html", ["report.html"]),
        (["a.onnx"], "sub", ["sub/a.html"]),
        (["a.onnx"], "new/", ["new/a.html"]),
        (["a.onnx", "b.onnx"], "new", ["new/a.html", "new/b.html"]),
    ],
)
def test_pages(models: list[str], output: str, places: list[str]) -> None:
    found = paths.pages([Path(name) for name in models], output)
    assert found == [Path(name) for name in places]
    assert all(place.parent.is_dir() for place in found)


@pytest.mark.usefixtures("folder")
def test_pages_that_collide() -> None:
    with pytest.raises(UsageError, match=r"would both become new/a\.html: give them a folder each"):
        paths.pages([Path("a.onnx"), Path("sub/a.onnx")], "new")
    with pytest.raises(UsageError, match=r"--html b\.onnx is a file, and there are 2 models: name a folder"):
        paths.pages([Path("a.onnx"), Path("b.onnx")], "b.onnx")
