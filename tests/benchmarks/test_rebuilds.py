"""The benchmark of rebuilding tries what it says."""

from __future__ import annotations

import pytest

from benchmarks import rebuilds
from tests.exports import MODELS


@pytest.mark.parametrize(("name", "tries"), [("layernorm_tensorflow", 3), ("external_data", 0)])
def test_each_try_is_timed(name: str, tries: int) -> None:
    first, seconds = rebuilds.rebuilt(MODELS / f"{name}.onnx", tries)
    assert first >= 0
    assert len(seconds) == tries
