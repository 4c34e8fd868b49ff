"""External data: the files beside a model that hold its weights."""

from __future__ import annotations

import errno
import math
import mmap
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path, PurePosixPath

import onnx

from onnxfuse.errors import ModelError
from onnxfuse.model import protobuf, validity
from onnxfuse.system.atomic_write import explained, renamed_to

from .tensors import bodies, tensors
from .walk import title

# A weight smaller than this stays in the model when the others leave it: a page per scalar would be waste.
_SPILL_BYTES = 1024
# Runtimes map external data into memory, which needs offsets at page boundaries.
PAGE = 4096
MARK = "onnxfuse.inside"
"""What is said in the metadata of a tensor whose numbers are in the file of its model, where they stay for a while, and
with it what tells that file from another of its name."""


def places(model: onnx.ModelProto) -> list[str]:
    """The files that hold tensors of `model`, as it names them: paths relative to its folder, sorted."""
    return sorted({entries(tensor).get("location", "") for tensor in tensors(model) if is_external(tensor)})


def is_external(tensor: onnx.TensorProto) -> bool:
    """Is a tensor in a file of its own?"""
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def entries(tensor: onnx.TensorProto) -> Mapping[str, str]:
    """Where a tensor says that its data is: location, offset, length."""
    return {entry.key: entry.value for entry in tensor.external_data}


def marks(tensor: onnx.TensorProto) -> set[str]:
    """What tells the file of its model, if a tensor's numbers have stayed there, from another of its name."""
    return {entry.value for entry in tensor.metadata_props if entry.key == MARK}


def forget(tensor: onnx.TensorProto) -> None:
    """Let a tensor say nothing of where its numbers are."""
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    protobuf.remove(tensor.metadata_props, lambda entry: entry.key == MARK)


def check(model: onnx.ModelProto, path: Path, *, weights: bool) -> bool:
    """Whether `model` has external data; ModelError if that is not where the model says."""
    sizes: dict[str, float] = {}
    for tensor in tensors(model):
        if not is_external(tensor):
            continue
        said = entries(tensor)
        place = said.get("location", "")
        if place not in sizes:
            sizes[place] = _external_size(path, place, tensor.name, weights=weights)
        try:
            offset, length = (int(said.get(key) or 0) for key in ("offset", "length"))
            if offset < 0 or length < 0:
                raise ValueError
        except ValueError:
            raise ModelError(
                f"{path}: offset and length of the external data of {tensor.name!r} are not numbers: export it again"
            ) from None
        end = offset + (length or math.prod(tensor.dims) * validity.ITEM_BYTES.get(tensor.data_type, 0))
        if end > sizes[place]:
            raise ModelError(
                f"{path}: {place} is cut off: {tensor.name!r} ends at byte {end:,}, the file at {sizes[place]:,}; "
                "copy or export it again"
            )
    if sizes:
        _refuse_attributes(model, path)
    return bool(sizes)


def _refuse_attributes(model: onnx.ModelProto, path: Path) -> None:
    """ModelError where an attribute says what a node does, and its number is in a file, where no runtime looks for it:
    onnx.save puts it there with convert_attribute."""
    for node in (node for body in bodies(model) for node in body.node if node.op_type != "Constant"):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and is_external(attribute.t):
                raise ModelError(
                    f"{path}: attribute {attribute.name!r} of node {title(node)!r} ({node.op_type}) is external data, "
                    "which onnxruntime does not read: save the model without convert_attribute"
                )


def _external_size(path: Path, place: str, tensor: str, *, weights: bool) -> float:
    """The size in bytes of the external data file `place` of the model `path`; infinite if it may be missing and is."""
    if (
        not place
        or PurePosixPath(place).is_absolute()
        or Path(place).is_absolute()
        or ".." in PurePosixPath(place).parts
    ):
        raise ModelError(
            f"{path}: the external data of {tensor!r} lies at {place!r}, outside the model's folder: "
            "save it beside the model"
        )
    file = path.parent / place
    size = None
    try:
        found = file.stat()
        size = found.st_size if stat.S_ISREG(found.st_mode) else None
    except FileNotFoundError:
        if not weights:
            return math.inf
    except (OSError, ValueError):  # a name that no file can have
        pass
    if size is None:
        raise ModelError(f"{path}: its external data {file} is missing (tensor {tensor!r}): put it beside the model")
    return size


def refuse_missing(source: Path, places: Sequence[str]) -> None:
    """ModelError if one of these files is missing beside the model `source`."""
    for place in places:
        if not (data := source.parent / place).is_file():
            raise ModelError(f"{source}: its external data {data} is missing and cannot be copied: put it there")


