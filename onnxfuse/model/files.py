"""Model files: read one without its external data, write one so that nobody ever sees half of it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError

from onnxfuse.errors import ModelError, OutputError
from onnxfuse.model import diagnosis, external_data, inside, onnxruntime_ops, protobuf, toposort, validity
from onnxfuse.system.atomic_write import explained, removed_on_failure, replace

from .spool import Spool
from .tensors import bodies, tensors

_GIB = 2**30
_PROTOBUF_LIMIT = 2 * _GIB - 1

# The checker need not see larger weights: that their sizes are right, `read` itself checks.
_LARGE = 2**16


def read(path: Path, *, weights: bool = True, content: bytes | None = None, in_place: bool = False) -> onnx.ModelProto:
    """The model in the file `path`, checked by onnx.checker, its nodes in order; its external data stays on disk.

    Without `weights` that may also be missing.  With `content`, what came from elsewhere is read as if it stood there.
    Large weights inside the file become external data of it if they may stay `in_place` (`inside`): `write` writes
    them inside again, and nobody else may.

    Raises:
        ModelError: there is no such file, it is not a model, onnx.checker rejects it, it is of an opset or IR version
            that the installed onnx does not know, or its external data is missing, cut off or outside its folder.
    """
    left = inside.left_there(path) if in_place and content is None else None
    model = left or _parsed(path, _content(path) if content is None else content)
    owners = list(bodies(model))
    validity.check_names(path, owners)
    validity.check_types(path, owners)
    _check_versions(model, path)
    external = external_data.check(model, path, weights=weights)
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


def _parsed(path: Path, data: bytes) -> onnx.ModelProto:
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise ModelError(f"{path} {diagnosis.unreadable(data)}") from None
    if not model.HasField("graph"):
        # protobuf accepts an empty file, and many a file of another kind, as a message with nothing known in it.
        raise ModelError(f"{path} {diagnosis.unreadable(data)}")
    return model


def _content(path: Path) -> bytes:
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
        return path.read_bytes()


def one_piece(model: onnx.ModelProto, source: Path | None = None) -> Iterator[bytes]:
    """The serialised model, in pieces, for where there is no folder to put more beside it; `source` is the file that it
    was read from.

    Raises:
        OutputError: it has external data, or is larger than one file can be.
    """
    own = _own(source, None)
    pieces = None if set(external_data.places(model)) - own.keys() else _pieces(model, own)
    if pieces is None:
        raise OutputError("a model with external data, or of more than 2 GiB, is no single file: name one with -o")
    return pieces


def write(model: onnx.ModelProto, path: Path, *, source: Path | None = None, spool: Spool | None = None) -> list[Path]:
    """Writes `model` to `path`: under another name first, then renamed, so that `path` is whole or absent.  Whatever
    stands there finds the weights that it was written with, at any time.

    `source` is the file that `model` was read from.  External data stays where it is if `path` lies in the same
    folder.  Otherwise each file that the model still refers to is copied beside `path`, without passing through this
    process's memory, under a name that is free there; one that a former run copied is used again.

    External data that a `spool` holds becomes ``<path>.data``: it is renamed, not copied, and `model` itself refers to
    it there afterwards.  What was read `in_place` (`read`) goes inside the file again, be it from a spool.

    A model of more than 2 GiB cannot be one file.  Its weights of 1 kB and more go to ``<path>.data``, and `model`
    itself refers to them there afterwards: a second copy in memory would be as large as the first.

    Returns:
        The files of the written model, `path` first.

    Raises:
        OutputError: `path` is `source` or its external data, or cannot be written.
        ModelError: external data that is to be copied is missing.
    """
    inner = _own(source, spool)
    places = [place for place in external_data.places(model) if place not in inner]
    _refuse_overwriting(path, source, places)
    beside, copies, own = path.parent, dict[str, str](), list[tuple[Path, Path]]()
    with explained(path, writing=True), removed_on_failure(partial(_read_by, path)) as made:
        if spool is not None and spool.path.name in places:
            own.append(external_data.beside(path, spool.sources))
            made += own[-1][:1]
            spool.move(made[-1])
            external_data.relocate(model, {spool.path.name: made[-1].name})
            places.remove(spool.path.name)
        elif source is not None and _same_folder(path, source):
            beside = source.parent
        elif source is not None:
            external_data.refuse_missing(source, places)
            copies = {place: external_data.copy_beside(path, source.parent / place, place, made) for place in places}
        with external_data.relocated(model, copies):
            pieces = _pieces(model, inner)
            if pieces is None:
                taken = {*places, *copies.values(), *(file.name for pair in own for file in pair)}
                own.append(external_data.beside(path, taken))
                made += own[-1][:1]
                external_data.spill(model, made[-1], partial(inside.numbers, places=inner))
                pieces = _pieces(model)
            if pieces is None:
                raise OutputError(f"{path} would have more than 2 GiB even without its weights: split the model")
            replace(path, pieces)
            weights = [_settled(model, path, *pair, made) for pair in own]
        return [path, *(beside / copies.get(place, place) for place in places), *weights]


def load_own(model: onnx.ModelProto, source: Path | None, spool: Spool | None = None) -> None:
    """Let a model that was read `in_place` (`read`) have its weights in memory, for others to take it as it is.

    Raises ModelError."""
    inside.load(model, _own(source, spool))


def _own(source: Path | None, spool: Spool | None) -> dict[str, Path]:
    """The files with weights that go inside the model's own, by the names that it has for them: the one that they were
    in, and a spool of nothing else.  Raises ModelError where the spool was filled while another model got there."""
    if source is None:
        return {}
    inside.refuse_changed(source, spool.stamps if spool is not None else ())
    spooled = spool is not None and spool.sources == {source.name}
    return {source.name: source} | ({spool.path.name: spool.path} if spool is not None and spooled else {})


def _read_by(path: Path, file: Path) -> bool:
    """Does what stands at `path` already read a file that was made for it?"""
    return external_data.mentions(path, file.name)


def _settled(model: onnx.ModelProto, path: Path, first: Path, final: Path, made: list[Path]) -> Path:
    """Where weights of the model at `path` are in the end that are in the file `first`."""

    def write() -> None:
        changed = external_data.relocate(model, {first.name: final.name})
        try:
            replace(path, protobuf.pieces(model)[1])
        except BaseException:
            for entry, old in changed:
                entry.value = old
            raise

    if first == final:
        return final
    made.append(final)
    return external_data.settle(first, final, write)


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


def _is_large(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in validity.ITEM_BYTES and tensor.HasField("raw_data") and tensor.ByteSize() > _LARGE


def _without_weights(model: onnx.ModelProto, *, external: bool) -> onnx.ModelProto:
    """A copy in which large initializers are empty, and the tensors with external data, if there are any; ops that only
    onnxruntime knows are hidden in it, and what the graph is given or gives has a shape: runtimes ask for none where
    the rank is unknown, and so write tf2onnx and onnxruntime itself.

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
    for info in (*copy.graph.input, *copy.graph.output):
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.shape.SetInParent()
    for tensor in tensors(copy) if external else ():
        if external_data.is_external(tensor):
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


def _pieces(model: onnx.ModelProto, own: Mapping[str, Path] = MappingProxyType({})) -> Iterator[bytes] | None:
    """The serialised `model` in pieces, with the weights in its `own` files; None if they are together more than
    protobuf can read."""
    try:
        size, pieces = protobuf.pieces(model, partial(inside.written, places=own))
    except EncodeError:
        return None
    return pieces if size <= _PROTOBUF_LIMIT else None
