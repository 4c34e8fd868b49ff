"""Why some bytes are not a model, and why a model is not valid: one clause each, with the next step.

Nothing here runs for a good file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import onnx

from onnxfuse.model import protobuf

from .walk import attribute_graphs, title

# What people hand over by mistake, told by its first bytes: (offset, bytes, what it is and what to do).
_SIGNATURES = (
    (0, b"PK\x03\x04", "a zip archive, as torch.save writes it: export the model with torch.onnx.export"),
    (0, b"\x80\x02", "a Python pickle, as old torch.save wrote it: export the model with torch.onnx.export"),
    (4, b"TFL3", "a TensorFlow Lite model: convert it with `python -m tf2onnx.convert --tflite`"),
    (4, b"ORTM", "a model in ORT format: use the .onnx file that it was made from"),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes it: convert it with `python -m tf2onnx.convert`"),
    (8, b'{"', "a safetensors file, which holds weights but no graph: export the model to ONNX"),
    (0, b"\x1f\x8b", "compressed with gzip: run gunzip first"),
    (0, b"version https://git-lfs", "a Git LFS pointer, not the file itself: run `git lfs pull`"),
)

# protobuf's parsers stop at this many messages inside one another.
_PROTOBUF_DEPTH = 100

# Field numbers of onnx.proto: the highest of ModelProto, and the way from a graph to the graphs inside it.
_MODEL_FIELDS = 26
_INNER: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
}


def unreadable(data: bytes) -> str:
    """What `data`, which protobuf could not read as a ModelProto, is instead.

    Returns a clause to put behind the file name, such as ``is empty: export it again``.
    """
    if not data:
        return "is empty: export it again"
    for offset, signature, what in _SIGNATURES:
        if data.startswith(signature, offset):
            return f"is {what}"
    if not data[:512].translate(None, bytes(range(0x20, 0x7F)) + b"\t\r\n"):
        return "is text, not an ONNX model: onnxfuse reads the binary form that onnx.save writes"
    if (missing := _cut_off(data)) is not None:
        return f"is cut off: at least {missing:,} bytes are missing at its end; copy or export it again"
    if (depth := _depth(data)) > _PROTOBUF_DEPTH:
        return f"nests {depth:,} protobuf messages (If, Loop and Scan bodies), and readers stop at 100: flatten them"
    return "is not an ONNX model: give a file that onnx.save or an exporter wrote"


def _cut_off(data: bytes) -> int | None:
    """How many bytes are missing at the end if `data` is the beginning of a ModelProto; None if it is not."""
    missing, known = None, 0
    try:
        for number, _, stop in protobuf.fields(data, 0, len(data)):
            if not 1 <= number <= _MODEL_FIELDS:
                return None
            known += 1
            missing = stop - len(data) if stop > len(data) else None
    except IndexError:
        missing = 1
    # One field proves nothing: random bytes often start with a small number and a length.
    return missing if known > 1 else None


def _depth(data: bytes) -> int:
    """How many messages lie inside one another, following only graphs, nodes and attributes."""
    deepest = 0
    stack = [("model", 0, len(data), 1)]
    while stack:
        kind, at, end, depth = stack.pop()
        deepest = max(deepest, depth)
        try:
            for number, start, stop in protobuf.fields(data, at, end):
                if (inner := _INNER[kind].get(number)) and stop <= end:
                    stack.append((inner, start, stop, depth + 1))
        except IndexError:
            continue
    return deepest


def invalid(model: onnx.ModelProto, complaint: str) -> str:
    """What is wrong with a model that onnx.checker rejects with `complaint`.

    The checker says of a node that reads what nothing produces that the graph is not sorted, which it is (`toposort`);
    this names the value.  Any other complaint is put into one line, its node in front.
    """
    if "topologically sorted" in complaint:
        for scope in (model.graph, *model.functions):
            if found := _dangling(scope, frozenset()):
                return found
    node = re.search(r"Name: (?P<name>.*?) OpType: (?P<op>\w+)", complaint)
    what = " ".join(complaint.split("\n==> Context")[0].split()).rstrip(".")
    return f"node {node['name'] or '(unnamed)'!r} ({node['op']}): {what}" if node else what


def _dangling(graph: onnx.GraphProto | onnx.FunctionProto, outer: Iterable[str]) -> str | None:
    """The node in `graph` or a body in it that reads what nothing produces."""
    if isinstance(graph, onnx.FunctionProto):
        given = {*graph.input}
    else:
        given = {*outer, *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)}
        given |= {tensor.values.name for tensor in graph.sparse_initializer}
    given |= {name for node in graph.node for name in node.output}
    for node in graph.node:
        for name in sorted({*node.input} - given - {""}):
            return f"node {title(node)!r} reads {name!r}, which nothing produces: export the model again"
    bodies = (body for node in graph.node for _, body in attribute_graphs(node))
    return next((found for body in bodies if (found := _dangling(body, given))), None)