def copy_beside(path: Path, data: Path, place: str, made: list[Path]) -> str:
    """Copies `data` to the folder of `path`, as `place` if that is free; returns its name relative to that folder.

    A file that it had to make is added to `made`.
    """
    original = PurePosixPath(place)
    prefixes = chain(("", f"{path.stem}."), (f"{path.stem}.{number}." for number in count(2)))
    targets = (path.parent / original.with_name(prefix + original.name) for prefix in prefixes)
    target = next(target for target in targets if not target.exists() or _is_copy(target, data))
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Never a hard link: onnx refuses data that has one, and writing to the one file would change the other.
        with explained(target, writing=True), renamed_to(target) as temporary:
            copy(data, temporary)
        made.append(target)
    return target.relative_to(path.parent).as_posix()


def _is_copy(target: Path, data: Path) -> bool:
    """Whether `target` is `data` or, going by size and time as rsync does, a copy made of it."""
    ours, theirs = target.stat(), data.stat()
    return target.samefile(data) or (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


def copy(data: Path, target: Path) -> None:
    """Copies inside the kernel: blocks are shared where the file system can, and holes stay holes."""
    try:
        with open(data, "rb") as source, open(target, "xb") as copy:
            size = os.fstat(source.fileno()).st_size
            os.truncate(copy.fileno(), size)
            for at, end in _extents(source.fileno(), size):
                while at < end:
                    if not (copied := os.copy_file_range(source.fileno(), copy.fileno(), end - at, at, at)):
                        raise OSError(errno.EIO, f"{data} shrank while it was copied")
                    at += copied
            os.fsync(copy.fileno())
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        shutil.copyfile(data, target)
    shutil.copystat(data, target)


def _extents(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Where an open file has data: (start, end) in bytes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, end


def relocate(model: onnx.ModelProto, names: Mapping[str, str]) -> list[tuple[onnx.StringStringEntryProto, str]]:
    """Let `model` refer to its external data by new names; returns what says so now, and the old name of each."""
    changed = []
    for tensor in tensors(model) if any(old != new for old, new in names.items()) else ():
        for entry in tensor.external_data if is_external(tensor) else ():
            if entry.key == "location" and names.get(entry.value, entry.value) != entry.value:
                changed.append((entry, entry.value))
                entry.value = names[entry.value]
    return changed


@contextmanager
def relocated(model: onnx.ModelProto, names: Mapping[str, str]) -> Iterator[None]:
    """`model` refers to its external data by new names inside the block, by the old ones after it."""
    changed = relocate(model, names)
    try:
        yield
    finally:
        for entry, old in changed:
            entry.value = old


def beside(path: Path, taken: Collection[str]) -> tuple[Path, Path]:
    """Where the weights of a model that is written to `path` are to be first, and in the end: not in one of the files
    `taken`.  These differ where a model stands there that has its own weights in the latter, as long as it does."""
    names = chain((f"{path.name}.data",), (f"{path.name}.{number}.data" for number in count(2)))
    free = (path.with_name(name) for name in names if name not in taken)
    first = final = next(free)
    while mentions(path, first.name):
        first = next(free)
    return first, final


def mentions(model: Path, name: str) -> bool:
    """Does the file of a model, if there is one, name another?"""
    try:
        with open(model, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(name.encode()) >= 0
    except (OSError, ValueError):  # there is none, or it is empty
        return False


def settle(first: Path, final: Path, write: Callable[[], None]) -> Path:
    """Let weights that are in the file `first` be in `final`; `write` writes the model anew, with them there.

    They are in both meanwhile, so that each model finds them.  Returns where they are: `first` still, if they cannot be
    in both."""
    try:
        with renamed_to(final) as temporary:
            try:
                os.link(first, temporary)
            except OSError:
                copy(first, temporary)
    except OSError:
        with suppress(OSError):
            if final.samefile(first):
                final.unlink()  # onnx refuses data that has two names
        return first
    write()
    first.unlink()
    return final


def spill(model: onnx.ModelProto, target: Path, numbers: Callable[[onnx.TensorProto], Iterator[bytes]]) -> None:
    """Moves the weights of `model` to the file `target`, which is beside it; `numbers` reads them, in pieces, nothing
    of those that stay where they are."""
    with explained(target, writing=True), renamed_to(target) as temporary, open(temporary, "xb") as file:
        for tensor in tensors(model):
            pieces = numbers(tensor)
            first = next(pieces, b"")
            if len(first) < _SPILL_BYTES:
                continue
            file.seek(-file.tell() % PAGE, os.SEEK_CUR)
            start = file.tell()
            file.writelines(chain((first,), pieces))
            place = {"location": target.name, "offset": str(start), "length": str(file.tell() - start)}
            tensor.ClearField("raw_data")
            forget(tensor)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in place.items())
        file.flush()
        os.fsync(file.fileno())
