"""A baseline is read as it was written, and merged without conflicts."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from onnxfuse.errors import ModelError, UsageError
from onnxfuse.reporting import baseline
from onnxfuse.reporting.baseline import Kept, Sites, Way
from onnxfuse.reporting.records import Report
from tests.fake_engine import fusion

BERT = baseline.sites(
    Report(
        "bert.onnx",
        fusions=[
            fusion(scope="/enc/10"),
            fusion(scope="/enc/3"),
            fusion(scope="/enc/3"),
            fusion("FusedMatMul", scope="/enc/3", absorbed=("Gelu",)),
            fusion("Gelu", scope=""),
        ],
    )
)
WAY = Way.of(2, "onnxfuse", "cpu")
TEXT = """\
{"onnxfuse-baseline": 2, "onnxfuse": "1.2", "level": 2, "target": "onnxfuse"}
{"model": "a.onnx"}
{"model": "bert.onnx", "scope": "", "rule": "Gelu", "count": 1}
{"model": "bert.onnx", "scope": "/enc/3", "rule": "FusedMatMul", "inside": ["Gelu"], "count": 1}
{"model": "bert.onnx", "scope": "/enc/3", "rule": "LayerNormalization", "count": 2}
{"model": "bert.onnx", "scope": "/enc/10", "rule": "LayerNormalization", "count": 1}
"""


def read(folder: Path, text: str) -> baseline.Baseline:
    (folder / "b.jsonl").write_text(text)
    return baseline.read(folder / "b.jsonl")


def test_it_is_sorted_and_has_a_line_for_each_kind() -> None:
    assert baseline.text({"bert.onnx": BERT, "a.onnx": Counter()}, "1.2", WAY) == TEXT


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = read(tmp_path, TEXT)
    assert found.models == {"a.onnx": Counter(), "bert.onnx": BERT}
    assert found.lines == {"a.onnx": 2, "bert.onnx": 3}
    assert found.writers == ("1.2",)
    assert found.ways == (WAY,)
    assert found.written_by("1.2") == ""
    assert found.written_by("2.0") == " (before by onnxfuse 1.2, now by 2.0)"


def test_what_is_inside_counts_as_itself_too() -> None:
    assert baseline.by_rule(BERT) == {
        ("Gelu", ""): 1,
        ("Gelu", "/enc/3"): 1,
        ("FusedMatMul", "/enc/3"): 1,
        ("LayerNormalization", "/enc/3"): 2,
        ("LayerNormalization", "/enc/10"): 1,
    }


def test_lines_may_come_in_any_order_and_more_than_once(tmp_path: Path) -> None:
    head, *lines = TEXT.splitlines()
    other = '{"model": "bert.onnx", "scope": "/enc/10", "rule": "LayerNormalization", "count": 3}'
    mixed = "\n".join([*reversed(lines), other, "", head, head.replace("1.2", "1.3"), lines[0]])
    found = read(tmp_path, mixed)
    assert found.models["bert.onnx"] == BERT | Counter({Kept("/enc/10", "LayerNormalization"): 3})
    assert found.writers == ("1.2", "1.3")


def merged(folder: Path, base: str, ours: str, theirs: str, *options: str) -> tuple[int, str]:
    for name, text in (("ours", ours), ("base", base), ("theirs", theirs)):
        (folder / name).write_text(text)
    done = subprocess.run(
        ["git", "merge-file", "-p", *options, "ours", "base", "theirs"], cwd=folder, capture_output=True, text=True
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("options", [[], ["--union"]], ids=["as usual", "union"])
def test_changes_of_two_branches_in_two_models_are_merged(options: list[str], tmp_path: Path) -> None:
    models = {f"{name}.onnx": BERT for name in "abcd"}
    more = BERT + Counter({Kept("/dec", "Gelu"): 1})
    ours, theirs = {**models, "a.onnx": more}, {**models, "d.onnx": Counter({Kept("", "Gelu"): 1})}
    conflicts, text = merged(tmp_path, *(baseline.text(found, "1", WAY) for found in (models, ours, theirs)), *options)
    assert conflicts == 0
    assert read(tmp_path, text).models == {**ours, "d.onnx": theirs["d.onnx"]}


def test_where_branches_add_in_one_place_union_keeps_both(tmp_path: Path) -> None:
    gelu: Sites = Counter({Kept("/enc/7", "Gelu"): 1})
    ours, theirs = {"a.onnx": BERT + gelu, "b.onnx": gelu}, {"a.onnx": BERT, "c.onnx": gelu}
    texts = [
        baseline.text(found, writer, WAY) for found, writer in (({"a.onnx": BERT}, "1"), (ours, "2"), (theirs, "3"))
    ]
    assert merged(tmp_path, *texts)[0] > 0
    conflicts, text = merged(tmp_path, *texts, "--union")
    assert conflicts == 0
    found = read(tmp_path, text)
    assert found.models == ours | {"c.onnx": gelu}
    assert found.writers == ("2", "3")


def test_version_1_is_read(tmp_path: Path) -> None:
    sites = {"Gelu": {"": 1}, "LayerNormalization": {"/enc/10": 1, "/enc/3": 2}}
    old = {"onnxfuse-baseline": 1, "models": {"bert.onnx": sites, "empty.onnx": {}}}
    found = read(tmp_path, json.dumps(old, indent=2))
    assert baseline.by_rule(found.models["bert.onnx"]) == {
        ("Gelu", ""): 1,
        ("LayerNormalization", "/enc/10"): 1,
        ("LayerNormalization", "/enc/3"): 2,
    }
    assert found.models["empty.onnx"] == Counter()
    assert found.writers == ()
    assert found.written_by("2") == ""
    assert found.ways == (Way(1),)


def test_what_another_level_fused_is_not_compared(tmp_path: Path) -> None:
    read(tmp_path, TEXT).refuse(tmp_path / "b.jsonl", WAY)
    old = TEXT.replace(', "level": 2, "target": "onnxfuse"', "")
    read(tmp_path, old).refuse(tmp_path / "b.jsonl", Way(1, "ort"))
    for text in (old, old + TEXT):  # the second as git merges two branches
        with pytest.raises(UsageError) as raised:
            read(tmp_path, text).refuse(Path("b.jsonl"), WAY)
        assert str(raised.value) == (
            "b.jsonl was written at -O1, and this is -O2 --target onnxfuse, which fuses otherwise: compare with -O1, "
            "or write it anew: --update-baseline and all of its models"
        )


def test_what_was_fused_for_another_target_is_not_compared(tmp_path: Path) -> None:
    written = baseline.text({"bert.onnx": BERT}, "1", Way.of(1, "ort", "cuda"))
    read(tmp_path, written).refuse(Path("b.jsonl"), Way.of(1, "ort", "cuda"))
    with pytest.raises(UsageError) as raised:
        read(tmp_path, written).refuse(Path("b.jsonl"), Way.of(1, "ort", "cpu"))
    assert str(raised.value).startswith(
        "b.jsonl was written at -O1 --target ort --provider cuda, and this is -O1 --target ort, which fuses otherwise"
    )


def test_a_region_is_known_by_its_module_and_what_it_took_in() -> None:
    """Its words change with each op beside it."""
    names = "MatMul SkipLayerNormalization", "MatMul SkipLayerNormalization Tanh"
    one, other = (fusion(name, scope="/enc", op="onnxfuse.Region", absorbed=("Gelu",)) for name in names)
    assert baseline.sites(Report("m", fusions=[one])) == baseline.sites(Report("m", fusions=[other]))
    assert baseline.sites(Report("m", fusions=[one])) == {Kept("/enc", "Region", ("Gelu",)): 1}


HEAD = '{"onnxfuse-baseline": 2, "onnxfuse": "1"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not an onnxfuse baseline"),
        ("\n{\n<<<<<<< HEAD\n", r"is not JSON \(line 2\): restore it, or delete it and --update-baseline"),
        (f"{HEAD}<<<<<<< HEAD\n", r"is not JSON \(line 2\)"),
        ("\xff\xfe", "is not JSON"),
        ("[]", "is not an onnxfuse baseline"),
        ("{}", "is not an onnxfuse baseline"),
        ('{"model": "a.onnx"}\n{"model": "b.onnx"}', "is not an onnxfuse baseline"),
        (f'{HEAD}{{"model": 3}}', "is not an onnxfuse baseline"),
        (f"{HEAD}[1]", "is not an onnxfuse baseline"),
        (f'{HEAD}{{"model": "a", "scope": "", "rule": "b", "count": "1"}}', "is not an onnxfuse baseline"),
        (f'{HEAD}{{"model": "a", "scope": "", "rule": "b", "count": 1, "inside": "c"}}', "is not an onnxfuse baseline"),
        ('{"onnxfuse-baseline": 1, "models": {"a": {"b": {"c": "1"}}}}', "is not an onnxfuse baseline"),
        ('{"onnxfuse-baseline": 3, "models": {}}', "is a baseline of version 3, this onnxfuse writes version 2"),
        ('{"onnxfuse-baseline": 3, "onnxfuse": "9"}\n{}', "is a baseline of version 3"),
    ],
)
def test_files_that_are_no_baseline(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ModelError, match=message):
        baseline.read(path)


def test_no_baseline_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such baseline: make it with --update-baseline"):
        baseline.read(tmp_path / "gone.json")
    with pytest.raises(ModelError, match="cannot be read"):
        baseline.read(tmp_path)
