"""onnxfuse finds, fuses and proves: see `optimize`, `report` and `check`."""

from __future__ import annotations

__version__ = "0.1.0"
