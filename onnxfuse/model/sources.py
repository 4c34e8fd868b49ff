"""What users hand over as a model: a file, a ModelProto, or a graphsurgeon Graph."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx
from google.protobuf.message import EncodeError

from onnxfuse.errors import UsageError
from onnxfuse.model import external_data, files, inside, protobuf, toposort

if TYPE_CHECKING:
    import onnx_graphsurgeon

    from .spool import Spool

    Source: TypeAlias = str | os.PathLike[str] | onnx.ModelProto | onnx_graphsurgeon.Graph


@dataclass(frozen=True, slots=True)
class Opened:
    """A model as the engine takes it; `path` is None if it came from memory."""

    proto: onnx.ModelProto
    path: Path | None = None
    temporary: bool = False
    """Whether the file is one that `in_file` has made."""

    @property
    def name(self) -> str:
        """How a report calls it: the file, else the graph's name."""
        return str(self.path) if self.path and not self.temporary else str(self.proto.graph.name)

    @property
    def folder(self) -> Path | None:
        """Where its external data lies, as far as known."""
        return self.path.parent if self.path else None


def opened(model: Source, *, weights: bool = True, in_place: bool = False) -> Opened:
    """`model`, read or exported, its nodes in order; without `weights` its external data may be missing.  Large weights
    of a file may stay `in_place` (`files.read`).

    Raises ModelError if it is a file that cannot be read or has a cycle, UsageError if it is no model."""
    path = path_of(model)
    if path is not None:
        return Opened(files.read(path, weights=weights, in_place=in_place), path)
    if isinstance(model, onnx.ModelProto):
        return Opened(_sorted(model))
    if _is_graph(model):
        import onnx_graphsurgeon

        return Opened(_sorted(onnx_graphsurgeon.export_onnx(model)))
    kind = type(model).__name__
    raise UsageError(f"a model is a path, an onnx.ModelProto or an onnx_graphsurgeon.Graph, not {kind}")


@contextmanager
def in_file(model: Source, *, weights: bool = True, in_place: bool = False) -> Iterator[Opened]:
    """`opened`; if they may stay `in_place`, large weights of a model from memory are in a temporary file meanwhile, as
    those of any file (`inside`).  Where none can be written, they stay in memory.

    Of weights in memory a proof makes ten copies: a session wants its model as one message, and then has its own."""
    source = opened(model, weights=weights, in_place=in_place)
    proto = source.proto
    size = sum(tensor.ByteSize() for tensor in proto.graph.initializer)
    if not in_place or source.path is not None or size < inside.LARGE_FILE or external_data.places(proto):
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="onnxfuse-", ignore_cleanup_errors=True) as folder:
        path, left = Path(folder) / "model.onnx", None
        with suppress(OSError, EncodeError):
            with open(path, "wb") as file:
                file.writelines(protobuf.pieces(proto)[1])
            left = inside.left_there(path)
        if left is None:
            path.unlink(missing_ok=True)
        yield source if left is None else Opened(left, path, temporary=True)


def _sorted(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or a copy with its nodes in order."""
    if toposort.is_sorted(model):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    toposort.sort(copy)
    return copy


def path_of(model: Source) -> Path | None:
    """The file that `model` is, None if it is in memory."""
    return Path(model) if isinstance(model, str | os.PathLike) else None


def like(model: Source, proto: onnx.ModelProto, path: Path | None, spool: Spool | None = None) -> Any:
    """`proto` as a graphsurgeon Graph if `model` is one, else itself, with the weights that were left in the file
    `path`, and have got to a spool."""
    files.load_own(proto, path, spool)
    if not _is_graph(model):
        return proto
    import onnx_graphsurgeon

    return onnx_graphsurgeon.import_onnx(proto)


def _is_graph(model: object) -> bool:
    # Who has a Graph has imported graphsurgeon; nobody else need wait for it.
    surgeon = sys.modules.get("onnx_graphsurgeon")
    return surgeon is not None and isinstance(model, surgeon.Graph)
