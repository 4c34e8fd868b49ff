"""What has to be computed again for a value."""

from __future__ import annotations

from onnxfuse.training.cones import Cone, Cones
from onnxfuse.training.step import Step

from .steps import STEP, lifted


def cones(text: str = STEP) -> Cones:
    view = lifted(text).views[0]
    return Cones(view, Step.behind(view.graph, "loss"))


def made(found: Cones, cone: Cone | None) -> list[str]:
    assert cone is not None
    return [found.view.graph.nodes[index].output[0] for index in sorted(cone)]


def test_it_ends_at_what_is_kept() -> None:
    found = cones()
    assert made(found, found.of("a")) == ["a"]
    assert found.sources(found.of("a") or {}) == {"h"}
    assert made(found, found.of("d")) == ["y", "d"]


def test_what_is_dropped_is_part_of_the_next_ones_once() -> None:
    found = cones()
    found.drop("h", found.of("h") or {})
    assert made(found, found.of("a")) == ["a"]
    assert made(found, found.again) == ["h"]
    found = cones()
    found.drop("a", found.of("a") or {})
    assert made(found, found.of("h")) == ["h"]
    assert list(found.saved) == ["h", "d"]


def test_random_numbers_are_drawn_once() -> None:
    found = cones(STEP.replace("a = Sin(h)", "a = RandomNormalLike(h)"))
    assert found.of("a") is None
    assert made(found, found.of("d")) == ["y", "d"]


def test_an_output_is_there_anyway() -> None:
    found = cones(STEP.replace("float loss,", "float loss, float[6,16] a,"))
    assert found.of("a") is None


def test_what_a_body_of_backward_names_stays() -> None:
    branch = "then_branch = p () => (o) { o = Cos(h) }, else_branch = q () => (u) { u = Sin(h) }"
    text = STEP.replace("float[6,8] x,", "float[6,8] x, bool k,").replace("c = Cos(h)", f"c = If(k) <{branch}>")
    assert cones(text).of("h") is None


NORMED = STEP.replace("a = Sin(h)", "a, m, r = LayerNormalization(h, s)").replace(
    "dh = Mul(da, c)", "e = Mul(c, m) dh = Mul(da, e)"
)


def test_of_a_norm_the_loop_by_what_is_kept_and_all_of_it_for_that() -> None:
    found = cones(NORMED.replace("float[6,4] t,", "float[6,4] t, float[16] s,"))
    assert list(found.saved) == ["h", "a", "m", "d"]
    loop, whole = found.of("a"), found.of("m")
    assert loop is not None
    assert whole is not None
    assert (made(found, loop), found.sources(loop)) == (["a"], {"h", "m", "s"})
    assert (list(whole.values()), found.sources(whole)) == ([None], {"h", "s"})
    found.drop("a", loop)
    assert found.of("m") == whole, "it takes more than the loop did"
    found.drop("m", whole)
    assert list(found.again.values()) == [None]
