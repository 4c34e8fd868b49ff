"""Many module paths in few lines."""

from __future__ import annotations

import pytest

from onnxfuse.reporting.layers import alike, collapsed, short, together, words


@pytest.mark.parametrize(
    ("paths", "lines"),
    [
        (["/norm"], [("/norm", 1)]),
        (["/layers.7/norm"], [("/layers.7/norm", 1)]),
        ([f"/layers.{i}/norm" for i in range(12)], [("/layers.0-11/norm", 12)]),
        (["/h.0/a", "/h.1/a", "/h.3/a"], [("/h.0-1,3/a", 3)]),
        ([f"/h.{2 * i}" for i in range(6)], [("/h.0..10", 6)]),
        (["/up.0/res.1", "/up.1/res.0", "/up.1/res.1"], [("/up.0-1/res.0-1", 3)]),
        (["/b", "/a.2", "/a.1", "/a.1"], [("/a.1-2", 3), ("/b", 1)]),
        ([], []),
    ],
)
def test_numbers_that_differ_are_ranges(paths: list[str], lines: list[tuple[str, int]]) -> None:
    assert collapsed(paths) == lines


def test_members_of_what_is_alike() -> None:
    paths = ["/h.0/a", "/h.0/b", "/h.1/a", "/h.2/a"]
    assert alike(paths) == [("/h.0-2/a", [0, 2, 3]), ("/h.0/b", [1])]
    assert {words(paths[0]), words(paths[2])} == {("/h.", "/a")}
    assert together([paths[0], paths[2]]) == "/h.0-1/a"


@pytest.mark.parametrize("code", ["/home/me/model.py:7", r"C:\me\model.py:7", "model.py:7"])
def test_a_line_of_a_program_by_its_file(code: str) -> None:
    assert short(code) == "model.py:7"
