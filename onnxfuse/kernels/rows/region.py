"""The kernel of a region: generated from the function that its node calls, which is all that says what it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar

from onnx import FunctionProto, NodeProto

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.device.kernel import Kernel, Parameter, Signature
from onnxfuse.kernels.device.types import DTYPES
from onnxfuse.kernels.pointwise.expressions.trace import NODES
from onnxfuse.kernels.pointwise.expressions.values import size
from onnxfuse.kernels.pointwise.loops import loop_types, loops
from onnxfuse.kernels.pointwise.parts import apart, parts
from onnxfuse.kernels.pointwise.pointwise import Compiled, Planned
from onnxfuse.model.graph import REGION

from .fused import ROWS, AcrossError, OtherRowsError, row_types, rows
from .settled import settled
from .several import several, several_types


class Region(Compiled):
    """One node; `kernel` makes the class of a function.  Its operands have each its own element type."""

    name: ClassVar[str] = "pointwise"
    body: ClassVar[FunctionProto]

    def planned(
        self, inputs: tuple[TensorType | None, ...], wanted: tuple[bool, ...], aligned: bool
    ) -> tuple[tuple[TensorType, ...], Sequence[Planned]]:
        types = named(self.signature, inputs)
        names = [name if asked else "" for name, asked in zip(self.body.output, wanted, strict=True)]
        return planned(list(self.body.node), types, names, aligned)


def named(signature: Signature, inputs: Sequence[TensorType | None]) -> dict[str, TensorType]:
    """The operands of a region by their names.  Raises KernelError for one that is missing or of another type."""
    types: dict[str, TensorType] = {}
    for parameter, given in zip(signature.inputs, inputs, strict=True):
        if given is None or given.dtype.name != parameter.type:
            saw = "nothing" if given is None else given.dtype.name
            raise KernelError(f"{parameter.name} of {signature.op} must be {parameter.type}, not {saw}")
        types[parameter.name] = given
    return types


def planned(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str], aligned: bool = True
) -> tuple[tuple[TensorType, ...], Sequence[Planned]]:
    """The types of the outputs of a body, and its launches.  Raises KernelError for what no kernel computes."""
    if not any(node.op_type in ROWS for node in nodes):
        if len(list(apart(nodes, outputs))) > 1:
            with suppress(KernelError):
                types, launches = parts(REGION, nodes, inputs, outputs, aligned)
                if len(nodes) > NODES or len({size(t.shape) for t in types}) > 1:
                    return types, launches
        return loops(REGION, nodes, inputs, outputs, aligned)
    try:
        return rows(nodes, inputs, outputs, aligned, along=False)
    except OtherRowsError as error:
        across = isinstance(error, AcrossError)
    try:
        return several(nodes, inputs, outputs, aligned)
    except KernelError:
        if not across:
            raise
    return rows(nodes, inputs, outputs, aligned)


def planned_types(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]
) -> tuple[tuple[TensorType, ...], int]:
    """The types of the outputs, and the number of launches, of what `planned` would write.  Raises KernelError as that
    does.  Where neighbours lie in neighbouring rows it is one launch in either way."""
    if any(node.op_type in ROWS for node in nodes):
        try:
            return row_types(nodes, inputs, outputs)
        except OtherRowsError:
            return several_types(nodes, inputs, outputs)
    if len(list(apart(nodes, outputs))) > 1:  # one launch, if that has room for the arguments of all
        types, launches = planned(nodes, inputs, outputs)
        return types, sum(loop.launches for loop in launches)
    return loop_types(nodes, inputs, outputs)


def kernel(
    function: FunctionProto, inputs: Sequence[str], outputs: Sequence[str], base: type[Kernel] = Region
) -> type[Kernel]:
    """The kernel class of a region's function, the same every time, given the element types of its operands and
    results as NumPy calls them; `base` is the class that runs such a body.  Raises KernelError for a type that kernels
    do not have."""
    if other := next((kind for kind in (*inputs, *outputs) if kind not in DTYPES), None):
        raise KernelError(f"no kernel takes {other or 'what has no known element type'}")
    return _kernel(function.SerializeToString(deterministic=True), tuple(inputs), tuple(outputs), base)


@cache
def _kernel(text: bytes, inputs: tuple[str, ...], outputs: tuple[str, ...], base: type[Kernel]) -> type[Kernel]:
    body = settled(FunctionProto.FromString(text), inputs)
    taken, given = (
        tuple(Parameter(name, kind) for name, kind in zip(names, kinds, strict=True))
        for names, kinds in ((body.input, inputs), (body.output, outputs))
    )
    members: dict[str, Any] = {"signature": Signature(body.name, taken, given), "body": body}
    made: type[Kernel] = type(body.name, (base,), members)
    return made
