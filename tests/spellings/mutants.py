"""Small wrongs done to a model: what a pattern must tell from the real thing.

A mutant is valid and runs, and mostly computes something else.  Fusing it to what the original was fused to would
change its numbers; leaving it alone, or fusing it rightly, is fine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import zip_longest

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper, shape_inference
from onnxruntime.capi import onnxruntime_pybind11_state as failures

from tests.spellings.build import Array

Edit = Callable[[onnx.ModelProto], None]

ORDERED = {"Div", "MatMul", "Pow", "Sub"}
"""Two-operand operators for which the order matters."""

OTHERS = {
    "Add": ("Mul", "Sub"),
    "Cos": ("Sin",),
    "Div": ("Mul",),
    "Erf": ("Tanh",),
    "Exp": ("Sqrt",),
    "Max": ("Min",),
    "Mul": ("Add", "Div"),
    "ReduceMax": ("ReduceMin",),
    "ReduceMean": ("ReduceSum", "ReduceMax"),
    "ReduceSum": ("ReduceMean",),
    "Relu": ("Sigmoid",),
    "Sigmoid": ("Tanh",),
    "Sqrt": ("Exp",),
    "Sub": ("Add",),
    "Tanh": ("Erf",),
}
"""Operators, each with some of the same inputs that compute something else."""

REFUSALS = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    failures.Fail,
    failures.InvalidArgument,
    failures.InvalidGraph,
    failures.NotImplemented,
    failures.RuntimeException,
)


def mutants(
    model: onnx.ModelProto, seed: int, given: dict[str, Array] | None = None
) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Every mutant of `model` that the checker accepts and onnxruntime runs, one edit each, in an order `seed` gives.
    It is run on `given`, or on random inputs.

    The edits: a float constant off by 1 %, two integers of a constant exchanged, an axis, a permutation or another
    attribute changed, the operands of an ordered operator or the branches of a Where swapped, a mask inverted, an
    operator replaced, an input rewired to an earlier value of the same type, an intermediate also returned, used a
    second time, or passed through float16.  Kinds take turns.
    """
    kinds = (_constants, _attributes, _swaps, _rewirings, _inversions, _replacements, _uses, _roundings)
    edits = [list(kind(model)) for kind in kinds]
    random_ = random.Random(seed)
    for kind in edits:
        random_.shuffle(kind)
    for description, edit in (turn for turns in zip_longest(*edits) for turn in turns if turn is not None):
        mutant = onnx.ModelProto()
        mutant.CopyFrom(model)
        edit(mutant)
        if runs(mutant, given):
            yield description, mutant


def runs(model: onnx.ModelProto, given: dict[str, Array] | None = None) -> bool:
    """Whether the checker accepts `model` and onnxruntime runs it, by default on random inputs of its shapes."""
    try:
        onnx.checker.check_model(model, full_check=True)
        run(model, feeds(model) if given is None else given)
    except REFUSALS:
        return False
    return True


def run(model: onnx.ModelProto, inputs: dict[str, Array]) -> list[Array]:
    """The outputs of `model`, unoptimized, in onnxruntime on one thread."""
    return list(opened(model.SerializeToString()).run(None, inputs))


@lru_cache(maxsize=4)
def opened(model: bytes) -> ort.InferenceSession:
    """An unoptimized CPU session on one thread; the last few stay open for who runs their models again."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


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
    for place in tensors(model):
        tensor = place(model)
        value = numpy_helper.to_array(tensor)
        if value.dtype.kind == "f":
            yield f"constant {tensor.name} off by 1 %", partial(_change, place, _nudged)
        elif value.dtype.kind == "i" and 1 < value.size < 8:
            for i in range(value.size - 1):
                yield f"integers {i} and {i + 1} of {tensor.name} exchanged", partial(_change, place, partial(_turn, i))
        elif value.dtype.kind == "i" and value.size == 1:
            yield f"integer {tensor.name} less 1", partial(_change, place, _less)


def tensors(model: onnx.ModelProto) -> Iterator[Callable[[onnx.ModelProto], onnx.TensorProto]]:
    """Where the top graph's constant tensors are, in it or in a copy."""

    def initializer(index: int, model: onnx.ModelProto) -> onnx.TensorProto:
        return model.graph.initializer[index]

    def value(index: int, model: onnx.ModelProto) -> onnx.TensorProto:
        tensor: onnx.TensorProto = model.graph.node[index].attribute[0].t
        return tensor

    for index in range(len(model.graph.initializer)):
        yield partial(initializer, index)
    for index, node in enumerate(model.graph.node):
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            yield partial(value, index)


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
                case "keepdims" | "transA" | "transB" | "transX" | "is_causal" | "interleaved":
                    yield f"{where} is {1 - attribute.i}", partial(_set_int, n, a, 1 - attribute.i)
                case "epsilon" | "alpha" | "beta" | "gamma" | "scale":
                    yield f"{where} is {attribute.f * 1.5}", partial(_set_float, n, a, attribute.f * 1.5 or 0.5)


def _swaps(model: onnx.ModelProto) -> Iterator[tuple[str, Edit]]:
    for n, node in enumerate(model.graph.node):
        if node.op_type in ORDERED and node.input[0] != node.input[1]:
            yield f"operands of {node.name} swapped", partial(_exchange, n, 0, 1)


