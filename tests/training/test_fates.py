"""What became of values that backward read."""

from __future__ import annotations

from onnxfuse.training.fates import Fates
from onnxfuse.training.kept import kept
from onnxfuse.training.step import Step

from .steps import STEP, lifted


def fates(text: str, replaced: dict[str, list[str]] | None = None) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Those of the values of STEP in another model that it became."""
    before, after = lifted().views[0], lifted(text).views[0]
    was, now = (kept(view, Step.behind(view.graph, "loss")) for view in (before, after))
    found = Fates(before, after, replaced or {}, now)
    return {each.value: found.of(each) for each in was}


def test_what_backward_still_reads_is_saved() -> None:
    assert set(fates(STEP).values()) == {("saved", ())}


def test_what_it_makes_of_what_is_kept_is_recomputed() -> None:
    again = STEP.replace("at = Transpose(a)", "b = Sin(h) at = Transpose(b)")
    assert fates(again)["a"] == ("recomputed", ("h",))


def test_what_it_has_from_an_output_of_it_is_derived() -> None:
    """The cosine of h from its sine."""
    text = STEP.replace("c = Cos(h)", "q = Mul(a, a) p = Sub(two, q) c = Sqrt(p)")
    assert fates(text, {"c": ["q", "p"]})["h"] == ("derived", ("a",))


def test_what_has_no_reader_is_not_needed() -> None:
    text = STEP.replace("c = Cos(h) dh = Mul(da, c)", "dh = Neg(da)")
    assert fates(text)["h"] == ("not needed", ())


def test_a_fused_node_stands_for_what_it_replaced() -> None:
    """The nodes that made the cosine have gone into the product behind it."""
    text = STEP.replace("c = Cos(h) dh = Mul(da, c) xt = Transpose(x)", "xt = Transpose(x)").replace(
        "dw = MatMul(xt, dh)", "e = Mul(a, a) dw = own.Fused(xt, da, e)"
    )
    assert fates(text, {"dw": ["c", "dh"]})["h"] == ("derived", ("a",))
