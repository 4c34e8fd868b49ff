"""The JSON of a check."""

from __future__ import annotations

import json

from .checks import BROKEN, EVERYTHING, GONE, LOST


def test_json_has_what_was_found_and_what_could_not_be_read() -> None:
    data = json.loads(json.dumps(EVERYTHING.to_json()))
    assert data["schema"] == 2
    assert [found["model"] for found in data["models"]] == [c.model for c in EVERYTHING.models[:3]]
    assert data["errors"] == [{"model": BROKEN.model, "message": BROKEN.message}]
    assert [found["kind"] for found in data["findings"]] == [GONE.kind]
    (lost, *_) = data["models"][0]["findings"]
    assert (lost["scopes"], lost["code"]) == (list(LOST.scopes), LOST.code)


def test_all_findings_in_the_order_of_models() -> None:
    assert [f.kind for f in EVERYTHING.all()] == ["lost", "lost", "expectation", "no baseline", "error", "not given"]
