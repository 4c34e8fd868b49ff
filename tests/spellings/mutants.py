"""Small wrongs done to a model: what a pattern must tell from the real thing.

A mutant is valid and runs, and mostly computes something else.  Fusing it to what the original was fused to would
change its numbers; leaving it alone, or fusing it rightly, is fine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper, shape_inference
from onnxruntime.capi import onnxruntime_pybind11_state as failures

from tests.spellings.build import Array

Edit = Callable[[onnx.ModelProto], None]

ORDERED = {"Div", "MatMul", "Pow", "Sub"}
"""Two-operand operators for which the order matters."""

REFUSALS = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    failures.Fail,
    failures.InvalidArgument,
    failures.InvalidGraph,
    failures.NotImplemented,
    failures.RuntimeException,
)


def mutants(model: onnx.ModelProto, seed: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Every mutant of `model` that the checker accepts and onnxruntime runs, one edit each, in an order `seed` gives.

    The edits: a float constant off by 1 %, an axis or a permutation changed, the operands of an ordered operator
    swapped, an input rewired to an earlier value of the same type.
    """
    edits = [*_constants(model), *_attributes(model), *_swaps(model), *_rewirings(model)]
    random.Random(seed).shuffle(edits)
    for description, edit in edits:
        mutant = onnx.ModelProto()
        mutant.CopyFrom(model)
        edit(mutant)
        if runs(mutant):
            yield description, mutant


def runs(model: onnx.ModelProto) -> bool:
    """Whether the checker accepts `model` and onnxruntime runs it on random inputs of its declared shapes."""
    try:
        onnx.checker.check_model(model, full_check=True)
        run(model, feeds(model))
    except REFUSALS:
        return False
    return True


def run(model: onnx.ModelProto, inputs: dict[str, Array]) -> list[Array]:
    """The outputs of `model`, unoptimized, in onnxruntime on one thread."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def feeds(model: onnx.ModelProto) -> dict[str, Array]:
    """Random inputs of the declared shapes; each symbolic dimension has a size of its own."""
    rng = np.random.default_rng(0)
    sizes: dict[str, int] = {}
    inputs: dict[str, Array] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or sizes.setdefault(dim.dim_param, 2 + len(sizes)) for dim in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype.kind == "f":
            inputs[value.name] = rng.standard_normal(shape).astype(dtype)
        else:
            inputs[value.name] = rng.integers(0, 2, shape).astype(dtype)
    return inputs


def _constants(model: onnx.ModelProto) -> Iterator[tuple[str, Edit]]:
    for index, tensor in enumerate(model.graph.initializer):
        if numpy_helper.to_array(tensor).dtype.kind == "f":
            yield f"constant {tensor.name} off by 1 %", partial(_nudge_initializer, index)
    for index, node in enumerate(model.graph.node):
        if node.op_type == "Constant" and numpy_helper.to_array(node.attribute[0].t).dtype.kind == "f":
            yield f"constant {node.output[0]} off by 1 %", partial(_nudge_constant, index)


def _attributes(model: onnx.ModelProto) -> Iterator[tuple[str, Edit]]:
    for n, node in enumerate(model.graph.node):
        for a, attribute in enumerate(node.attribute):
            where = f"{attribute.name} of {node.name}"
            match attribute.name:
                case "perm":
                    for i in range(len(attribute.ints) - 1):
                        perm = [*attribute.ints]
                        perm[i], perm[i + 1] = perm[i + 1], perm[i]
                        yield f"{where} is {perm}", partial(_set_ints, n, a, perm)
                case "axes":
                    axes = [axis - 1 for axis in attribute.ints]
                    yield f"{where} is {axes}", partial(_set_ints, n, a, axes)
                case "axis":
                    for axis in (attribute.i - 1, attribute.i + 1):
                        yield f"{where} is {axis}", partial(_set_int, n, a, axis)


def _swaps(model: onnx.ModelProto) -> Iterator[tuple[str, Edit]]:
    for n, node in enumerate(model.graph.node):
        if node.op_type in ORDERED and node.input[0] != node.input[1]:
            yield f"operands of {node.name} swapped", partial(_swap, n)


def _rewirings(model: onnx.ModelProto) -> Iterator[tuple[str, Edit]]:
    types = _types(model)
    earlier = [value.name for value in (*model.graph.input, *model.graph.initializer)]
    for n, node in enumerate(model.graph.node):
        for i, name in enumerate(node.input):
            for other in earlier:
                if other != name and other in types and types[other] == types.get(name):
                    yield f"input {i} of {node.name} is {other}", partial(_rewire, n, i, other)
        earlier += node.output


def _types(model: onnx.ModelProto) -> dict[str, bytes]:
    """Type and shape of each value, as comparable bytes."""
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    known = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
    known |= {
        tensor.name: helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)) for tensor in graph.initializer
    }
    return {name: type_.SerializeToString(deterministic=True) for name, type_ in known.items()}


def _nudge_initializer(index: int, model: onnx.ModelProto) -> None:
    _nudge(model.graph.initializer[index])


def _nudge_constant(node: int, model: onnx.ModelProto) -> None:
    _nudge(model.graph.node[node].attribute[0].t)


def _nudge(tensor: onnx.TensorProto) -> None:
    value = numpy_helper.to_array(tensor)
    nudged = np.where(value == 0, 0.01, value.astype(np.float64) * 0.99).astype(value.dtype)
    tensor.CopyFrom(numpy_helper.from_array(nudged, tensor.name))


def _set_ints(node: int, attribute: int, values: list[int], model: onnx.ModelProto) -> None:
    model.graph.node[node].attribute[attribute].ints[:] = values


def _set_int(node: int, attribute: int, value: int, model: onnx.ModelProto) -> None:
    model.graph.node[node].attribute[attribute].i = value


def _swap(node: int, model: onnx.ModelProto) -> None:
    operands = model.graph.node[node].input
    operands[0], operands[1] = operands[1], operands[0]


def _rewire(node: int, index: int, value: str, model: onnx.ModelProto) -> None:
    model.graph.node[node].input[index] = value
