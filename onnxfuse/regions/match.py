"""A region as reports, proofs and bisections know a fusion: a match, of a rule that stands in no file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnxfuse.language.rule import Rule, Source
from onnxfuse.matching.match import Match
from onnxfuse.model.graph import REGION
from onnxfuse.terms.term import Term

PLACE = "regions"
"""Where a rule would stand."""


def rule(words: str) -> Rule:
    """The rule that a region would be an application of; `words` are its ops."""
    return Rule(
        name=words,
        path=PLACE,
        stratum=PLACE,
        doc="What one loop over elements computes.",
        text=REGION,
        parameters=(),
        blocks=((),),
        let=(),
        where=(),
        emit=(),
        meaning=(),
        standard=(),
        kernel="pointwise",
        cost="pointwise",
        test={},
        source=Source(PLACE, ()),
    )


def match(words: str, root: Term, cover: Iterable[Term], outputs: Mapping[str, Term], inner: Sequence[Match]) -> Match:
    """The match that a region is; `inner` are those behind fused ops that it takes in.

    Its values are its outputs, in their order what it exposes: to ban it at one of them bans it."""
    exposed = {term: term for term in outputs.values()}
    return Match(rule(words), 0, root, {}, tuple(cover), root, exposed, frozenset(), set(outputs), tuple(inner))
