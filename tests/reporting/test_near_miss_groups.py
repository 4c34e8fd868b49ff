"""Near misses of one cause are told once."""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.reporting.near_miss_groups import gain, grouped
from tests.fake_engine import near_miss


def test_numbers_in_names_make_no_other_cause() -> None:
    misses = [replace(near_miss(scope=f"/h.{i}"), reason=f"needs /h.{i}/Add", launches_saved=2) for i in range(3)]
    other = replace(near_miss("Gelu"), reason="wants 2, saw 3", launches_saved=7)
    another = replace(near_miss("Gelu"), reason="wants 2, saw 4", launches_saved=7)
    assert grouped([*misses, other, another]) == [[other], [another], misses]
    assert gain(misses) == 6
