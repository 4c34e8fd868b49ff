"""Modules that onnx and NumPy import for others' sake are executed when something asks for one of their names.

A command that reads a model, fuses and writes it has no use for text formats, archives or the docstrings that NumPy
gives its C functions.  To execute them takes a seventh of what it takes to import onnx.  This is for the process of a
command alone: who imports onnxfuse finds every module as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

POSTPONED = frozenset(
    {
        "google.protobuf.json_format",
        "google.protobuf.text_format",
        "ipaddress",
        "numpy._core._add_newdocs",
        "numpy._core._add_newdocs_scalars",
        "onnx.compose",
        "onnx.gen_proto",
        "onnx.parser",
        "onnx.printer",
        "onnx.serialization",
        "onnx.utils",
        "onnx.version_converter",
        "socket",
        "tarfile",
    }
)
"""What is imported as a module (`import x`), and of which nothing is asked at the time."""


class _Finder:
    """Finds these modules where they are, and has them executed later."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in POSTPONED else None
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = LazyLoader(spec.loader)
        return spec


def postpone() -> None:
    """Postpone what is imported from now on in this process."""
    sys.meta_path.insert(0, _Finder)
