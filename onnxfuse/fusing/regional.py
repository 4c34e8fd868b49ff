"""A fused model → the same with regions: what no rule names is fused, too, when all passes of the rules are done."""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.regions.write import Asked, regions
from onnxfuse.rewriting.provenance import FusedNode

from .fused import EVERY, Banned, Fused
from .naming import named
from .settle import joined, names_of
from .source import Source


def regional(source: Source, fused: Fused, banned: Banned) -> Fused:
    """What becomes of a fused model; nothing of it is left to a later pass, which finds its regions as they are."""
    lifted = fused.lifted or Lifted.of(fused.model, source.base_dir, source.catalogue)
    barred = {scope for scope, rule, _ in banned if rule == EVERY}
    former = {site.node.name: site.matches[-1] for site in fused.sites}
    made = regions(lifted, Asked(banned, barred, former))
    near = [*fused.near_misses, *made.near_misses]
    if not made.sites:
        return replace(fused, near_misses=near)
    after = Fused(made.model, made.sites, [], frozenset(), banned=fused.banned)
    whole = joined(fused, after, source.model, names_of(source.model))
    # What the passes before have written, and no rule was named for, stands for something of the original as well.
    own = {site.node.name: site for site in made.sites}
    told = [site.node.name for site in whole.sites if not site.dead and site.node.name in own]
    sites = [_dying(site, own[site.node.name]) if site.node.name in told else site for site in whole.sites]
    whole = replace(whole, sites=sites)
    gone = {name for site in whole.sites for name in site.replaced}
    return named(replace(whole, near_misses=[miss for miss in near if miss.node not in gone]), source.naming)


def _dying(site: FusedNode, own: FusedNode) -> FusedNode:
    return replace(site, dead=own.dead, gone=own.gone)
