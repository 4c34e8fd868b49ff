"""Loops that only count are ranges; others stay loops."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.runtime.quiet import Session

CATALOGUE = catalogue.load()
COUNT = """d = Sub(limit, start)  f = Cast<to = 1>(d)  g = Cast<to = 1>(delta)  q = Div(f, g)  c = Ceil(q)  r = Relu(c)
    n = Cast<to = 7>(r)  more = Cast<to = 9>(r)"""
BODY = """b = Identity(go)  after = Add(x, delta)  y = Identity(x)"""
LAST = "last"


def model(count: str = COUNT, body: str = BODY, outputs: str = "int64[k] y", trips: str = "n, more") -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (int64 start, int64 limit, int64 delta) => ({outputs}) {{ {count}
        {LAST}, y = Loop({trips}, start) <body = step (int64 i, bool go, int64 x) => (bool b, int64 after, int64 y)
        {{ {body} }}> }}"""
    return parser.parse_model(text)


def ops(source: onnx.ModelProto) -> list[str]:
    fused = fuse(source, CATALOGUE).model
    onnx.checker.check_model(fused, full_check=True)
    for numbers in ((0, 7, 2), (5, -4, -3), (2, 2, 1), (3, 1, 1)):
        feed = {name: np.array(n) for name, n in zip(("start", "limit", "delta"), numbers, strict=True)}
        for m in (source, fused):
            assert np.array_equal(Session(m, optimize=False).run(feed)[0], np.arange(*numbers))
    return [node.op_type for node in fused.graph.node if node.op_type != "Constant"]


@pytest.mark.parametrize(
    "source",
    [
        model(),
        model(trips="n, "),
        model(COUNT.replace("r = Relu(c)", "z = Constant<value = float {0.0}>() r = Max(c, z)")),
        model(body="b = Identity(go)  after = Add(delta, x)  y = Identity(x)"),
    ],
)
def test_a_loop_that_counts_is_a_range(source: onnx.ModelProto) -> None:
    assert ops(source) == ["Range"]


@pytest.mark.parametrize(
    "source",
    [
        model(body=BODY.replace("y = Identity(x)", "y = Identity(after)")),
        model(body=BODY.replace("after = Add(x, delta)", "after = Sub(x, delta)")),
        model(body=BODY.replace("Add(x, delta)", "Add(x, i)")),
        model(body=BODY.replace("Add(x, delta)", "Add(x, x)")),
        model(body=BODY.replace("b = Identity(go)", "b = Not(go)").replace("after", "after"), trips="n, "),
        model(COUNT.replace("Sub(limit, start)", "Sub(limit, delta)")),
        model(COUNT.replace("Div(f, g)", "Div(g, f)")),
        model(COUNT.replace("Ceil(q)", "Floor(q)")),
        model(COUNT.replace("more = Cast<to = 9>(r)", "more = Cast<to = 9>(d)")),
        model(COUNT.replace("Cast<to = 1>(delta)", "Cast<to = 1>(limit)")),
        model(outputs=f"int64[k] y, int64 {LAST}"),
    ],
)
def test_another_loop_stays(source: onnx.ModelProto) -> None:
    fused = fuse(source, CATALOGUE).model
    assert "Loop" in [node.op_type for node in fused.graph.node]
