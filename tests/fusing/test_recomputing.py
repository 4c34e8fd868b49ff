"""What backward computes again in a fused training step."""

from __future__ import annotations

import pytest

import onnxfuse
from onnxfuse.model.graph import family_of
from tests.training.steps import STEP, step

PLAIN = STEP.replace("a = Sin(h)", "b = Sin(h) a = CumSum(b, one)").replace("<float two", "<int64 one = {1}, float two")
"""A step with a sum over elements between the layers, which no region takes."""


def made(text: str = STEP, **options: object) -> onnxfuse.pipeline.Optimized:
    return onnxfuse.optimize(step(text), **options)  # type: ignore[arg-type]


def test_regions_take_what_costs_no_launch() -> None:
    """At -O1, which has no regions, each would be one more."""
    one, two = made(level=1), made()
    assert one.report.held is not None
    assert two.report.held is not None
    assert (one.report.held.after, two.report.held.after) == (864, 480)
    assert two.report.after.launches <= one.report.after.launches
    assert two.report.validation.verdict == "equal"


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
@pytest.mark.parametrize("level", [1, 2])
def test_a_limit_is_kept_by_every_target_and_level(target: str, level: int) -> None:
    done = made(target=target, level=level, recompute=0)
    assert done.report.held is not None
    assert done.report.held.after == 0
    assert done.report.validation.verdict == "equal"


def test_no_pass_makes_one_of_a_copy_and_its_original() -> None:
    """Two products of the same weights, of which rules would keep one."""
    done = made(recompute=400)
    products = [node for node in done.model.graph.node if "MatMul" in family_of(node) or "Region" in node.op_type]
    assert done.report.held is not None
    assert done.report.held.after <= 400
    assert len(products) >= 3


def test_what_is_written_is_the_same_every_time() -> None:
    first, second = made(recompute=100).model, made(recompute=100).model
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


def test_a_fused_step_stays_as_it_is() -> None:
    first = made().model
    assert onnxfuse.optimize(first).model.graph.node == first.graph.node


def test_what_is_no_loop_over_elements_is_not_copied() -> None:
    done = made(PLAIN)
    assert done.report.held is not None
    assert done.report.held.after == done.report.held.before
