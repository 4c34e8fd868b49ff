"""A file of what was found out on cards: read as it was written, or as nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfuse.kernels.device.by_card import ByCard


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "found.json"


def test_what_was_written_is_read(path: Path) -> None:
    file = ByCard(path, 2, "found", float)
    assert file.read() == {}
    file.write({"a card": {"a name": 1.5}})
    assert file.read() == {"a card": {"a name": 1.5}}
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_another_schema_or_value_is_nothing(path: Path) -> None:
    ByCard(path, 2, "found", str).write({"a card": {"a name": "no number"}})
    assert ByCard(path, 3, "found", str).read() == ByCard(path, 2, "other", str).read() == {}
    assert ByCard(path, 2, "found", float).read() == {}


def test_where_nothing_can_be_written_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file")
    ByCard(tmp_path / "folder" / "found.json", 1, "found", str).write({"a card": {}})
    assert (tmp_path / "folder").read_text() == "a file"
