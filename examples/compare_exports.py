"""What differs between two exports of one model: python examples/compare_exports.py [BEFORE AFTER]"""

import sys
from pathlib import Path

import onnx

import onnxfuse
from onnxfuse.reporting.difference import Side, difference

MODELS = Path(__file__).parents[1] / "models"


def compare(before: str | Path, after: str | Path) -> None:
    shapes = onnxfuse.report(before).shapes
    sides = [
        Side(onnxfuse.report(path, shapes=shapes), onnx.load(path, load_external_data=False))
        for path in (before, after)
    ]
    found = difference(*sides, sizes="the sizes of the first")
    print(found.verdict, *found.worse, sep=", ")
    for figure in found.figures:
        print(f"  {figure.name}: {figure.before:,} -> {figure.after:,}")
    for change in found.lost:
        print(f"  lost {change.count} x {change.op} at {change.scope}")


if __name__ == "__main__":
    compare(*(sys.argv[1:3] or (MODELS / "bert.ts.onnx", MODELS / "bert.dynamo.onnx")))
