"""What is forward and what is backward, and which models are training steps."""

from __future__ import annotations

import pytest

from onnxfuse.training.step import Step, ancestors, ancestry

from .steps import HEAD, STEP, lifted, step


def ops(text: str = STEP) -> list[str]:
    """The forward nodes of a step, by what they make."""
    view = lifted(text).views[0]
    found = Step.of(view)
    assert found is not None
    return [view.graph.nodes[index].output[0] for index in sorted(found.forward)]


def test_forward_is_what_the_loss_waits_for() -> None:
    assert ops() == ["h", "a", "y", "d", "sq", "loss"]


def test_the_loss_need_not_come_first() -> None:
    assert ops(STEP.replace("float loss, float[8,16] dw", "float[8,16] dw, float loss")) == ops()


@pytest.mark.parametrize(
    "outputs",
    [
        "float[8,16] dw, float[16,4] dv",  # no loss
        "float loss",  # nothing beside it
        "float loss, float[6,16] c",  # no gradient of an input
        "float loss, float[6,4] d",  # which the loss waits for
    ],
)
def test_other_models_are_no_steps(outputs: str) -> None:
    text = STEP.replace("float loss, float[8,16] dw, float[16,4] dv", outputs)
    assert Step.of(lifted(text).views[0]) is None


def test_an_integer_is_no_loss() -> None:
    text = HEAD + "g (float[4] x) => (int64 n, float[4] y) { n = Size(x) y = Neg(x) }"
    assert not Step.possible(step(text))
    assert Step.of(lifted(text).views[0]) is None


def test_what_is_possible_says_nothing_of_a_shape_that_is_not_declared() -> None:
    assert Step.possible(step())
    assert not Step.possible(step(STEP.replace("float loss", "float[1,2] loss")))


def test_what_a_value_waits_for() -> None:
    graph = lifted().views[0].graph
    assert {graph.nodes[index].output[0] for index in ancestors(graph, ["d"])} == {"h", "a", "y", "d"}
    assert ancestors(graph, ["x"]) == frozenset()


def test_what_each_node_waits_for() -> None:
    graph = lifted().views[0].graph
    for index, mask in enumerate(ancestry(graph)):
        assert {at for at in range(len(graph.nodes)) if mask >> at & 1} == ancestors(graph, graph.nodes[index].output)
