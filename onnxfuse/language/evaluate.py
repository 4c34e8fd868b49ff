"""`let`, `where` and `emit` of a rule over the bindings of a match: expressions → terms, numbers and truths."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto

from onnxfuse.model.dims import Shape, Sym, product
from onnxfuse.model.schema import defaults
from onnxfuse.model.standard import has_op, integer_attributes, newest
from onnxfuse.terms.infer import infer
from onnxfuse.terms.infer_table import normal_axis
from onnxfuse.terms.normal.normal import expand, make, repeat, reshape, slice_axis, transpose
from onnxfuse.terms.normal.table import turning
from onnxfuse.terms.term import Term, Terms, UnknownValueError

from .builtins import UndecidedError, Value
from .catalogue import Catalogue
from .context import Context
from .expressions import EVERYTHING, Backend, Call, compiled
from .rule import LeftOut, Rule, literal
from .variadic import spread

Bindings: TypeAlias = dict[str, Value]
FAULTS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What an expression raises that makes no sense of its values, such as the length of a number."""


class Scope(Backend):
    """Evaluates expressions of one rule under the bindings of one match."""

    READS = EVERYTHING

    def __init__(
        self, terms: Terms, rule: Rule, bindings: Bindings, like: Term, context: Context, ops: Catalogue
    ) -> None:
        self.terms, self.rule, self.bindings = terms, rule, bindings
        self.like, self.context, self.ops = like, context, ops

    # ------------------------------------------------------------------------------------- values and truths

    def value(self, node: ast.expr) -> Value:
        """Any expression.  Raises UndecidedError, also where there is a mistake in it that only its values show."""
        try:
            return compiled(node, Scope)(self, "")
        except UndecidedError:
            raise
        except UnknownValueError as error:
            raise UndecidedError(str(error)) from error
        except FAULTS as error:
            endless = f"the law {turning(error)} turns in a circle" if isinstance(error, RecursionError) else error
            raise UndecidedError(f"{ast.unparse(node)} cannot be computed: {endless}") from error

    def truth(self, value: Value, node: ast.expr) -> bool:
        if isinstance(value, bool | np.bool_):
            return bool(value)
        if value is None:
            return False
        if isinstance(value, Term | Sym):
            raise UndecidedError(f"{ast.unparse(node)} is not decided")
        return bool(value)

    def number(self, value: Value) -> Value:
        """A constant of one element as a number; everything else as it is."""
        return value.scalar if isinstance(value, Term) and value.scalar is not None else value

    # ------------------------------------------------------------------------------------- steps

    def name(self, node: ast.Name) -> Value:
        try:
            return self.bindings[node.id]
        except KeyError:
            raise UndecidedError(f"{node.id} is not bound") from None

    def tensor(self, value: Value) -> bool:
        return isinstance(value, Term)

    def absent(self, value: Value) -> bool:
        return value is None or (isinstance(value, Term) and value.op == "Absent")

    def operator(self, op: str, operands: Sequence[Value], node: ast.expr, label: str) -> Term:
        return make(self.terms, op, [self.term(x) for x in operands], {})

    def call(self, call: Call, label: str) -> Term:
        op = self.bindings.get(call.op, call.op) if self.rule.parameter(call.op) else call.op
        args = [argument(self, "") for argument in call.arguments]
        attrs: dict[str, Any] = {}
        for key, value_of, name in call.keywords:
            if key is None:
                attrs.update(self.bindings.get(name) or ())
            else:
                value = value_of(self, "")
                value = _listed(value) if key in _lists(op) else self.number(value)
                if value is not None:
                    whole = isinstance(value, float) and value.is_integer() and key in integer_attributes(op)
                    attrs[key] = int(value) if whole and isinstance(value, float) else value
        # What the match left out is an absent input of an op, not its neutral number.
        for i, value in enumerate(args):
            if isinstance(value, LeftOut) and ("." in op or op in self.ops.definitions or i in _optional_inputs(op)):
                args[i] = None
        return self.apply(op, spread(args), attrs)

    # ------------------------------------------------------------------------------------- facts

    def shape(self, x: Value) -> Shape:
        if x is None or isinstance(x, int | float):
            return ()
        if not isinstance(x, Term) or x.shape is None:
            raise UndecidedError(f"the shape of {x} is unknown")
        return x.shape

    def given(self, x: Value) -> bool:
        return isinstance(x, Term) and x.op != "Absent"

    def boolean(self, x: Value) -> bool:
        return isinstance(x, Term) and x.dtype == TensorProto.BOOL

    # ------------------------------------------------------------------------------------- terms

    def term(self, value: Value) -> Term:
        """A value as a term: a number becomes a constant of the result's dtype, dimensions a vector of int64."""
        if isinstance(value, Term):
            return value
        if value is None:
            return self.terms.absent
        if isinstance(value, bool | int | float):
            return self.terms.number(float(value), self.like.dtype)
        if isinstance(value, Sym):
            return self.terms.integers(np.array(value, object))
        if isinstance(value, tuple) and value and all(isinstance(d, int | Sym) for d in value):
            dims = np.empty(len(value), object)
            dims[:] = value
            return self.terms.integers(dims)
        raise UndecidedError(f"{value} is no tensor")

    def apply(self, op: str, args: list[Value], attrs: dict[str, Any]) -> Term:
        """The term of an op; views and algebra in normal form, everything else as it is."""
        operands = [self.term(a) for a in args]
        while operands and operands[-1].op == "Absent":
            operands.pop()
        x = operands[0] if operands else self.terms.absent
        if op == "Reshape" and len(operands) == 1:
            if x.shape is None or product(x.shape) != product(attrs["shape"]):
                shape = "unknown" if x.shape is None else list(x.shape)
                raise UndecidedError(f"{x} of shape {shape} does not have {product(attrs['shape'])!r} elements")
            return reshape(self.terms, x, tuple(attrs["shape"]))
        if op in ("Unsqueeze", "Squeeze"):
            return make(self.terms, op, [x], attrs)
        if op == "Transpose":
            return transpose(self.terms, x, attrs["perm"])
        if op == "Repeat":
            return repeat(self.terms, x, attrs["axis"], attrs["n"])
        if op == "Expand" and "shape" in attrs:
            return expand(self.terms, x, tuple(attrs["shape"]))
        if op == "Slice" and x.shape is not None:
            axis = normal_axis(attrs["axis"], len(x.shape))
            return slice_axis(self.terms, x, axis, attrs["start"], attrs["stop"], attrs.get("step", 1))
        reals = _real_attributes(op)
        attrs = {k: float(v) if k in reals and isinstance(v, int) else v for k, v in attrs.items()}
        standard = attribute_defaults(op, self.ops)
        attrs = {k: v for k, v in attrs.items() if k not in standard or standard[k] != v}
        if has_op(op, "") and op not in self.ops.definitions:
            return make(self.terms, op, operands, attrs)
        return make(self.terms, op, operands, attrs, *self.shape_of(op, operands, attrs))

    def shape_of(self, op: str, args: list[Term], attrs: Mapping[str, Any]) -> tuple[Shape | None, int]:
        """Shape and dtype of a fused op: by inference where there is a rule for it, else as what it replaces."""
        shape, dtype = infer(self.terms, op, args, attrs)[0]
        if shape is None or not dtype:
            return self.like.shape, self.like.dtype
        return shape, dtype


