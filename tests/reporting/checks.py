"""A check with every kind of finding, and with names that formats have to escape."""

from __future__ import annotations

from pathlib import Path

from onnxfuse.reporting.checked import AS_BEFORE, Check, Checked
from onnxfuse.reporting.records import NearMiss, Report
from onnxfuse.reporting.requirements import Finding

MISS = NearMiss(
    "LayerNormalization",
    "fusions/2_ops/norm/layer_normalization.rule:6",
    "/enc/layer.3",
    "/enc/layer.3/Div",
    "Pow exponent wants 2, saw 3",
)
OWN = NearMiss("Own", "own.rule:4", "/enc", "/enc/Div", "100% of <x> & 'y', \"z\"")
LOST = Finding(
    "lost",
    "exports/bert.onnx",
    "LayerNormalization",
    "/enc/layer.0-1/norm",
    "LayerNormalization at /enc/layer.0-1/norm: 1 before, 0 now in each of 2 modules",
    (MISS,),
    ("/enc/layer.0/norm", "/enc/layer.1/norm"),
    "/lib/site-packages/layers/norm.py:7",
    ("src/model.py:436", "/lib/site-packages/layers/norm.py:7"),
)
TOP = Finding("lost", "exports/bert.onnx", "Gelu", "", "Gelu at the top of the graph: 1 before, 0 now", scopes=("",))
EXPECTED = Finding("expectation", "exports/bert.onnx", "Own", None, "expected Own >= 2, found 0", (OWN,))
UNKNOWN = Finding("no baseline", "exports/new, 50%: x.onnx", "", None, "the baseline does not have it")
GONE = Finding("not given", "old.onnx", "", None, "is in b.jsonl", calls=("b.jsonl:4",))
BROKEN = Finding("error", "exports/\x07bad\udcff.onnx", "", None, "line one\r\nline two\x00")

EVERYTHING = Check(
    (
        Checked(
            "exports/bert.onnx",
            ("Own >= 2", "Gelu == 0", AS_BEFORE),
            (LOST, TOP, EXPECTED),
            Report("exports/bert.onnx"),
        ),
        Checked("exports/new, 50%: x.onnx", (AS_BEFORE,), (UNKNOWN,), Report("exports/new, 50%: x.onnx")),
        Checked("exports/good.onnx", ("Gelu == 0", AS_BEFORE), (), Report("exports/good.onnx")),
        Checked("exports/\x07bad\udcff.onnx", (AS_BEFORE,), (BROKEN,)),
    ),
    (GONE,),
)
NOTHING = Check((Checked("good.onnx", ("Gelu == 0",), (), Report("good.onnx")),))


def repository(folder: Path) -> Path:
    """A folder with the model's program, a baseline and a rule of the user's own."""
    for file in ("src/model.py", "b.jsonl", "my_rules/own.rule"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("")
    return folder
