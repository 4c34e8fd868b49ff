"""Kernels of ops that are elementwise and views, generated from their function body.

No op has code of its own here: a rule whose meaning is made of such ops has a kernel.  The loop is specialised on the
pattern (what broadcasts, what divides into vectors, element types), and sizes are its arguments; a new batch size is
traced anew in a few milliseconds and finds the same source compiled.

`device_function` writes the same expressions as a function that other kernels call on what they read or write.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from onnx import NodeProto, helper

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Array, Device, Source, TensorType, address
from onnxfuse.kernels.device.kernel import REAL, Kernel, Parameter, Signature, Work
from onnxfuse.kernels.pointwise.expressions.index import LANE, Index, coordinates, total, variable
from onnxfuse.kernels.pointwise.expressions.scalars import Scalar, Scalars
from onnxfuse.kernels.pointwise.expressions.trace import SERVED, trace
from onnxfuse.kernels.pointwise.expressions.values import Value, computed_type, size
from onnxfuse.kernels.pointwise.expressions.values import source as array
from onnxfuse.language.bodies import Use, asks_for_shapes, meaning, output_names, real_dtype
from onnxfuse.language.catalogue import Catalogue
from onnxfuse.language.functions import function
from onnxfuse.language.rule import PREDICATES, Rule, op_name

from .expressions import source

OPSET = 17
"""Bodies are asked for at this opset: old enough that what later ones have as one op is written out."""
BYTES, WIDEST = 16, 8
"""Largest access, and most elements that one thread computes at a time."""
THREADS = 256
BLOCKS = 2048 // THREADS
"""On a multiprocessor at a time."""
HEADER = "pointwise.cuh"
KNOWN = 512
"""Plans that a kernel keeps; past that it begins anew."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One launch: `inputs` and `outputs` are the numbers of the arrays that it takes, in order."""

    source: Source
    entry: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: tuple[np.generic, ...]
    vectors: int
    read: int
    """Bytes."""
    flops: int


def loops(
    entry: str,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, TensorType],
    outputs: Sequence[str],
    aligned: bool = True,
) -> tuple[tuple[TensorType, ...], list[Loop]]:
    """The types of the outputs of some nodes, and the launches that compute them: one for each shape among them.

    Nodes are in topological order; an output named "" is not wanted.  `aligned` says that all arrays begin at multiples
    of 16 bytes.  Raises KernelError for nodes that are neither elementwise nor views.
    """
    scalars = Scalars()
    given = {name: array(scalars, k, t.shape, t.dtype) for k, (name, t) in enumerate(inputs.items())}
    wanted = [k for k, name in enumerate(outputs) if name]
    values = dict(zip(wanted, trace(scalars, nodes, given, [outputs[k] for k in wanted]), strict=True))
    groups: dict[tuple[int, ...], list[int]] = {}
    for k, value in values.items():
        groups.setdefault(value.shape, []).append(k)
    types = tuple(TensorType(v.dtype, v.shape) for v in values.values())
    return types, [
        _loop(entry, list(inputs.values()), {k: values[k] for k in members}, aligned)
        for members in groups.values()
        if values[members[0]].size
    ]


