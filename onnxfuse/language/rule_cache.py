"""The shipped rules and their variants as a file in the user's cache folder: reading it takes a tenth of making them.

The file is lines of JSON, plain data of which nothing is executed.  The first line is the checksum of all behind it,
the second says of each rule and each variant what is asked of all of them, and how long the others are; then three
lines for each rule, its equations, its text and its patterns, which are read when somebody asks for them.  Its name has
the digest of all that rules depend on, their files and the modules that read them: what is changed is made anew.  A
file that cannot be read, or is not whole, counts as none; one that cannot be written is done without.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

import onnx

from onnxfuse.errors import OnnxfuseError
from onnxfuse.system.atomic_write import replace
from onnxfuse.system.cache_folder import cache_folder

from .outline import Outline
from .pattern import Pattern
from .plain import from_plain, to_plain
from .rule import Rule
from .variants import Variant, keep_variants, variants_of

PACKAGE = Path(__file__).parents[1]
READERS = ("derivatives", "errors.py", "language", "model", "targets", "terms")
"""This room and all below it: what a rule file says may depend on any module there."""
FILES = 8
"""Files that stay in the folder, those of other versions among them."""
FIRST = (
    *("name", "path", "stratum", "kernel", "cost", "passed", "lowers"),
    *("op", "matched_ops", "rank", "labels", "asked", "called", "captured"),
)
"""What is asked of every rule, and what it would take a walk over its equations to find."""
TEXT = ("doc", "text", "source")
"""What is asked where a rule is shown, or complained about."""
EQUATIONS = tuple(f.name for f in fields(Rule) if f.name not in (*FIRST, *TEXT))


def place(rules: Path) -> Path | None:
    """The file for what a folder of rules says now; None where there is no cache folder."""
    try:
        return cache_folder("rules") / f"rules-{_digest(rules)}.jsonl"
    except (OSError, RuntimeError):
        return None


def read(file: Path) -> tuple[list[Rule], dict[str, Rule]] | None:
    """The rules, and those that define ops; None if the file is not there or not whole."""
    try:
        whole = file.read_bytes()
        start = whole.index(b"\n") + 1
        if b"%08x" % crc32(memoryview(whole)[start:]) != whole[: start - 1]:
            return None
        end = whole.index(b"\n", start) + 1
        kept = json.loads(whole[start:end])
        lines = list(_cut(memoryview(whole)[end:], kept["sizes"]))
        outlines = [Outline(*map(_tuples, outline)) for outline in kept["outlines"]]
        rules = [
            _rule(of_all, variants, outlines, lines[3 * index : 3 * index + 3])
            for index, (of_all, variants) in enumerate(zip(kept["rules"], kept["variants"], strict=True))
        ]
        return rules, {op: rules[index] for op, index in kept["definitions"].items()}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write(file: Path, rules: Sequence[Rule], definitions: dict[str, Rule]) -> None:
    """Keep rules and their variants, if the folder can be written to, and remove the files of long ago."""
    with suppress(OSError, OnnxfuseError):
        file.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(file.parent, os.W_OK):
            return
        body = b"".join(line.encode() + b"\n" for line in _lines(rules, definitions))
        replace(file, [b"%08x\n" % crc32(body), body])
        old = sorted(file.parent.glob("rules-*.jsonl"), key=lambda other: other.stat().st_mtime)
        for other in old[:-FILES]:
            other.unlink(missing_ok=True)


def _cut(text: memoryview, sizes: Sequence[int]) -> Iterator[memoryview]:
    """The lines of a text, which is not copied: of megabytes, a model asks for few."""
    at = 0
    for size in sizes:
        yield text[at : at + size]
        at += size


def _digest(rules: Path) -> str:
    """Of the rules, of what reads them, and of the versions on which that depends."""
    digest = blake2b(f"{platform.python_version()} {onnx.__version__}".encode(), digest_size=16)
    for top, suffix in ((str(rules), ".rule"), *((str(PACKAGE / reader), ".py") for reader in READERS)):
        for path in sorted(_files(top, suffix)):
            with open(path, "rb") as opened:
                text = opened.read()
            digest.update(f"{path.removeprefix(top)}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()


def _files(top: str, suffix: str) -> Iterator[str]:
    """The files of a name that ends so, in a folder and those below it; a file is itself."""
    if top.endswith(suffix):
        yield top
        return
    for folder, _, names in os.walk(top):
        yield from (f"{folder}/{name}" for name in names if name.endswith(suffix))


# ------------------------------------------------------------------------------------------------ writing


def _lines(rules: Sequence[Rule], definitions: dict[str, Rule]) -> Iterator[str]:
    outlines: dict[Outline, int] = {}
    below: list[str] = []
    variants = []
    for rule in rules:
        patterns = _Patterns()
        variants.append(
            [
                [
                    outlines.setdefault(v.outline, len(outlines)),
                    v.block,
                    v.size,
                    v.spelling,
                    dict(v.operators),
                    patterns.number(v.root),
                    to_plain(dict(v.dropped)),
                ]
                for v in variants_of(rule)
            ]
        )
        below += [_json([to_plain(getattr(rule, name)) for name in names]) for names in (EQUATIONS, TEXT)]
        below.append(_json(patterns.records))
    place = {id(rule): index for index, rule in enumerate(rules)}
    yield _json(
        {
            "rules": [[to_plain(getattr(rule, name)) for name in FIRST] for rule in rules],
            "definitions": {op: place[id(rule)] for op, rule in definitions.items()},
            "outlines": list(outlines),
            "variants": variants,
            "sizes": [len(line) + 1 for line in below],
        }
    )
    yield from below


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))


class _Patterns:
    """The patterns of a rule as a table, in which what several variants look for stands once."""

    def __init__(self) -> None:
        self.records: list[list[Any]] = []
        self._known: dict[str, int] = {}

    def number(self, p: Pattern) -> int:
        args, attrs = [self.number(arg) for arg in p.args], to_plain(dict(p.attrs))
        record = [p.kind, p.op, args, attrs, p.star, p.name, p.value, p.label, p.line, p.lacking]
        number = self._known.setdefault(_json(record), len(self.records))
        if number == len(self.records):
            self.records.append(record)
        return number


# ------------------------------------------------------------------------------------------------ reading


class _Unread:
    """Some fields are read when they are asked for: `_read` knows them by their names, and raises LookupError."""

    def __getattr__(self, name: str) -> Any:
        try:
            found = self.__dict__[name] = self.__dict__["_read"](name)
        except LookupError:
            raise AttributeError(f"{type(self).__name__} has no {name}") from None
        return found


class _Rule(_Unread, Rule):
    pass


class _Variant(_Unread, Variant):
    pass


def _rule(
    of_all: list[Any],
    variants: list[list[Any]],
    outlines: Sequence[Outline],
    lines: Sequence[memoryview],
) -> Rule:
    equations, text, patterns = lines
    rule = _Rule.__new__(_Rule)
    rule.__dict__.update(zip(FIRST, map(from_plain, of_all), strict=True))
    rule.__dict__["_read"] = _Fields(equations, text)
    table = _Table(patterns)
    keep_variants(rule, [_variant(rule, record, outlines, table) for record in variants])
    return rule


def _variant(rule: Rule, record: list[Any], outlines: Sequence[Outline], table: _Table) -> Variant:
    outline, block, size, spelling, operators, root, dropped = record
    variant = _Variant.__new__(_Variant)
    variant.__dict__.update(
        rule=rule,
        outline=outlines[outline],
        block=block,
        size=size,
        spelling=tuple(spelling),
        operators=operators,
        _read=_Shape(table, root, dropped),
    )
    return variant


class _Shape:
    """The pattern of a variant, and what it leaves out."""

    def __init__(self, table: _Table, root: int, dropped: Any) -> None:
        self._table, self._root, self._dropped = table, root, dropped

    def __call__(self, name: str) -> Any:
        if name == "root":
            return self._table.pattern(self._root)
        if name == "dropped":
            return from_plain(self._dropped)
        raise LookupError(name)


class _Fields:
    """What a rule says, by the names of its fields: most ask for a few of them, and not of all rules."""

    def __init__(self, equations: memoryview, text: memoryview) -> None:
        self._lines = {EQUATIONS: equations, TEXT: text}
        self._plain: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        if name not in self._plain:
            names = next((names for names in self._lines if name in names), ())
            self._plain |= zip(names, json.loads(bytes(self._lines[names])), strict=True)
        return from_plain(self._plain[name])


class _Table:
    """The patterns of a rule by their numbers."""

    def __init__(self, line: memoryview) -> None:
        self._line = line
        self._records: list[list[Any]] = []
        self._made: dict[int, Pattern] = {}

    def pattern(self, number: int) -> Pattern:
        made = self._made.get(number)
        if made is None:
            self._records = self._records or json.loads(bytes(self._line))
            kind, op, args, attrs, *rest = self._records[number]
            made = Pattern(kind, op, tuple(map(self.pattern, args)), from_plain(attrs), *rest)
            self._made[number] = made
        return made


def _tuples(value: Any) -> Any:
    """Arrays as tuples, as an outline has them."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
