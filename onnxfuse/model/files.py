"""Model files: read one without its external data, write one so that nobody ever sees half of it."""

from __future__ import annotations

import errno
import io
import math
import os
import shutil
import stat
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError

from onnxfuse.errors import ModelError, OutputError
from onnxfuse.model import diagnosis, onnxruntime_ops, protobuf, toposort, validity
from onnxfuse.system.atomic_write import explained, removed_on_failure, renamed_to, replace

from .walk import owners

_GIB = 2**30
_PROTOBUF_LIMIT = 2 * _GIB - 1

# A weight smaller than this stays in the model when the others leave it: a page per scalar would be waste.
_SPILL_BYTES = 1024
# Runtimes map external data into memory, which needs offsets at page boundaries.
_PAGE = 4096


# The checker need not see larger weights: that their sizes are right, `read` itself checks.
_LARGE = 2**16


_Attribute = onnx.AttributeProto
_HOLDS_GRAPHS = (_Attribute.GRAPH, _Attribute.GRAPHS)
_HOLDS_TENSORS = (_Attribute.TENSOR, _Attribute.TENSORS, _Attribute.SPARSE_TENSOR, _Attribute.SPARSE_TENSORS)


def read(path: Path, *, weights: bool = True) -> onnx.ModelProto:
    """The model in the file `path`, checked by onnx.checker, its nodes in order; its external data stays on disk.

    Without `weights` that may also be missing.

    Raises:
        ModelError: there is no such file, it is not a model, onnx.checker rejects it, it is of an opset or IR version
            that the installed onnx does not know, or its external data is missing, cut off or outside its folder.
    """
    with explained(path):
        if path.is_dir():
            raise ModelError(f"{path} is a folder: name the models in it, such as {path / '*.onnx'}")
        if path.is_char_device() or path.is_block_device():
            raise ModelError(f"{path} is a device: give a model file")
        if (size := path.stat().st_size) > _PROTOBUF_LIMIT:
            raise ModelError(
                f"{path} is one file of {size / _GIB:.1f} GiB, more than the 2 GiB that protobuf can read: "
                "export it with external data"
            )
        data = path.read_bytes()
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise ModelError(f"{path} {diagnosis.unreadable(data)}") from None
    if not model.HasField("graph"):
        # protobuf accepts an empty file, and many a file of another kind, as a message with nothing known in it.
        raise ModelError(f"{path} {diagnosis.unreadable(data)}")
    del data
    validity.check_names(path, bodies(model))
    validity.check_types(path, bodies(model))
    _check_versions(model, path)
    external = _check_external_data(model, path, weights=weights)
    for tensor in tensors(model):
        validity.check_tensor(path, tensor)
    try:
        toposort.sort(model)
    except ModelError as error:
        raise ModelError(f"{path} is not valid: {error}") from None
    try:
        onnx.checker.check_model(_without_weights(model, external=external))
    except (onnx.checker.ValidationError, ValueError) as error:
        raise ModelError(f"{path} is not valid: {diagnosis.invalid(model, str(error))}") from None
    return model


def write(model: onnx.ModelProto, path: Path, *, source: Path | None = None) -> list[Path]:
    """Writes `model` to `path`: under another name first, then renamed, so that `path` is whole or absent.

    `source` is the file that `model` was read from.  External data stays where it is if `path` lies in the same
    folder.  Otherwise each file that the model still refers to is copied beside `path`, without passing through this
    process's memory, under a name that is free there; one that a former run copied is used again.

    A model of more than 2 GiB cannot be one file.  Its weights of 1 kB and more go to ``<path>.data``, and `model`
    itself refers to them there afterwards: a second copy in memory would be as large as the first.

    Returns:
        The files of the written model, `path` first.

    Raises:
        OutputError: `path` is `source` or its external data, or cannot be written.
        ModelError: external data that is to be copied is missing.
    """
    places = external_data(model)
    _refuse_overwriting(path, source, places)
    beside, copies = path.parent, dict[str, str]()
    with explained(path, writing=True), removed_on_failure() as made:
        if source is not None and _same_folder(path, source):
            beside = source.parent
        elif source is not None:
            _refuse_missing(source, places)
            copies = {place: _copy_beside(path, source.parent / place, place, made) for place in places}
        with _relocated(model, copies):
            pieces = _pieces(model)
            if pieces is None:
                made.append(_spill(model, path, taken={*places, *copies.values()}))
                pieces = _pieces(model)
            if pieces is None:
                raise OutputError(f"{path} would have more than 2 GiB even without its weights: split the model")
            replace(path, pieces)
        return list(dict.fromkeys((path, *(beside / copies.get(place, place) for place in places), *made)))


