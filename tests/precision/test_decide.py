"""What must stay in float32 takes along what saves Casts by it, and every node there has a reason."""

from __future__ import annotations

from onnxfuse.precision.decide import decide
from onnxfuse.precision.islands import islands

from .models import FP16, parse, scope_of

BRIDGE = """g (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w, float tiny = {1e-6}> {
    a = MatMul(x, w) b = Add(a, tiny) c = Relu(b) d = Sub(c, tiny) y = MatMul(d, w) }"""


def test_an_island_grows_over_what_is_cheap() -> None:
    scope = scope_of(parse(BRIDGE))
    decided = decide(scope, islands(scope, FP16, {}, 17).reasons)
    assert decided.single == {1, 2, 3}
    assert decided.why(2) == "its constant 1e-06 is beyond float16"
    assert [decided.is_half(name) for name in "xabcdy"] == [False, True, False, False, False, True]
    assert decided.wanted("d") == {True}
    assert decided.wanted("tiny") == {False}
    assert decided.wanted("a") == {False}


def test_without_islands_all_is_half() -> None:
    scope = scope_of(parse(BRIDGE.replace("1e-6", "1")))
    decided = decide(scope, islands(scope, FP16, {}, 17).reasons)
    assert decided.single == frozenset()
    assert decided.why(0) == "saves a Cast"
