"""Which line of a program nodes come from, as the exporter noted it.

torch's dynamo exporter writes the stack of each operation into the metadata of its node, outermost frame first:

    File "train.py", line 29, in forward
      y = self.encoder(x)
    File "model.py", line 436, in forward
      ...
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from onnx import NodeProto

TORCH_STACK = "pkg.torch.onnx.stack_trace"
_FRAME = re.compile(r'File "(.*?)", line (\d+)(?:, in (\S+))?')
_TORCH = re.compile(r"(?:^|[/\\])torch[/\\]")
"""PyTorch's own files, which nobody who writes a model has to look at."""


class Frame(NamedTuple):
    """One call: what runs, and where in it."""

    file: str
    function: str
    line: int


def frames(node: NodeProto) -> tuple[Frame, ...]:
    """The calls that led to a node, outermost first, down to the last that is not PyTorch's; empty if unknown."""
    return _frames(next((entry.value for entry in node.metadata_props if entry.key == TORCH_STACK), ""))


@lru_cache(maxsize=1 << 12)
def _frames(text: str) -> tuple[Frame, ...]:
    """Those of a stack as it was noted: nodes of one line have the same, and are asked for it in every pass."""
    found = [Frame(file, function, int(line)) for file, line, function in _FRAME.findall(text)]
    while found and _TORCH.search(found[-1].file):
        found.pop()
    return tuple(found)


def common(nodes: Sequence[NodeProto]) -> tuple[Frame, ...]:
    """The calls down to the innermost function that at least half of `nodes` come from, those that tell.

    Within it, the line is that of the last of them: of what they compute together."""
    told = [trace for node in nodes if (trace := frames(node))]
    inside = Counter(call for trace in told for call in _functions(trace))
    held = [call for call, count in inside.items() if 2 * count >= len(told)]
    if not held:
        return ()
    inner = max(held, key=len)
    return next(trace for trace in reversed(told) if inner in _functions(trace))[: len(inner)]


def _functions(trace: tuple[Frame, ...]) -> list[tuple[object, ...]]:
    """Each function that a trace goes through, by the calls that lead to it."""
    return [(*trace[:depth], frame[:2]) for depth, frame in enumerate(trace)]


def written(trace: Sequence[Frame]) -> str:
    """The calls in the exporter's own form."""
    return "\n".join(f'File "{file}", line {line}, in {function}' for file, function, line in trace)


def place(trace: Sequence[Frame]) -> str:
    """The innermost of the calls: ``model.py:436``; empty if there is none."""
    return f"{trace[-1].file}:{trace[-1].line}" if trace else ""
