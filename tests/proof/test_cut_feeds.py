"""Noise for what is a number, and for nothing else."""

from __future__ import annotations

import numpy as np

from onnxfuse.proof.cut_feeds import feed
from onnxfuse.proof.cuts import Cut


def test_masks_and_integers_keep_their_content() -> None:
    real = {
        "ids": np.array([3, 1]),
        "bits": np.array([0, 1, 1], np.float32),
        "fill": np.array([0, -3.4e38], np.float32),
        "variance": np.array([0.5, 2.5], np.float32),
        "x": np.array([0.5, -2.5], np.float16),
    }
    fed = feed([Cut("y", tuple(real), (), (), ())], real, seed=0)
    for name in ("ids", "bits", "fill"):
        np.testing.assert_array_equal(fed[f"0/{name}"], real[name])
    assert (fed["0/variance"] >= 0).all()
    assert (fed["0/variance"] != real["variance"]).all()
    assert (fed["0/x"] != real["x"]).all()
    assert fed["0/x"].dtype == np.float16
