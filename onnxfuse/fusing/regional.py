"""A fused model → the same with regions: what no rule names is fused, too, when all passes of the rules are done."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from onnx import ModelProto

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.model.graph import REGION
from onnxfuse.model.walk import name_of
from onnxfuse.regions.write import Asked, regions
from onnxfuse.reporting.tell import launches_saved
from onnxfuse.rewriting.module_paths import ModulePaths
from onnxfuse.rewriting.provenance import FusedNode, adopted

from .fused import EVERY, Banned, Fused
from .naming import Naming, named
from .settle import State, joined, names_of

ROUNDS = 4
"""A region hides what laws would have used; no model is known that needs more than two."""


def regional(
    first: Lifted,
    naming: Naming,
    fused: Fused,
    banned: Banned,
    passes: Callable[[ModelProto], Fused],
    why: str | None = None,
) -> Fused:
    """What becomes of a model that was fused, by `passes` of the rules over what has regions as well, until both leave
    it as it is.  These passes tell how they have read what they leave (`Fused.lifted`).

    `first` is the model before that, or few blocks of it: `naming` are the names that are not to be given.  Near misses
    of the rule `why` are told wherever they are."""
    original, done = names_of(first.model), fused
    for _ in range(ROUNDS):
        made = _once(first, naming, done, banned, original, why)
        if made is None:
            break
        done.lifted = None  # whoever began this still has the model without regions, which nobody reads any more
        done, after = made, passes(made.model)
        if State(after.model) == State(done.model):
            done.lifted = after.lifted
            break
        done = named(replace(joined(done, after, first.model, original), lifted=None), naming)
    return replace(done, sites=adopted(done.sites, first.views, done.model))


def _once(
    first: Lifted, naming: Naming, fused: Fused, banned: Banned, original: Collection[str], why: str | None
) -> Fused | None:
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
    own = {site.node.name for site in made.sites}
    modules = _Modules(first)
    sites = [modules.placed(site) if site.node.name in own else site for site in whole.sites]
    taken = {name: saved for site in sites for saved in [launches_saved(site)] for name in site.replaced}
    near = [miss for miss in near if miss.rule == why or miss.launches_saved > taken.get(miss.node, -1)]
    # A node of the original is told by its name there; one that a pass wrote, by that of the region it is now part of.
    part_of = {name: site.node.name for site in made.sites for name in site.replaced if name not in original}
    near = [replace(miss, node=part_of.get(miss.node, miss.node)) for miss in near]
    return named(replace(whole, sites=sites, near_misses=near), naming)


class _Modules:
    """The modules of the nodes of a model, by their names in each scope."""

    def __init__(self, lifted: Lifted) -> None:
        self.paths = {view.graph.path: ModulePaths(view.graph.nodes) for view in lifted.views}
        self.nodes = {(view.graph.path, name_of(node)): node for view in lifted.views for node in view.graph.nodes}

    def placed(self, site: FusedNode) -> FusedNode:
        """A region in the module of what it stands for in the original: fused ops that it took in say less."""
        found = [self.nodes[key] for name in site.replaced if (key := (site.scope, name)) in self.nodes]
        module = self.paths[site.scope].of(found) if found else ""
        return replace(site, module=module or site.module)
