"""What a node of another domain computes, as terms: by the equations that define its op (rules/ops/DOMAIN).

A file that onnxruntime has optimized is read as what it was before, so that rules find in it what they find in the
original.  Ops that the model's opset lacks are written out in turn, down to what a node can say.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from onnxfuse.model.dims import Shape
from onnxfuse.model.schema import is_standard
from onnxfuse.terms.infer import infer
from onnxfuse.terms.normal.normal import closed, make
from onnxfuse.terms.term import REAL, Term, Terms

from .bodies import environment
from .builtins import BUILTINS, UndecidedError, Value
from .catalogue import Catalogue
from .context import Context
from .evaluate import Scope, attribute_defaults
from .rule import Rule, op_name, targets


def read(
    terms: Terms, name: str, args: Sequence[Term], attrs: Mapping[str, Any], context: Context, catalogue: Catalogue
) -> list[Term | None] | None:
    """The terms of the outputs of an op (`com.microsoft.Gelu`), None for one of which nothing is said.

    None where the op has no definition, or where its conditions do not hold of these inputs and attributes."""
    definition = catalogue.foreign.get(name)
    if definition is None or not args or len(args) > len(definition.tensors):
        return None
    known = definition.attributes
    if known is not None and not attrs.keys() <= known:
        return None
    given = [None if arg.op == "Absent" else arg for arg in args]
    reading = Reading.of(definition, given, attrs, terms, context, catalogue)
    try:
        if not all(reading.truth(reading.value(condition), condition) for condition in definition.where):
            return None
        return [None if result is None else reading.term(result) for result in reading.results()]
    except UndecidedError:
        return None


class Reading(Scope):
    """Evaluates what an op means over terms."""

    @staticmethod
    def of(
        definition: Rule,
        args: Sequence[Value],
        attrs: Mapping[str, Any],
        terms: Terms,
        context: Context,
        catalogue: Catalogue,
    ) -> Reading:
        given = [arg for arg in args if isinstance(arg, Term)]
        like = next((arg for arg in given if arg.dtype in REAL), given[0] if given else terms.absent)
        bindings = environment(definition, args, dict(attrs), catalogue)
        reading = Reading(terms, definition, bindings, like, context, catalogue)
        for name, value in bindings.items():
            bindings[name] = reading.kept(name, value)
        return reading

    def kept(self, name: str, value: Value) -> Value:
        """The value of a name.  A sum or product that the equations read more than once stays one operand of each."""
        return closed(self.terms, value) if isinstance(value, Term) and _reads(self.rule)[name] > 1 else value

    def results(self) -> list[Value]:
        """The outputs, in order."""
        value: Value = None
        for statement in self.rule.equations:
            value = self.value(statement.value)
            if len(targets(statement)) == 1:
                name = targets(statement)[0]
                self.bindings[name] = self.kept(name, value)
        return list(value) if isinstance(value, tuple) else [value]

    def apply(self, op: str, args: list[Value], attrs: dict[str, Any]) -> Term:
        """The term of an op; of one that is not standard at the model's opset, what it means."""
        standard = attribute_defaults(op, self.ops)
        said = {name: value for name, value in attrs.items() if name not in standard or standard[name] != value}
        definition = self.ops.definitions.get(op)
        if definition is not None and not is_standard(op, said, self.context.opset):
            inner = Reading.of(definition, args, said, self.terms, self.context, self.ops)
            return self.term(inner.results()[0])
        if op == "Shape" and args[0].shape is not None:
            return self.term(args[0].shape)
        if op == "Reshape" and "shape" in attrs:  # 0 and -1 mean what they mean in a node
            args, attrs = [args[0], attrs["shape"]], {}
        elif op == "CumSum":
            args = [args[0], self.terms.integers(np.array(args[1], object))]
        elif op != "Slice" or "axis" in attrs:
            return super().apply(op, args, attrs)
        return make(self.terms, op, [self.term(arg) for arg in args], attrs)

    def shape_of(self, op: str, args: list[Term], attrs: Mapping[str, Any]) -> tuple[Shape | None, int]:
        shape, dtype = infer(self.terms, op, args, attrs)[0]
        return shape, dtype or self.like.dtype


@cache
def _reads(definition: Rule) -> Counter[str]:
    """How often equations read a name as a tensor; of choices the one that reads it most often counts."""
    total: Counter[str] = Counter()
    for statement in definition.equations:
        total += _reads_of(statement.value)
    return total


def _reads_of(node: ast.expr) -> Counter[str]:
    if isinstance(node, ast.Name):
        return Counter([node.id])
    if isinstance(node, ast.IfExp):
        return _reads_of(node.body) | _reads_of(node.orelse)
    if isinstance(node, ast.Compare | ast.BoolOp) or op_name(node) in BUILTINS:
        return Counter()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _reads_of(node.left) + _reads_of(node.left)
    children = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    return sum((_reads_of(child) for child in children if isinstance(child, ast.expr)), Counter[str]())
