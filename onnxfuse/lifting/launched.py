"""Which nodes of a scope a runtime launches something for: what only relabels memory, is constant, or computes with
shapes is none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import NodeProto

from onnxfuse.model.graph import DOMAIN
from onnxfuse.model.op_traits import FREE, RESHAPES
from onnxfuse.model.walk import called_by, has_bodies, key_of
from onnxfuse.terms.term import Term

from .view import View


def launched(view: View) -> Iterator[NodeProto]:
    """The nodes of a scope that a runtime launches something for; those of bodies, and of local functions, stand in
    scopes of their own."""
    functions = {key_of(function) for function in view.graph.model.functions if function.domain != DOMAIN}
    for index, node in enumerate(view.graph.nodes):
        runs = index not in view.graph.captures and called_by(node) not in functions
        if runs and computes(view, node):
            yield node


def computes(view: View, node: NodeProto) -> bool:
    """Does a node more than to relabel what it reads?  The normal form has a Reshape outside of what is computed row by
    row: a Gemm between two of them is the Reshape of a product, which is no view of what the Gemm reads."""
    if node.op_type in FREE or (node.op_type == "Dropout" and view.term(node.output[0]) is view.term(node.input[0])):
        return False
    if not has_bodies(node) and any(_opaque(view, name) for name in node.output if name):
        return True
    for term in _terms(view, node.output):
        inner = _relabelled(term)
        if inner.op in FREE or term.constant:
            continue
        if inner is term or all(inner is not _relabelled(read) for read in _terms(view, node.input)):
            return True
    return False


def _opaque(view: View, name: str) -> bool:
    """Is a value a leaf of its own name: of what draws random numbers, and of what nothing is known?"""
    term = view.term(name)
    return term.op == "Input" and term.key == name


def _terms(view: View, names: Iterable[str]) -> Iterator[Term]:
    """What the outputs of a node compute; of a node with several, what they are outputs of."""
    for term in (view.term(name) for name in names if name):
        yield term.args[0] if term.op == "Output" else term


def _relabelled(term: Term) -> Term:
    """The term whose elements this one has, in the same order."""
    while term.op in RESHAPES and term.args:
        term = term.args[0]
    return term