def _listed(value: Value) -> Value:
    """A constant vector of integers as the list that it is."""
    return (
        tuple(map(int, value.data)) if isinstance(value, Term) and value.constant and value.data is not None else value
    )


@cache
def _lists(op: str) -> frozenset[str]:
    from onnx import defs

    schema = newest(op)
    attributes = schema.attributes if schema is not None else {}
    return frozenset(name for name, a in attributes.items() if a.type == defs.OpSchema.AttrType.INTS)


@cache
def _schema_defaults(op: str) -> dict[str, Any]:
    from onnx import defs

    return defaults(op, "", defs.onnx_opset_version())


@cache
def _real_attributes(op: str) -> frozenset[str]:
    from onnx import defs

    schema = newest(op)
    attributes = schema.attributes if schema is not None else {}
    return frozenset(name for name, a in attributes.items() if a.type == defs.OpSchema.AttrType.FLOAT)


@cache
def _optional_inputs(op: str) -> frozenset[int]:
    from onnx import defs

    schema = newest(op)
    inputs = schema.inputs if schema is not None else []
    return frozenset(i for i, p in enumerate(inputs) if p.option == defs.OpSchema.FormalParameterOption.Optional)


def attribute_defaults(op: str, ops: Catalogue) -> Mapping[str, Any]:
    """Defaults of an op's attributes: of the ONNX schema, or of the head that defines it."""
    return _attribute_defaults(op, ops.definitions.get(op))


@cache
def _attribute_defaults(op: str, definition: Rule | None) -> Mapping[str, Any]:
    stated = {p.name: literal(p.default) for p in (definition.constants if definition else ()) if p.default is not None}
    return stated | _schema_defaults(op.removeprefix("ai.onnx."))


def undefined(op: str, attrs: Iterable[str], ops: Catalogue) -> list[str]:
    """The attributes that the rule which defines an op does not know: with one of them it is another op."""
    definition = ops.definitions.get(op)
    known = definition.attributes if definition is not None else None
    return [] if known is None else sorted(name for name in attrs if name not in known)
