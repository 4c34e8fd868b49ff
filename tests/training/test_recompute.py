"""Backward computes values again, and gives the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, checker

from onnxfuse.runtime.quiet import Session
from onnxfuse.training.kept import bytes_of, kept
from onnxfuse.training.recompute import Limit, Recomputed, beside, within
from onnxfuse.training.step import Step

from .steps import HEAD, STEP, lifted, step


def outputs(model: ModelProto) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in model.graph.input
    }
    return list(Session(model, None, optimize=False).run(feeds))


def live(text: str, made: Recomputed | None) -> int:
    """Bytes that live between forward and backward."""
    read = lifted(text) if made is None else lifted(text).again(made.model)
    view = read.views[0]
    return sum(bytes_of(view, each.value, {}) or 0 for each in kept(view, Step.behind(view.graph, "loss")))


@pytest.mark.parametrize(
    ("most", "values"),
    [(864, ()), (863, ("a",)), (480, ("a",)), (479, ("a", "h")), (96, ("a", "h")), (95, ("a", "h", "d"))],
)
def test_the_cheapest_go_first_until_the_rest_fits(most: int, values: tuple[str, ...]) -> None:
    made = within(lifted(), Limit(most))
    assert (made.values if made is not None else ()) == values
    assert live(STEP, made) <= most
    if made is not None:
        checker.check_model(made.model, full_check=True)
        for got, wanted in zip(outputs(made.model), outputs(step()), strict=True):
            assert np.array_equal(got, wanted)


def test_a_limit_that_cannot_be_met_leaves_what_must_be_kept() -> None:
    text = STEP.replace("a = Sin(h)", "a = RandomNormalLike(h)")
    made = within(lifted(text), Limit(0))
    assert live(text, made) == 6 * 16 * 4


def test_sizes_are_those_of_the_limit() -> None:
    text = STEP.replace("float[6,8] x, float[6,4] t", "float[n,8] x, float[n,4] t")
    assert within(lifted(text), Limit(864, (("n", 6),))) is None
    made = within(lifted(text), Limit(864, (("n", 7),)))
    assert made is not None
    assert made.values == ("a",)


def test_a_loop_of_backward_gives_a_value_on_its_way() -> None:
    made = beside(lifted())
    assert made is not None
    assert made.values == ("a",)
    assert live(STEP, made) == 480
    assert list(made.nodes.values()) == ["a"]
    assert beside(lifted(), ["a"]) is None


def test_not_where_no_loop_of_backward_reads_what_it_is_made_of() -> None:
    """The cosine is of what is kept elsewhere, so that a sine would be a launch of its own."""
    text = STEP.replace("c = Cos(h)", "c = Cos(u)").replace("float[6,8] x,", "float[6,8] x, float[6,16] u,")
    assert beside(lifted(text)) is None


def test_a_loop_that_reads_the_value_itself_computes_it() -> None:
    """The gradient of Relu reads the result, as the next weight's gradient does; the operand is kept for others."""
    text = STEP.replace("<float two = {2}>", "<float two = {2}, float zero = {0}, int64 axis = {0}>")
    text = text.replace("a = Sin(h)", "a = Relu(h)").replace("float[16,4] dv)", "float[16,4] dv, float[6,16] s)")
    text = text.replace("c = Cos(h)", "p = Greater(a, zero) c = CastLike(p, a) s = CumSum(h, axis)")
    made = beside(lifted(text))
    assert made is not None
    assert made.values == ("a",)


def test_not_where_that_loop_waits_for_what_reads_it() -> None:
    text = STEP.replace("c = Cos(h)", "m = ReduceSum<keepdims = 0>(dv) hm = Mul(h, m) c = Cos(hm)").replace(
        "dh = Mul(da, c)", "dh = Add(da, c)"
    )
    text = text.replace("at = Transpose(a) dv = MatMul(at, dy)", "dv = Gemm<transA = 1>(a, dy)")
    assert beside(lifted(text)) is None


def test_what_is_turned_is_a_loop() -> None:
    """Both of forward and of backward: the sine is computed where its places are exchanged."""
    text = STEP.replace("c = Cos(h)", "c = Identity(da)").replace(
        "dw = MatMul(xt, dh)", "f = Add(h, dh) dw = MatMul(xt, f)"
    )
    made = beside(lifted(text))
    assert made is not None
    assert made.values == ("a",)
    text = text.replace("a = Sin(h) y = MatMul(a, v)", "b = Sin(h) a = Transpose(b) y = Gemm<transA = 1>(a, v)")
    made = beside(lifted(text.replace("at = Transpose(a) dv = MatMul(at, dy)", "dv = MatMul(a, dy)")))
    assert made is not None
    assert made.values == ("a",)


def test_other_models_are_left_alone() -> None:
    text = HEAD + "g (float[4] x) => (float[4] y) { y = Neg(x) }"
    assert beside(lifted(text)) is None
    assert within(lifted(text), Limit(0)) is None


def test_the_same_model_gives_the_same_bytes() -> None:
    first, second = within(lifted(), Limit(0)), within(lifted(), Limit(0))
    assert first is not None
    assert second is not None
    assert first.model.SerializeToString(deterministic=True) == second.model.SerializeToString(deterministic=True)
