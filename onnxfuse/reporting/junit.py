"""What `check` found as JUnit XML, in the dialect of Jenkins' xunit plugin that other CI systems read as well.

A model is a test suite.  What was asked of it and holds is a test case that passes; each finding is one that fails, and
a model that cannot be read one with an error."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

from .checked import AS_BEFORE, Check, Checked
from .code_lines import Line, place
from .requirements import Finding


def junit(check: Check, top: Path) -> str:
    """The document; `top` is the repository's folder, to which files are relative."""
    suites = [_suite(checked.model, _cases(checked, top)) for checked in check.models]
    if check.findings:
        suites.append(_suite("baseline", [_failed(finding, top) for finding in check.findings]))
    whole = ET.Element("testsuites", name="onnxfuse check")
    for count in ("tests", "failures", "errors"):
        whole.set(count, str(sum(int(suite.get(count, "0")) for suite in suites)))
    whole.extend(suites)
    ET.indent(whole)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(whole, encoding="unicode") + "\n"


def _suite(name: str, cases: Iterable[ET.Element]) -> ET.Element:
    suite = ET.Element("testsuite", name=_text(name))
    suite.extend(cases)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    return suite


def _cases(checked: Checked, top: Path) -> list[ET.Element]:
    failed = [_failed(finding, top) for finding in checked.findings]
    missed = {finding.message.partition(", found")[0] for finding in checked.findings if finding.kind == "expectation"}
    others = any(finding.kind != "expectation" for finding in checked.findings)
    kept = [d for d in checked.demands if not (f"expected {d}" in missed or (others and d == AS_BEFORE))]
    return [*failed, *(ET.Element("testcase", name=_text(d), classname=_text(checked.model)) for d in kept)]


def _failed(finding: Finding, top: Path) -> ET.Element:
    name = finding.message.partition(", found")[0].removeprefix("expected ")
    if finding.kind == "lost":
        name = f"{finding.rule} at {finding.scope or 'the top of the graph'}"
    elif finding.kind != "expectation":
        name = finding.kind
    case = ET.Element("testcase", name=_text(name), classname=_text(finding.model))
    kind = "error" if finding.kind == "error" else "failure"
    said = ET.SubElement(case, kind, type=finding.kind, message=_text(finding.message))
    lines = [_shown(place(finding, top)) + f": {finding.message}"]
    if finding.code:
        lines.append(f"written in {finding.code}")
    lines += dict.fromkeys(f"{miss.rule} at {miss.node}: {miss.cited}" for miss in finding.near_misses)
    said.text = _text("\n".join(lines))
    return case


def _shown(line: Line) -> str:
    return f"{line.file}:{line.line}" if line.line else line.file


def _text(text: str) -> str:
    """`text` with what XML 1.0 has no character for written out."""
    return "".join(c if _is_char(ord(c)) else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _is_char(code: int) -> bool:
    """Char of https://www.w3.org/TR/xml/#charsets."""
    return code in (9, 10, 13) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000
