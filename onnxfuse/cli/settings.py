"""What a project has settled for the commands, in the table [tool.onnxfuse] of its pyproject.toml::

    [tool.onnxfuse]
    models = ["exports/*.onnx"]
    rules = ["my_rules"]
    target = "onnxfuse"
    baseline = "fusions.jsonl"

    [tool.onnxfuse.expect]           # or a list for all models
    "bert*.onnx" = ["Attention>=12"]

    [tool.onnxfuse.shapes]           # of all models, or a table for each pattern
    input_ids = [1, 128]

The file is the nearest one upward from the working directory that has the table; paths are relative to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from onnxfuse.errors import UsageError

FILE, TABLE = "pyproject.toml", "[tool.onnxfuse]"
_PATHS = {"models", "rules", "baseline"}
_FLAGS = ("rules", "select", "ignore", "target", "provider", "runtime", "keep_products")
"""Settings that are options of several commands, by the same name."""
_COMMANDS = {
    "report": (*_FLAGS, "jobs"),
    "check": (*_FLAGS, "jobs", "baseline"),
    "optimize": _FLAGS,
    "diff": _FLAGS,
}

READERS = frozenset({*_COMMANDS, "rules"})
"""Commands that heed the settings."""

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Settings:
    """What is settled; empty without a file."""

    file: Path | None = None
    models: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    """Options, by the names that click has for them."""
    expect: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Pattern of models → expectations."""
    shapes: Mapping[str, Shapes] = field(default_factory=dict)
    """Pattern of models → input → shape."""

    def expected_of(self, model: Path) -> list[str]:
        """What is expected of a model."""
        return [text for pattern, texts in self.expect.items() if _fits(model, pattern) for text in texts]

    def shapes_of(self, model: Path) -> Shapes:
        """The shapes of a model's inputs; those of a later pattern win."""
        found: Shapes = {}
        for pattern, shapes in self.shapes.items():
            if _fits(model, pattern):
                found |= shapes
        return found

    def defaults(self) -> dict[str, Any]:
        """click's default_map."""
        found: dict[str, Any] = {
            command: {key: self.values[key] for key in keys if key in self.values}
            for command, keys in _COMMANDS.items()
        }
        if "rules" in self.values:
            found["rules"] = {key: {"rules": self.values["rules"]} for key in ("list", "show", "test")}
        return found


def nearest(start: Path | None = None) -> Settings:
    """The settings for a working directory, by default the current one.

    Raises:
        UsageError: the file is no TOML, or has a key or a value that means nothing.
    """
    folder = Path.cwd() if start is None else start.absolute()
    for file in (each / FILE for each in (folder, *folder.parents)):
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        if "tool.onnxfuse" not in text:
            continue
        import tomllib  # most folders have no settings

        try:
            table = tomllib.loads(text).get("tool", {}).get("onnxfuse")
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{file}: is no TOML: {error}: mend it") from None
        if isinstance(table, dict):
            return _read(file, table)
    return Settings()


def _read(file: Path, table: Mapping[str, Any]) -> Settings:
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _KEYS:
            import difflib

            nearest = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"it has {', '.join(_KEYS)}"
            raise UsageError(f"{file}: {TABLE} has no key {key}: {hint}")
        form, read = _KEYS[key]
        try:
            values[key] = read(value)
        except (TypeError, ValueError):
            raise UsageError(f"{file}: {TABLE} {key} = {value!r}: write {form}") from None
        if key in _PATHS:
            own = values[key]
            values[key] = _from_here(file, own) if isinstance(own, str) else tuple(_from_here(file, p) for p in own)
    models = values.pop("models", ())
    return Settings(file, models, values, values.pop("expect", {}), values.pop("shapes", {}))


def _from_here(file: Path, path: str) -> str:
    """A path that is relative to a file, as the working directory has it."""
    return os.path.relpath(file.parent / path) if not os.path.isabs(path) else path


def _fits(model: Path, pattern: str) -> bool:
    """Whether a model has this name, or this path from some folder on."""
    return (
        fnmatch(model.name, pattern) or fnmatch(model.as_posix(), pattern) or fnmatch(model.as_posix(), f"*/{pattern}")
    )


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(map(_string, value))


def _one_of(*known: str) -> tuple[str, Callable[[object], str]]:
    def read(value: object) -> str:
        if value not in known:
            raise ValueError
        return str(value)

    return f"one of {', '.join(known)}", read


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _expectations(value: object) -> dict[str, tuple[str, ...]]:
    found = {
        pattern: _strings(texts) for pattern, texts in (value if isinstance(value, dict) else {"*": value}).items()
    }
    from onnxfuse.reporting import requirements

    for texts in found.values():
        for text in texts:
            if not requirements.is_expectation(text):
                raise ValueError
    return found


def _shapes(value: object) -> dict[str, Shapes]:
    if not isinstance(value, dict):
        raise TypeError
    own = {name: _dims(dims) for name, dims in value.items() if not isinstance(dims, dict)}
    found = {
        pattern: {n: _dims(d) for n, d in shapes.items()}
        for pattern, shapes in value.items()
        if isinstance(shapes, dict)
    }
    return {"*": own} | found if own else found


def _dims(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(map(_count, value))


_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "models": ('a list of files and patterns, such as ["exports/*.onnx"]', _strings),
    "rules": ('a list of folders, such as ["my_rules"]', _strings),
    "select": ('a list of rules, such as ["Attention"]', _strings),
    "ignore": ('a list of rules, such as ["Gelu"]', _strings),
    "expect": ('a list such as ["Attention>=12"], or a table: a pattern of models, and such a list', _expectations),
    "shapes": ("a table: an input, and its dimensions, such as input_ids = [1, 128]", _shapes),
    "target": _one_of("onnxfuse", "onnx", "ort"),
    "provider": _one_of("cpu", "cuda"),
    "runtime": ('a string, such as "onnxruntime==1.23"', _string),
    "keep_products": _one_of("all", "weighted"),
    "baseline": ('a file, such as "fusions.jsonl"', _string),
    "jobs": ("a number, 0 for one for each CPU", _count),
}
"""What a setting is called → how it is written, and what reads it."""
