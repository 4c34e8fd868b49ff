"""What `check` found as workflow commands of GitHub Actions, which a pull request shows beside the lines it changes.

``::error file=model.py,line=436,title=...::message``; how values are escaped:
https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .checked import Check
from .code_lines import place
from .requirements import Finding

_MOST_REASONS = 3


def commands(check: Check, top: Path) -> str:
    """A line for each finding; `top` is the repository's folder, to which files are relative."""
    return "".join(f"{_annotation(finding, top)}\n" for finding in check.all())


def _annotation(finding: Finding, top: Path) -> str:
    at = place(finding, top)
    properties = {"file": at.file} | ({"line": str(at.line)} if at.line else {})
    properties["title"] = f"onnxfuse: {finding.kind}" + (f" {finding.rule}" if finding.rule else "")
    named = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
    return f"::error {named}::{_escaped(chr(10).join(_lines(finding)))}"


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.model}: {finding.message}"
    near = dict.fromkeys(f"{miss.rule}: {miss.cited}" for miss in finding.near_misses)
    yield from list(near)[:_MOST_REASONS]
    if finding.code:
        yield f"written in {finding.code}"


def _escaped(text: str, also: str = "") -> str:
    """The characters that end a value, as percent and two digits; the percent sign first."""
    for character in f"%\r\n{also}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text
