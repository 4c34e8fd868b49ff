"""Large weights of a model that is one file, left there: they are read from it as those in other files are.

    model = left_there(path)                  the weights are external data in the file itself, if that is large
    size, pieces = written(tensor, places)    such a tensor as it is in one file, with its numbers in it

onnxruntime maps weights that are in files, and what is nowhere changed is copied from file to file.  As messages of
protobuf, weights of 2 GB are in memory seven times: in the file that was read, in the message, in what is serialised
for a session, in what that parses, and in what it makes of them, for two models.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from onnxfuse.errors import ModelError
from onnxfuse.system.atomic_write import explained

from . import protobuf
from .external_data import MARK, entries, forget, is_external, marks
from .tensors import tensors
from .validity import ITEM_BYTES

LARGE_FILE = 1 << 28
"""Bytes of a file of which weights are left where they are."""
LARGE = 1 << 20
"""Bytes of such a weight."""
_RAW = onnx.TensorProto.RAW_DATA_FIELD_NUMBER
_AT_ONCE = 1 << 24


def left_there(path: Path) -> onnx.ModelProto | None:
    """The model in the file `path`, whose large initializers are external data in that file.

    None where nothing is large, and where anything is unusual: what is wrong with a file is said of all of it."""
    try:
        # A link leads out of its folder, and a file of two names may: of external data, onnx refuses both.
        if path.is_symlink() or not path.is_file() or path.stat().st_size < LARGE_FILE or path.stat().st_nlink > 1:
            return None
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            left = partial(_left, data, path.name, _stamp(file))
            graph = partial(protobuf.edited, data, number=protobuf.INITIALIZER, change=left)
            model: onnx.ModelProto = onnx.ModelProto.FromString(
                protobuf.edited(data, 0, len(data), number=protobuf.GRAPH, change=graph)
            )
    except (OSError, ValueError, IndexError, DecodeError):
        return None
    # Where fields that protobuf does not know belong, only protobuf can say: it has to write such a model.
    return model if model.HasField("graph") and not protobuf.has_unknown_fields(model) else None


def _stamp(file: BinaryIO) -> str:
    """What another content of a file would change; its inode is not the same for ever in every file system."""
    told = os.fstat(file.fileno())
    return f"{told.st_size} {told.st_mtime_ns}"


def _left(data: mmap.mmap, place: str, stamp: str, start: int, end: int) -> bytes:
    """The tensor in data[start:end] of a file of this `stamp`, without its numbers if these are many."""
    found = [(at, stop) for number, at, stop in protobuf.fields(data, start, end) if number == _RAW]
    if len(found) != 1 or found[0][1] - found[0][0] < LARGE or found[0][1] > end:
        return data[start:end]
    at, stop = found[0]
    tensor = onnx.TensorProto.FromString(protobuf.edited(data, start, end, number=_RAW, change=lambda *_: b""))
    tensor.ClearField("raw_data")
    plain = not (tensor.HasField("data_location") or tensor.external_data or tensor.HasField("segment"))
    size = math.prod(tensor.dims) * ITEM_BYTES.get(tensor.data_type, 0)
    if not plain or size != stop - at or len(UnknownFieldSet(tensor)):
        return data[start:end]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.metadata_props.add(key=MARK, value=stamp)
    for key, value in (("location", place), ("offset", at), ("length", stop - at)):
        tensor.external_data.add(key=key, value=str(value))
    return bytes(tensor.SerializeToString())


def written(tensor: onnx.TensorProto, places: Mapping[str, Path]) -> tuple[int, Iterator[bytes]]:
    """A tensor as it is serialised, how long that is, and in pieces: with its numbers in it if they are in one of the
    files `places`, which a model calls by these names.  The file is read when the pieces are."""
    said = entries(tensor) if is_external(tensor) else {}
    if said.get("location") not in places:
        return protobuf.whole(tensor)
    bare = onnx.TensorProto()
    bare.CopyFrom(tensor)
    forget(bare)
    length = int(said["length"])
    before, after = protobuf.around(bare, _RAW)
    before += protobuf.header(_RAW, length)

    def pieces() -> Iterator[bytes]:
        yield before
        yield from numbers(tensor, places)
        yield after

    return len(before) + length + len(after), pieces()


def size(tensor: onnx.TensorProto) -> int:
    """The bytes that a tensor takes in the file of its model, be they in memory or not; 0 for one in another file."""
    if not is_external(tensor):
        return int(tensor.ByteSize())
    if not marks(tensor):
        return 0
    return written(tensor, {entries(tensor)["location"]: Path()})[0]


def total(model: onnx.ModelProto) -> int:
    """The bytes that all tensors of a model take in its file."""
    return sum(map(size, tensors(model)))


def load(model: onnx.ModelProto, places: Mapping[str, Path]) -> None:
    """Let a model have the numbers in itself that are in one of the files `places`.  Raises ModelError."""
    for tensor in tensors(model):
        if is_external(tensor) and entries(tensor).get("location") in places:
            content = b"".join(numbers(tensor, places))
            forget(tensor)
            tensor.raw_data = content


def numbers(tensor: onnx.TensorProto, places: Mapping[str, Path]) -> Iterator[bytes]:
    """The bytes of a tensor, if these are in it, or in one of the files `places`.

    Raises ModelError where a file ends before them, or is not what it was when the model was read."""
    if not is_external(tensor):
        yield tensor.raw_data
        return
    said = entries(tensor)
    if said.get("location") not in places:
        return
    path, left = places[said["location"]], int(said["length"])
    with explained(path), open(path, "rb") as file:
        file.seek(int(said["offset"]))
        while left:
            piece = file.read(min(left, _AT_ONCE))
            if not piece:
                raise ModelError(f"{path}: {tensor.name!r} is cut off, the file has changed since: export it again")
            _refuse_changed(file, path, marks(tensor))
            left -= len(piece)
            yield piece


def refuse_changed(path: Path, stamps: Collection[str]) -> None:
    """ModelError if the file `path` is not what it was when tensors were left there that are marked with `stamps`."""
    if stamps:
        with explained(path), open(path, "rb") as file:
            _refuse_changed(file, path, stamps)


def _refuse_changed(file: BinaryIO, path: Path, stamps: Collection[str]) -> None:
    if any(stamp != _stamp(file) for stamp in stamps):
        raise ModelError(f"{path} has changed since it was read: optimize it again")
