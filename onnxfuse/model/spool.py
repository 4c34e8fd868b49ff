"""A file for the weights of a model that is being made, one after the other, so that no more than one is in memory.

    with beside(Path("half.onnx"), model) as spool:
        tensor = spool.store(tensor, TensorProto.FLOAT16, make)
        files.write(model, Path("half.onnx"), source=source, spool=spool)

The file stands in a folder of its own beside the model's until `files.write` renames it, and is gone if nothing does.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from onnx import ModelProto, StringStringEntryProto, TensorProto

from onnxfuse.system import scratch
from onnxfuse.system.atomic_write import explained, renamed_to

from . import external_data
from .external_data import PAGE, entries, is_external, marks
from .tensors import tensors

Key: TypeAlias = tuple[str, str, str, int, int]
"""Where the numbers came from: file, offset and length; their element type, and the one that they are stored in."""


@dataclass
class Spool:
    """What was stored, in the file `path`."""

    path: Path
    stored: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """What → offset and length: tensors that share their numbers in one file share them in the other."""
    stamps: set[str] = field(default_factory=set)
    """What tells the model's own file, if tensors in it were stored, from another of its name."""

    def store(self, tensor: TensorProto, dtype: int, make: Callable[[], bytes]) -> TensorProto:
        """The external `tensor` in an element type: `make` is asked for its bytes if they are not there.

        Raises OutputError where the file cannot be written, and what `make` raises."""
        said = entries(tensor)
        place, offset, length = (said.get(name, "") for name in ("location", "offset", "length"))
        key = place, offset, length, tensor.data_type, dtype
        self.stamps |= marks(tensor)
        if key not in self.stored:
            content = make()
            with explained(self.path, writing=True), open(self.path, "ab") as file:
                file.write(bytes(-file.tell() % PAGE))
                self.stored[key] = file.tell(), file.write(content)
        made = TensorProto(name=tensor.name, dims=tensor.dims, data_type=dtype, data_location=TensorProto.EXTERNAL)
        there = zip(("location", "offset", "length"), (self.path.name, *map(str, self.stored[key])), strict=True)
        made.external_data.extend(StringStringEntryProto(key=name, value=value) for name, value in there)
        return made

    def wastes(self, model: ModelProto) -> bool:
        """Is there more in the file than a model reads, such as what attempts have left that were given up?"""
        told = [entries(tensor) for tensor in tensors(model) if is_external(tensor)]
        read = {(said["offset"], int(said["length"])) for said in told if said.get("location") == self.path.name}
        pages = sum(-(-length // PAGE) for _, length in read)  # each begins a page
        return self.path.exists() and self.path.stat().st_size > pages * PAGE

    def clear(self) -> None:
        """As if nothing had been stored."""
        self.path.unlink(missing_ok=True)
        self.stored.clear()

    @property
    def sources(self) -> set[str]:
        """The files that it was read from, as the model named them."""
        return {source for source, *_ in self.stored}

    def move(self, target: Path) -> None:
        """Let its file become `target`, or what that leads to if it is a link, in one step.

        Raises OSError."""
        with open(self.path, "rb+") as file:  # what is open for reading alone, Windows does not flush
            os.fsync(file.fileno())
        with renamed_to(target) as temporary:
            try:
                os.replace(self.path, temporary)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                external_data.copy(self.path, temporary)

    def keep(self, tensor: TensorProto, folder: Path) -> None:
        """Let a tensor with external data in another `folder` have it here.

        Raises OutputError where it cannot be written, ModelError where it cannot be read."""
        said = entries(tensor)
        if said.get("location") == self.path.name:
            return
        source, (offset, length) = (
            folder / said.get("location", ""),
            (int(said.get(n) or 0) for n in ("offset", "length")),
        )

        def content() -> bytes:
            with explained(source), open(source, "rb") as file:
                file.seek(offset)
                return file.read(length or -1)

        tensor.CopyFrom(self.store(tensor, tensor.data_type, content))


@contextmanager
def beside(path: Path | None, model: ModelProto) -> Iterator[Spool | None]:
    """A spool in a folder of its own beside `path`, which is gone afterwards; None where the model that is to be made
    anew has no external data, or goes to no file.

    Raises OutputError where there can be no such folder."""
    if path is None or not external_data.places(model):
        yield None
        return
    with ExitStack() as stack:
        with explained(path, writing=True):
            folder = stack.enter_context(scratch.folder(Path(os.path.realpath(path.parent)) / path.name))
        yield Spool(folder / folder.name[1:])  # a name that no file has that weights are read from