def bodies(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """The graph of `model`, the graphs in its nodes' attributes, its functions and its training graphs."""
    training = (graph for info in model.training_info for graph in (info.initialization, info.algorithm))
    return owners(*training, *model.functions, model.graph)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor in `model`: the initializers and the attributes of all its `bodies`."""
    for body in bodies(model):
        if isinstance(body, onnx.GraphProto):
            yield from body.initializer
            for sparse in body.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in body.node:
            for attribute in node.attribute:
                if attribute.type not in _HOLDS_TENSORS:
                    continue
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                sparse_tensors = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
                for sparse in (*sparse_tensors, *attribute.sparse_tensors):
                    yield from (sparse.values, sparse.indices)


def external_data(model: onnx.ModelProto) -> list[str]:
    """The files that hold tensors of `model`, as it names them: paths relative to its folder, sorted."""
    return sorted({_entries(tensor).get("location", "") for tensor in tensors(model) if _is_external(tensor)})


def read_inputs(path: Path) -> dict[str, np.ndarray]:
    """The arrays in the .npz file `path`, by name; nothing in it is executed.

    Raises:
        ModelError: there is no such file, or it is not an .npz file of plain arrays.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays.items())
    except FileNotFoundError:
        raise ModelError(f"--inputs {path}: no such file: check the name") from None
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile):
        raise ModelError(f"--inputs {path} is not an .npz file of plain arrays: write it with numpy.savez") from None


def write_arrays(path: Path, values: Mapping[str, Any]) -> None:
    """Writes arrays to the .npz file `path` by name, the items of a list as NAME.0, NAME.1 and so on.

    Types that NumPy lacks, such as bfloat16, become float32, and strings NumPy's strings, so that every NumPy reads it.

    Raises:
        OutputError: `path` cannot be written.
    """
    flat: dict[str, np.ndarray] = {}
    pending = list(values.items())
    while pending:
        name, value = pending.pop(0)
        if isinstance(value, list):
            pending += ((f"{name}.{index}", item) for index, item in enumerate(value))
        elif value is not None:
            plain = {"V": np.float32, "O": np.str_}.get(value.dtype.kind)
            flat[name] = value.astype(plain) if plain else value
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in flat.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    replace(path, [buffer.getvalue()])


def _same_folder(one: Path, other: Path) -> bool:
    return one.parent.resolve() == other.parent.resolve()


def _is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def _entries(tensor: onnx.TensorProto) -> Mapping[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _check_versions(model: onnx.ModelProto, path: Path) -> None:
    if model.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{path} has IR version {model.ir_version}, but the installed onnx {onnx.__version__} knows up to "
            f"{onnx.IR_VERSION}: pip install --upgrade onnx"
        )
    latest = {"": onnx.defs.onnx_opset_version(), "ai.onnx": onnx.defs.onnx_opset_version()}
    for domain, version in onnx.helper.OP_SET_ID_VERSION_MAP:
        latest[domain] = max(version, latest.get(domain, 0))
    for opset in (*model.opset_import, *(opset for function in model.functions for opset in function.opset_import)):
        if opset.version > (known := latest.get(opset.domain, opset.version)):
            raise ModelError(
                f"{path} uses opset {opset.version} of {opset.domain or 'ai.onnx'}, but the installed onnx "
                f"{onnx.__version__} knows up to {known}: pip install --upgrade onnx"
            )


def _check_external_data(model: onnx.ModelProto, path: Path, *, weights: bool) -> bool:
    """Whether `model` has external data; ModelError if that is not where the model says."""
    sizes: dict[str, float] = {}
    for tensor in tensors(model):
        if not _is_external(tensor):
            continue
        entries = _entries(tensor)
        place = entries.get("location", "")
        if place not in sizes:
            sizes[place] = _external_size(path, place, tensor.name, weights=weights)
        try:
            offset, length = (int(entries.get(key) or 0) for key in ("offset", "length"))
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
    return bool(sizes)


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


