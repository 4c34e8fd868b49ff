"""Fixtures of the tests of model files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import broken


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model in a folder of its own, with its weights in weights.bin beside it."""
    folder = tmp_path / "source"
    folder.mkdir()
    broken.write_weights(folder / "weights.bin")
    path = folder / "model.onnx"
    path.write_bytes(broken.external().SerializeToString())
    return path
