"""Quantities as people read them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxfuse.cli.quantities import human_bytes, human_flops, human_launches, human_seconds, human_traffic
from tests.fake_engine import fusion


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234, "1.23 kB"), (999_600, "1 MB"), (25e9, "25 GB"), (4e12, "4 TB")],
)
def test_bytes_for_humans(count: float, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (human_launches(0), "0 launches"),
        (human_launches(1), "1 launch"),
        (human_launches(1200), "1,200 launches"),
        (human_seconds(12.34e-6), "12.3 µs"),
        (human_seconds(0.9996e-3), "1 ms"),
        (human_seconds(0.5), "500 ms"),
        (human_seconds(75), "75 s"),
        (human_flops(999), "999 flop"),
        (human_flops(1234e6), "1.23 Gflop"),
        (human_flops(4e15), "4e+03 Tflop"),
    ],
)
def test_launches_times_and_operations_for_humans(written: str, text: str) -> None:
    assert written == text


@pytest.mark.parametrize(
    ("saved", "text"),
    [([], "0 B"), ([1500, 500], "2 kB"), ([1500, None], ">1.5 kB"), ([None], "?"), ([None, 0], "?")],
)
def test_traffic_says_whether_some_of_it_is_unknown(saved: list[int | None], text: str) -> None:
    assert human_traffic(replace(fusion(), bytes_saved=count) for count in saved) == text
