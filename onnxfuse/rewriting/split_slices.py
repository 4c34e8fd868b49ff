"""Slices that take a tensor apart are one Split, such as those of packed queries, keys and values.

    Slice(x, 0, a), Slice(x, a, b), Slice(x, b, n) = Split(x, [a, b - a, n - b])      along one axis of n elements

guarantees   every element is in one part, and every value keeps its name; what else reads the tensor reads it
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from onnxfuse.model.schema import integers_as_input
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.term import UnknownValueError

from .plan import Draft, Plan


class Part(NamedTuple):
    """What a Slice takes of a tensor along its only axis, and where its node is in the draft."""

    start: int
    stop: int
    place: int


def split_slices(draft: Draft, places: Collection[int]) -> bool:
    """Put a Split in the place of Slices that are at `places` in the draft; is there one?"""
    found: dict[tuple[str, int, int], list[Part]] = {}
    for place in sorted(places):
        node = draft.nodes[place][2]
        if node.op_type == "Slice" and not node.domain and (taken := _taken(draft, node)) is not None:
            axis, size, start, stop = taken
            source = draft.alias.get(node.input[0], node.input[0])
            found.setdefault((source, axis, size), []).append(Part(start, stop, place))
    gone: set[int] = set()
    for (source, axis, size), parts in found.items():
        parts.sort()
        if len(parts) > 1 and _is_whole(parts, size) and not _converted(draft, source):
            _replace(draft, source, axis, parts)
            gone |= {part.place for part in parts[1:]}
    if gone:
        draft.nodes[:] = [entry for place, entry in enumerate(draft.nodes) if place not in gone]
    return bool(gone)


def _taken(draft: Draft, node: NodeProto) -> tuple[int, int, int, int] | None:
    """(axis, its size, start, stop) of a Slice along one axis in steps of 1, whose bounds are known; else None."""
    given = {attribute.name: list(helper.get_attribute_value(attribute)) for attribute in node.attribute}
    if not given:
        for key, name in zip(("starts", "ends", "axes", "steps"), node.input[1:], strict=False):
            numbers = _integers(draft, name)
            if numbers is None:
                return None
            given[key] = numbers
    starts, ends, axes = given["starts"], given["ends"], given.get("axes", [0])
    if len(starts) != 1 or len(axes) != 1 or given.get("steps", [1]) != [1]:
        return None
    term = draft.view.terms_of.get(node.input[0])
    shape = draft.available.shape(node.input[0]) if term is None else term.shape
    if not shape:
        return None
    axis = axes[0] % len(shape)
    size = shape[axis]
    if not isinstance(size, int):
        return None
    start, stop = (min(bound + size if bound < 0 else bound, size) for bound in (starts[0], ends[0]))
    return (axis, size, start, stop) if 0 <= start < stop else None


def _integers(draft: Draft, name: str) -> list[int] | None:
    if name in draft.constants:
        return [int(number) for number in np.ravel(numpy_helper.to_array(draft.constants[name]))]
    term = draft.view.terms_of.get(name)
    if term is None or not term.constant:
        return None
    try:
        return [int(number) for number in np.ravel(value_of(term))]
    except UnknownValueError:
        return None


def _is_whole(parts: list[Part], size: int) -> bool:
    """Are they in turn all that there is?"""
    meets = all(before.stop == after.start for before, after in pairwise(parts))
    return meets and parts[0].start == 0 and parts[-1].stop == size


def _converted(draft: Draft, source: str) -> bool:
    """Is the tensor one of steps of a quantizer?  onnxruntime has a Slice of bytes between a DequantizeLinear and a
    QuantizeLinear, and a Split only where all that read its parts share their steps."""
    maker = draft.graph.producer.get(source)
    return maker is not None and draft.graph.nodes[maker].op_type == "DequantizeLinear"


def _replace(draft: Draft, source: str, axis: int, parts: list[Part]) -> None:
    """Put a Split where the first of the Slices is."""
    entries = [draft.nodes[part.place] for part in parts]
    position, tie, first = min(entries, key=lambda entry: entry[:2])
    outputs = [node.output[0] for _, _, node in entries]
    sizes = [part.stop - part.start for part in parts]
    plan = Plan(draft)
    as_input = integers_as_input("Split", draft.opset) is not None
    inputs = [source, plan.integers(sizes)] if as_input else [source]
    made = helper.make_node("Split", inputs, outputs, first.name, axis=axis)
    if not as_input:
        made.attribute.append(helper.make_attribute("split", sizes))
    draft.commit(plan)
    draft.nodes[parts[0].place] = (position, tie, made)
