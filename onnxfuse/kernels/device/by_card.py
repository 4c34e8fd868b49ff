"""What was found out on cards, in a file that processes of one user share.

    {"schema": 1, "<field>": {"NVIDIA H200 sm_90, driver 13000, ...": {"<name>": <value>}}}

It is written whole and renamed into place.  One that cannot be read, or is of another schema, counts as empty; one that
cannot be written is left as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from onnxfuse.errors import OutputError
from onnxfuse.system.atomic_write import replace

_Value = TypeVar("_Value")


class ByCard(Generic[_Value]):
    """A file at `path`, whose values `value` makes of JSON: it raises ValueError, TypeError, KeyError or AttributeError
    of what is none."""

    def __init__(self, path: Path, schema: int, field: str, value: Callable[[Any], _Value]) -> None:
        self._path, self._schema, self._field, self._value = path, schema, field, value

    def read(self) -> dict[str, dict[str, _Value]]:
        """Card → name → value."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            if found["schema"] != self._schema:
                return {}
            return {
                str(card): {str(name): self._value(value) for name, value in values.items()}
                for card, values in found[self._field].items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}

    def write(self, known: Mapping[str, Mapping[str, _Value]]) -> None:
        """Make this its content."""
        text = json.dumps({"schema": self._schema, self._field: known}, indent=1)
        with suppress(OSError, OutputError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace(self._path, [text.encode()])


def is_named(card: str, name: str) -> bool:
    """Whether a card of this name has the words of `card` in it ("h200", "NVIDIA H200")."""
    return set(card.lower().split()) <= set(name.lower().replace(",", " ").split())
