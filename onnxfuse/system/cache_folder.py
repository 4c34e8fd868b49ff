"""Where what can be made again is kept for the next run."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """$ONNXFUSE_CACHE, or onnxfuse/`name` in the user's cache folder.  Raises RuntimeError where there is no user."""
    if chosen := os.environ.get("ONNXFUSE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "onnxfuse", name)
