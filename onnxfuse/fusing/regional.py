"""A fused model → the same with regions: what no rule names is fused, too, when all passes of the rules are done."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from onnx import ModelProto

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.matching.cost import launches
from onnxfuse.model.graph import REGION
from onnxfuse.regions.write import Asked, regions
from onnxfuse.rewriting.provenance import FusedNode

from .fused import EVERY, Banned, Fused
from .naming import Naming, named
from .settle import joined, names_of, state

ROUNDS = 4
"""A region hides what laws would have used; no model is known that needs more than two."""


def regional(
    first: Lifted, naming: Naming, fused: Fused, banned: Banned, passes: Callable[[ModelProto], Fused]
) -> Fused:
    """What becomes of a model that was fused, by `passes` of the rules over what has regions as well, until both leave
    it as it is.

    `first` is the model before that, or few blocks of it: `naming` are the names that are not to be given."""
    original, done = names_of(first.model), fused
    for _ in range(ROUNDS):
        made = _once(first, naming, done, banned, original)
        if made is None:
            break
        done, after = made, passes(made.model)
        if state(after.model) == state(done.model):
            break
        done = named(joined(done, after, first.model, original), naming)
    return done


def _once(first: Lifted, naming: Naming, fused: Fused, banned: Banned, original: Collection[str]) -> Fused | None:
    """A fused model with regions; None if it has no more than before, of which its near misses then tell."""
    lifted, catalogue = fused.lifted or first.again(fused.model), first.views[0].catalogue
    barred = {scope for scope, rule, _ in banned if rule == EVERY}
    former = {site.node.name: site.matches[-1] for site in fused.sites}
    kept = catalogue is not None and catalogue.target.keep_products is not None
    made = regions(lifted, Asked(banned, barred, former, products=not kept))
    near = [*(miss for miss in fused.near_misses if miss.rule != REGION), *made.near_misses]
    if not made.sites:
        fused.near_misses[:] = near
        return None
    after = Fused(made.model, made.sites, [], frozenset(), banned=fused.banned)
    whole = joined(fused, after, first.model, original)
    # What the passes before have written, and no rule was named for, stands for something of the original as well.
    own = {site.node.name: site for site in made.sites}
    sites = [_dying(site, own[site.node.name]) if site.node.name in own else site for site in whole.sites]
    gone = {name for site in sites for name in site.replaced}
    near = [miss for miss in near if miss.node not in gone]
    return named(replace(whole, sites=sites, near_misses=near), naming)


def _dying(site: FusedNode, own: FusedNode) -> FusedNode:
    """A region with what dies for it: that of the original, or what passes have written of it where that is more."""
    more = sum(map(launches, own.dead)) > sum(map(launches, site.dead))
    return replace(site, dead=own.dead, gone=own.gone) if more else site
