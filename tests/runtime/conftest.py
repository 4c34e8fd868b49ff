"""A kernel that computes with NumPy, in the place of those of the package."""

from __future__ import annotations

from collections import deque

import pytest

from onnxfuse import kernels
from onnxfuse.runtime import session
from onnxfuse.runtime.custom_op import Backend
from onnxfuse.runtime.installed import CPU
from tests.bridge_models import Shift

STREAMS: deque[int] = deque(maxlen=8)
BACKEND = Backend(CPU, lambda stream: STREAMS.append(stream))  # type: ignore[arg-type, func-returns-value]


@pytest.fixture
def kernel_of_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernels.KERNELS, "Shift", Shift)
    monkeypatch.setattr(session, "_emulated", lambda: BACKEND)
    Shift.seen.clear()
    Shift.pointers.clear()
