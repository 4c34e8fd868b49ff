"""The functions by which a rule asks whether a graph has the standard's own body of an op: what the op's inputs would
be, what the body makes of them, and whether that is what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxfuse.terms.analysis.alike import alike
from onnxfuse.terms.analysis.slices import behind, sizes
from onnxfuse.terms.normal.normal import make
from onnxfuse.terms.term import Term

from .builtins import UndecidedError, Value, builtin

if TYPE_CHECKING:
    from .evaluate import Scope


@builtin()
def _fixed(scope: Scope, x: Value) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of a tensor whose dimensions are known, and these."""
    known = [(axis, dim) for axis, dim in enumerate(scope.shape(x)) if isinstance(dim, int)]
    return tuple(axis for axis, _ in known), tuple(dim for _, dim in known)


@builtin()
def _viewed(scope: Scope, x: Value, dims: Value) -> Term:
    """x in another shape: what a Reshape to these dimensions gives that does not fail."""
    if not isinstance(x, Term) or not isinstance(dims, tuple):
        raise UndecidedError(f"{x} is no tensor")
    return make(scope.terms, "Reshape", [x, scope.term(dims)], {})


@builtin()
def _behind(scope: Scope, x: Value, dims: Value) -> Term:
    """The tensor of such last dimensions from which x is taken by moving elements alone: the furthest behind it."""
    found = behind(x, dims) if isinstance(x, Term) else None
    if found is None:
        raise UndecidedError(f"{x} is not taken from a tensor of {list(dims)}")
    return found


@builtin()
def _sizes(scope: Scope, x: Value, count: int) -> Term | None:
    """The vector of so many integers from which x is computed, the furthest behind it; nothing if there is none."""
    return sizes(x, count) if isinstance(x, Term) else None


@builtin()
def _body(scope: Scope, op: Value) -> tuple[Term, ...]:
    """The outputs of an op of ai.onnx as the function body computes them that the standard gives it."""
    while isinstance(op, Term) and op.op == "Output":
        (op,) = op.args
    outputs = scope.context.written_out(op) if isinstance(op, Term) else None
    if outputs is None:
        raise UndecidedError(f"{op!r} has no body")
    return tuple(outputs)


@builtin()
def _output(scope: Scope, x: Value, index: int) -> Term:
    """Another output of the If or the Scan that gives x."""
    if not isinstance(x, Term) or x.attr("output") is None:
        raise UndecidedError(f"{x} is not given by an If or a Scan")
    attrs = tuple((name, index if name == "output" else value) for name, value in x.attrs)
    return scope.terms.raw(x.op, x.args, attrs, shape=None, dtype=x.dtype, key=x.key)


@builtin()
def _alike(scope: Scope, a: Value, b: Value) -> bool:
    """Are two tensors computed alike, but for the order of sums and the last digits of numbers?"""
    return isinstance(a, Term) and isinstance(b, Term) and alike(a, b)
