"""Functions that rules may call are known by their definition in Python."""

from __future__ import annotations

from typing import Any

import pytest

from onnxfuse.language.registry import Builtin, registering


def test_a_function_is_known_by_its_name_and_its_arguments() -> None:
    table: dict[str, Builtin] = {}
    builtin = registering(table)

    @builtin(meaning=True)
    def _padded(facts: Any, x: Any, by: int, mode: str = "zero", *more: int) -> None:
        """What x is with more around it."""

    @builtin(shapes=True)
    def size(facts: Any, x: Any, axes: Any) -> None: ...

    padded = table["padded"]
    assert padded.run is _padded, "the decorator gives back what it was given"
    assert padded.form == "padded(x, by, mode, more, ...)"
    assert padded.doc == "What x is with more around it."
    assert [count for count in range(8) if padded.takes(count)] == [2, 3, 4, 5, 6, 7]
    assert (padded.meaning, padded.shapes) == (True, False)
    assert [count for count in range(8) if table["size"].takes(count)] == [2]
    assert (table["size"].form, table["size"].meaning, table["size"].shapes, table["size"].doc) == (
        "size(x, axes)",
        False,
        True,
        "",
    )


def test_a_name_stands_once() -> None:
    builtin = registering({})

    def rank(facts: Any, x: Any) -> None: ...

    builtin()(rank)
    with pytest.raises(AssertionError, match="rank is defined twice"):
        builtin()(rank)
