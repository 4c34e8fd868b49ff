"""The benchmark runner says what happened to a process, whatever happened; it asserts no absolute times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scale import ROOT, Row, benchmark, benchmark_help, count_nodes, measure, merged, table
from benchmarks.synthetic import blocks


def test_measure_sees_the_memory_of_the_process_and_not_its_own() -> None:
    small = measure([sys.executable, "-c", "pass"], timeout=60)
    large = measure([sys.executable, "-c", "b'x' * 200_000_000"], timeout=60)
    assert small.outcome == large.outcome == "done"
    assert small.seconds > 0
    assert large.peak_bytes > 200_000_000


def test_measure_kills_what_takes_too_long() -> None:
    measured = measure([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.5)
    assert measured.outcome == "over 0.5 s"
    assert 0.5 <= measured.seconds < 30


def test_measure_kills_what_takes_too_much_memory() -> None:
    hog = "import time; block = b'x' * 300_000_000; time.sleep(60)"
    measured = measure([sys.executable, "-c", hog], timeout=60, memory_limit=2e8)
    assert measured.outcome == "over 0.2 GB"
    assert measured.peak_bytes > 2e8


def test_measure_quotes_the_last_line_of_an_error() -> None:
    measured = measure([sys.executable, "-c", "raise SystemExit('no such op')"], timeout=60)
    assert measured.outcome == "failed: no such op"


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python with no tool beside it and, being outside its virtual environment, no packages."""
    path = tmp_path / "python"
    path.symlink_to(sys.executable)
    return path


def test_a_tool_that_is_absent_is_said_to_be_not_installed(tmp_path: Path, bare_python: Path) -> None:
    for tool in ("onnxfuse", "onnxsim", "onnxslim", "onnxscript"):
        row = benchmark(tool, bare_python, "blocks", tmp_path / "blocks.onnx", timeout=60)
        assert row == Row("blocks", tool, "", "not installed")
    assert benchmark_help(bare_python).outcome == "not installed"


def test_a_tool_is_measured_from_file_to_file_and_leaves_nothing(tmp_path: Path, bare_python: Path) -> None:
    source = tmp_path / "blocks.onnx"
    blocks(source, count=1)
    tool = tmp_path / "onnxsim"
    tool.write_text('#!/bin/sh\ncp "$1" "$2"\n')
    tool.chmod(0o755)
    row = benchmark("onnxsim", bare_python, "blocks", source, timeout=60)
    assert (row.outcome, row.nodes_before, row.nodes_after) == ("done", 49, 49)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blocks.onnx", "onnxsim", "python"]


def test_a_python_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    missing = tmp_path / "python"
    command = [sys.executable, "-m", "benchmarks.scale", "--peers-python", str(missing)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].endswith(f"no Python at {missing}")


def test_count_nodes_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert count_nodes(tmp_path / "none.onnx") is None


def test_rows_measured_again_replace_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    first = [Row("blocks", "onnxsim", "1.0", "done", 9.0), Row("blocks", "onnxslim", "1.0", "done", 8.0)]
    path.write_text(json.dumps(merged(path, first)))
    again = merged(path, [Row("blocks", "onnxsim", "1.1", "done", 7.0)])
    assert [(row["tool"], row["seconds"]) for row in again["rows"]] == [("onnxsim", 7.0), ("onnxslim", 8.0)]


def test_rows_from_another_machine_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    elsewhere = merged(path, [Row("blocks", "onnxsim", "1.0", "done", 9.0)])
    elsewhere["environment"]["processor"] = "another"
    path.write_text(json.dumps(elsewhere))
    assert [row["tool"] for row in merged(path, [Row("blocks", "onnxslim", "1.0", "done", 8.0)])["rows"]] == [
        "onnxslim"
    ]


def test_the_table_leaves_blank_what_was_not_measured() -> None:
    rows = [
        Row("huge", "onnxsim", "1.0", "done", 2.5, 1_500_000_000, 58800, 4, "2026-11-21", 2.25),
        Row("huge", "onnxfuse", "", "not installed"),
    ]
    assert table(rows).splitlines()[2:] == [
        "| huge | onnxsim | 1.0 | 2026-11-21 | 2.5 | 2.25 | 1.50 GB | 58,800 → 4 | done |",
        "| huge | onnxfuse |  |  |  |  |  |  | not installed |",
    ]
