"""Cards are those that are known, or measured ones from a file, and a mistake in the file is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.errors import UsageError
from onnxfuse.performance.gpus import CARDS, card, given
from onnxfuse.targets.target import Target


@pytest.mark.parametrize("name", CARDS)
def test_a_known_card_has_its_name(name: str) -> None:
    assert card(name).name == name


def test_a_measured_card_takes_the_rest_from_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"like": "a100", "bandwidth": 1.5e12}))
    found, like = card(str(path)), CARDS["a100"]
    assert (found.name, found.bandwidth) == ("mine", 1.5e12)
    assert (found.architecture, found.float32, found.launch) == (like.architecture, like.float32, like.launch)
    path.write_text("{}")
    assert card(str(path)).bandwidth == CARDS["h200"].bandwidth


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "an object with the figures of a card"),
        ({"like": "b300"}, '"like" one of a100, h100, h200, b200'),
        ({"speed": 1}, "speed is not one of name, architecture"),
        ({"bandwidth": 0}, "bandwidth is 0"),
        ({"bandwidth": "fast"}, "bandwidth is 'fast'"),
        ({"architecture": 90}, "architecture is 90"),
    ],
)
def test_a_mistake_in_the_file_is_named(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=message):
        card(str(path))


def test_what_is_neither_a_card_nor_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--card b300: it is a100, h100, h200, b200, or a \.json file"):
        card("b300")
    with pytest.raises(UsageError, match="No such file"):
        card(str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UsageError, match=r"bad.json: Expecting"):
        card(str(tmp_path / "bad.json"))


def test_estimates_are_for_our_own_ops() -> None:
    assert given(None, Target("ort")) is None
    assert given("h100", Target("onnxfuse")) == CARDS["h100"]
    with pytest.raises(UsageError, match="estimates are for --target onnxfuse"):
        given("h100", Target("ort"))
