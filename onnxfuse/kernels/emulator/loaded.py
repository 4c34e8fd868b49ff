"""Kernels that are built and loaded: each library with as many copies as launches run at a time."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from onnxfuse.kernels.device.device import Source

from .build import build
from .library import Library, ParameterType


class Copies:
    """A built library, with as many copies of it as launches run at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._idle = [Library(path)]

    @contextmanager
    def one(self) -> Iterator[Library]:
        """A copy that nobody uses: shared memory is part of a library, so each launch needs its own."""
        with self._lock:
            library = self._idle.pop() if self._idle else None
        if library is None:
            library = _another(self._path)
        try:
            yield library
        finally:
            with self._lock:
                self._idle.append(library)


@dataclass(frozen=True, slots=True)
class Kernel:
    """An entry of a built library."""

    copies: Copies
    parameters: tuple[ParameterType, ...]


_kernels: dict[tuple[Source, str, bool], Kernel] = {}
_copies: dict[Path, Copies] = {}
_loading = threading.Lock()


def kernel(source: Source, entry: str, checked: bool) -> Kernel:
    """The entry of a source, built and loaded if it is not yet."""
    key = source, entry, checked
    if found := _kernels.get(key):
        return found
    path = build(source, entry, checked)
    with _loading:
        copies = _copies.get(path) or _copies.setdefault(path, Copies(path))
    with copies.one() as library:
        return _kernels.setdefault(key, Kernel(copies, library.parameters(entry)))


def _another(path: Path) -> Library:
    """A further copy of a library that is loaded already; the loader knows files apart by name and inode."""
    with tempfile.NamedTemporaryFile(suffix=path.suffix, dir=path.parent) as file:
        shutil.copyfile(path, file.name)
        return Library(Path(file.name), path)
