"""Which constants are read while a model is."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, numpy_helper, parser

from onnxfuse.lifting.asked import Asked
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.terms.fold import value_of


def small(text: str) -> ModelProto:
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y) {{ {text} }}'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.arange(1, 5, dtype=np.float32), "w"))
    return model


def test_what_is_passed_on_is_not_read() -> None:
    wanted = set[str]()
    asked = Asked({"w"}, wanted.add)
    Lifted.of(small("y = Add(x, w)"), asked=asked)
    assert wanted == set()


def test_what_is_computed_with_is_read() -> None:
    wanted = set[str]()
    asked = Asked({"w"}, wanted.add)
    Lifted.of(small("v = Exp(w) y = Add(x, v)"), asked=asked)
    assert wanted == {"w"}


def test_another_view_is_a_constant_that_is_not_read_before_it_is_wanted() -> None:
    wanted = set[str]()
    asked = Asked({"w"}, wanted.add)
    axes = "s = Constant<value = int64[2] {2, 2}>() t = Constant<value = int64[1] {4}>()"
    text = f"{axes} a = Reshape(w, s) b = Transpose<perm = [1, 0]>(a) c = Transpose<perm = [1, 0]>(b)"
    (view,) = Lifted.of(
        small(f"{text} d = Reshape(c, t) e = Reshape(b, t) f = Add(x, d) y = Add(f, e)"), asked=asked
    ).views
    assert view.terms_of["b"].op == "Constant"
    assert view.terms_of["d"] is view.terms_of["w"]
    assert view.terms_of["e"] is not view.terms_of["w"]
    assert wanted == set()
    assert value_of(view.terms_of["e"]).tolist() == [1, 3, 2, 4]
    assert wanted == {"w"}
