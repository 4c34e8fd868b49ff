"""What is noted of a fused node and of what it stands for: of the counterparts of these, the same of theirs."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import NodeProto

from onnxfuse.model.walk import name_of
from onnxfuse.rewriting.provenance import FusedNode
from onnxfuse.rewriting.stack_traces import frames, place

from .alike import DifferentError
from .moves import entries


def said(site: FusedNode) -> tuple[object, ...]:
    return site.module, site.code, [(entry.key, entry.value) for entry in site.node.metadata_props]


def code_of(code: str, pairs: Sequence[tuple[NodeProto, NodeProto]]) -> str:
    """The line of the program for other nodes."""
    for before, after in reversed(pairs) if code else ():
        if place(frames(before)) == code:
            return place(frames(after))
    return code


def noted_of(key: str, value: str, pairs: Sequence[tuple[NodeProto, NodeProto]]) -> str:
    """What is noted of nodes, given what is of their counterparts."""
    noted = [(entries(before), entries(after)) for before, after in pairs]
    news = [after.get(key, "") for before, after in noted if before.get(key) == value]
    if len(news) == len(noted) and len(set(news)) > 1:
        raise DifferentError(f"{key} of {name_of(pairs[0][1])} is that of no other node")
    return news[-1] if news else value
