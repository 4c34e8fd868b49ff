"""What a model means by a Reshape of an empty tensor whose 0 turns out to be a size, and not a dimension to copy.

A size that is 0 at run time, in a shape that is computed, makes Reshape (allowzero = 0) copy the dimension of its input
at that place.  Beside a -1 nothing refuses that: [b, b, 8, 0] becomes [0, 8, 8] by the shape [-1, 8, 0], which meant
[b * b, 8, 0].  A 0 is a size here where the same shape has another number for tensors that are not empty, and -1 stands
for what it is for those, if that is the same for two sizes, or 0, if that is a multiple of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, inliner, numpy_helper

from .feeds import Feed

Array = NDArray[Any]
Run = Callable[[onnx.ModelProto, Feed], Sequence[Array]]
SIZES = (3, 7)
"""Of what is empty, to see what the shapes are otherwise."""


def meant(model: onnx.ModelProto, feed: Feed, run: Run) -> onnx.ModelProto | None:
    """The model for one empty feed, where each such Reshape is a constant of the shape that was meant.

    None if it has none, or if that cannot be told.  `run` raises what it likes where a model does not run."""
    read = onnx.shape_inference.infer_shapes(inliner.inline_local_functions(model))
    infos = (*read.graph.value_info, *read.graph.output)
    kinds = {info.name: info.type.tensor_type.elem_type for info in infos}
    del read.graph.value_info[:]
    for output in read.graph.output:
        output.type.tensor_type.ClearField("shape")
    changed = False
    for node in read.graph.node:
        if (
            node.op_type == "Reshape"
            and node.output[0] in kinds
            and not any(a.name == "allowzero" and a.i for a in node.attribute)
        ):
            dims = _dims(read, node, feed, run)
            if dims is not None:
                dtype = helper.tensor_dtype_to_np_dtype(kinds[node.output[0]])
                empty = numpy_helper.from_array(np.zeros(dims, dtype))
                node.CopyFrom(helper.make_node("Constant", [], node.output, value=empty))
                changed = True
    return read if changed else None


def _dims(model: onnx.ModelProto, node: onnx.NodeProto, feed: Feed, run: Run) -> list[int] | None:
    """The shape that a Reshape meant, where it copies a dimension that is not 0 in place of a size that is."""
    asked = onnx.ModelProto.FromString(model.SerializeToString())
    del asked.graph.output[:]
    for number, name in enumerate((node.input[0], node.input[1], node.output[0])):
        asked.graph.node.append(helper.make_node("Shape" if number != 1 else "Identity", [name], [f"meant/{number}"]))
        asked.graph.output.append(helper.make_tensor_value_info(f"meant/{number}", onnx.TensorProto.INT64, None))
    given, target, _ = run(asked, feed)
    copies = [place for place in np.flatnonzero(target == 0) if given[place]]
    if not copies:
        return None
    (_, one, made), (_, other, remade) = (run(asked, _sized(feed, size)) for size in SIZES)
    if any(one[place] == 0 or other[place] == 0 for place in copies):
        return None  # a 0 that was written: it copies
    dims = [given[i] if not size and i not in copies else size for i, size in enumerate(target)]
    for place in np.flatnonzero(target == -1):
        multiple = made[place] % SIZES[0] == 0 == remade[place] % SIZES[1]
        if made[place] != remade[place] and not multiple:
            return None
        dims[place] = 0 if multiple else made[place]
    return [int(size) for size in dims]


def _sized(feed: Feed, size: int) -> Feed:
    """Zeros of the feed's shapes, but with so many elements along the dimensions that have none."""
    shapes = {name: [dim or size for dim in array.shape] for name, array in feed.inputs.items()}
    return Feed(f"{feed.name} of {size}", {n: np.zeros(s, feed.inputs[n].dtype) for n, s in shapes.items()})
