"""Sequences of known elements go, before and after: the ops that are left, and the same numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from tests.spellings.mutants import run

CATALOGUE = catalogue.load()
HEAD = """<ir_version: 10, opset_import: ["": 17]>
g (TYPE[B, 6, 4] x, TYPE[B, 6, 4] z) => (TYPE[SHAPE] y)
<int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 last = {-1}, int64[3] sizes = {1, 2, 3}> {
"""

CASES: dict[str, tuple[str, str, list[str]]] = {
    "what is put in": (
        "B, 6, 4",
        """s = SequenceConstruct (x, z)
        a = SequenceAt (s, zero)
        b = SequenceAt (s, last)
        y = Sub (a, b)""",
        ["Sub"],
    ),
    "one by one, and in between": (
        "B, 6, 4",
        """empty = SequenceEmpty <dtype = KIND> ()
        s = SequenceInsert (empty, x)
        t = SequenceInsert (s, z, zero)
        a = SequenceAt (t, zero)
        b = SequenceAt (t, one)
        y = Sub (a, b)""",
        ["Sub"],
    ),
    "parts of known lengths": (
        "B, 2, 4",
        """s = SplitToSequence <axis = 1> (x, sizes)
        y = SequenceAt (s, one)""",
        ["Slice"],
    ),
    "parts of one length, from the end": (
        "B, 6, 2",
        """s = SplitToSequence <axis = -1> (x, two)
        y = SequenceAt (s, last)""",
        ["Slice"],
    ),
    "rows": (
        "B, 4",
        """s = SplitToSequence <axis = 1, keepdims = 0> (x)
        y = SequenceAt (s, two)""",
        ["Slice", "Squeeze"],
    ),
    "one behind the other": (
        "B, 12, 4",
        """s = SequenceConstruct (x, z)
        y = ConcatFromSequence <axis = 1> (s)""",
        ["Concat"],
    ),
    "an element that is not known": (
        "C, 6, 4",
        """s = SplitToSequence <axis = 0> (x, one)
        n = SequenceLength (s)
        i = Sub (n, one)
        y = SequenceAt (s, i)""",
        ["SplitToSequence", "SequenceLength", "Sub", "SequenceAt"],
    ),
}


@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_before_and_after(name: str, kind: str) -> None:
    shape, text, expected = CASES[name]
    words = {"TYPE": kind, "SHAPE": shape, "KIND": "1" if kind == "float" else "10"}
    whole = HEAD + text + "}"
    for word, meaning in words.items():
        whole = whole.replace(word, meaning)
    before = parser.parse_model(whole)
    onnx.checker.check_model(before, full_check=True)
    after = fuse(before, CATALOGUE).model
    onnx.checker.check_model(after, full_check=True)
    assert [node.op_type for node in after.graph.node] == expected
    rng = np.random.default_rng(0)
    dtype = np.float32 if kind == "float" else np.float16
    given = {name: rng.standard_normal((2, 6, 4)).astype(dtype) for name in "xz"}
    np.testing.assert_array_equal(run(after, given)[0], run(before, given)[0])
