"""Dimensions of inputs that bear one name and are not equal, as the runs of the original show.

An encoder-decoder whose two lengths were both exported as ``seq`` is such a model.  onnxruntime plans memory by names:
a value may be put where another one lay whose dimensions are called the same, and a run in which it is larger fails
("Shape mismatch attempting to re-use buffer").  Which runs fail depends on the order of nodes, and so on what is fused.
What is fused may itself take the size of one for the other's.  In both cases no fusion is to blame: with a name for
each size the file is fused as it should be, and runs at all of them (`onnxfuse.rewriting.dims_apart`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from onnxfuse.rewriting.dims_apart import DimNames, dims_of

if TYPE_CHECKING:
    from .input_values import Case

REFUSED = "attempting to re-use buffer"
"""What onnxruntime says where a value does not fit into the memory of its namesake."""


def namesakes(model: ModelProto, cases: Sequence[Case]) -> dict[str, dict[str, str]]:
    """By input, the new names of its dimensions whose sizes, in the cases that a model runs on, are not always those of
    the first input that has a dimension of the same name."""
    groups: dict[str, dict[tuple[int, ...], list[str]]] = {}
    for info in model.graph.input:
        for axis, dim in enumerate(dims_of(info)):
            if dim.dim_param and (sizes := _sizes([case.inputs.get(info.name) for case in cases], axis)):
                groups.setdefault(dim.dim_param, {}).setdefault(sizes, []).append(info.name)
    taken, found = set(groups), dict[str, dict[str, str]]()
    for symbol, members in groups.items():
        for inputs in list(members.values())[1:]:
            name = re.sub(r"\W", "_", f"{inputs[0]}_{symbol}")
            while name in taken:
                name += "_"
            taken.add(name)
            for item in inputs:
                found.setdefault(item, {})[symbol] = name
    return found


def _sizes(values: Iterable[Any], axis: int) -> tuple[int, ...]:
    """The sizes of an axis in all cases; none where the input is no tensor, or no such axis is fed."""
    shapes = [getattr(value, "shape", ()) for value in values]
    return tuple(shape[axis] for shape in shapes) if all(axis < len(shape) for shape in shapes) else ()


def note(names: DimNames) -> str:
    """What there is to say of dimensions that have got new names; "" if none have."""
    told = [f"{symbol} of {item!r} is {new}" for item, renamed in names.items() for symbol, new in renamed.items()]
    return f"in the file {', '.join(told)}" if told else ""


def hint(names: DimNames) -> str:
    """What there is to say where fusions were left out and these dimensions kept their names; "" if there are none."""
    told = [f"{symbol} of {item!r}" for item, renamed in names.items() for symbol in renamed]
    return f"another input's size bears the same name as {', '.join(told)}: try --rename-dims" if told else ""
