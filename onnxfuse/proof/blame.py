"""Which fusions are to blame for values that are wrong, and what is banned for it.

A fused node may be the work of several rules, each built on what the one before it made.  The last is to blame, since
what it was built on may be right.  If that is wrong too, a later attempt finds it, blames it alone, and acquits what
was built on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnx import ModelProto

from onnxfuse.reporting.records import Fusion, LeftOut, Validation
from onnxfuse.rewriting.provenance import keys

from .branches import WHOLE

if TYPE_CHECKING:
    from onnxfuse.fusing.fused import Banned, Fused
    from onnxfuse.rewriting.provenance import FusedNode, Vanished

    from .branches import Branch
    from .cut_proof import Compared


@dataclass(frozen=True)
class Suspects:
    """What wrong values tell of."""

    sites: list[tuple[FusedNode, str]]
    """Fused nodes, each with what is wrong."""
    simplified: Banned
    """Values that were computed anew without a rule, and must not be."""

    def joined(self, other: Suspects) -> Suspects:
        return Suspects([*self.sites, *other.sites], self.simplified | other.simplified)

    def __bool__(self) -> bool:
        return bool(self.sites or self.simplified)


def suspects(fused: Fused, tested: ModelProto, compared: Compared, branches: Sequence[Branch] = (WHOLE,)) -> Suspects:
    """The fusions that wrong values tell of, and what must not be simplified.

    A value that no fusion is named after is computed through some: those inside its cut are to blame, unless their own
    value is right.  `tested` is what was compared of the fused model, with these bodies in it."""
    called = {branch.scope: branch.name for branch in branches}
    sites: dict[int, tuple[FusedNode, str]] = {}
    simplified: set[tuple[str, str, str]] = set()
    for cut, reason in compared.wrong.items():
        inside = {name for index in cut.fused for name in tested.graph.node[index].output}
        for names in ({cut.output}, inside - compared.right, inside):
            own = [site for site in fused.sites if site.scope in called]
            found = {
                id(site): (site, f"value {cut.output!r} {reason}")
                for site in own
                if names & set(map(called[site.scope], (site.value, *site.node.output)))
            }
            computed = {key for key in fused.simplified if key[0] in called and called[key[0]](key[2]) in names}
            if found or computed:
                sites |= found
                simplified |= computed
                break
    return Suspects(list(sites.values()), frozenset(simplified))


@dataclass
class Blame:
    """What has been blamed so far: the keys that are banned → those of the whole chain of rules, and the fusion."""

    charges: dict[Banned, tuple[Banned, LeftOut]] = field(default_factory=dict)

    @property
    def left_out(self) -> list[LeftOut]:
        return [left for _, left in self.charges.values()]

    def lay(self, on: Suspects, banned: Banned, verdict: Validation, *, whole: bool) -> Banned:
        """What is to be banned besides, or instead of, what is `banned`; `whole` bans all rules behind a fused node."""
        for site, reason in on.sites:
            chain = frozenset(keys(site, site.matches))
            last = chain if whole else frozenset(keys(site, site.matches[-1:]))
            for acquitted in [key for key, (below, _) in self.charges.items() if last & below - key]:
                banned -= acquitted
                del self.charges[acquitted]
            self.charges[last] = chain, left_out(site, verdict, reason)
            banned |= last
        return banned | on.simplified


def left_out(site: FusedNode, verdict: Validation, reason: str) -> LeftOut:
    """A fused node that is no longer one."""
    from onnxfuse.reporting.tell import fusion

    return LeftOut(fusion(site), verdict.max_error, reason)


def left_out_vanished(vanished: Vanished, verdict: Validation) -> LeftOut:
    """What a match would have been that left no node."""
    rule, at = vanished.match.rule, min(vanished.match.values, default="")
    return LeftOut(Fusion(rule.name, rule.op, vanished.scope, at, (), (), 0, 0), verdict.max_error, verdict.note)
