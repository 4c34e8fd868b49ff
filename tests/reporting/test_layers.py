"""Many module paths in few lines."""

from __future__ import annotations

import pytest

from onnxfuse.reporting.layers import collapsed


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
