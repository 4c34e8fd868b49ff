"""What crosses from the nodes before a place to those behind it."""

from __future__ import annotations

from onnxfuse.precision.boundaries import boundaries

from .models import parse, scope_of


def test_values_that_are_read_further_on_cross() -> None:
    nodes = "a = Relu(x) b = Sin(a) s = Shape(a) c = Add(b, a) d = Cos(c) k = Cast<to = 1>(s) y = Add(d, d)"
    scope = scope_of(parse(f"g (float[n] x) => (float[n] y, float[1] k) {{ {nodes} }}"))
    # before:     a  b  s  c  d  k  y  and the end: inputs, outputs and what asks for a shape are no Casts
    assert boundaries(scope) == [0, 1, 2, 2, 1, 1, 1, 0]
