"""The page as a file: it works by itself, is small, and nobody's name gets out of its place."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest

from onnxfuse.errors import InternalError
from onnxfuse.reporting.html.page import LIBRARIES, SCRIPTS, page
from onnxfuse.reporting.records import Report

from .made import HOSTILE, hostile, layered, report

HOME = files("onnxfuse.reporting.html")


class Parsed(HTMLParser):
    """Elements with their attributes, and what stands in scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, dict[str, str | None], str]] = []
        self.open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open = tag
        if tag in ("script", "style", "title"):
            self.inside.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open in ("script", "style", "title"):
            tag, attributes, text = self.inside[-1]
            self.inside[-1] = tag, attributes, text + data

    def texts(self, tag: str, **attributes: str) -> list[str]:
        return [text for name, own, text in self.inside if name == tag and own.items() >= attributes.items()]

    @property
    def data(self) -> dict[str, Any]:
        (text,) = self.texts("script", id="data")
        return json.loads(text)  # type: ignore[no-any-return]


def parsed(found: Report) -> Parsed:
    return Parsed(page(found).decode())


@pytest.fixture(scope="module")
def large() -> Report:
    return layered(50, 100)


def test_a_model_of_5000_nodes_is_under_a_megabyte(large: Report) -> None:
    assert large.nodes_before == 5000
    assert len(page(large)) < 1_000_000


def test_the_page_has_the_numbers_of_the_report(large: Report) -> None:
    data = parsed(large).data
    assert data["head"]["launches"] == [large.before.launches, large.after.launches]
    assert len(data["before"]["name"]) == len(data["after"]["same"]) * 5 == large.nodes_before
    assert len(data["fusions"]) == len(large.fusions)


def test_nothing_is_fetched(large: Report) -> None:
    found = parsed(large)
    for tag, attributes in found.elements:
        assert not {"src", "srcset", "data", "action", "background"} & attributes.keys(), tag
        assert (attributes.get("href") or "#").startswith("#"), tag
    assert "link" not in {tag for tag, _ in found.elements}
    (style,) = found.texts("style")
    assert not re.search(r"url\(|@import", style)
    own = "".join(HOME.joinpath(name).read_text() for name in (*SCRIPTS, "page.css", "page.html"))
    assert not re.search(r"https?:|fetch\(|XMLHttpRequest|import\(|innerHTML|outerHTML|insertAdjacentHTML|eval\(", own)
    assert "sourceMappingURL" not in page(large).decode()


def test_only_the_scripts_of_the_page_may_run(large: Report) -> None:
    found = parsed(large)
    (policy,) = [a["content"] for tag, a in found.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    hashes = set(re.findall(r"'sha256-([^']+)'", policy))
    texts = [text for tag, own, text in found.inside if tag != "title" and own.get("type") != "application/json"]
    assert hashes == {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts}
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_names_stay_text() -> None:
    plain, found = parsed(layered(1, 10)), parsed(hostile())
    assert [tag for tag, _ in found.elements] == [tag for tag, _ in plain.elements]
    (raw,) = found.texts("script", id="data")
    assert not set("<>&") & set(raw)
    assert raw.isascii()
    names = found.data["before"]["name"]
    assert names[:2] == list(HOSTILE[:2])
    (title,) = found.texts("title")
    assert title == "<img src=x onerror=\"document.title='broken'\">\\udcff.onnx · onnxfuse report"


def test_the_rules_are_those_of_the_report() -> None:
    base = layered(1, 10)
    path = "fusions/2_ops/norm/layer_normalization.rule"
    fusions = [replace(fusion, sources=(path,)) for fusion in base.fusions]
    rules = parsed(replace(base, fusions=fusions, near_misses=[])).data["rules"]
    assert list(rules) == [path]
    assert "match:" in rules[path]


def test_a_report_without_nodes_has_no_page() -> None:
    with pytest.raises(InternalError, match="nodes=True"):
        page(replace(report([], []), nodes=None))


def test_an_empty_model_has_a_page() -> None:
    assert parsed(report([], [])).data["before"]["name"] == []


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_is_what_its_page_says(name: str) -> None:
    content = HOME.joinpath(name).read_bytes()
    told = HOME.joinpath("vendor/README.md").read_text()
    assert f"{hashlib.sha256(content).hexdigest()}  {name.rpartition('/')[2]}" in told
    assert b"</script" not in content.lower()
    for licence in ("cytoscape", "cytoscape-dagre", "dagre"):
        assert "Permission is hereby granted" in HOME.joinpath(f"vendor/LICENSE.{licence}").read_text()


# ------------------------------------------------------------------------------------------------------- contrast

TEXT = [
    ("text", "back"),
    *(("text", name) for name in ("raised", "chosen", "plain", *(f"region-{i}" for i in range(8)))),
    *(("dim", name) for name in ("back", "raised", "chosen")),
    *(("link", name) for name in ("back", "raised")),
    *((f"{name}", f"{name}-back") for name in ("fused", "warn", "bad")),
]
SHAPES = [(name, "back") for name in ("before", "memory", "compute", "launch", "fused", "focus", "edge")]


def colours(scheme: str) -> dict[str, str]:
    """The variables of the page's style in a scheme of colours."""
    blocks = re.findall(r":root \{(.*?)\}", HOME.joinpath("page.css").read_text(), re.DOTALL)
    light, dark, printed = (dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in blocks)
    return {"light": light, "dark": light | dark, "print": light | printed}[scheme]


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, 1.4.3: the ratio of relative luminances."""

    def luminance(colour: str) -> float:
        channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_contrast_is_enough_to_read(scheme: str) -> None:
    known = colours(scheme)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    weak = {(a, b): contrast(known[a], known[b]) for a, b in TEXT if contrast(known[a], known[b]) < 4.5}
    weak |= {(a, b): contrast(known[a], known[b]) for a, b in SHAPES if contrast(known[a], known[b]) < 3}
    assert weak == {}
