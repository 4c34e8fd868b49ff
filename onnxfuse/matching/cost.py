"""What a term costs to run on its own: kernel launches and bytes of memory traffic.

A launch is what an eager runtime makes of one node.  Views that only relabel memory are free; a term that only exists
in the normal form (the -1 of a difference, the reciprocal of a quotient) is part of its user.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnx import NodeProto

from onnxfuse.model.dims import Dim, Sym, product
from onnxfuse.model.graph import LAUNCHES_KEY, REGION, family
from onnxfuse.model.op_traits import FREE, SECOND_LAUNCH, SUMMED_BIAS
from onnxfuse.terms.term import REAL, Term, is_number

BYTES = {1: 4, 10: 2, 11: 8, 16: 2, 7: 8, 6: 4, 9: 1, 2: 1, 3: 1, 5: 2, 4: 2, 12: 4, 13: 8}
"""Element type → size in bytes."""


def launches(term: Term) -> int:
    """Kernels that a runtime starts for this term alone, its arguments given."""
    if term.op in FREE or term.constant or term.op == "Reciprocal":
        return 0
    if term.op in ("Add", "Mul") and term.dtype in REAL:
        if term.op == "Mul" and len(term.args) == 2 and is_number(term.args[1]) and term.args[1].scalar == -1:
            return 0
        return len(term.args) - 1
    return 1


def launches_of(node: NodeProto) -> int:
    """How many launches a fused node is at most: more than one where what its first kernel does not give is asked for.

    A sum over the batches or heads that share a bias may be made in parts, which another launch adds up: how
    many blocks a card runs at a time decides it, and it is counted."""
    op = family(node.op_type)
    if op == REGION:
        return next((int(entry.value) for entry in node.metadata_props if entry.key == LAUNCHES_KEY), 1)
    more = op in SECOND_LAUNCH and any(node.output[1:3])
    bias = op in SUMMED_BIAS and any(node.output[3:4])
    summed = any(a.name == "bias_axes" and a.ints for a in node.attribute)
    return 1 + more + (bias and 1 + summed)


def nodes(terms: Iterable[Term]) -> float:
    """Nodes that a runtime runs for these terms, with each shape that has to be put together.  A Reshape moves nothing:
    it is half a node."""
    terms = [term for term in terms if not term.constant]
    reshapes = [term for term in terms if term.op == "Reshape"]
    shapes = {t.shape for t in reshapes if t.shape is not None and sum(isinstance(d, Sym) for d in t.shape) > 1}
    return sum(map(launches, terms)) + len(reshapes) / 2 + len(shapes)


def size(term: Term) -> Dim | None:
    """Bytes of the term's value; None where its shape is unknown."""
    if term.shape is None:
        return None
    return product(term.shape) * BYTES.get(term.dtype, 4)


def traffic(terms: Iterable[Term]) -> int | None:
    """Bytes of intermediates that are written once and read once each; None where a dimension is not a number."""
    total = 0
    for written in (size(term) for term in terms if launches(term)):
        if not isinstance(written, int):
            return None
        total += 2 * written
    return total
