"""What a training step gives back and reads no more, parameters and moments that were updated: many are one launch.

Each update is a loop of its own, of its own size (`kernels.pointwise.parts`), and waits for its own gradient alone:
together they wait for all of them, and since nothing in the graph reads what they give, nothing waits for more than it
did.  What is large enough to keep a card busy is left alone.
"""

from __future__ import annotations

from functools import reduce

from .groups import Group, Groups
from .spelled import body, refusal

SMALL = 1 << 20
"""Elements: about as many as a large card computes at a time."""
MOST = 32
"""Updates in one launch: their addresses are its arguments."""


def together(groups: Groups) -> None:
    """Make one group of as many updates as fit into one launch."""
    found = [group for group in groups if groups.scope.forward and _is_update(groups, group)]
    while len(found) > 1:
        taken = found[:MOST]
        while len(taken) > 1 and _refused(groups, taken):
            taken = taken[: len(taken) // 2]
        if len(taken) > 1:
            reduce(groups.join, taken)
        found = found[len(taken) :]


def _is_update(groups: Groups, group: Group) -> bool:
    """Is it a small loop over elements of backward whose results are outputs, and read by nothing?"""
    if group.fixed or group.rows or group.product or group.early or groups.elements(group) > SMALL:
        return False
    return not groups.following(group)


def _refused(groups: Groups, taken: list[Group]) -> str:
    whole = reduce(Group.joined, taken)
    written = [name for group in taken for name in groups.written(group)]
    return refusal(groups.scope, body(groups.scope, whole.indices, written), whole=True)