def _is_large(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in validity.ITEM_BYTES and tensor.HasField("raw_data") and tensor.ByteSize() > _LARGE


def _without_weights(model: onnx.ModelProto, *, external: bool) -> onnx.ModelProto:
    """A copy in which large initializers are empty, and the tensors with external data, if there are any; ops that only
    onnxruntime knows are hidden in it.

    The checker would serialise and parse all weights once more, and it refuses symbolic links to external data, which
    is how download caches keep models.
    """
    copy = protobuf.part(model, lambda field: field != protobuf.GRAPH)
    protobuf.part(model.graph, lambda field: field != protobuf.INITIALIZER, into=copy.graph)
    for tensor in model.graph.initializer:
        if _is_large(tensor):
            copy.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=[0])
        else:
            copy.graph.initializer.append(tensor)
    onnxruntime_ops.hide(copy)
    for tensor in tensors(copy) if external else ():
        if _is_external(tensor):
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.dims[:] = [0]
    return copy


def _refuse_overwriting(path: Path, source: Path | None, places: Sequence[str]) -> None:
    if source is None or not path.exists():
        return
    if source.exists() and path.samefile(source):
        raise OutputError(f"{path} is the model itself, which onnxfuse never overwrites: give another file with -o")
    for place in places:
        data = source.parent / place
        if data.exists() and path.samefile(data):
            raise OutputError(f"{path} holds the external data of {source}: give another file with -o")


def _refuse_missing(source: Path, places: Sequence[str]) -> None:
    for place in places:
        if not (data := source.parent / place).is_file():
            raise ModelError(f"{source}: its external data {data} is missing and cannot be copied: put it there")


def _copy_beside(path: Path, data: Path, place: str, made: list[Path]) -> str:
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
            _copy(data, temporary)
        made.append(target)
    return target.relative_to(path.parent).as_posix()


def _is_copy(target: Path, data: Path) -> bool:
    """Whether `target` is `data` or, going by size and time as rsync does, a copy made of it."""
    ours, theirs = target.stat(), data.stat()
    return target.samefile(data) or (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


def _copy(data: Path, target: Path) -> None:
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


@contextmanager
def _relocated(model: onnx.ModelProto, names: Mapping[str, str]) -> Iterator[None]:
    """`model` refers to its external data by new names inside the block, by the old ones after it."""
    changed = []
    for tensor in tensors(model) if any(old != new for old, new in names.items()) else ():
        for entry in tensor.external_data if _is_external(tensor) else ():
            if entry.key == "location" and names.get(entry.value, entry.value) != entry.value:
                changed.append((entry, entry.value))
                entry.value = names[entry.value]
    try:
        yield
    finally:
        for entry, old in changed:
            entry.value = old


def _spill(model: onnx.ModelProto, path: Path, taken: Collection[str]) -> Path:
    """Moves the weights of `model` to a file beside `path`, not one of those `taken`; returns that file."""
    names = chain((f"{path.name}.data",), (f"{path.name}.{number}.data" for number in count(2)))
    target = path.with_name(next(name for name in names if name not in taken))
    with explained(target, writing=True), renamed_to(target) as temporary, open(temporary, "xb") as file:
        for tensor in tensors(model):
            if not tensor.HasField("raw_data") or len(raw := tensor.raw_data) < _SPILL_BYTES:
                continue
            file.seek(-file.tell() % _PAGE, os.SEEK_CUR)
            place = {"location": target.name, "offset": str(file.tell()), "length": str(len(raw))}
            file.write(raw)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in place.items())
        file.flush()
        os.fsync(file.fileno())
    return target


def _pieces(model: onnx.ModelProto) -> Iterator[bytes] | None:
    """The serialised `model` in pieces; None if they are together more than protobuf can read."""
    try:
        size, pieces = protobuf.pieces(model)
    except EncodeError:
        return None
    return pieces if size <= _PROTOBUF_LIMIT else None
