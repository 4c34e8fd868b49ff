"""A region's body at the element types of its operands, which kernels are generated for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import FunctionProto, TensorProto, helper


def settled(function: FunctionProto, kinds: Sequence[str]) -> FunctionProto:
    """The function with what takes the type of an operand in that type; `kinds` are those of the operands, as NumPy
    calls them.  A Constant that has it already is read as it is."""
    types = {
        name: helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for name, kind in zip(function.input, kinds, strict=False)
    }
    constants = {
        node.output[0]: attribute.t.data_type
        for node in function.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    same: dict[str, str] = {}
    made = FunctionProto()
    made.CopyFrom(function)
    del made.node[:]
    for node in function.node:
        wanted = types.get(node.input[1], TensorProto.UNDEFINED) if node.op_type == "CastLike" else 0
        if wanted and constants.get(node.input[0]) == wanted and node.output[0] not in function.output:
            same[node.output[0]] = node.input[0]
            continue
        copy = made.node.add()
        copy.CopyFrom(node)
        copy.input[:] = [same.get(name, name) for name in node.input]
        if wanted:
            copy.op_type = "Cast"
            del copy.input[1:], copy.attribute[:]
            copy.attribute.append(helper.make_attribute("to", wanted))
    return made
