"""Nodes to values at coordinates: every tensor of a list of ONNX nodes as a function of where it is asked.

Casts between float types are the identity: real numbers are computed in float32 and rounded where they are stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from onnxfuse.errors import KernelError
from onnxfuse.model.op_traits import CASTS as CONVERSIONS

from .elementwise import FMOD, FOLDED, FORMULAS, GELU, IS_INF, MOD, POW, POW_INTEGER, Formula
from .index import Coordinates, Guard
from .known import computed
from .moves import MOVES, Call, Move
from .rounded import rounded
from .scalars import BOOL, FLOAT, INT, LONG, Scalar, Scalars
from .values import Value, aligned, broadcast, computed_type, constant, expressible, size

CONDITION = Formula("Where", "{0} ? {1} : {2}")
CHOSEN = frozenset(("Cast", "CastLike", "Clip", "Gelu", "IsInf", "Mod", "Pow", "Where"))
"""Elementwise ops whose formula depends on types or attributes."""
SHAPES = frozenset(("Constant", "ConstantOfShape", "Shape", "Size"))
SERVED = frozenset((*FORMULAS, *FOLDED, *CHOSEN, *MOVES, *SHAPES))
"""Ops that a pointwise kernel can do."""

CASTS = {
    (BOOL, FLOAT): "static_cast<float>({0})",
    (FLOAT, BOOL): "{0} != 0.f",
    (INT, BOOL): "{0} != 0",
    (LONG, BOOL): "{0} != 0",
}
NARROW = {"int8": "signed char", "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short"}
FEW = 1 << 16
"""Elements of what is computed while a kernel is made."""
NODES = 250
"""Most nodes that are read; more are no kernel that anybody wants."""


def trace(
    scalars: Scalars,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Value],
    outputs: Sequence[str],
    others: Mapping[str, Move] | None = None,
    coarse: bool = False,
) -> list[Value]:
    """The outputs of nodes in topological order, over given inputs; `others` are ops besides, and what they make.
    `coarse` says that all of them are rounded to 16 bits, whatever their types.

    Raises KernelError for what is neither elementwise nor a view, and for shapes that do not fit.
    """
    if len(nodes) > NODES:
        raise KernelError(f"{len(nodes)} nodes are too many for one kernel")
    values: dict[str, Value | None] = {"": None, **inputs}
    short: set[str] = set()
    for node in nodes:
        try:
            given = tuple(values[name] for name in node.input)
        except KeyError as error:
            raise KernelError(f"{node.op_type} reads {error}, which no node computes") from None
        attributes = {a.name: _plain(helper.get_attribute_value(a)) for a in node.attribute}
        asked = partial(_among, short, node.output[0]) if not coarse else partial(bool, True)
        call = Call(scalars, node.op_type, given, attributes, len(node.output), asked)
        made = others[node.op_type](call) if others and node.op_type in others else apply(call)
        values.update((name, v) for name, v in zip(node.output, made, strict=True) if name)
    short |= rounded(nodes, {name: v.dtype for name, v in values.items() if v is not None}, outputs)
    found = [values.get(name) for name in outputs]
    if any(v is None for v in found):
        raise KernelError(f"no node computes {outputs[found.index(None)]}")
    return [v for v in found if v is not None]


def _among(names: Collection[str], name: str) -> bool:
    return name in names


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def apply(call: Call) -> list[Value]:
    """One node."""
    if call.op == "Constant":
        return [constant(call.scalars, _literal(call.attributes))]
    if call.op == "Shape":
        taken = slice(call.attributes.get("start"), call.attributes.get("end"))
        return [constant(call.scalars, np.array(call.x.shape[taken], np.int64), sized=True)]
    if call.op == "Size":
        return [constant(call.scalars, np.array(call.x.size), sized=True)]
    if call.op == "ConstantOfShape":
        filler = call.attributes.get("value")
        number = numpy_helper.to_array(filler).reshape(()) if filler is not None else np.float32(0)
        return [constant(call.scalars, np.broadcast_to(number, call.integers(0, "shape") or ()))]
    if call.op not in SERVED:
        raise KernelError(f"{call.op} is neither elementwise nor a view")
    known, sized = _known(call), any(v is not None and v.sized for v in call.inputs)
    if known is not None and all(map(expressible, known)):
        return [constant(call.scalars, array, sized) for array in known]
    made = MOVES[call.op](call) if call.op in MOVES else [elementwise(call)]
    if known is not None:  # whoever asks for the content has it; the source computes it from what it is made of
        for value, array in zip(made, known, strict=True):
            value.constant, value.sized = array, sized
    return made


def _literal(attributes: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    (name, value), *_ = attributes.items()
    if name == "value":
        return numpy_helper.to_array(value)
    if name in ("value_float", "value_floats", "value_int", "value_ints"):
        return np.array(value, np.float32 if "float" in name else np.int64)
    raise KernelError(f"a Constant given by {name} is no part of a kernel")


def _known(call: Call) -> Sequence[np.ndarray[Any, Any]] | None:
    """The results of an op whose inputs are all known, if these and those are few elements."""
    given = [v for v in call.inputs if v is not None]
    if not given or any(v.constant is None or v.constant.size > FEW for v in given) or _repeated(call, given) > FEW:
        return None
    inputs = [None if v is None else v.constant for v in call.inputs]
    arrays = computed(call.op, inputs, call.attributes, call.outputs)
    if any(v.sized for v in given) and any(a.dtype.kind not in "iub" for a in arrays):
        return None
    return arrays


def _repeated(call: Call, given: Sequence[Value]) -> int:
    """How many elements an op gives that repeats those of its operands; 0 for one that does not."""
    if call.op in ("Expand", "Tile"):
        return MOVES[call.op](call)[0].size
    return 0 if call.op in MOVES else size(broadcast([v.shape for v in given]))


def elementwise(call: Call) -> Value:
    """An op that computes each element of its result from one element of each operand."""
    operands = [v for v in call.inputs if v is not None]
    dtype = _result_type(call, operands)
    if call.op == "CastLike":
        operands = operands[:1]  # the other is asked for its type alone
    shape = broadcast([v.shape for v in operands])
    type = computed_type(dtype)

    def at(c: Coordinates, guard: Guard) -> Scalar:
        return compute(call, [v.at(aligned(c, v.shape), guard) for v in operands], dtype, type)

    return Value(shape, dtype, at, operands)


def _result_type(call: Call, operands: Sequence[Value]) -> np.dtype[Any]:
    if call.op == "Cast":
        return np.dtype(helper.tensor_dtype_to_np_dtype(call.attributes["to"]))
    formula = FORMULAS.get(call.op)
    if call.op == "IsInf" or (formula is not None and formula.result == BOOL):
        return np.dtype(np.bool_)
    return operands[1 if call.op in ("Where", "CastLike") else 0].dtype


def compute(call: Call, args: list[Scalar], dtype: np.dtype[Any], type: str) -> Scalar:
    """One element of an elementwise op."""
    scalars, attributes, op = call.scalars, call.attributes, call.op
    if op in CONVERSIONS:
        return cast(scalars, args[0], dtype)
    if op == "Where":
        return args[1] if args[1] is args[2] else scalars.call(op, CONDITION, args, result=args[1].type)
    if op == "Clip":
        low = args[1] if call.given(1) else None
        high = args[-1] if call.given(2) else None
        result = args[0]
        for bound, choose in ((low, "Max"), (high, "Min")):
            name = "min" if choose == "Max" else "max"
            if bound is None and name in attributes:
                bound = scalars.literal(attributes[name], type)
            result = result if bound is None else scalars.call(choose, FORMULAS[choose], [result, bound])
        return result
    if op in FOLDED:
        result = args[0]
        for other in args[1:]:
            result = scalars.call(FOLDED[op], FORMULAS[FOLDED[op]], [result, other])
        if op == "Mean":
            result = scalars.call("Mul", FORMULAS["Mul"], [result, scalars.literal(1 / len(args), FLOAT)])
        return result
    if op == "Pow" and args[0].type == FLOAT and args[1].value == 2:
        return scalars.call("Mul", FORMULAS["Mul"], [args[0], args[0]])
    formula = _formula(call, args)
    given = {name: attributes.get(name, default) for name, default in formula.attributes.items()}
    if formula is IS_INF:
        given = {n: int(attributes.get(n, 1)) for n in ("detect_negative", "detect_positive")}
    texts = {n: real(v) if isinstance(v, float) else v for n, v in given.items()}
    return scalars.call(op, formula, args, coarse=call.coarse(), **texts)


def _formula(call: Call, args: Iterable[Scalar]) -> Formula:
    integer = all(a.type != FLOAT for a in args)
    match call.op:
        case "Gelu":
            return GELU[call.attributes.get("approximate", "none")]
        case "IsInf":
            return IS_INF
        case "Pow":
            return POW_INTEGER if integer else POW
        case "Mod":
            return FMOD if call.attributes.get("fmod") and not integer else MOD
    return FORMULAS[call.op]


def cast(scalars: Scalars, x: Scalar, dtype: np.dtype[Any]) -> Scalar:
    """An element in another type."""
    to = computed_type(dtype)
    through = NARROW.get(dtype.name, to)
    if x.type == to and through == to:
        return x
    if x.kind == "literal" and to == FLOAT:
        return scalars.literal(float(x.value), FLOAT)
    if x.kind == "position" and to == LONG:
        return x
    text = CASTS.get((x.type, to)) or f"static_cast<{through}>({{0}})"
    return scalars.call("Cast", Formula("Cast", text, 0, to), [x])


def real(value: float) -> str:
    """A float32 as C++ writes it; NVRTC has no INFINITY."""
    number = float(np.float32(value))
    if number != number:
        return "__int_as_float(0x7fc00000)"
    if number in (float("inf"), float("-inf")):
        return "__int_as_float(0x7f800000)" if number > 0 else "__int_as_float(0xff800000)"
    text = f"{number:.9g}"
    return (text if any(c in text for c in ".e") else f"{text}.") + "f"


def literal(scalar: Scalar) -> str:
    """A number that is known, as C++ writes it."""
    if scalar.type == FLOAT:
        return real(scalar.value) if scalar.value >= 0 else f"({real(scalar.value)})"
    if scalar.type == BOOL:
        return "true" if scalar.value else "false"
    return f"({scalar.value}{'LL' if scalar.type == LONG else ''})"


def zero(type: str) -> str:
    """0 of a type."""
    return {FLOAT: "0.f", BOOL: "false", LONG: "0LL"}.get(type, "0")
