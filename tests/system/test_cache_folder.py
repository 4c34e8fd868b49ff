"""The cache folder follows the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfuse.system.cache_folder import cache_folder


def test_it_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ONNXFUSE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder("rules") == tmp_path / ".cache" / "onnxfuse" / "rules"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert cache_folder("emulator") == tmp_path / "other" / "onnxfuse" / "emulator"
    monkeypatch.setenv("ONNXFUSE_CACHE", str(tmp_path / "chosen"))
    assert cache_folder("rules") == cache_folder("emulator") == tmp_path / "chosen"
