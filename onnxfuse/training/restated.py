"""A batch normalization, which reduces, as a loop over elements for who has its statistics.

    Y = (X - mean) * (inv * scale) + B      where mean and inv are outputs of BatchNormInternal that are kept

in the order of its body, so that the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from onnxfuse.lifting.view import View
from onnxfuse.model.graph import DOMAIN, family_of

AXES_AS_INPUT = 13
"""The opset from which Unsqueeze reads its axes."""


def restates(view: View, node: NodeProto, saved: Collection[str]) -> bool:
    """May what a node normalizes be computed from statistics that are `saved`?"""
    if node.domain != DOMAIN or family_of(node) != "BatchNormInternal" or view.graph.opset < AXES_AS_INPUT:
        return False
    rank = view.term(node.input[0]).rank
    return rank is not None and rank >= 2 and len(node.output) == 3 and all(name in saved for name in node.output[1:])


def restated(
    view: View, node: NodeProto, inputs: Sequence[str], unique: Callable[[str], str]
) -> tuple[list[NodeProto], str]:
    """The nodes of such a loop, given what the node reads, and the name of the result; `unique` makes names."""
    (x, scale, shift), (y, mean, inverse) = inputs, node.output
    made = list[NodeProto]()

    def step(op: str, *operands: str, **attributes: Any) -> str:
        name = unique(f"{y}_{op}")
        made.append(helper.make_node(op, operands, [name], name=unique(f"{node.name or y}_{op}"), **attributes))
        return name

    wide, rank = {name: name for name in (mean, inverse, scale, shift)}, view.term(x).rank or 2
    if rank > 2:
        axes = step("Constant", value=numpy_helper.from_array(np.arange(1, rank - 1)))
        wide = {name: step("Unsqueeze", name, axes) for name in wide}
    centered = step("Sub", x, wide[mean])
    scaled = step("Mul", centered, step("Mul", wide[inverse], wide[scale]))
    return made, step("Add", scaled, wide[shift])
