"""What people see in a terminal of 80 columns."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from onnxfuse.cli import console, report_text
from onnxfuse.reporting.records import LeftOut, Report, Validation
from tests.fake_engine import fusion, near_miss


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 80 columns got."""
    screen = io.StringIO()
    out = Console(file=screen, width=80, force_terminal=True, color_system="standard", highlight=False, markup=False)
    monkeypatch.setattr(console, "console", lambda stderr=False: out)
    return screen


def report() -> Report:
    long = "/model/decoder/layers.17/self_attn/rotary_embedding/deep/down/[in]/here"
    return Report(
        f"{'folder/' * 12}bert.onnx",
        output=f"{'folder/' * 12}bert.fused.onnx",
        nodes_before=1000,
        nodes_after=500,
        fusions=[fusion(), fusion("Attention", long, bytes_saved=None)],
        near_misses=[near_miss(), *(near_miss("Gelu", f"{long}/{index}") for index in range(20))],
        left_out=[LeftOut(fusion("Attention", long), 0.25, "differs by 2.5e-01 (1e-04 allowed)")],
        validation=Validation("equal", 1e-7, 1e-4, 1e-5, 2, reference_error=(1e-6, 2e-6)),
    )


def test_names_with_colons_are_no_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    console.console().print("block:heart:x has 2 :x: 3")
    assert capsys.readouterr().out == "block:heart:x has 2 :x: 3\n"


def test_nothing_is_cut_or_wider_than_the_terminal(terminal: io.StringIO) -> None:
    out = console.console()
    report_text.print_optimized(out, report(), written=[Path("a"), Path("b")], verbose=True)
    report_text.print_report(out, report(), verbose=True)
    report_text.print_why(out, report(), "Gelu")
    report_text.print_explanation(out, report(), frozenset(["/enc/layer.0/n3"]), "Div", None)
    text = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    shown = "".join(text.split())
    for miss in report().near_misses:
        assert miss.node in shown
    assert "/[in]/" in shown, "node names are no markup"


def test_a_terminal_gets_colours(terminal: io.StringIO) -> None:
    report_text.print_report(console.console(), report(), verbose=False)
    assert "\x1b[1;36m" in terminal.getvalue()


def test_progress_is_drawn_in_a_terminal_and_removed(terminal: io.StringIO) -> None:
    with console.progress("bert.onnx") as told:
        assert told is not None
        told("match", 3, 7)
    assert "bert.onnx: match" in terminal.getvalue()
    assert "3/7" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K"), "the last thing done is to clear the line"


def test_what_has_no_known_end_has_no_count(terminal: io.StringIO) -> None:
    with console.progress("bert.onnx") as told:
        assert told is not None
        told("search", 0, 0)
    assert "?" not in re.sub(r"\x1b\[\?", "", terminal.getvalue())


def test_several_things_have_one_bar(terminal: io.StringIO) -> None:
    with console.progress_of(["a.onnx", "b.onnx"]) as told:
        assert told is not None
        told(1, 0, "search")
    assert "a.onnx: search" in terminal.getvalue()
    assert "1/2" in terminal.getvalue()
    with console.progress_of(["a.onnx"], quiet=True) as told:
        assert told is None


def test_no_progress_when_quiet(terminal: io.StringIO) -> None:
    with console.progress("bert.onnx", quiet=True) as told:
        assert told is None
    assert terminal.getvalue() == ""


def test_no_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("bert.onnx") as told:
        assert told is None
    assert capsys.readouterr() == ("", "")
