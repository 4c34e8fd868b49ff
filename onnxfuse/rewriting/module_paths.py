"""Which module of the exported program nodes come from.

Both of torch's exporters lead to the same path, such as /bert/encoder/layer.0/output.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TypeAlias

from onnx import NodeProto

from onnxfuse.model.op_traits import MOVEMENT

TORCH_SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata of torch's dynamo exporter: a Python list of dotted module paths, outermost first, the node itself last."""

_UNKNOWN = "_empty_nn_module_stack_from_metadata_hook"
"""What torch.export writes for a module where it knows of none."""
_MOVING = MOVEMENT - {"Gather", "GatherElements", "GatherND"}
"""Ops that only move data; a look-up in a table is more than that."""
_Path: TypeAlias = tuple[str, ...]


class ModulePaths:
    """The modules that the nodes of one graph come from."""

    def __init__(self, nodes: Iterable[NodeProto]) -> None:
        self._nodes = nodes

    def of(self, nodes: Sequence[NodeProto]) -> str:
        """The innermost module that has at least half of the modules of `nodes` in it; of several, that of the last.

        Modules count, not nodes, so that another spelling of the same mathematics leads to the same path; what only
        moves data counts where nothing else does, since exporters share it among layers.  The empty string if no node
        says where it comes from."""
        paths = [(node.op_type in _MOVING, path) for node in reversed(nodes) if (path := self.path(node))]
        computing = [path for moving, path in paths if not moving]
        modules = set(computing or [path for _, path in paths])
        # The last node decides between equals even where it moves data.
        order = [path for path in dict.fromkeys(path for _, path in paths) if path in modules]
        inside = Counter(prefix for path in order for prefix in _prefixes(path))
        held = [prefix for prefix, count in inside.items() if 2 * count >= len(order)]
        return "".join(f"/{part}" for part in max(held, key=len, default=()))

    def path(self, node: NodeProto) -> tuple[str, ...]:
        """The path of a node, whichever call of a module it is: the second one of `key` is named `key_1`."""
        path = _told(node)
        if path is not None:
            return path
        found: _Path = ()
        for part in _named(node):
            first = re.fullmatch(r"(.+)_\d+", part)
            again = first is not None and (*found, first[1]) in self._all
            found = (*found, first[1] if first is not None and again else part)
        return found

    @cached_property
    def _all(self) -> frozenset[_Path]:
        """The paths in the names of all nodes, and what is around them."""
        return frozenset(prefix for path in set(map(_named, self._nodes)) for prefix in _prefixes(path))


def _prefixes(path: _Path) -> Iterator[_Path]:
    return (path[:depth] for depth in range(1, len(path) + 1))


def _told(node: NodeProto) -> _Path | None:
    """The path in a node's metadata, which is dotted and cumulative: ['', 'bert', 'bert.encoder', 'bert.encoder.add'];
    None where there is none."""
    for entry in node.metadata_props:
        if entry.key == TORCH_SCOPES:
            return _dotted(entry.value)
    return None


@lru_cache(maxsize=1 << 12)
def _dotted(metadata: str) -> _Path | None:
    """That path, of which a node is asked in every pass."""
    try:
        scopes = [str(scope) for scope in ast.literal_eval(metadata) if scope != _UNKNOWN]
    except (SyntaxError, TypeError, ValueError):
        return None
    outer = ["", *scopes[:-1]]
    return tuple(inner.removeprefix(before).strip(".") for before, inner in pairwise(outer) if inner != before)


def _named(node: NodeProto) -> _Path:
    """The path in a node's name, as torch's TorchScript exporter writes it: /bert/encoder/layer.0/Add.

    A child of a Sequential is named with it once more: layer/layer.0."""
    parts = [part for part in node.name.split("/")[:-1] if part]
    return tuple(part.removeprefix(f"{outer}.") for outer, part in pairwise(["", *parts]))
