"""What a search leaves alone since onnxruntime runs it on integers: a fused op would run it on floats.

A match may use the result of such a node, and give it its operands; it may not compute inside what the node computes,
but for an op that stays on integers itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnxfuse.lifting.view import View
from onnxfuse.model.op_traits import ON_INTEGERS, PRODUCTS, VIEWS
from onnxfuse.terms.normal.table import split_scalar
from onnxfuse.terms.term import Term

from .match import Match


def on_integers(view: View, current: Mapping[str, Term]) -> dict[int, int]:
    """Terms (ids) that such nodes compute → the position of the node."""
    found: dict[int, int] = {}
    for index in view.integer:
        for name in view.graph.nodes[index].output:
            term = _bare(current[name]) if name in current else None
            if term is not None and not term.constant:
                # Of a Gemm the product, too.
                inner = [arg for arg in map(_bare, term.args) if arg.op in PRODUCTS] if term.op == "Add" else []
                found.update(dict.fromkeys((t.id for t in (term, *inner)), index))
    return found


def kept_apart(matches: Sequence[Match], integer: Mapping[int, int], taken: dict[Match, int]) -> list[Match]:
    """The matches that compute nothing inside that runs on integers; for each of the others `taken` gets the node."""
    kept = []
    for match in matches:
        stays = _bare(match.emitted).op.rpartition(".")[2] in ON_INTEGERS
        at = None if stays else next((integer[term.id] for term in match.cover if term.id in integer), None)
        if at is None:
            kept.append(match)
        else:
            taken[match] = at
    return kept


def _bare(term: Term) -> Term:
    """The term behind views and a factor, which the normal form takes outwards."""
    while True:
        split = split_scalar(term)
        if split is not None:
            term = split[0]
        elif term.op in VIEWS:
            term = term.args[0]
        else:
            return term
