"""A region as reports, proofs and bisections know a fusion: a match, of a rule that stands in no file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnxfuse.language.rule import Rule, Source
from onnxfuse.matching.match import Match
from onnxfuse.model.graph import REGION
from onnxfuse.terms.term import Term

PLACE = "regions"
"""What stands for a file and a folder of rules where one has to be."""


def rule(words: str, *, products: bool = False) -> Rule:
    """The rule that a region would be an application of; `words` are its ops."""
    kernel = "gemm" if products else "pointwise"
    return Rule(
        name=words,
        path="",
        stratum=PLACE,
        doc="Products, and what is done to their elements." if products else "What one loop over elements computes.",
        text=REGION,
        parameters=(),
        blocks=((),),
        let=(),
        where=(),
        emit=(),
        meaning=(),
        standard=(),
        kernel=kernel,
        cost=kernel,
        test={},
        source=Source(PLACE, ()),
    )


def match(
    words: str,
    root: Term,
    cover: Iterable[Term],
    outputs: Mapping[str, Term],
    inner: Sequence[Match],
    *,
    products: bool = False,
) -> Match:
    """The match that a region is; `inner` are those behind fused ops that it takes in.

    Its values are its outputs, in their order what it exposes: to ban it at one of them bans it."""
    exposed = {term: term for term in outputs.values()}
    own = rule(words, products=products)
    return Match(own, 0, root, {}, tuple(cover), root, exposed, frozenset(), set(outputs), tuple(inner))
