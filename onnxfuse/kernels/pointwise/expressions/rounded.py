"""Which values of a kernel need no more digits than 16 bits keep: it may compute them by coarse functions (coarse.cuh).

A value is such if its type has 16 bits: the model itself rounds it there.  So is one in float32 of which only products,
quotients and the like are made before a Cast to such a type, as the bodies of activations do: its relative error is
theirs.  In a sum it may grow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from onnx import NodeProto

from onnxfuse.model.op_traits import CASTS, RESHAPES, VIEWS

HALVES = frozenset(("float16", "bfloat16"))
PRESERVING = (
    frozenset(("Abs", "Div", "Identity", "Max", "Min", "Mul", "Neg", "Reciprocal", "Relu", "Sqrt", "Where"))
    | CASTS
    | RESHAPES
    | VIEWS
)
"""Ops whose results are off by as much as their operands are, relatively, or as all of them together."""


def rounded(
    nodes: Sequence[NodeProto], dtypes: Mapping[str, np.dtype[np.generic]], outputs: Collection[str]
) -> set[str]:
    """The names of such values, of nodes in topological order; `dtypes` are those of all values, `outputs` the names
    that others read."""
    readers: dict[str, list[NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found: set[str] = set()

    def through(reader: NodeProto) -> bool:
        return reader.op_type in PRESERVING and all(name in found for name in reader.output if name)

    for node in reversed(nodes):
        for name in node.output:
            read = readers.get(name, ())
            half = name in dtypes and dtypes[name].name in HALVES
            if half or (read and name not in outputs and all(map(through, read))):
                found.add(name)
    return found
