"""Models in the current folder, as a user has them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests import broken


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """model.onnx in the current folder."""
    monkeypatch.chdir(tmp_path)
    onnx.save(broken.good(), "model.onnx")
    return Path("model.onnx")


@pytest.fixture
def models(model: Path) -> list[str]:
    """Three models, of which the second cannot be read."""
    onnx.save(broken.good(), "third.onnx")
    Path("second.onnx").write_bytes(b"")
    return [str(model), "second.onnx", "third.onnx"]
