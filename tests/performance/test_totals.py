"""A model as a whole, and what stays in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import ModelProto, helper, numpy_helper, parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language.catalogue import load
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.performance.gpus import CARDS
from onnxfuse.performance.sizes import Sizes
from onnxfuse.performance.totals import asked, bytes_saved, remaining, totals
from onnxfuse.reporting.records import Totals
from tests.fake_engine import near_miss

H200 = CARDS["h200"]


def model(body: str, inputs: str = "float[batch, 8] x") -> ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> g ({inputs}) => (float[m, n] y) {{ {body} }}')


def test_all_launches_together() -> None:
    given = model("a = Relu(x)  r = Transpose(a)  y = Exp(r)")
    launches = asked(Lifted.of(given), Sizes.of(given, {"x": (2, 8)}))
    assert totals(launches) == Totals(3, 3 * 2 * 4 * 16, 0)


def test_what_fusions_save_is_what_the_model_moves_less() -> None:
    """Each term of a sum is read, and the sum is written; a fused node moves what is left of that."""
    given = parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        g (float[2, 8] x, float[2, 8] skip, float[8] w, float[8] b) => (float[2, 8] y, float[2, 8] z, float[2, 8] q) {
            total = Add (x, skip)  y = LayerNormalization (total, w, b)  z = Relu (total)
            t = Softplus (x)  s = Tanh (t)  q = Mul (x, s) }""")
    fused = fuse(given, replace(load(), level=1))
    at = Sizes.of(given)
    before, after = (asked(Lifted.of(model), at) for model in (given, fused.model))
    saved = bytes_saved(fused.sites, before, after)
    assert dict(zip([site.matches[-1].rule.name for site in fused.sites], saved, strict=True)) == {
        "SkipLayerNormalization": 64,
        "Mish": 5 * 64,
    }
    assert sum(filter(None, saved)) == totals(before).bytes - totals(after).bytes


def test_a_gradient_with_sums_over_all_rows_is_two_launches() -> None:
    """The second takes the parts of blocks together; where nobody asks for these sums there is none."""
    for outputs, launched in (("y", 1), ("y, s", 2), ("_, s, b", 2)):
        given = model(f"{outputs} = onnxfuse.LayerNormalizationGrad(x, x, s0, x, x) y2 = Relu(x)")
        (one, _) = asked(Lifted.of(given), Sizes.of(given, {"x": (2, 8)}))
        assert (one.launches, totals([one]).launches) == (launched, launched)


def test_sizes_that_are_no_function_of_the_inputs_are_not_guessed() -> None:
    given = model("i = NonZero(x)  y = Cast<to = 1>(i)")
    found = totals(asked(Lifted.of(given), Sizes.of(given)))
    assert (found.launches, found.unsized) == (2, 2)


def test_sizes_that_only_numbers_give_are_read_from_numbers() -> None:
    """Half as many rows, by a scale: a polynomial in nothing, and a number once the rows are one."""
    given = model('y = Resize<mode = "nearest">(x, , scales)')
    given.graph.initializer.append(numpy_helper.from_array(np.array([0.5, 2.0], np.float32), "scales"))
    assert totals(asked(Lifted.of(given), Sizes.of(given, {"x": (6, 8)}))) == Totals(1, 4 * (48 + 2 + 48), 0)


def test_what_reading_a_body_does_not_say_terms_of_its_values_do() -> None:
    branch = "then_branch = p () => (a) { h = d.Op (x)  a = Relu (h) }, else_branch = q () => (b) { b = Neg (x) }"
    given = model(f"y = If (c) <{branch}>", "bool c, float[batch, 8] x")
    given.opset_import.add(domain="d", version=1)
    lifted, at = Lifted.of(given), Sizes.of(given, {"x": (2, 8)})
    assert totals(asked(lifted, at)).unsized == 2
    terms = {"/If_y.then_branch": {"h": lifted.views[0].term("x"), "a": lifted.views[0].term("x")}}
    assert totals(asked(lifted, at, terms)) == Totals(3, 3 * 2 * 4 * 16, 0)


def test_a_call_of_a_local_function_launches_what_stands_in_it() -> None:
    given = model("a = own.f (x)  y = own.f (a)")
    given.opset_import.add(domain="own", version=1)
    function = '<domain: "own", opset_import: ["": 20]> f (p) => (r) { s = Exp (p)  r = Neg (s) }'
    given.functions.append(parser.parse_function(function))
    launches = asked(Lifted.of(given), Sizes.of(given, {"x": (2, 8)}))
    assert [each.node.op_type for each in launches] == ["Exp", "Neg"]


def test_what_remains_says_why() -> None:
    text = "a = MatMul(x, w)  b = Relu(a)  s = Softmax(b)  c = Transpose(s)  d = Det(v)  e = Mul(c, d)  f = Exp(e)"
    text += "  g, k = Dropout(f, r, t)  h = RandomNormalLike(g)  y = Add(g, h)"
    given = model(text)
    given.graph.input.append(helper.make_tensor_value_info("w", 1, [8, 4096]))
    given.graph.input.append(helper.make_tensor_value_info("v", 1, [4, 4]))
    given.graph.initializer.append(helper.make_tensor("r", 1, [], [0.5]))
    given.graph.initializer.append(helper.make_tensor("t", 9, [], [True]))
    for node in given.graph.node:
        node.name = node.op_type
    launches = asked(Lifted.of(given), Sizes.of(given))
    found = remaining(launches, {"Exp", "Add"}, [replace(near_miss("Swish"), node="Mul")], {"Relu", "Softmax"}, H200)
    assert {each.op: each.reason for each in found} == {
        "MatMul": "a product by itself",
        "Relu": "no rule takes it with a neighbour",
        "Softmax": "one kernel already, and nothing beside it to take in",
        "Transpose": "moves data that no neighbour reads in place",
        "Det": "no rule has this op",
        "Mul": "nearly Swish",
        "Dropout": "drops at random, to train: for inference, call eval() before the export",
        "RandomNormalLike": "draws random numbers",
    }
    shares = [each.share for each in found]
    assert shares == sorted(shares, reverse=True)
    assert 0.5 < sum(shares) < 1.0, "the fused Exp and Add take the rest"
