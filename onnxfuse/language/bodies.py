"""Function bodies: the meaning of a fused op in standard ops, so that its node runs in every runtime.

A body is written for the model's own opset and specialised for one use: which inputs are given, the attribute values,
the element type.  Where that opset has the fused op as a standard op, the body is that one node; where not, it is the
defining equations of the rule.  In half precision, bodies without a matrix product compute in float32, as the fused
kernels do.  A body with a product that is left to the runtime may call the fused ops around it.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from onnx import FunctionProto, NodeProto, TensorProto

from onnxfuse.model.graph import DOMAIN, NUMBER, number_of
from onnxfuse.model.op_traits import ELEMENTWISE
from onnxfuse.model.schema import integers_as_input, is_standard, make_attribute, tensor
from onnxfuse.model.standard import newest
from onnxfuse.terms.term import REAL

from .builtins import BUILTINS, UndecidedError
from .catalogue import Catalogue
from .evaluate import attribute_defaults
from .expressions import EVERYTHING, Backend, compiled
from .expressions import Call as Step
from .rule import Rule, called_in, literal, targets
from .variadic import spread

UNKNOWN = "?"
"""The dimensions of a value in a body, of which only the rank is known."""
LEFT = frozenset({"Conv", "com.microsoft.MatMulNBits"})
"""Products that are left to the runtime: in a body with one, the fused ops around it may be called, each with a kernel
of its own, and need not be written out."""


@dataclass(frozen=True)
class Ref:
    """A tensor of the body; of an input for which the meaning asks, its shape and whether it is of booleans.

    One that is `narrow` is in half precision, in a body that computes in float32."""

    name: str
    shape: tuple[int | str, ...] | None = None
    boolean: bool = False
    narrow: bool = False


@dataclass(frozen=True)
class Use:
    """One way in which a fused op is used: what its function is specialised for.

    `inputs` tells which positional inputs are given, `outputs` which outputs the node names of those it lists, `dtype`
    is the real element type of the result.  `shapes` (a letter for each unknown dimension, `UNKNOWN` for all where only
    ranks matter) and `booleans`, which inputs are such, stand there only if the equations ask for them.
    """

    op: str
    inputs: tuple[bool, ...]
    attrs: tuple[tuple[str, Any], ...]
    outputs: tuple[bool, ...]
    dtype: int
    shapes: tuple[tuple[int | str, ...] | None, ...] = ()
    booleans: tuple[bool, ...] = ()


Call: TypeAlias = Callable[[Use], FunctionProto]
"""The function that a body calls for a use of a fused op."""


@cache
def output_dtype(op: str, index: int, dtype: int) -> int:
    """The element type of an output of an op that computes in `dtype`: float32 where the schema says so, and that of
    statistics, whose type is no input's."""
    schema = newest(op)
    if schema is None:
        return dtype
    if index < len(schema.outputs) and schema.outputs[index].type_str == "tensor(float)":
        return int(TensorProto.FLOAT)
    shared = {parameter.type_str for parameter in (*schema.inputs, schema.outputs[0])}
    own = index < len(schema.outputs) and schema.outputs[index].type_str not in shared
    return int(TensorProto.FLOAT) if own and dtype in REAL else dtype


