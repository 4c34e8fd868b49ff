"""Fixtures that several test files share."""

from __future__ import annotations

import pytest

from tests import fake_engine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> fake_engine.Engine:
    """The command line with a stand-in for the engine."""
    return fake_engine.install(monkeypatch)
