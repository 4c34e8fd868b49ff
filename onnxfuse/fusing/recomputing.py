"""A fused training step → the same in which backward computes values again, instead of keeping them.

At -O2, what a launch of backward can give on its way; with a limit, as much as that asks for.  Regions come after it:
they take copies into the launches beside which these stand.  No pass of the rules comes after both where there is a
limit, for it would make one node of a copy and what it is a copy of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.regions.write import standing
from onnxfuse.training.recompute import Limit, Recomputed, beside, within
from onnxfuse.training.step import Step

from .fused import EVERY, Banned, Fused
from .naming import Naming, named

TRIES = 4
"""Times that values are left out again whose copies no region takes."""


def recomputing(
    first: Lifted,
    done: Fused,
    limit: Limit | None,
    naming: Naming,
    banned: Banned,
    regional: Callable[[Fused], Fused] | None,
) -> Fused:
    """A fused model, with regions where there are any (`regional`) that are not `banned`, and what backward computes
    again in it."""
    if not Step.possible(done.model) or Step.of(first.views[0]) is None:
        return regional(done) if regional is not None else done
    lifted = done.lifted or first.again(done.model)
    free = _free(lifted, banned) if regional is not None else None
    done = _with(done, free)
    if limit is not None:
        asked = within(lifted if free is None else lifted.again(free.model), limit)
        done = _with(done, asked)
    done = named(done, naming) if done.lifted is None else done
    return regional(done) if regional is not None else done


def _free(lifted: Lifted, banned: Banned) -> Recomputed | None:
    """What costs no launch: all copies are part of regions."""
    if any(rule == EVERY and scope == lifted.views[0].graph.path for scope, rule, _ in banned):
        return None
    stay = set[str]()
    for _ in range(TRIES):
        made = beside(lifted, stay)
        alone = standing(lifted.again(made.model), made.nodes, banned) if made is not None else set()
        if made is None or not alone:
            return made
        stay |= {made.nodes[name] for name in alone}
    return None


def _with(done: Fused, made: Recomputed | None) -> Fused:
    return done if made is None else replace(done, model=made.model, lifted=None)
