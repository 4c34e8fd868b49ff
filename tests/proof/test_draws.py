"""How far arrays are apart, and how far draws move a model's outputs."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from onnxfuse.proof.draws import Distance, Draws

DRAWN = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 18]>
    g (float[n] x, float by) => (float[n] y, int64[n] i) { y = Add(x, by) i = Cast<to = 7>(x) }"""
)


def reals(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_a_distance_is_relative_to_the_largest_number() -> None:
    off = Distance.of(reals(1, 2, 5, np.nan), reals(1, 2, 4, 7))
    assert off.most == 0.25
    assert off.all == pytest.approx(0.25 / np.sqrt(3))
    assert Distance.of(reals(0.5), reals(0)).most == 0.5
    assert Distance.of(reals(), reals()) == Distance()


def test_a_distance_is_no_more_than_another_in_both_ways() -> None:
    assert Distance(1, 1) <= Distance(2, 1) <= Distance(1, 0.5) * 2
    assert not Distance(1, 1) <= Distance(2, 0.5)
    assert Distance(1, 3) | Distance(2, 1) == Distance(2, 3)


def test_the_worst_draw_of_each_output_is_known_after_the_first_time() -> None:
    made = []

    def make() -> onnx.ModelProto:
        made.append(True)
        return DRAWN

    draws = Draws(make, None, "by", [0.5, -2.0, 1.0])
    x = reals(4, 1)
    for _ in range(2):
        assert draws("case", {"x": x}, [x, x.astype(np.int64)]) == [Distance(0.5, 0.5), Distance()]
    assert draws.most == 0.5
    assert len(made) == 1
