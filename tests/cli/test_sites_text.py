"""What a report says of places."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from onnxfuse.cli import console, sites_text
from onnxfuse.reporting.conversion import Conversion, KeptCast, KeptNodes
from onnxfuse.reporting.records import Remaining
from tests.fake_engine import fusion, near_miss

Capture = pytest.CaptureFixture[str]


def test_near_misses_that_would_save_most_come_first(capsys: Capture) -> None:
    many = [near_miss("Gelu", f"/enc/layer.{i}") for i in range(3)]
    one = replace(near_miss("Attention"), launches_saved=9)
    sites_text.print_near_misses(console.console(), [*many, one], verbose=False)
    assert capsys.readouterr().out.splitlines() == [
        "  nearly fused (and the launches that would save)",
        "  1 × Attention at /enc/layer.3/Div: Pow exponent wants 2, saw 3 (9 launches)",
        "  3 × Gelu at /enc/layer.0-2/Div: Pow exponent wants 2, saw 3",
    ]


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("code", ["", "modeling_bert.py:202"])
def test_what_is_folded_stays_indented(width: int, code: str) -> None:
    scope = "/bert/encoder/layer.0/attention/output/LayerNorm/and/further/down/where/names/are/long"
    out = io.StringIO()
    sites_text.print_fusions(Console(file=out, width=width), [fusion(scope=scope, code=code)], scopes=True, sites=False)
    lines = [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]
    assert max(map(len, lines)) <= width
    below = lines[next(i for i, line in enumerate(lines) if line.startswith("    /bert")) :]
    assert all(line.startswith("    ") for line in below)
    placed = [line for line in below if not line.strip().startswith("modeling_bert")]
    assert "".join(line.split()[0] for line in placed) == scope
    assert (len(placed) < len(below)) == (bool(code) and width < 110), "below the place where there is little room"
    assert code in " ".join(below)
    assert any("launches saved" in line for line in lines) == (width > (110 if code else 79))


def test_a_node_with_casts_before_and_behind_it_is_named_once(capsys: Capture) -> None:
    around = [KeptCast(value, "float32", node, "it overflows") for node in ("/Exp", "/Pow") for value in ("in", "out")]
    sites_text.print_conversion(console.console(), Conversion("mixed", "float16", 9, 2, around), verbose=False)
    assert capsys.readouterr().out.splitlines()[:2] == [
        "  float16: 9 nodes, 2 in float32; Casts: 0 of inputs and outputs, 4 inside",
        "    4 at /Exp, /Pow: it overflows",
    ]


def test_what_hardly_takes_time_is_told_together(capsys: Capture) -> None:
    remaining = [
        Remaining("Conv", 2, 0.5, "a product by itself"),
        Remaining("Resize", 1, 0.004, "no rule has this op"),
        Remaining("Pad", 3, 0.002, "no rule has this op"),
    ]
    sites_text.print_remaining(console.console(), remaining, "h200", verbose=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:3] == [["Conv", "2", "50%", "a", "product", "by", "itself"], ["others", "4", "1%"]]
    sites_text.print_remaining(console.console(), remaining, "h200", verbose=True)
    assert "Resize" in capsys.readouterr().out


def test_a_size_that_depends_on_the_data_is_said_once(capsys: Capture) -> None:
    fusions = [fusion(), fusion("Gelu", bytes_saved=None)]
    sites_text.print_fusions(console.console(), fusions, scopes=False, sites=False)
    assert capsys.readouterr().out.count("a size depends on the data") == 1
    sites_text.print_fusions(console.console(), fusions[:1], scopes=False, sites=False)
    assert "depends" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (Conversion("fp16", "float16", 0, 0, []), "nothing in float16: no node computes with floats"),
        (
            Conversion("fp16", "float16", 0, 1, [], [KeptNodes(1, "why")]),
            "nothing in float16, 1 node in float32: why",
        ),
        (
            Conversion("fp16", "float16", 0, 1234, [], [KeptNodes(1230, "why"), KeptNodes(1, "what for")]),
            "nothing in float16, 1,234 nodes in float32: why (1,230 nodes), what for",
        ),
    ],
)
def test_a_conversion_of_nothing_says_why_in_one_line(told: Conversion, said: str, capsys: Capture) -> None:
    sites_text.print_conversion(console.console(), told, verbose=False)
    assert capsys.readouterr().out == f"  {said}\n\n"


def test_inputs_that_are_cast_all_the_same_are_told(capsys: Capture) -> None:
    cast = KeptCast("x", "float32", "", "an input or output of the model")
    told = Conversion("fp16", "float16", 0, 2, [cast], [KeptNodes(2, "why")])
    sites_text.print_conversion(console.console(), told, verbose=False)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  float16: 0 nodes, 2 in float32; Casts: 1 of inputs and outputs, 0 inside",
        "",
    ]
