"""JUnit reports are valid, whatever models are called, and count what failed."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import xmlschema

from onnxfuse.reporting.checked import Check
from onnxfuse.reporting.junit import junit

from .checks import EVERYTHING, NOTHING, repository

SCHEMA = xmlschema.XMLSchema10(str(Path(__file__).parent / "schemas" / "junit-10.xsd"))


def read(check: Check, folder: Path) -> ET.Element:
    text = junit(check, repository(folder))
    SCHEMA.validate(text)
    return ET.fromstring(text)


def test_the_schema_refuses_what_is_no_report() -> None:
    assert not SCHEMA.is_valid("<testsuites><testcase/></testsuites>")


def test_everything(tmp_path: Path) -> None:
    whole = read(EVERYTHING, tmp_path)
    assert {name: whole.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "9",
        "failures": "5",
        "errors": "1",
    }
    suites = [(suite.get("name"), len(suite), suite.get("failures"), suite.get("errors")) for suite in whole]
    assert suites == [
        ("exports/bert.onnx", 4, "3", "0"),
        ("exports/new, 50%: x.onnx", 1, "1", "0"),
        ("exports/good.onnx", 2, "0", "0"),
        ("exports/\\x07bad\\udcff.onnx", 1, "0", "1"),
        ("baseline", 1, "1", "0"),
    ]


def test_what_holds_passes(tmp_path: Path) -> None:
    cases = {
        (case.get("classname"), case.get("name")): len(case) for case in read(EVERYTHING, tmp_path).iter("testcase")
    }
    assert cases["exports/bert.onnx", "Gelu == 0"] == 0
    assert cases["exports/bert.onnx", "Own >= 2"] == 1
    assert ("exports/bert.onnx", "as in the baseline") not in cases
    assert cases["exports/good.onnx", "as in the baseline"] == 0
    (case,) = read(NOTHING, tmp_path).iter("testcase")
    assert (case.get("name"), len(case)) == ("Gelu == 0", 0)


def test_a_failure_says_where_and_why(tmp_path: Path) -> None:
    failure = read(EVERYTHING, tmp_path).find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.get("message") == "LayerNormalization at /enc/layer.0-1/norm: 1 before, 0 now in each of 2 modules"
    assert (failure.text or "").splitlines() == [
        f"src/model.py:436: {failure.get('message')}",
        "written in /lib/site-packages/layers/norm.py:7",
        "LayerNormalization at /enc/layer.3/Div: Pow exponent wants 2, saw 3 "
        "(fusions/2_ops/norm/layer_normalization.rule:6)",
    ]


@pytest.mark.parametrize("code", [0, 8, 0xB, 0x1F, 0xD800, 0xFFFE, 0xFFFF])
def test_characters_that_xml_does_not_have(code: int, tmp_path: Path) -> None:
    from onnxfuse.reporting.checked import Checked

    read(Check((Checked(f"a{chr(code)}b.onnx", ("Gelu == 0",)),)), tmp_path)