def _loop(entry: str, inputs: Sequence[TensorType], values: Mapping[int, Value], aligned: bool) -> Loop:
    """Outputs of one shape, by their numbers: in vectors of 16 bytes, or the widest in which something is read."""
    first = next(iter(values.values()))
    count, narrowest = first.size, min(v.dtype.itemsize for v in values.values())
    width = min(WIDEST, BYTES // narrowest) if aligned else 1
    while True:
        while count < 2 * width and width > 1:
            width //= 2
        position = variable("i", count)
        if width > 1:
            position = total([(variable("j", count // width), width), (variable("v", width, LANE), 1)])
        elements = _elements(values, position)
        reached = _reached([s for _, s in elements])
        dtypes = {k: inputs[k].dtype.name for k in sorted({s.payload[0] for s in reached if s.kind == "load"})}
        rest = _elements(values, variable("i", count)) if count % width else ()
        text = source.kernel(entry, dtypes, elements, rest, count, width)
        if width == 1 or text.vectors or not dtypes:
            break
        width //= 2
    return Loop(
        Source(entry, Source.file(HEADER).text + text.body),
        entry,
        tuple(dtypes),
        tuple(values),
        text.parameters,
        count // width,
        _read(reached, inputs, count),
        count * sum(s.flops for s in reached),
    )


def _elements(values: Mapping[int, Value], position: Index) -> list[tuple[str, Scalar]]:
    """The element type and the expression of each output, at a position of its contiguous memory."""
    at = coordinates(position, next(iter(values.values())).shape)
    return [(v.dtype.name, v.at(at)) for v in values.values()]


def _reached(results: Sequence[Scalar]) -> list[Scalar]:
    """Everything that some elements are computed from, in the order in which it is met."""
    seen: dict[Scalar, None] = {}
    pending = list(results)
    while pending:
        s = pending.pop()
        if s not in seen:
            seen[s] = None
            pending += s.args
            for index in _indices(s):
                pending += [a.value for a in index.reads()]
    return list(seen)


def _indices(s: Scalar) -> Iterator[Index]:
    """The index expressions of an element itself."""
    match s.kind:
        case "position":
            yield s.payload
        case "load" | "table":
            yield s.payload[1]
        case "select":
            yield s.payload.index
    if s.kind in ("load", "table"):
        for condition in s.payload[2]:
            yield condition.index


def _read(reached: Sequence[Scalar], inputs: Sequence[TensorType], count: int) -> int:
    """Bytes read: of each input what it holds, or one element for each expression and element of the result."""
    loads: dict[int, int] = {}
    for s in reached:
        if s.kind == "load":
            loads[s.payload[0]] = loads.get(s.payload[0], 0) + count
    return sum(min(n, size(inputs[k].shape)) * inputs[k].dtype.itemsize for k, n in loads.items())


# -------------------------------------------------------------------------------------------------------- the kernels


class Pointwise:
    """The kernel of one node; `kernel` makes the class of an op."""

    name: ClassVar[str] = "pointwise"
    signature: ClassVar[Signature]
    catalogue: ClassVar[Catalogue]

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        definition = self.catalogue.definitions[self.signature.op]
        for name in attributes:
            if definition.attributes is not None and name not in definition.attributes:
                raise KernelError(f"{self.signature.op} has no attribute {name}")
        self.attributes = tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in attributes.items()))
        self._all = (True,) * len(self.signature.outputs)
        self._plans: dict[Any, tuple[tuple[TensorType, ...], list[Loop]]] = {}

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return self._plan(tuple(inputs), self._all, True)[0]

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        addresses = 0
        for a in (*inputs, *outputs):
            addresses |= 0 if a is None else address(a)
        types = tuple([None if a is None else TensorType(a.dtype, tuple(a.shape)) for a in inputs])
        wanted = tuple([a is not None for a in outputs])
        given = [a for a in inputs if a is not None]
        for loop in self._plan(types, wanted, addresses % BYTES == 0)[1]:
            blocks = min(-(-loop.vectors // THREADS), device.multiprocessors * BLOCKS)
            arrays = [*[given[k] for k in loop.inputs], *[outputs[k] for k in loop.outputs]]
            device.launch(loop.source, loop.entry, (blocks,), (THREADS,), [*arrays, *loop.parameters])

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        types, made = self._plan(tuple(inputs), self._all, True)
        written = sum(size(t.shape) * t.dtype.itemsize for t in types)
        return Work(sum(loop.read for loop in made), written, sum(loop.flops for loop in made))

    def _plan(
        self, inputs: tuple[TensorType | None, ...], wanted: tuple[bool, ...], aligned: bool
    ) -> tuple[tuple[TensorType, ...], list[Loop]]:
        key = (inputs, wanted, aligned)
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= KNOWN:
                self._plans.clear()
            found = self._plans[key] = self._planned(inputs, wanted, aligned)
        return found

    def _planned(
        self, inputs: tuple[TensorType | None, ...], wanted: tuple[bool, ...], aligned: bool
    ) -> tuple[tuple[TensorType, ...], list[Loop]]:
        op, definition = self.signature.op, self.catalogue.definitions[self.signature.op]
        check(self.signature, inputs)
        given = tuple(t is not None for t in inputs)
        dtype = real_dtype([helper.np_dtype_to_tensor_dtype(t.dtype) for t in inputs if t is not None])
        shapes = tuple(None if t is None else t.shape for t in inputs) if asks_for_shapes(definition) else ()
        use = Use(op, given, self.attributes, (True,) * len(wanted), dtype, shapes)
        body = function(use, self.catalogue, OPSET)
        types = dict(zip(body.input, (t for t in inputs if t is not None), strict=True))
        outputs = [name if asked else "" for name, asked in zip(body.output, wanted, strict=True)]
        return loops(op, list(body.node), types, outputs, aligned)


def check(signature: Signature, inputs: Sequence[TensorType | None]) -> None:
    """Raises KernelError if an input is missing, or its element type is not what the op takes."""
    op, real = signature.op, {t.dtype.name for t in inputs if t is not None} & set(REAL)
    if len(inputs) > len(signature.inputs):
        raise KernelError(f"{op} takes {len(signature.inputs)} inputs, not {len(inputs)}")
    if len(real) > 1:
        raise KernelError(f"the inputs of {op} must have one real element type, not {' and '.join(sorted(real))}")
    for k, parameter in enumerate(signature.inputs):
        given = inputs[k] if k < len(inputs) else None
        if given is None and not parameter.optional:
            raise KernelError(f"{op} lacks its input {parameter.name}")
        wanted = signature.types if parameter.type == "T" else (parameter.type,)
        if given is not None and given.dtype.name not in wanted:
            raise KernelError(f"{parameter.name} of {op} must be {' or '.join(wanted)}, not {given.dtype.name}")


KINDS = {"int": "int64", "bool": "bool"}


def kernel(op: str, catalogue: Catalogue) -> type[Kernel]:
    """The kernel class of an op that a rule defines.

    Raises KernelError, with the reason, if its meaning is not made of elementwise ops and views.
    """
    definition = catalogue.definitions.get(op)
    if definition is None:
        raise KernelError(f"no rule defines {op}")
    other = obstacle(definition, catalogue)
    if other:
        raise KernelError(f"{op} has no generated kernel: {other} is neither elementwise nor a view")
    parameters = tuple(Parameter(p.name, KINDS.get(p.kind or "", "T"), p.optional) for p in definition.tensors)
    results = tuple(Parameter(name) for name in output_names(definition))
    signature = Signature(op, parameters, results)
    made: type[Kernel] = type(
        op, (Pointwise,), {"signature": signature, "catalogue": catalogue, "__doc__": definition.doc}
    )
    return made


def obstacle(definition: Rule, catalogue: Catalogue, inside: tuple[str, ...] = ()) -> str:
    """The first op of a meaning that no pointwise kernel can do; empty if there is none."""
    for statement in meaning(definition):
        for node in ast.walk(statement.value):
            if not isinstance(node, ast.Call):
                continue
            name = op_name(node)
            parameter = definition.parameter(name)
            for op in parameter.ops if parameter is not None else (name,):
                further = catalogue.definitions.get(op)
                if op in SERVED or op in PREDICATES or op in ("Repeat", "Sqrt"):
                    continue
                if further is None or op in inside or op == definition.name:
                    return op
                other = obstacle(further, catalogue, (*inside, op))
                if other:
                    return other
    return ""


# ---------------------------------------------------------------------------------------------- prologues, epilogues


def device_function(
    name: str, nodes: Sequence[NodeProto], inputs: Mapping[str, np.dtype[Any]], outputs: Mapping[str, str]
) -> str:
    """Elementwise nodes as a CUDA function of single elements, for kernels to call on what they read or write.

    `inputs` are names of tensors and their element types, `outputs` names of tensors and of the arguments that receive
    them; nodes are in topological order, and constants in them single numbers.  For ``{"x": float16, "bias": float16}``
    and ``{"y": "y"}`` the text is ::

        __device__ __forceinline__ void NAME(float x, float bias, float& y) { ... }

    Real numbers of every width are float, bool is bool, int64 is long long, and smaller integers are int: the caller
    converts where it reads and rounds where it writes.  pointwise.cuh must come before it.  Raises KernelError for
    nodes that are not elementwise.
    """
    scalars = Scalars()
    given = {
        tensor: Value((), dtype, lambda _c, _g, t=tensor, d=dtype: scalars.argument(t, computed_type(d)))  # type: ignore[misc]
        for tensor, dtype in inputs.items()
    }
    values = trace(scalars, nodes, given, list(outputs))
    if any(v.size != 1 for v in values):
        raise KernelError(f"{name} is a function of single elements; its nodes make tensors")
    results = [(outputs[t], v.at(coordinates(Index(), v.shape))) for t, v in zip(outputs, values, strict=True)]
    return source.function(name, [(computed_type(d), t) for t, d in inputs.items()], results)


# -------------------------------------------------------------------------------------------------------- the sample

SAMPLED: tuple[tuple[str, str, dict[str, Any], tuple[str, ...], tuple[tuple[int, ...], ...]], ...] = (
    ("flat", "Gelu", {}, REAL, ((8, 1024),)),
    ("flat", "Mish", {}, ("float32",), ((8, 1024),)),
    ("gated", "SwiGLU", {}, REAL, ((8, 1024), (8, 1024))),
    ("gated", "GeGLU", {"approximate": "tanh"}, ("float16",), ((8, 1024), (8, 1024))),
    ("row", "PRelu", {}, ("float16",), ((8, 1024), (1024,))),
    ("odd", "PRelu", {}, ("float16",), ((8, 1023), (1023,))),
    ("halves", "RotaryEmbedding", {}, REAL, ((2, 4, 7, 64), (2, 7, 32), (2, 7, 32))),
    ("pairs", "RotaryEmbedding", {"interleaved": 1}, ("float16",), ((2, 4, 7, 64), (2, 7, 32), (2, 7, 32))),
    (
        "partial",
        "RotaryEmbedding",
        {"num_heads": 4, "rotary_embedding_dim": 32},
        ("float16",),
        ((2, 7, 256), (50, 16), (50, 16), (2, 7)),
    ),
)
"""(what it shows, op, attributes, element types, shapes) of sources that stand for all others; a fourth input is
int64."""


def samples() -> Iterator[tuple[str, Source]]:
    """Generated sources for the table of resources, each under a name."""
    from onnxfuse.language.catalogue import load

    catalogue = load()
    for name, op, attributes, dtypes, shapes in SAMPLED:
        made = kernel(op, catalogue)(attributes)
        for dtype in dtypes:
            kinds = [np.dtype(dtype)] * 3 + [np.dtype(np.int64)]
            assert isinstance(made, Pointwise)
            types = tuple(TensorType(kind, shape) for kind, shape in zip(kinds, shapes, strict=False))
            for loop in made._plan(types, (True,), True)[1]:
                yield f"{op} {name} {dtype}", loop.source