def _rewirings(model: onnx.ModelProto) -> Iterator[tuple[str, Edit]]:
    types = _types(model)
    earlier = [value.name for value in (*model.graph.input, *model.graph.initializer)]
    for n, node in enumerate(model.graph.node):
        for i, name in enumerate(node.input):
            for other in earlier:
                if other != name and other in types and types[other] == types.get(name):
                    yield f"input {i} of {node.name} is {other}", partial(_rewire, n, i, other)
        earlier += node.output


def _inversions(model: onnx.ModelProto) -> Iterator[tuple[str, Edit]]:
    for n, node in enumerate(model.graph.node):
        if node.op_type == "Where":
            yield f"branches of {node.name} swapped", partial(_exchange, n, 1, 2)
            yield f"condition of {node.name} inverted", partial(_insert, n, 0, "Not", {})
        if node.op_type == "Softmax":
            yield f"scores of {node.name} inverted", partial(_insert, n, 0, "Neg", {})


def _replacements(model: onnx.ModelProto) -> Iterator[tuple[str, Edit]]:
    for n, node in enumerate(model.graph.node):
        for other in OTHERS.get(node.op_type, ()):
            yield f"{node.name} is {other}", partial(_replace, n, other)


def _floats(model: onnx.ModelProto) -> dict[str, int]:
    """Float value → its element type."""
    known = {name: onnx.TypeProto.FromString(type_).tensor_type.elem_type for name, type_ in _types(model).items()}
    return {name: kind for name, kind in known.items() if kind in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)}


def _uses(model: onnx.ModelProto) -> Iterator[tuple[str, Edit]]:
    floats = _floats(model)
    for n, node in enumerate(model.graph.node):
        for name in node.output:
            if name in floats:
                yield f"{name} is also returned", partial(_return, n, name, floats[name], "")
                yield f"{name} is also used", partial(_return, n, name, floats[name], "Neg")


def _roundings(model: onnx.ModelProto) -> Iterator[tuple[str, Edit]]:
    floats = _floats(model)
    for n, node in enumerate(model.graph.node):
        if node.op_type in ("Reshape", "Resize"):
            continue
        for i, name in enumerate(node.input):
            if floats.get(name) == onnx.TensorProto.FLOAT:
                yield f"input {i} of {node.name} through float16", partial(_round, n, i)


def _types(model: onnx.ModelProto) -> dict[str, bytes]:
    """Type and shape of each value, as comparable bytes."""
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    known = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
    known |= {
        tensor.name: helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)) for tensor in graph.initializer
    }
    return {name: type_.SerializeToString(deterministic=True) for name, type_ in known.items()}


def _change(
    place: Callable[[onnx.ModelProto], onnx.TensorProto], change: Callable[[Array], Array], model: onnx.ModelProto
) -> None:
    tensor = place(model)
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))


def _nudged(value: Array) -> Array:
    return np.where(value == 0, 0.01, value.astype(np.float64) * 0.99).astype(value.dtype)


def _turn(index: int, value: Array) -> Array:
    order = list(range(value.size))
    order[index], order[index + 1] = order[index + 1], order[index]
    return np.asarray(value.ravel()[order].reshape(value.shape))


def _less(value: Array) -> Array:
    return np.asarray(value - 1, value.dtype)


def _set_ints(node: int, attribute: int, values: list[int], model: onnx.ModelProto) -> None:
    model.graph.node[node].attribute[attribute].ints[:] = values


def _set_int(node: int, attribute: int, value: int, model: onnx.ModelProto) -> None:
    model.graph.node[node].attribute[attribute].i = value


def _set_float(node: int, attribute: int, value: float, model: onnx.ModelProto) -> None:
    model.graph.node[node].attribute[attribute].f = value


def _rewire(node: int, index: int, value: str, model: onnx.ModelProto) -> None:
    model.graph.node[node].input[index] = value


def _exchange(node: int, first: int, second: int, model: onnx.ModelProto) -> None:
    operands = model.graph.node[node].input
    operands[first], operands[second] = operands[second], operands[first]


def _insert(node: int, index: int, op: str, attributes: dict[str, int], model: onnx.ModelProto) -> None:
    """Put an operator before an input."""
    name = model.graph.node[node].input[index]
    fresh = f"{name}/{op}/{node}.{index}"
    model.graph.node.insert(node, helper.make_node(op, [name], [fresh], fresh, **attributes))
    model.graph.node[node + 1].input[index] = fresh


def _round(node: int, index: int, model: onnx.ModelProto) -> None:
    _insert(node, index, "Cast", {"to": onnx.TensorProto.FLOAT}, model)
    _insert(node, 0, "Cast", {"to": onnx.TensorProto.FLOAT16}, model)


def _replace(node: int, op: str, model: onnx.ModelProto) -> None:
    model.graph.node[node].op_type = op


def _return(node: int, name: str, element_type: int, op: str, model: onnx.ModelProto) -> None:
    """Make a value, or an operator of it, an output."""
    fresh = f"{name}/{op}/also" if op else name
    if op:
        model.graph.node.insert(node + 1, helper.make_node(op, [name], [fresh], fresh))
    if fresh not in {output.name for output in model.graph.output}:
        model.graph.output.append(helper.make_tensor_value_info(fresh, element_type, None))