@dataclass
class Body:
    """Lowers equations to nodes of one function."""

    catalogue: Catalogue
    opset: int
    dtype: int
    call: Call | None = None
    """Fused ops are called by it; without it, they are written out."""
    like: str = ""
    """An input that numbers take their element type from; without one, they are of `dtype`."""
    numbers_given: bool = False
    """Whether numbers are inputs."""
    nodes: list[NodeProto] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    widened: dict[str, Ref] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    """Values → the outputs of the body that they became."""
    ranks: dict[str, int] = field(default_factory=dict)
    """The ranks of inputs and values that are known."""

    def fresh(self, base: str) -> str:
        name, n = base, 1
        while name in self.taken:
            n += 1
            name = f"{base}_{n}"
        self.taken.add(name)
        return name

    def node(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Any], base: str = "", outputs: int = 1) -> Ref:
        return Ref(self.outputs(op, inputs, attrs, outputs, base)[0])

    def outputs(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Any], count: int, base: str = "y"
    ) -> list[str]:
        """One node; the names of its outputs."""
        domain, _, op = op.removeprefix("ai.onnx.").rpartition(".")
        names = [self.fresh(base or op.lower()) for _ in range(count)]
        made = NodeProto(op_type=op, name=names[0], input=inputs, output=names)
        if domain:
            made.domain = domain
        made.attribute.extend(make_attribute(k, v) for k, v in sorted(attrs.items()))
        self.nodes.append(made)
        ranks = [0 if number_of(name) is not None else self.ranks.get(name, -1) for name in inputs]
        if min(ranks, default=-1) >= 0 and (op in ELEMENTWISE or op.startswith("Reduce")):
            self.ranks[names[0]] = max(ranks)  # all keep their dimensions, and axes are of rank 1
        return names

    def constant(self, array: Any, dtype: int, base: str = "constant") -> Ref:
        value = tensor(np.asarray(array), "", dtype)
        made = self.node("Constant", [], {"value": ("tensor", value.SerializeToString(deterministic=True))}, base)
        self.ranks[made.name] = np.ndim(array)
        return made

    def ref(self, value: Any) -> str:
        """The name of a value as an operand; numbers become constants, an absent input the empty name."""
        if value is None:
            return ""
        if isinstance(value, Ref):
            return value.name
        if isinstance(value, tuple):
            return self.constant(value, TensorProto.INT64).name
        return self._number(float(value))

    def _number(self, value: float) -> str:
        """The name of a number, in the element type of the body: written once."""
        key = f"{NUMBER}{value!r}"
        if self.numbers_given:
            self.numbers[key] = key
        elif key not in self.numbers:
            number = self.constant(value, self.dtype).name
            self.numbers[key] = self.node("CastLike", [number, self.like], {}, "number").name if self.like else number
        return self.numbers[key]

    def wide(self, value: Any) -> Any:
        """A value in the element type that the body computes in."""
        if not isinstance(value, Ref) or not value.narrow:
            return value
        if value.name not in self.widened:
            cast = self.node("Cast", [value.name], {"to": self.dtype})
            self.widened[value.name] = replace(value, name=cast.name, narrow=False)
        return self.widened[value.name]

    def result(self, op: str, value: str, attrs: Mapping[str, Any], name: str) -> None:
        """A value becomes an output of this name: as it is, where only its own node has to call it so, else by `op`."""
        value = self.results.get(value, value)
        made = next((node for node in reversed(self.nodes) if value in node.output), None)
        if op == "Identity" and made is not None and value not in self.results.values():
            for node in self.nodes:
                node.input[:] = [name if read == value else read for read in node.input]
            made.output[:] = [name if own == value else own for own in made.output]
            self.results[value] = name
        else:
            self.node(op, [value], attrs)
            self.nodes[-1].output[:] = [name]

    def needed(self, outputs: Sequence[str]) -> list[NodeProto]:
        """The nodes that the outputs depend on."""
        wanted, kept = set(outputs), []
        for made in reversed(self.nodes):
            if wanted & set(made.output):
                kept.append(made)
                wanted.update(made.input)
        return kept[::-1]

    def equations(self, statements: Sequence[ast.Assign], env: dict[str, Any]) -> Any:
        """Evaluate equations in order; returns the value of the last."""
        return Equations(self, env).follow(statements)

    def apply(self, op: str, args: list[Any], attrs: dict[str, Any], base: str = "") -> Any:
        """One op over values: a standard node if the opset has it, else the equations that define it."""
        definition = self.catalogue.definitions.get(op)
        standard = is_standard(op, attrs, self.opset) and self.catalogue.target.has_kernel(op, self.dtype, self.opset)
        if definition is not None and not standard:
            return self.called(op, args, attrs) or self.define(definition, args, attrs)
        while args and args[-1] is None:
            args.pop()
        inputs = [self.ref(a) for a in args]
        rank = len(attrs["perm"]) if op == "Transpose" else None
        if op == "Unsqueeze" and isinstance(args[0], Ref) and args[0].shape is not None:
            rank = len(args[0].shape) + len(attrs["axes"])
        if op in ("Reshape", "Expand") and "shape" in attrs:
            inputs.append(self.constant(attrs.pop("shape"), TensorProto.INT64, "shape").name)
        if op == "Repeat":  # along an axis of known size, a Gather does it without a single shape
            indices = np.repeat(np.arange(attrs["size"]), attrs["n"])
            inputs.append(self.constant(indices, TensorProto.INT64, "heads").name)
            return self.node("Gather", inputs, {"axis": attrs["axis"]}, base)
        if op == "CumSum":
            inputs[1] = self.constant(args[1], TensorProto.INT64, "axis").name
        if op == "Slice" and "start" in attrs:
            bounds = [attrs.pop("start"), attrs.pop("stop"), attrs.pop("axis"), attrs.pop("step", 1)]
            inputs += [self.constant([b], TensorProto.INT64).name for b in bounds]
        if op.startswith("Reduce") and inputs[0] in self.ranks:
            attrs["axes"] = tuple(axis % self.ranks[inputs[0]] for axis in attrs["axes"])
        moved = integers_as_input(op, self.opset)
        if moved and moved[1] in attrs:
            inputs.append(self.constant(attrs.pop(moved[1]), TensorProto.INT64, moved[1]).name)
        if op.startswith("Reduce"):
            attrs.setdefault("keepdims", 1)
        made = self.node(op, inputs, attrs, base)
        return made if rank is None else replace(made, shape=(UNKNOWN,) * rank)

    def called(self, op: str, args: Sequence[Any], attrs: Mapping[str, Any]) -> Ref | None:
        """A node of a fused op of one output, its operands tensors or left out; None if it is not to be called."""
        given = [isinstance(a, Ref) for a in args]
        while given and not given[-1]:
            given.pop()
        said = {name: value for name, value in attrs.items() if value != ()}
        if self.call is None:
            return None
        called = self.call(Use(op, tuple(given), tuple(sorted(said.items())), (True,), self.dtype))
        numbers = (number_of(name) for name in called.input)
        inputs = [a.name for a in args if isinstance(a, Ref)] + [self._number(n) for n in numbers if n is not None]
        made = self.node(called.name, inputs, said, op.lower())
        self.nodes[-1].domain = DOMAIN
        return made

    def define(self, definition: Rule, args: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """The equations of an op's definition over values."""
        return self.equations(definition.equations, environment(definition, args, attrs, self.catalogue))


class Equations(Backend):
    """Evaluates equations into nodes of a body; `env` are the values of names."""

    READS = EVERYTHING

    def __init__(self, body: Body, env: dict[str, Any]) -> None:
        self.body, self.bindings = body, env

    def follow(self, statements: Sequence[ast.Assign]) -> Any:
        """All of them in order; the value of the last."""
        result: Any = None
        for statement in statements:
            label = targets(statement)[0]
            result = self.bindings[label] = compiled(statement.value, Equations)(self, label)
        return result

    def name(self, node: ast.Name) -> Any:
        return self.body.wide(self.bindings[node.id])

    def tensor(self, value: Any) -> bool:
        return isinstance(value, Ref)

    def shape(self, x: Any) -> Any:
        if isinstance(x, Ref) and x.shape is None:
            raise UndecidedError(f"the shape of {x.name} is unknown")
        return x.shape if isinstance(x, Ref) else ()

    def given(self, x: Any) -> bool:
        return isinstance(x, Ref)

    def boolean(self, x: Any) -> bool:
        return isinstance(x, Ref) and x.boolean

    def operator(self, op: str, operands: Sequence[Any], node: ast.expr, label: str) -> Any:
        """One node; none for neutral numbers, and products for cubes.  A square stays a Pow, as exporters write it: it
        is what runtimes look for that know a body by rules of their own, as onnxruntime knows a layer normalization."""
        a, b = operands[0], operands[-1]
        if op in ("Add", "Sub") and not isinstance(b, Ref) and not b:
            return a
        if op == "Add" and not isinstance(a, Ref) and not a:
            return b
        if op in ("Mul", "Div") and not isinstance(b, Ref) and b == 1:
            return a
        if op == "Mul" and not isinstance(a, Ref) and a == 1:
            return b
        if op == "Pow" and b == 3:
            square = self.body.node("Mul", [a.name, a.name], {}, label)
            return self.body.node("Mul", [square.name, a.name], {}, label)
        return self.body.node(op, [self.body.ref(x) for x in operands], {}, label)

    def call(self, call: Step, label: str) -> Any:
        op = self.bindings.get(call.op, call.op)  # a name may stand for an op, such as an activation
        # What is cut from a tensor in half precision is widened, not all of it.
        table = self.bindings.get(call.names[0]) if op in ("Gather", "Slice") and call.names else None
        cut = isinstance(table, Ref) and table.narrow
        args = [table if cut and not i else argument(self, "") for i, argument in enumerate(call.arguments)]
        if op == "Sqrt" and isinstance(args[0], int | float):
            return math.sqrt(args[0])
        attrs: dict[str, Any] = {}
        for key, value_of, name in call.keywords:
            attrs.update((self.bindings.get(name) or {}) if key is None else {key: value_of(self, "")})
        made = self.body.apply(op, spread(args), {k: v for k, v in attrs.items() if v is not None}, label)
        return self.body.wide(replace(made, narrow=True)) if cut else made


def environment(
    definition: Rule, args: Sequence[Any], attrs: Mapping[str, Any], catalogue: Catalogue
) -> dict[str, Any]:
    """Parameter names → values, defaults where nothing is given."""
    env: dict[str, Any] = {}
    for i, p in enumerate(definition.tensors):
        given = args[i] if i < len(args) else None
        env[p.name] = given if given is not None or p.default is None else literal(p.default)
    standard = attribute_defaults(definition.name, catalogue)
    for p in definition.constants:
        if p.name in attrs:
            env[p.name] = attrs[p.name]
        elif p.name in standard:
            env[p.name] = standard[p.name]
        else:
            env[p.name] = literal(p.default) if p.default is not None else None
    rest = {name: value for name, value in attrs.items() if definition.parameter(name) is None}
    env.update(dict.fromkeys(definition.captured, rest))
    return env


@cache
def asks_for_shapes(definition: Rule) -> bool:
    """Does the meaning depend on a rank, a dimension or the kind of its inputs?"""
    return any(op in BUILTINS and BUILTINS[op].shapes for op in _calls(definition))


@cache
def asks_for_ranks(definition: Rule) -> bool:
    """Does the meaning reduce?  onnxruntime (1.31) reduces empty tensors only along axes counted from the first on."""
    return any(op.startswith("Reduce") for op in _calls(definition))


def _calls(definition: Rule) -> frozenset[str]:
    return definition.called | called_in(definition.standard)


def output_names(definition: Rule) -> tuple[str, ...]:
    """The outputs of an op in order: the left side of the last equation that `emit` or `meaning` ends in."""
    return targets((definition.emit or definition.meaning)[-1])


def real_dtype(dtypes: Sequence[int]) -> int:
    """The first real element type among some, float32 if there is none."""
    return next((d for d in dtypes if d in REAL), int(TensorProto.FLOAT))
