"""Which files the arguments of a command name: the models to read, and where each goes."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from onnxfuse.errors import OutputError, UsageError

STREAM = "-"
"""What stdin and stdout are called."""


def expand(patterns: Sequence[str]) -> list[Path]:
    """The files that `patterns` name, globs expanded and sorted, each file once.

    Raises:
        UsageError: no file matches a glob.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        if glob.has_magic(pattern) and not os.path.lexists(pattern):
            matches = sorted(glob.glob(pattern, recursive=True))
            if not matches:
                raise UsageError(f"no file matches {pattern}")
        else:
            matches = [pattern]
        found |= dict.fromkeys(map(Path, matches))
    return list(found)


def destinations(models: Sequence[Path], output: str | None, *, make_folder: bool = True) -> list[Path]:
    """Where each model's fused form goes.

    Without `output`, what comes from stdin goes to stdout, and NAME.onnx becomes NAME.fused.onnx beside it.  A folder
    is what `output` means if it exists as one, ends with a separator, or has to take several models: models keep their
    names there (but NAME.fused.onnx if that were the model itself), and it is made if need be, unless `make_folder` is
    false.

    Raises:
        UsageError: two models would go to one file, or several to something that is a file.
        OutputError: the folder cannot be made.
    """
    if output == STREAM:
        if len(models) > 1:
            raise UsageError(f"-o - is one stream, and there are {len(models)} models: name a folder")
        return [Path(STREAM)] * len(models)
    if output is None:
        return _apart(models, [_fused(path) for path in models])
    if not _is_folder(models, output):
        return [Path(output)]
    folder = _folder(models, output, "-o", make=make_folder)
    own = folder.resolve()
    return _apart(models, [folder / path.name if own != path.parent.resolve() else _fused(path) for path in models])


def pages(models: Sequence[Path], output: str) -> list[Path]:
    """Where the page of each model goes: a folder, as for `destinations`, gets NAME.html for each.

    Raises:
        UsageError, OutputError: As `destinations` does.
    """
    if not _is_folder(models, output):
        return [Path(output)]
    folder = _folder(models, output, "--html", make=True)
    return _apart(models, [folder / f"{path.stem}.html" for path in models])


def _is_folder(models: Sequence[Path], output: str) -> bool:
    return len(models) > 1 or output.endswith(("/", os.sep)) or os.path.isdir(output)


def _folder(models: Sequence[Path], output: str, option: str, *, make: bool) -> Path:
    """The folder that an option names."""
    folder = Path(output)
    if folder.is_file():
        raise UsageError(f"{option} {output} is a file, and there are {len(models)} models: name a folder")
    if make:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise OutputError(f"{folder} cannot be made ({reason}): choose another folder with {option}") from None
    return folder


def _apart(models: Sequence[Path], places: list[Path]) -> list[Path]:
    """The places, if each model has its own."""
    first: dict[Path, Path] = {}
    for path, place in zip(models, places, strict=True):
        if (other := first.setdefault(place.absolute(), path)) != path:
            raise UsageError(f"{other} and {path} would both become {place}: give them a folder each")
    return places


def _fused(path: Path) -> Path:
    return path if str(path) == STREAM else path.with_name(f"{path.stem}.fused.onnx")
