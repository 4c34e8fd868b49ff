"""Numbers that a body is given, though they are constants: those that tell it the type of real numbers, or that a
converter to half precision has to see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from onnxfuse.language.functions import CAST_LIKE

KNOWN = {"Pow": (1,), "Pad": (2,), "Range": (0, 1, 2)}
"""Op → operands that a kernel has to know when it is written.  An exponent may be of a type of its own."""


def passed(nodes: Sequence[NodeProto], opset: int, *, real: bool) -> list[str]:
    """The Constants of a body that it should read as inputs; `real`, if an input is float32 already.

    In half precision the lowest number of float32 would be -Inf, and a row that is masked throughout NaN: a converter
    takes the lowest of float16.  Before opset 15, which has no CastLike, all real numbers are given.  Else one is,
    where nothing else says of which type they are.
    """
    known = {name for node in nodes for at in KNOWN.get(node.op_type, ()) for name in node.input[at : at + 1]}
    numbers = {node.output[0]: value for node in nodes if (value := _number(node)) is not None}
    free = [name for name in numbers if name not in known]
    told = [name for name in free if opset < CAST_LIKE or not _held(numbers[name])]
    return told if told or real else free[:1]


def _number(node: NodeProto) -> np.ndarray[Any, Any] | None:
    """The float32 number of a Constant of the scope; those inside bodies of fused ops have no name there."""
    if node.op_type != "Constant" or node.output[0].startswith("\0"):
        return None
    tensor = next((a.t for a in node.attribute if a.name == "value" and a.t.data_type == TensorProto.FLOAT), None)
    return None if tensor is None else numpy_helper.to_array(tensor)


def _held(number: np.ndarray[Any, Any]) -> bool:
    """Does float16 have about this number?"""
    with np.errstate(over="ignore", under="ignore"):
        half = number.astype(np.float16)
    return bool(((np.isinf(half) == np.isinf(number)) & ((half == 0) == (number == 0))).all())
