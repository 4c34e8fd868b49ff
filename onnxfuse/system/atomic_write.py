"""Writing that is whole or not at all: under another name first, which then becomes the file's."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onnxfuse.errors import ModelError, OutputError

from . import scratch

_KINDS = {stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


def replace(path: Path, pieces: Iterable[bytes]) -> None:
    """Makes `pieces` the content of `path` in one step: a reader finds the old content or the new, never a part.

    Raises:
        OutputError: `path` cannot be written, or is there and no file.
    """
    with explained(path, writing=True), renamed_to(path) as temporary, open(temporary, "xb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


def refuse(path: Path, given: Iterable[Path] = ()) -> None:
    """Says early what writing to `path` would be refused for.

    Raises:
        OutputError: there is no folder for it, it is there and no file, or it is one of the files that were `given`.
    """
    with explained(path, writing=True):
        place = _place(path)
        if not place.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if place.exists() and any(other.exists() and place.samefile(other) for other in given):
            raise OutputError(f"{path} is a file that was given to read: name another to write to")


def _place(path: Path) -> Path:
    """The file that writing to `path` replaces: what a link leads to, there or not.

    Raises OutputError for what is there and no file, such as a device, which renaming would replace all the same.
    """
    with suppress(FileNotFoundError):
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if kind != stat.S_IFREG:
            raise OutputError(f"{path} is a {_KINDS.get(kind, 'thing')}, not a file: name a file to write to")
    return Path(os.path.realpath(path))


@contextmanager
def removed_on_failure(kept: Callable[[Path], bool] = lambda file: False) -> Iterator[list[Path]]:
    """A list for the files that the block makes: if the block fails, they go, but for those that are to be `kept`."""
    made: list[Path] = []
    try:
        yield made
    except BaseException:
        for file in made:
            if not kept(file):
                with suppress(OSError):
                    Path(os.path.realpath(file)).unlink()
        raise


@contextmanager
def renamed_to(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to: it becomes `path` if the block succeeds, and is gone if not.

    Where `path` is a link, it stays one, and the file that it leads to is replaced.
    """
    place = _place(path)
    with scratch.folder(place) as folder:
        yield folder / "new"
        os.replace(folder / "new", place)


@contextmanager
def explained(path: Path, *, writing: bool = False) -> Iterator[None]:
    """Turns the operating system's complaint about `path` into one line with the next step."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if not writing:
            steps = {errno.ENOENT: "check the name", errno.EACCES: "make it readable"}
            text = "no such file" if error.errno == errno.ENOENT else f"cannot be read ({reason})"
            raise ModelError(f"{path}: {text}: {steps.get(error.errno or 0, 'give a model file')}") from None
        match error.errno:
            case errno.ENOENT | errno.ENOTDIR:
                text = f"there is no folder {path.parent}: make it first, or choose another"
            case errno.EISDIR:
                text = "is a folder: name a file in it"
            case errno.ENOSPC | errno.EDQUOT:
                text = f"no space left in {path.parent}: free some, or choose another folder"
            case _:
                text = f"cannot be written ({reason}): choose another folder"
        raise OutputError(f"{path}: {text}") from None
