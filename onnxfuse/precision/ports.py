"""Which inputs and outputs of a node share the type that it computes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from onnx import FunctionProto, NodeProto, TensorProto, defs

from onnxfuse import kernels
from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.kernel import EITHER
from onnxfuse.model.graph import DOMAIN, family, number_of
from onnxfuse.model.op_traits import SHAPE_QUERIES
from onnxfuse.model.schema import allows
from onnxfuse.model.standard import STANDARD, schema_of
from onnxfuse.model.types import type_name
from onnxfuse.model.walk import has_bodies
from onnxfuse.runtime.served import arguments
from onnxfuse.targets.target import Target

SHARED, SINGLE, ANY, MASK = "shared", "float32", "any", "mask"
"""What a real input or output of a node has for a type: that which the node computes in, float32, or any; a mask that
is added in the type of the scores is cut off at the lowest number that there is."""
_ANY = {"Attention": (3,), "Cast": (0,), "CastLike": (0, 1), "IsNaN": (0,), "IsInf": (0,)}
"""Inputs of ai.onnx that may have another type than the others: masks, and what is converted."""
_MASKS = {"MultiHeadAttention": 5, "Attention": 5, "GroupQueryAttention": 10}
"""Ops of com.microsoft → the input that is added to scores."""
_BIASES = {"Conv": (2,), "ConvTranspose": (2,), "Gemm": (2,), "LayerNormalization": (2,)}
"""Inputs of ai.onnx that products and norms add in the end.  Not those of Add: an epsilon is one, and may be all that
keeps a sum from 0."""
_BIAS_NAMES = frozenset(("bias", "beta"))
"""What such inputs of fused ops are called."""
_SINGLE_OUTPUTS = {"SkipLayerNormalization": (1, 2), "SkipSimplifiedLayerNormalization": (1, 2)}
"""Outputs of com.microsoft's ops that are float32."""


@dataclass(frozen=True)
class Ports:
    """The types of a node's inputs and outputs, as far as these are real."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    half: bool = True
    """Whether the op has the half precision that is asked for."""
    biases: frozenset[int] = frozenset()
    """Inputs that are added in the end: where one is too small for the type, its error is no larger than what rounding
    the sum takes, unless that is as small."""
    lacks: str = ""
    """Who does not run it in that, though the op has it."""


def ports(
    node: NodeProto,
    opset: int,
    dtype: int,
    functions: Mapping[str, FunctionProto],
    rules: Sequence[Path] = (),
    target: Target | None = None,
) -> Ports:
    """What the types of a node's inputs and outputs are, and whether it may compute in `dtype` at this opset, and for
    this target, if that names an onnxruntime or its CUDA provider."""
    found = _ports(node, opset, dtype, functions, rules)
    if target is None or not (target.kind.cuda or target.runtime) or node.domain == DOMAIN or not found.half:
        return found
    op = node.op_type if node.domain in STANDARD else f"{node.domain}.{node.op_type}"
    if target.has_kernel(op, dtype, opset) or not target.has_kernel(op, int(TensorProto.FLOAT), opset):
        return found
    who = "the CUDA provider" if target.kind.cuda else f"onnxruntime {target.runtime}"
    return replace(found, half=False, lacks=who)


def _ports(
    node: NodeProto, opset: int, dtype: int, functions: Mapping[str, FunctionProto], rules: Sequence[Path]
) -> Ports:
    if node.domain == DOMAIN:
        return _of_fused(node, functions.get(node.op_type), rules)
    if has_bodies(node) or (node.domain not in STANDARD and node.domain != "com.microsoft"):
        return _all(node, SINGLE, half=False)
    if node.op_type == "Constant":
        return _all(node, SINGLE)  # one whose number an attribute of its function gives
    if node.op_type in SHAPE_QUERIES:
        return _all(node, ANY)
    schema = schema_of(node.op_type, opset) if node.domain in STANDARD else None
    if schema is None:
        return _of_contrib(node) if node.domain not in STANDARD else _all(node, SHARED)
    return _of_standard(node, schema, f"tensor({type_name(dtype)})")


@cache
def since_opset(op: str, dtype: int) -> int:
    """The first opset in which an op of ai.onnx has an element type; 0 if that is none."""
    versions = range(1, defs.onnx_opset_version() + 1)
    return next((opset for opset in versions if schema_of(op, opset) is not None and allows(op, opset, dtype)), 0)


def _of_contrib(node: NodeProto) -> Ports:
    mask, single = _MASKS.get(node.op_type), _SINGLE_OUTPUTS.get(node.op_type, ())
    inputs = tuple(MASK if i == mask else SHARED for i in range(len(node.input)))
    return Ports(inputs, tuple(SINGLE if i in single else SHARED for i in range(len(node.output))))


def _of_standard(node: NodeProto, schema: defs.OpSchema, wanted: str) -> Ports:
    free = _ANY.get(node.op_type, ())
    half = True
    found: list[list[str]] = []
    for names, formals, outputs in ((node.input, schema.inputs, False), (node.output, schema.outputs, True)):
        found.append([])
        for number, name in enumerate(names):
            formal = formals[min(number, len(formals) - 1)]
            statistic = outputs and number > 0 and node.op_type == "LayerNormalization"
            if number in free and not outputs:
                found[-1].append(ANY)
            elif formal.types == {"tensor(float)"} or statistic:
                found[-1].append(SINGLE)
            else:
                found[-1].append(SHARED)
                half = half and (not name or "tensor(float)" not in formal.types or wanted in formal.types)
    return Ports(tuple(found[0]), tuple(found[1]), half, frozenset(_BIASES.get(node.op_type, ())))


def _of_fused(node: NodeProto, body: FunctionProto | None, rules: Sequence[Path]) -> Ports:
    """As the kernel has it; numbers of a body stay what they are."""
    of: Callable[[str], str] = {EITHER: ANY, "float32": SINGLE}.get  # type: ignore[assignment]
    numbers = [ANY if number_of(name) is not None else SHARED for name in (body.input if body is not None else ())]
    inputs, outputs = [*numbers, *[SHARED] * (len(node.input) - len(numbers))], [SHARED] * len(node.output)
    try:
        signature = kernels.find(family(node.op_type), rules).signature
        taken, given = arguments(signature, body)
    except KernelError:
        return Ports(tuple(inputs), tuple(outputs))
    for position, index in enumerate(taken[: len(inputs)]):
        if index is not None:
            inputs[position] = of(signature.inputs[index].type) or SHARED
    for position, index in enumerate(given[: len(outputs)]):
        outputs[position] = of(signature.outputs[index].type) or SHARED
    known = ((at, signature.inputs[index].name) for at, index in enumerate(taken) if index is not None)
    return Ports(tuple(inputs), tuple(outputs), biases=frozenset(at for at, name in known if name in _BIAS_NAMES))


def _all(node: NodeProto, what: str, *, half: bool = True) -> Ports:
    return Ports((what,) * len(node.input), (what,) * len(node.output), half)
