"""What users hand over as a model: a file, a ModelProto, or a graphsurgeon Graph."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx

from onnxfuse.errors import UsageError
from onnxfuse.model import files, toposort

if TYPE_CHECKING:
    import onnx_graphsurgeon

    from .spool import Spool

    Source: TypeAlias = str | os.PathLike[str] | onnx.ModelProto | onnx_graphsurgeon.Graph


@dataclass(frozen=True, slots=True)
class Opened:
    """A model as the engine takes it; `path` is None if it came from memory."""

    proto: onnx.ModelProto
    path: Path | None = None

    @property
    def name(self) -> str:
        """How a report calls it: the file, else the graph's name."""
        return str(self.path) if self.path else str(self.proto.graph.name)

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


def like(model: Source, proto: onnx.ModelProto, spool: Spool | None = None) -> Any:
    """`proto` as a graphsurgeon Graph if `model` is one, else itself, with the weights that were left in the file
    `model`, and have got to a spool."""
    files.load_own(proto, path_of(model), spool)
    if not _is_graph(model):
        return proto
    import onnx_graphsurgeon

    return onnx_graphsurgeon.import_onnx(proto)


def _is_graph(model: object) -> bool:
    # Who has a Graph has imported graphsurgeon; nobody else need wait for it.
    surgeon = sys.modules.get("onnx_graphsurgeon")
    return surgeon is not None and isinstance(model, surgeon.Graph)
