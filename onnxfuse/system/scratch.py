"""Folders for what is being made: gone when it is done, and where the process was killed, when another works there.

A folder is locked while the process that made it lives, whatever becomes of that: the lock goes with it.  Whoever makes
one takes away those beside it that nobody holds.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def _locks() -> Any:
    """The module fcntl.  A system without it has no such locks: there, a killed process leaves its folder."""
    try:
        import fcntl
    except ImportError:
        return None
    return fcntl


fcntl = _locks()
SUFFIX = ".onnxfuse"
"""What the names of such folders end with; they begin with a dot."""
_OURS = re.compile(rf"\..+\.[a-z0-9_]{{8}}{re.escape(SUFFIX)}")
"""The whole of such a name, with what makes it unique: other folders that end so are somebody else's."""


@contextmanager
def folder(place: Path) -> Iterator[Path]:
    """A new folder beside the file `place`, on the same file system; it is gone afterwards.

    Raises OSError where there can be none."""
    sweep(place.parent)
    made, lock = _made(place)
    try:
        yield made
    finally:
        try:
            shutil.rmtree(made, ignore_errors=True)
        finally:
            if lock is not None:
                os.close(lock)


def sweep(parent: Path) -> None:
    """Take away what processes that were killed have left in a folder."""
    if fcntl is None:
        return
    for left in parent.glob(f".*{SUFFIX}"):
        if not _OURS.fullmatch(left.name):
            continue
        try:
            lock = _lock(left)
        except OSError:  # somebody has it, it is gone, it is not ours, or such locks there are none
            continue
        try:
            shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(lock)


def _made(place: Path) -> tuple[Path, int | None]:
    """A new folder, and the lock on it if there are locks."""
    while True:
        made = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=SUFFIX, dir=place.parent))
        if fcntl is None:
            return made, None
        try:
            lock = _lock(made)
        except (BlockingIOError, FileNotFoundError):  # somebody who sweeps was faster
            continue
        except OSError:  # a file system without locks
            return made, None
        if made.is_dir():
            return made, lock
        os.close(lock)  # swept between its opening and its lock


def _lock(path: Path) -> int:
    """An open file that holds the lock on a folder.  Raises OSError where it cannot be had."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(number)
        raise
    return number
