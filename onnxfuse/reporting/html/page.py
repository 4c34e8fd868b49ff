"""A report as one HTML file: nothing is fetched, and nothing in it runs but the scripts that stand beside this file.

The names in a model are a stranger's.  They reach the page as JSON alone, in which no character ends a script, and the
scripts show them as text.  Besides, the page's own policy lets only these very scripts run, and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from onnxfuse.errors import InternalError
from onnxfuse.language import lookup
from onnxfuse.reporting.phrases import one_line
from onnxfuse.reporting.records import Report

from .data import page_data

LIBRARIES = ("vendor/cytoscape.min.js", "vendor/cytoscape-dagre.min.js")
SCRIPTS = ("format.js", "model.js", "tree.js", "graph.js", "details.js", "tables.js", "page.js")
"""Our own, in the order in which they are read; one scope holds them all."""


def page(report: Report, rules: Sequence[Path] = ()) -> bytes:
    """The page of a report that has its nodes; `rules` are folders with rules besides the catalogue.

    The file is UTF-8.  Raises InternalError for a report without nodes."""
    if report.nodes is None:
        raise InternalError("a page is made of a report with nodes: ask for them with nodes=True")
    data = page_data(report, report.nodes, _rules(report, rules))
    # `ensure_ascii` also keeps out what JSON may hold and UTF-8 may not: half of a surrogate pair, in a file's name.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    scripts = [_read(name) for name in LIBRARIES]
    scripts.append("(() => {\n" + "\n".join(map(_read, SCRIPTS)) + "\n})();")
    style = _read("page.css")
    return (
        Template(_read("page.html"))
        .substitute(
            policy=_policy(scripts, style),
            title=html.escape(one_line(Path(report.model).name)),
            style=style,
            data=text,
            scripts="\n".join(f"<script>{script}</script>" for script in scripts),
        )
        .encode()
    )


def _read(name: str) -> str:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return re.sub(r"^//# sourceMappingURL=.*$", "", text, flags=re.MULTILINE)  # a map that nobody shall look for


def _policy(scripts: Iterable[str], style: str) -> str:
    """What the page may do: run these scripts, be styled by this, and show the pictures that it made for printing."""
    allowed = " ".join(map(_hash, scripts))
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _rules(report: Report, folders: Sequence[Path]) -> dict[str, str]:
    """The text of each rule that the report speaks of, by its file."""
    wanted = {path for fusion in report.fusions for path in fusion.sources}
    wanted |= {miss.source.rpartition(":")[0] for miss in report.near_misses}
    return {rule.path: rule.text.strip() for rule in lookup.catalogue(folders) if rule.path in wanted}
