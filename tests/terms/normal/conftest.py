"""What the tests of the normal form share."""

from __future__ import annotations

import pytest

from tests.terms.normal.space import Space


@pytest.fixture
def t() -> Space:
    return Space()
