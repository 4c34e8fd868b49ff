"""Kernels of ops that are elementwise and views, generated from their function body: `loops` writes their code.

No op has code of its own here: a rule whose meaning is made of such ops has a kernel.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from onnx import helper

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.access import aligned
from onnxfuse.kernels.device.device import Array, Device, Source, TensorType, nbytes
from onnxfuse.kernels.device.kernel import REAL, Kernel, Parameter, Signature, Work
from onnxfuse.kernels.device.replay import KNOWN, Replay
from onnxfuse.language.bodies import Use, asks_for_shapes, output_names, real_dtype
from onnxfuse.language.builtins import BUILTINS
from onnxfuse.language.catalogue import Catalogue
from onnxfuse.language.functions import function
from onnxfuse.language.rule import Rule, op_name

from .expressions.trace import SERVED
from .loops import loops

OPSET = 17
"""Bodies are asked for at this opset: old enough that what later ones have as one op is written out."""


class Planned(Protocol):
    """What was generated: a launch, or several that follow each other."""

    @property
    def source(self) -> Source: ...
    @property
    def launches(self) -> int: ...
    @property
    def read(self) -> int:
        """Bytes."""

    @property
    def flops(self) -> int: ...
    def run(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        """Launch it on the arrays of a node."""


class Compiled(ABC):
    """One node whose loops are generated for the sizes that it meets."""

    name: ClassVar[str] = "pointwise"
    signature: ClassVar[Signature]

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self.attributes = tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in attributes.items()))
        self._all = (True,) * len(self.signature.outputs)
        self._plans: dict[Any, tuple[tuple[TensorType, ...], Sequence[Planned]]] = {}
        self._replay = Replay(self._launch)

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return self._plan(tuple(inputs), self._all, True)[0]

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._replay(device, inputs, outputs)

    def _launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        given = [a for a in inputs if a is not None]
        types = tuple(None if a is None else TensorType(a.dtype, tuple(a.shape)) for a in inputs)
        for loop in self._plan(types, tuple(a is not None for a in outputs), aligned((*inputs, *outputs)))[1]:
            loop.run(device, given, outputs)

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        types, made = self._plan(tuple(inputs), self._all, True)
        written = sum(map(nbytes, types))
        return Work(sum(loop.read for loop in made), written, sum(loop.flops for loop in made))

    def _plan(
        self, inputs: tuple[TensorType | None, ...], wanted: tuple[bool, ...], aligned: bool
    ) -> tuple[tuple[TensorType, ...], Sequence[Planned]]:
        key = (inputs, wanted, aligned)
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= KNOWN:
                self._plans.clear()
            found = self._plans[key] = self.planned(inputs, wanted, aligned)
        return found

    @abstractmethod
    def planned(
        self, inputs: tuple[TensorType | None, ...], wanted: tuple[bool, ...], aligned: bool
    ) -> tuple[tuple[TensorType, ...], Sequence[Planned]]:
        """The types of the outputs that are wanted, and the loops that compute them.  Raises KernelError."""


class Pointwise(Compiled):
    """The kernel of one node of an op that a rule defines; `kernel` makes the class of the op."""

    catalogue: ClassVar[Catalogue]

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        definition = self.catalogue.definitions[self.signature.op]
        for name in attributes:
            if definition.attributes is not None and name not in definition.attributes:
                raise KernelError(f"{self.signature.op} has no attribute {name}")
        super().__init__(attributes)

    def planned(
        self, inputs: tuple[TensorType | None, ...], wanted: tuple[bool, ...], aligned: bool
    ) -> tuple[tuple[TensorType, ...], Sequence[Planned]]:
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
    for statement in definition.equations:
        for node in ast.walk(statement.value):
            if not isinstance(node, ast.Call):
                continue
            name = op_name(node)
            parameter = definition.parameter(name)
            for op in parameter.ops if parameter is not None else (name,):
                further = catalogue.definitions.get(op)
                if op in SERVED or op in BUILTINS or op in ("Repeat", "Sqrt"):
                    continue
                if further is None or op in inside or op == definition.name:
                    return op
                other = obstacle(further, catalogue, (*inside, op))
                if other:
                    return other
    return ""
