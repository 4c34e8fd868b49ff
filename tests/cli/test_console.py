"""What people see in a terminal of 80 columns."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from onnxfuse.cli import console, report_text
from onnxfuse.cli.quantities import human_bytes
from onnxfuse.reporting.records import LeftOut, NearMiss, Report, Validation
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


def test_no_progress_when_quiet(terminal: io.StringIO) -> None:
    with console.progress("bert.onnx", quiet=True) as told:
        assert told is None
    assert terminal.getvalue() == ""


def test_no_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("bert.onnx") as told:
        assert told is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234, "1.23 kB"), (999_600, "1 MB"), (25e9, "25 GB"), (4e12, "4 TB")],
)
def test_bytes_for_humans(count: float, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("validation", "text"),
    [
        (
            Validation("equal", 0.0, 1e-4, 1e-5, 1),
            "✓ same numbers in onnxruntime: largest error 0.0e+00 in 1 run (rtol",
        ),
        (Validation("mismatch", 0.5, note="y differs"), "✗ other numbers in onnxruntime: y differs"),
        (Validation("not validated", note="no onnxruntime"), "! not validated: no onnxruntime"),
        (Validation("not validated"), "! not validated"),
    ],
)
def test_verdicts(validation: Validation, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    report_text.print_optimized(console.console(), Report("m.onnx", validation=validation), written=[], verbose=False)
    assert f"  {text}" in capsys.readouterr().out


def test_one_reason_in_many_layers_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    def miss(layer: int, reason: str) -> NearMiss:
        return NearMiss("Gelu", "gelu.rule:4", "", f"/enc/{layer}/Mul", reason)

    layers = [miss(layer, f"/enc/{layer}/Div:0 is needed elsewhere") for layer in (1, 2)]
    numbers = [miss(layer, f"the constant wants 0.5, saw 0.{layer}") for layer in (1, 2)]
    report_text.print_near_misses(console.console(), [*layers, *numbers], verbose=False)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  2 × Gelu at /enc/1-2/Mul: /enc/1/Div:0 is needed elsewhere",
        "  1 × Gelu at /enc/1/Mul: the constant wants 0.5, saw 0.1",
        "  1 × Gelu at /enc/2/Mul: the constant wants 0.5, saw 0.2",
    ]


def test_superfluous_nodes_are_not_called_fused(capsys: pytest.CaptureFixture[str]) -> None:
    report_text.print_report(console.console(), Report("m.onnx", nodes_before=5, nodes_after=3), verbose=False)
    assert "nothing to fuse: 5 nodes, 2 are superfluous" in capsys.readouterr().out
