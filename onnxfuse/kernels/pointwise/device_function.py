"""Elementwise nodes as a function of single elements, for kernels to call on what they read or write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxfuse.errors import KernelError

from .expressions.index import Index, coordinates
from .expressions.scalars import Scalar, Scalars
from .expressions.source import Writer
from .expressions.trace import trace
from .expressions.values import Value, computed_type


def device_function(
    name: str,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, np.dtype[Any]],
    outputs: Mapping[str, str],
    coarse: bool = False,
) -> str:
    """Elementwise nodes as a CUDA function of single elements, for kernels to call on what they read or write.

    `inputs` are names of tensors and their element types, `outputs` names of tensors and of the arguments that receive
    them; nodes are in topological order, and constants in them single numbers.  For ``{"x": float16, "bias": float16}``
    and ``{"y": "y"}`` the text is ::

        __device__ __forceinline__ void NAME(float x, float bias, float& y) { ... }

    Real numbers of every width are float, bool is bool, int64 is long long, and smaller integers are int: the caller
    converts where it reads and rounds where it writes.  pointwise.cuh must come before it.  Raises KernelError for
    nodes that are not elementwise.  `coarse` as for `trace`.
    """
    scalars = Scalars()
    given = {
        tensor: Value((), dtype, lambda _c, _g, t=tensor, d=dtype: scalars.argument(t, computed_type(d)))  # type: ignore[misc]
        for tensor, dtype in inputs.items()
    }
    values = trace(scalars, nodes, given, list(outputs), coarse=coarse)
    if any(v.size != 1 for v in values):
        raise KernelError(f"{name} is a function of single elements; its nodes make tensors")
    results = [(outputs[t], v.at(coordinates(Index(), v.shape))) for t, v in zip(outputs, values, strict=True)]
    return _function(name, [(computed_type(d), t) for t, d in inputs.items()], results)


def _function(name: str, arguments: Sequence[tuple[str, str]], results: Sequence[tuple[str, Scalar]]) -> str:
    """A device function of scalars: (C++ type, name) of what it takes, (name, expression) of what it returns by
    reference.  Raises KernelError for an expression that depends on where it is evaluated."""
    writer = Writer({}, taken=frozenset([*(name for _, name in arguments), *(name for name, _ in results)]))
    texts = [writer.scalar(s) for _, s in results]
    if writer.divisors or writer.numbers or writer.tables:
        raise KernelError(f"{name} depends on positions, which a function of elements does not know")
    head = [f"{type} {argument}" for type, argument in arguments] + [f"{s.type}& {result}" for result, s in results]
    lines = [*writer.outer, *(f"{result} = {text};" for (result, _), text in zip(results, texts, strict=True))]
    return (
        f"__device__ __forceinline__ void {name}({', '.join(head)}) {{\n" + "".join(f"    {x}\n" for x in lines) + "}\n"
    )
