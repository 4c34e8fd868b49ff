"""Products that stay nodes of their own, for a quantizer to find (`Target.keep_products`).

A quantizer goes by what nodes are called: it takes a MatMul, a Gemm or a Conv whose weight is a constant, and nothing
that is inside another op.  So a match that covers such a product must emit one: the same op, with a weight where there
was one.  A Gemm is a MatMul and a sum in the normal form; a match must not take the sum and leave the MatMul.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence

from onnxfuse.language.context import Context
from onnxfuse.lifting.view import View
from onnxfuse.model.op_traits import MATRIX_PRODUCTS, QUANTIZABLE
from onnxfuse.model.standard import STANDARD
from onnxfuse.terms.normal.views import is_reshape
from onnxfuse.terms.term import Term


def hidden(cover: Sequence[Term], results: Sequence[Term], context: Context, *, weighted: bool) -> str:
    """The op of a product that would be no such node any more if a match were made that covers some terms and has its
    results instead; the empty string if there is none.

    Products without a weight count, too, unless they must be `weighted`."""
    before, left = _products(cover, context, weighted), _left(cover, results, context)
    if any(arg.id in context.inside_gemms for term in left if term.id not in context.named for arg in term.args):
        return "Gemm"  # a MatMul would be written for what is inside
    after = _products(left, context, weighted)
    lacking, more = before - after, after - before
    # What is folded into the weight of a Gemm makes a MatMul of it.
    return next((op for (op, weight), n in lacking.items() if op != "Gemm" or more["MatMul", weight] < n), "")


def _products(terms: Iterable[Term], context: Context, weighted: bool) -> Counter[tuple[str, bool]]:
    """How many products of each op there are, with and without a constant for a weight."""
    found = Counter[tuple[str, bool]]()
    for term in {term.id: term for term in terms}.values():
        op = "Gemm" if term.id in context.inside_gemms else term.op.removeprefix("ai.onnx.")
        if op in QUANTIZABLE and not term.constant and (term.args[1].constant or not weighted):
            found[op, term.args[1].constant] += 1
    return found


def _left(cover: Sequence[Term], results: Sequence[Term], context: Context) -> list[Term]:
    """The terms that a match makes, and what it covers of which they are made."""
    covered = {term.id for term in cover}
    found: dict[int, Term] = {}
    stack = [*results]
    while stack:
        term = stack.pop()
        if term.id not in found and (term.id in covered or term.id not in context.alive):
            found[term.id] = term
            stack.extend(term.args)
    return list(found.values())


def inside_gemms(view: View, current: Mapping[str, Term]) -> frozenset[int]:
    """The ids of the products inside Gemms, which are no values, by what the values of a scope are now."""
    inside, alone = set[int](), set[int]()
    for node in view.graph.nodes:
        if node.op_type in MATRIX_PRODUCTS and node.domain in STANDARD:
            term = current[node.output[0]]
            whole = term.args[0] if is_reshape(term) else term
            if node.op_type == "MatMul":
                alone.add(whole.id)
            else:
                parts = [whole, *whole.args, *(part for arg in whole.args if arg.op == "Mul" for part in arg.args)]
                inside.update(part.id for part in parts if part.op == "MatMul")
    return frozenset(inside - alone)


def sums_product(term: Term, alive: Container[int]) -> bool:
    """Is it a sum of which a product is an operand that outputs depend on?"""
    return term.op == "Add" and any(arg.op == "MatMul" and arg.id in alive for arg in term.args)
