"""Rules read from the cache are those that are made of their files, and a file that is not whole is none."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.language import catalogue, rule_cache
from onnxfuse.language.pattern import Pattern
from onnxfuse.language.rule import Rule
from onnxfuse.language.variants import Variant, variants_of


@pytest.fixture(scope="module")
def made() -> catalogue.Catalogue:
    """The shipped rules, made of their files."""
    return catalogue._load(())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, made: catalogue.Catalogue) -> Path:
    """The shipped rules, kept."""
    file = tmp_path_factory.mktemp("cache") / "deeper" / "rules-1.jsonl"
    rule_cache.write(file, made.rules, made.definitions)
    return file


def plain(value: object) -> object:
    """A value with its trees written out, each with its place."""
    if isinstance(value, ast.AST):
        return ast.dump(value), [(getattr(n, "lineno", None), getattr(n, "col_offset", None)) for n in ast.walk(value)]
    if isinstance(value, tuple | list):
        return type(value), [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return [plain(getattr(value, f.name)) for f in fields(value)]  # type: ignore[arg-type]
    return value


def pattern(p: Pattern) -> object:
    own = (p.kind, p.op, plain(dict(p.attrs)), p.star, p.name, repr(p.value), p.label, p.line, p.weight, p.depth)
    return own, [pattern(arg) for arg in p.args]


def variant(v: Variant) -> object:
    told = (v.block, v.size, v.spelling, dict(v.operators), v.outline, v.dropped.keys(), v.defaults, v.values)
    return told, plain(dict(v.dropped)), pattern(v.root)


def test_the_same_rules_come_back(made: catalogue.Catalogue, file: Path) -> None:
    found = rule_cache.read(file)
    assert found is not None
    rules, definitions = found
    for rule, other in zip(made.rules, rules, strict=True):
        for name in (*rule_cache.FIRST, *(f.name for f in fields(Rule))):
            assert plain(getattr(rule, name)) == plain(getattr(other, name)), (rule.name, name)
    assert [(op, r.name, r.path) for op, r in definitions.items()] == [
        (op, r.name, r.path) for op, r in made.definitions.items()
    ]
    assert all(any(rule is defining for rule in rules) for defining in definitions.values())


def test_the_same_variants_come_back(made: catalogue.Catalogue, file: Path) -> None:
    found = rule_cache.read(file)
    assert found is not None
    for rule, other in zip(made.rules, found[0], strict=True):
        assert list(map(variant, variants_of(rule))) == list(map(variant, variants_of(other)))
        assert all(v.rule is other for v in variants_of(other))


def test_equations_are_read_when_they_are_asked_for(file: Path) -> None:
    found = rule_cache.read(file)
    assert found is not None
    rule = found[0][0]
    one = variants_of(rule)[0]
    assert rule.matched_ops >= {one.outline.op}
    assert "where" not in vars(rule)
    assert "root" not in vars(one)
    assert isinstance(one.root, Pattern)
    assert isinstance(rule.where, tuple)
    assert "emit" not in vars(rule)
    assert "dropped" not in vars(one)
    assert not hasattr(rule, "elsewhere")
    assert not hasattr(one, "elsewhere")


def test_a_file_that_is_not_whole_counts_as_none(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for number, text in enumerate([b"", whole[:-1], whole[:1000], whole.replace(b"MatMul", b"MatMuL"), b"\0" * 100]):
        broken = tmp_path / f"{number}.jsonl"
        broken.write_bytes(text)
        assert rule_cache.read(broken) is None
    assert rule_cache.read(tmp_path / "none.jsonl") is None


def test_the_place_follows_the_rules_and_what_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXFUSE_CACHE", str(tmp_path))
    rules, package = tmp_path / "rules", tmp_path / "package"
    shutil.copytree(catalogue.CATALOGUE, rules)
    assert rule_cache.place(rules) == rule_cache.place(catalogue.CATALOGUE)
    changed = next(rules.rglob("*.rule"))
    changed.write_text(changed.read_text() + "\n# changed\n")
    assert rule_cache.place(rules) != rule_cache.place(catalogue.CATALOGUE)
    before = rule_cache.place(catalogue.CATALOGUE)
    shutil.copytree(rule_cache.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "kernels"))
    monkeypatch.setattr(rule_cache, "PACKAGE", package)
    assert rule_cache.place(catalogue.CATALOGUE) == before
    for reader in ("language/pattern.py", "model/op_traits.py"):
        (package / reader).write_text((package / reader).read_text() + "# changed\n")
        assert rule_cache.place(catalogue.CATALOGUE) != before
        before = rule_cache.place(catalogue.CATALOGUE)


def test_the_oldest_files_go(made: catalogue.Catalogue, tmp_path: Path) -> None:
    few, one = made.rules[:1], dict[Any, Any]()
    for number in range(rule_cache.FILES + 3):
        (tmp_path / f"rules-old{number}.jsonl").write_text("")
    (tmp_path / "products.json").write_text("{}")
    rule_cache.write(tmp_path / "rules-new.jsonl", few, one)
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == rule_cache.FILES + 1
    assert {"rules-new.jsonl", "products.json"} <= left


def test_a_folder_that_cannot_be_written_is_done_without(made: catalogue.Catalogue, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rule_cache.write(tmp_path / "file" / "rules-1.jsonl", made.rules, made.definitions)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_several_processes_may_keep_rules_at_once(tmp_path: Path) -> None:
    """Those of a folder: to read all takes seconds."""
    folder = catalogue.CATALOGUE / "fusions" / "2_ops" / "activation"
    code = f"from onnxfuse.language import catalogue; catalogue.CATALOGUE = catalogue.Path({str(folder)!r}); "
    command = [sys.executable, "-c", code + "print(*catalogue.load().names)"]
    started = [
        subprocess.Popen(command, env=os.environ | {"ONNXFUSE_CACHE": str(tmp_path)}, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    (said,) = {process.communicate()[0] for process in started}
    assert {"Gelu", "Swish"} <= set(said.split()) < set(catalogue.load().names)
    (file,) = tmp_path.rglob("*.jsonl")
    assert rule_cache.read(file) is not None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file], "nothing half-written is left"


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(name: str) -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(rule_cache, "cache_folder", homeless)
    assert rule_cache.place(catalogue.CATALOGUE) is None
    catalogue._plain.cache_clear()
    try:
        assert type(catalogue.load().rules[0]) is Rule
    finally:
        catalogue._plain.cache_clear()
