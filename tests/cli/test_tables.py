"""Tables of measurements and outputs."""

from __future__ import annotations

from onnxfuse.cli import tables
from onnxfuse.cli.console import console
from onnxfuse.performance.benchmark import Bench
from onnxfuse.performance.interleaved import Ratio
from tests.performance.test_benchmark import Capture


def test_kernels_and_a_slower_model_are_shown(capsys: Capture) -> None:
    result = Bench("a", "b", "cuda", 1, "n=1", {"original": 1.5, "fused": 0.0021}, 9, Ratio(0.9, 0.8, 0.95), ["Gelu"])
    tables.print_bench(console(), result)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  cuda, n=1, 9 rounds in turns"
    assert lines[3].split()[:3] == ["original", "1.5", "s"]
    assert lines[4].split()[:3] == ["fused", "2.1", "ms"]
    assert lines[5] == "  0.90 times as fast  (95 % of medians: 0.80 to 0.95)"
    assert lines[6] == "  kernels: Gelu"
