"""Ops that views move inside: of one tensor, element by element, with the same numbers for every element.

view(Not(x)) is Not(view(x)), and view(DequantizeLinear(q, c)) is DequantizeLinear(view(q), c): bytes are moved in place
of numbers, and the op stays beside what reads its result, where runtimes look for it.  A scale for each index of an
axis moves with that axis.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from onnxfuse.terms.infer_table import normal_axis
from onnxfuse.terms.term import Term, Terms

from .table import make

BYTES = frozenset({TensorProto.INT8, TensorProto.UINT8})
"""Types of which every runtime has views."""


def takes_views(x: Term, perm: Sequence[int] | None = None) -> bool:
    """Do views, or a Transpose by `perm`, move inside this term?"""
    if x.op == "DequantizeLinear" and x.args[0].dtype in BYTES and not x.attr("block_size"):
        return uniform(x) or (perm is not None and _axis(x) is not None)
    return x.op == "Not"


def around(terms: Terms, x: Term, moved: Term, perm: Sequence[int] | None = None) -> Term:
    """The op of a term around its operand, on which a view works now."""
    attrs = dict(x.attrs)
    axis = None if perm is None or x.op == "Not" or uniform(x) else _axis(x)
    if perm is not None and axis is not None:
        attrs["axis"] = perm.index(axis)
    return make(terms, x.op, [moved, *x.args[1:]], attrs, moved.shape, x.dtype)


def uniform(x: Term) -> bool:
    """Has a QuantizeLinear or DequantizeLinear one scale and one zero point for all elements?"""
    return all(arg.op == "Absent" or arg.shape in ((), (1,)) for arg in x.args[1:])


def _axis(x: Term) -> int | None:
    """The axis of which each index has a scale of its own."""
    rank, single = x.args[0].rank, all(arg.op == "Absent" or arg.rank == 1 for arg in x.args[1:])
    return normal_axis(x.attr("axis", 1), rank) if rank is not None and single else None
