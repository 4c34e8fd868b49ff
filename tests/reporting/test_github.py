"""Annotations are read back as what was meant, by the rules of GitHub's runner."""

from __future__ import annotations

import re
from pathlib import Path

from onnxfuse.reporting.github import commands

from .checks import EVERYTHING, NOTHING, repository


def unescaped(text: str) -> str:
    return re.sub(r"%(0A|0D|3A|2C|25)", lambda found: chr(int(found[1], 16)), text)


def parsed(line: str) -> tuple[dict[str, str], str]:
    """What the runner makes of a line: properties, split at commas, and the message behind the second ``::``."""
    found = re.fullmatch(r"::error (.*?)::(.*)", line)
    assert found, line
    properties = dict(each.split("=", 1) for each in found[1].split(","))
    return {key: unescaped(value) for key, value in properties.items()}, unescaped(found[2])


def test_a_line_for_each_finding(tmp_path: Path) -> None:
    text = commands(EVERYTHING, repository(tmp_path))
    lines = [parsed(line) for line in text.removesuffix("\n").split("\n")]
    assert [properties for properties, _ in lines] == [
        {"file": "src/model.py", "line": "436", "title": "onnxfuse: lost LayerNormalization"},
        {"file": "exports/bert.onnx", "title": "onnxfuse: lost Gelu"},
        {"file": "exports/bert.onnx", "title": "onnxfuse: expectation Own"},
        {"file": "exports/new, 50%: x.onnx", "title": "onnxfuse: no baseline"},
        {"file": "exports/\x07bad\udcff.onnx", "title": "onnxfuse: error"},
        {"file": "b.jsonl", "line": "4", "title": "onnxfuse: not given"},
    ]
    assert lines[0][1].splitlines() == [
        "exports/bert.onnx: LayerNormalization at /enc/layer.0-1/norm: 1 before, 0 now in each of 2 modules",
        "LayerNormalization: Pow exponent wants 2, saw 3 (fusions/2_ops/norm/layer_normalization.rule:6)",
        "written in /lib/site-packages/layers/norm.py:7",
    ]
    assert "100% of <x>" in lines[2][1]
    assert lines[4][1].endswith("line one\r\nline two\x00")


def test_nothing_is_no_line(tmp_path: Path) -> None:
    assert commands(NOTHING, tmp_path) == ""
