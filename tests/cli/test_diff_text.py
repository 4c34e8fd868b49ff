"""A difference in a terminal and in a comment."""

from __future__ import annotations

import io

from rich.console import Console

from onnxfuse.cli.diff_text import markdown, print_difference
from onnxfuse.reporting.difference import Change, Difference, Figure, Missed

FIGURES = (Figure("nodes", 20, 10), Figure("launches, fused", 4, 5), Figure("bytes moved, fused", 2000, 2000))
FOUND = Difference(
    "old/a.onnx",
    "new/a`b.onnx",
    "ids:1,8",
    FIGURES,
    (Change("SkipLayerNormalization", "/layers.0-2/norm", 3, ("LayerNormalization",)),),
    (Change("Gelu", "", 1, code="src/net.py:7"),),
    (Missed("Softmax", "/a_b", 1, "wants <x>\nsaw *", "softmax.rule:3", "src/net.py:8"),),
    worse=("1 fusion lost", "1 more launch"),
)


def shown(found: Difference) -> list[str]:
    out = io.StringIO()
    print_difference(Console(file=out, width=200, highlight=False, markup=False), found)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_text() -> None:
    assert shown(FOUND) == [
        "old/a.onnx → new/a`b.onnx: worse: 1 fusion lost, 1 more launch",
        "                      before  after  change",
        "  nodes                   20     10    -50%",
        "  launches, fused          4      5    +25%",
        "  bytes moved, fused    2 kB   2 kB       =",
        "  at ids:1,8",
        "  lost",
        "    1 × Gelu at the top of the graph, net.py:7",
        "  gained",
        "    3 × SkipLayerNormalization at /layers.0-2/norm (instead: LayerNormalization)",
        "  nearly fused, new",
        "    1 × Softmax at /a_b, net.py:8: wants <x> saw * (softmax.rule:3)",
    ]


def test_markdown() -> None:
    assert markdown(FOUND).splitlines() == [
        "### ❌ onnxfuse: worse: 1 fusion lost, 1 more launch",
        "",
        "`old/a.onnx` → ``new/a`b.onnx``, at `ids:1,8`",
        "",
        "| | before | after | change |",
        "|---|---:|---:|---:|",
        "| nodes | 20 | 10 | -50% |",
        "| launches, fused | 4 | 5 | +25% |",
        "| bytes moved, fused | 2 kB | 2 kB | = |",
        "",
        "<details open><summary>Lost (1)</summary>",
        "",
        "- 1 × **Gelu** at the top of the graph, `net.py:7`",
        "",
        "</details>",
        "",
        "<details><summary>Gained (3)</summary>",
        "",
        "- 3 × **SkipLayerNormalization** at `/layers.0-2/norm` (instead: LayerNormalization)",
        "",
        "</details>",
        "",
        "<details><summary>Nearly fused, new (1)</summary>",
        "",
        "- 1 × **Softmax** at `/a_b`, `net.py:8`: wants \\<x\\> saw \\*",
        "",
        "</details>",
    ]


def test_what_is_the_same_is_short() -> None:
    same = Difference("a.onnx", "b.onnx", "", ())
    assert shown(same) == ["a.onnx → b.onnx: same, once both are fused", "    before  after  change"]
    assert markdown(same).startswith("### ➖ onnxfuse: same\n")
    assert markdown(Difference("a", "b", "", (Figure("launches, fused", 5, 4),))).startswith(
        "### ✅ onnxfuse: better\n"
    )
