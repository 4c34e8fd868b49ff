"""What must stay in float32, and why; nothing else must."""

from __future__ import annotations

import pytest

from onnxfuse.precision.wanted import Precision

from .models import found, parse, reasons, scope_of

HEAD = """g (float[2, 4] x, int64[2, 4] ids, bool[2, 4] seen) => (float[2, 4] y) <float[4, 4] w, float low = {-3.4e38},
    float tiny = {1e-6}, float zero = {0}, float big = {3e5}, float two = {2}, int64[2] shape = {2, 4}> { NODES }"""


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ("p = MatMul(x, w) y = Relu(p)", {}),
        ("p = Cast<to = 1>(ids) q = Mul(p, two) y = Add(q, x)", {"q": "positions, masks and sizes"}),
        ("p = Cast<to = 1>(ids) y = Mul(p, x)", {}),
        (
            "p = Where(seen, zero, low) q = Add(x, p) y = Softmax(q)",
            {"p": "its constant -3.4e+38 is beyond float16"},
        ),
        ("y = Add(x, tiny)", {"y": "its constant 1e-06 is beyond float16"}),
        ("y = Mul(x, big)", {"y": "its constant 3e+05 is beyond float16"}),
        ("y = Mul(x, x)", {"y": "sums and squares leave float16"}),
        ("y = Exp(x)", {"y": "sums and squares leave float16"}),
        ("p = RandomNormalLike(x) y = Add(p, x)", {"p": "random numbers are drawn as they were"}),
        ("y = Det(x)", {}),
        ("y = own.Magic(x)", {"y": "Magic of opset 17 has no float16"}),
    ],
)
def test_reasons(nodes: str, why: dict[str, str]) -> None:
    assert reasons(parse(HEAD.replace("NODES", nodes))) == why


def test_numbers_that_were_seen() -> None:
    model = parse(HEAD.replace("NODES", "p = MatMul(x, w) q = Transpose(p) r = Div(q, two) y = MatMul(r, w)"))
    seen = {"p": 7e4, "q": 7e4, "r": 3.5e4, "y": 10.0}
    beyond = "numbers up to 7e+04 are beyond float16"
    assert reasons(model, seen) == dict.fromkeys("pqr", beyond)
    assert [(one.op, one.value) for one in found(model, seen).overflows] == [("MatMul", 7e4)]
    assert reasons(model, seen, Precision("bf16")) == {}


def test_the_sum_of_a_mask_is_no_overflow() -> None:
    """It stays in float32, and is what the model means."""
    model = parse(HEAD.replace("NODES", "p = Where(seen, zero, low) q = Add(x, p) y = Softmax(q)"))
    both = found(model, {"p": 3.4e38, "q": 3.4e38, "y": 1.0})
    assert sorted(both.reasons) == [0, 1, 2]
    assert both.overflows == []


def test_what_is_made_of_a_small_constant_may_be_as_small() -> None:
    model = parse(HEAD.replace("NODES", "p = Mul(x, tiny) y = Add(x, p)"))
    assert list(reasons(model, {"p": 3e-6, "y": 3.0})) == []
    assert list(reasons(model, {"p": 3e-3, "y": 3.0})) == ["p"]


def test_a_bias_may_be_too_small_and_an_epsilon_not() -> None:
    model = parse(HEAD.replace("NODES", "p = Gemm(x, w, tiny) q = Gemm(p, tiny) y = Add(q, tiny)"))
    assert list(reasons(model, {"p": 3.0, "q": 3e-3, "y": 3.0})) == ["q", "y"]


def test_positions_masks_and_sizes_are_counted() -> None:
    nodes = """p = Cast<to = 1>(ids) q = Unsqueeze(p, shape) m = Where(seen, zero, low) s = Add(p, m) e = Gather(w, ids)
        t = Mul(s, x) y = Identity(t)"""
    assert scope_of(parse(HEAD.replace("NODES", nodes))).counted == {"p", "q", "m", "s"}


def test_products_behind_a_softmax_are_scores() -> None:
    nodes = "q = MatMul(x, w) s = Mul(q, two) p = Softmax(s) y = MatMul(p, w)"
    assert scope_of(parse(HEAD.replace("NODES", nodes))).scores == {0}


def test_an_opset_that_has_the_type() -> None:
    conv = parse(HEAD.replace("NODES", "p = Conv(x, w) y = GlobalAveragePool(p)"))
    islands = found(conv, precision=Precision("bf16"))
    assert list(islands.reasons.values()) == [
        f"{op} of opset 17 has no bfloat16: --opset 22 has" for op in ("Conv", "GlobalAveragePool")
    ]
    assert islands.opsets == {22}
    assert not found(conv).opsets
    assert found(parse(HEAD.replace("NODES", "y = own.Magic(x)"))).opsets == set()
