"""Small models that no tool of ours wrote, each of which an opener of `portability` refuses or gets wrong.

Where a figure of `portability` is lower than the original's, it is for a mistake of the opener's own if a model of a
few nodes shows it.  Such models stand here in ONNX's text form, each with the op or the form that it is about, and
beside it one without that, which is right.  An opener that has learned better is named, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import parser

from benchmarks.environments import UnavailableError, build
from benchmarks.portability import OPENERS, ORIGINAL, Case, Verdict, examine
from onnxfuse.performance import execution

TIMEOUT = 20.0
"""Seconds after which a tool that never ends is refused."""


@dataclass(frozen=True)
class Mistake:
    """What an opener does to `model`, and not to `control`."""

    opener: str
    told: str
    model: str
    control: str


def text(
    body: str, opset: int = 17, function: str = "", *, inputs: str = "", outputs: str = "", initializers: str = ""
) -> str:
    """A model in ONNX's text form: of one input x and one output y, if nothing else is said; functions are of domain
    `d`."""
    imports = f'"": {opset}, "com.microsoft": 1' + (', "d": 1' if function else "")
    signature = f"({inputs or 'float[2,8] x'}) => ({outputs or 'float[2,8] y'})"
    return f"<ir_version: 8, opset_import: [{imports}]> g {signature} <{initializers}> {{ {body} }} {function}"


DOUBLE = '<domain: "d", opset_import: ["": 17]> Double (a) => (b) { b = Add (a, a) }'
FLAG = "bool c, float[2,8] x"
YES, NO = "yes () => (float[2,8] p) { p = Abs (z) }", "no () => (float[2,8] q) { q = Neg (z) }"
CHOICE = f"y = If (c) <then_branch = {YES}, else_branch = {NO}>"
BOTH = "float[2,8] y, float[2,8] z"
SIGNAL, SPECTRUM = "float[2,4,6,2] x", "float[2,4,6,2] y"
HEADS, HEAD = "float[1,2,3,8] q, float[1,2,3,8] k", "float[1,2,3,8] y"
PRODUCTS = "t = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, t)  y = MatMul (s, k)"

GROUPED = (
    "b = Shape <start = 0, end = 2> (x)  n = Constant <value_ints = [{heads}, 8]> ()  s = Concat <axis = 0> (b, n)  "
)
GROUPED += "r = Reshape (x, s)  q = Transpose <perm = [0, 2, 1, 3]> (r)  y = Attention (q, k, k)"
GROUPS = {"inputs": "float[B,S,48] x, float[B,2,S,8] k", "outputs": "float[B,6,S,8] y"}

MISTAKES = (
    Mistake("openvino", "converts no local functions", text("y = d.Double (x)", 17, DOUBLE), text("y = Add (x, x)")),
    Mistake(
        "openvino",
        "has com.microsoft QuickGelu in float32 alone",
        text("y = com.microsoft.QuickGelu (x)", inputs="float16[2,8] x", outputs="float16[2,8] y"),
        text("y = com.microsoft.QuickGelu (x)"),
    ),
    Mistake(
        "openvino",
        "gives groups of heads to ai.onnx Attention only where their number is written out",
        text(GROUPED.format(heads=-1), 23, **GROUPS),
        text(GROUPED.format(heads=6), 23, **GROUPS),
    ),
    Mistake(
        "openvino",
        "transforms along axis 1, whatever axis DFT of opset 20 is given",
        text("y = DFT (x, , axis)", 20, inputs=SIGNAL, outputs=SPECTRUM, initializers="int64 axis = {2}"),
        text("y = DFT <axis = 2> (x)", 19, inputs=SIGNAL, outputs=SPECTRUM),
    ),
    Mistake(
        "onnx.version_converter", "loses local functions", text("y = d.Double (x)", 17, DOUBLE), text("y = Add (x, x)")
    ),
    Mistake(
        "onnxslim",
        "never ends where a model has local functions and bodies of control flow",
        text(f"z = d.Double (x)  {CHOICE}", 17, DOUBLE, inputs=FLAG),
        text(f"z = Add (x, x)  {CHOICE}", 17, inputs=FLAG),
    ),
    Mistake(
        "float16, onnxconverter-common",
        "has a node read an output in float32 where it takes half precision",
        text("y = Neg (x)  z = Abs (y)", outputs=BOTH),
        text("y = Neg (x)  w = Neg (x)  z = Abs (w)", outputs=BOTH),
    ),
    Mistake(
        "quantize_dynamic, onnxruntime",
        "takes ai.onnx Attention for com.microsoft's",
        text("y = Attention (q, k, k)", 23, inputs=HEADS, outputs=HEAD),
        text(PRODUCTS, 23, inputs=HEADS, outputs=HEAD),
    ),
)


def verdict(opener: str, model: str, folder: Path) -> Verdict:
    """What becomes of a model.  Raises UnavailableError where the opener's environment cannot be built."""
    chosen = OPENERS[opener]
    environment = build(chosen.packages) if chosen.packages else None
    folder.mkdir()
    path, inputs = folder / "m.onnx", folder / "inputs.npz"
    proto = parser.parse_model(model)
    for number, node in enumerate(proto.graph.node):
        node.name = f"n{number}"
    onnx.save(proto, path)
    ran = execution.run(proto, path)
    np.savez(inputs, **ran.inputs)
    case = Case("m", {ORIGINAL: path}, inputs, list(ran.outputs.values()))
    examine(case, opener, environment, folder, TIMEOUT)
    return case.verdicts[opener][ORIGINAL]


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args(arguments)
    learned = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, mistake in enumerate(MISTAKES):
            try:
                found = verdict(mistake.opener, mistake.model, Path(folder) / f"{number}")
                beside = verdict(mistake.opener, mistake.control, Path(folder) / f"{number}.control")
            except UnavailableError as reason:
                print(f"{mistake.opener}: not built: {reason}")
                continue
            has_learned = found.verdict == "right" or beside.verdict != "right"
            learned += has_learned
            print(f"{mistake.opener} {mistake.told}: {'NO LONGER: ' * has_learned}{found.verdict}: {found.reason}")
    return int(learned > 0)


if __name__ == "__main__":
    sys.exit(main())
