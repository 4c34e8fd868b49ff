"""Reports as text: verdicts, reasons told once, nothing cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxfuse.cli import console, report_text
from onnxfuse.reporting.records import Fusion, LeftOut, NearMiss, Report, Totals, Validation
from onnxfuse.reporting.requirements import Finding


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
    assert "nothing to fuse; 5 → 3 nodes (-40%)" in capsys.readouterr().out


def test_one_node_is_no_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    report_text.print_report(console.console(), Report("m.onnx", nodes_before=1, nodes_after=1), verbose=False)
    assert "nothing to fuse: 1 node, unchanged" in capsys.readouterr().out
    report_text.print_report(console.console(), Report("m.onnx", nodes_before=2, nodes_after=1), verbose=False)
    assert "2 → 1 node (-50%)" in capsys.readouterr().out


def test_launches_that_no_fusion_saves_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """So that the numbers of a report add up: a layer that nothing reads goes without a fusion."""
    gelu = Fusion("Gelu", "onnxfuse.Gelu", "/enc", "/enc/Mul", ("/enc/Mul",), (), 4, 0)
    whole = Report("m.onnx", nodes_before=9, nodes_after=2, fusions=[gelu], before=Totals(9), after=Totals(2))
    report_text.print_report(console.console(), whole, verbose=False)
    assert "\n  3 launches fewer by what is dead, constant or written with fewer nodes\n" in capsys.readouterr().out
    report_text.print_report(console.console(), replace(whole, after=Totals(5)), verbose=False)
    assert "fewer by" not in capsys.readouterr().out


def test_what_was_left_out_was_there_to_fuse(capsys: pytest.CaptureFixture[str]) -> None:
    gelu = Fusion("Gelu", "onnxfuse.Gelu", "/enc", "/enc/Mul", ("/enc/Mul",), (), 0, 0)
    left = LeftOut(gelu, 1e-2, "differs by 1.0e-02")
    report_text.print_report(
        console.console(), Report("m.onnx", nodes_before=5, nodes_after=5, left_out=[left]), verbose=False
    )
    assert "nothing fused: 5 nodes, unchanged" in capsys.readouterr().out


def test_models_that_were_not_checked_are_told_together(capsys: pytest.CaptureFixture[str]) -> None:
    gone = [Finding("not given", f"{name}.onnx", "", None, "why", calls=("b.jsonl:4",)) for name in "abcd"]
    report_text.print_findings(console.console(), [Finding("error", "e.onnx", "", None, "unreadable"), *gone])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("not given: 4 models of b.jsonl were not checked: a.onnx, b.onnx, c.onnx and 1 more: ")
    assert lines[1:] == ["e.onnx: error: unreadable"]
    report_text.print_findings(console.console(), gone[:1])
    assert capsys.readouterr().out == "a.onnx: not given: why\n"
