"""Sentences of reports."""

from __future__ import annotations

import pytest

from onnxfuse.reporting import phrases
from onnxfuse.reporting.records import Report, Runs, Validation


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Validation("not validated"), "not validated"),
        (Validation("not validated", note="validation is off"), "not validated: validation is off"),
        (Validation("mismatch", note="y differs"), "other numbers in onnxruntime: y differs"),
        (Validation("equal", 1e-7, cases=1), "same numbers in onnxruntime: largest error 1.0e-07 in 1 run"),
        (
            Validation("equal", None, 1e-4, 1e-9, 2, kernels=("Gelu",)),
            "same numbers in onnxruntime: largest error 0.0e+00 in 2 runs (rtol 0.0001, atol 1e-09), "
            "with the kernels of Gelu run on the CPU",
        ),
        (
            Validation("equal", 1e-7, cases=2, sites=97, kinds=9),
            "same numbers in onnxruntime: largest error 1.0e-07 in 2 runs, and at 97 places of 9 kinds",
        ),
        (
            Validation("equal", 1e-7, cases=2, sites=2, kinds=1),
            "same numbers in onnxruntime: largest error 1.0e-07 in 2 runs, and at 2 places of one kind",
        ),
        (
            Validation("equal", 1e-7, cases=2, sites=1, kinds=1),
            "same numbers in onnxruntime: largest error 1.0e-07 in 2 runs, and at 1 place",
        ),
        (
            Validation("equal", 2.7e-2, 1e-4, 1e-9, 2, reference_error=(3e-3, 4e-3)),
            "as exact as the original, judged by float64 in 2 runs: rounding alone moves what this model computes by "
            "2.7e-02",
        ),
        (
            Validation("equal", 2.7e-2, 1e-4, 1e-9, 1, note="between two steps of a quantizer"),
            "same numbers in onnxruntime but for the rounding of the original itself: 2.7e-02 in 1 run",
        ),
    ],
)
def test_verdicts(found: Validation, text: str) -> None:
    assert phrases.verdict(found) == text


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Runs("1.20", "", False), "runs in onnxruntime 1.20 and later; older ones are not known"),
        (Runs("1.23", "opset 23", True), "runs in onnxruntime 1.23 and later: opset 23; needs local functions"),
        (
            Runs("1.23", "opset 23", False, (), "1.27"),
            "runs in onnxruntime 1.23 and later: opset 23; layer normalization is precise from 1.27 on",
        ),
        (Runs(None, "Foo", False, ("my",)), "no onnxruntime that is known runs it on a CPU: Foo; needs the ops of my"),
    ],
)
def test_runtimes(found: Runs, text: str) -> None:
    assert phrases.runs(found) == text


def test_errors_against_float64() -> None:
    found = Validation("equal", 1e-5, 1e-4, 1e-9, 2, reference_error=(3e-3, 4e-3))
    told = "largest error against float64: 3.0e-03 of the original, 4.0e-03 of the fused model"
    assert phrases.against_float64(found) == told
    assert phrases.against_float64(Validation("equal", 1e-5, 1e-4)) == ""


def test_where_a_file_is_fast() -> None:
    own = phrases.advice(Report("m", target="ort", provider="cuda"))
    assert own.startswith("fast in onnxruntime on an NVIDIA GPU; elsewhere ask for --target ort (in onnxruntime on ")
    assert phrases.advice(Report("m")).count("--target") == 3


def test_nothing_is_fast_where_it_does_not_run() -> None:
    told = phrases.advice(Report("m", target="ort", runs=Runs(None, "MatMul of opset 17 in bfloat16", False)))
    assert told == (
        "ask for --target ort --provider cuda (in onnxruntime on an NVIDIA GPU), "
        "--target onnx (in any runtime of standard ONNX)"
    )


def test_sizes_that_nobody_gave() -> None:
    assert phrases.sizes(Report("m")) == ""
    assert phrases.sizes(Report("m", assumed="n=3", shapes={"x": (3, 4)})) == "at n=3, assumed: --shape x:3,4"


def test_what_is_not_printable_is_written_out() -> None:
    assert phrases.one_line("a\nb\x1b[1m\udcff ü") == "a\\nb\\x1b[1m\\udcff ü"
