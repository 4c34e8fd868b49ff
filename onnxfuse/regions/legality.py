"""Which groups of launches may become one, and the reason where they may not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnxfuse.kernels.pointwise.expressions.trace import NODES

from .groups import Group, Groups, needed
from .scope import Launch
from .spelled import body, crowded, refusal

BROADCAST = 4
"""So many elements of a result must not each compute a transcendental of one operand again."""
AGAIN = 2
"""Most groups in which a transcendental is computed again."""
LARGEST = 160
"""Most ops of a region."""
FIXED = "no loop over elements, and none over rows, computes both"
CYCLE = "what lies between them would wait for both"
SIZES = "they write numbers of elements that are not proved equal"
TOO_MANY = f"more than {LARGEST} ops are no kernel that anybody wants"
PRODUCT = "a product is followed by what is elementwise and by one reduction of its rows alone"
TWICE = "neither rows are reduced twice nor products computed"
LONGER = "more would live from before the loss until gradients are computed"
RECOMPUTED = "a transcendental would be computed again for each element it is broadcast to"


def obstacle(groups: Groups, a: Group, b: Group) -> str:
    """Why a producer may not go into its consumer; empty if it may."""
    if _widened(groups, a, b):
        return RECOMPUTED
    return _separate(groups, a, b) or (CYCLE if groups.reaches(a, b, direct=False) else _refused(groups, a, b))


def apart(groups: Groups, a: Group, b: Group) -> str:
    """Why two groups that read the same may not be one; empty if they may."""
    waiting = groups.reaches(a, b) or groups.reaches(b, a)
    if a.product or b.product:
        return PRODUCT
    return _separate(groups, a, b) or (CYCLE if waiting else _refused(groups, a, b))


def _separate(groups: Groups, a: Group, b: Group) -> str:
    """Why two groups may not be one kernel, wherever they stand."""
    if a.fixed or b.fixed:
        return FIXED
    if (b.product and (a.product or a.rows)) or (a.product and a.rows and b.rows):
        return PRODUCT
    if a.ops + b.ops > LARGEST:
        return TOO_MANY
    if groups.longer(a, b) > 0:
        return LONGER
    sizes = groups.together(a, b)
    matrix = a.matrix | b.matrix
    return SIZES if (not sizes <= matrix if matrix else len(sizes) > 1) else ""


def _refused(groups: Groups, a: Group, b: Group) -> str:
    """Why the generator does not take both, where one reduces rows or is a product: what is beside that must fit to it.
    What one loop over elements computes it has looked at launch by launch, all but how much it is together."""
    loop = not any(group.rows or group.product for group in (a, b))
    if a.nodes + b.nodes <= NODES and (loop or _placed(a, b)):
        return ""
    whole = a.joined(b)
    written = body(groups.scope, whole.indices, groups.written(whole, (a.number, b.number)))
    if loop:
        return crowded(written)
    return refusal(groups.scope, written, most=whole.most)


def _placed(a: Group, b: Group) -> bool:
    """Is everything at its place because all that both compute has one shape, and rows are reduced along the same axes?
    Then no kernel need be planned to see."""
    launches = (*a.launches, *b.launches)
    return _of_one_shape(launches) and (not (a.rows and b.rows) or _along_one_axis(launches))


def placed(group: Group) -> bool:
    """Is everything that a group computes of one shape, and are rows reduced, along the same axes all of them?"""
    return _of_one_shape(group.launches) and _along_one_axis(group.launches)


def _of_one_shape(launches: Iterable[Launch]) -> bool:
    shapes = {launch.shape for launch in launches}
    return len(shapes) == 1 and None not in shapes


def _along_one_axis(launches: Iterable[Launch]) -> bool:
    axes = {launch.axes for launch in launches if launch.kind == "rows"}
    return len(axes) == 1 and None not in axes


def kept(groups: Groups, group: Group, names: Sequence[str]) -> str:
    """Why results of a group may not be computed again in each of their users; empty if they may."""
    users = [groups.of[number] for number in sorted({user for name in names for user in groups.readers(name)})]
    again = Group.of(group.number, needed(group.launches, names))
    if groups.scope.needed.intersection(names):
        return "an output of the graph"
    if any(user.fixed or user.product for user in users):
        return "something reads it that is no loop over elements"
    if again.rows or again.product:
        return TWICE
    if any(again.ops + user.ops > LARGEST for user in users):
        return TOO_MANY
    others = [name for name in groups.written(group) if name not in names]
    still = not {launch.index for launch in again.launches}.isdisjoint(
        launch.index for launch in needed(group.launches, others)
    )
    if again.transcendental and (len(users) + still > AGAIN or any(_widened(groups, again, user) for user in users)):
        return RECOMPUTED
    wanted = [Group.of(user.number, needed(group.launches, user.reads)) for user in users]
    if any(one.rows or one.product for one in wanted):  # a user reads more than these results
        return TWICE
    reasons = (_refused(groups, one, groups.of[one.number]) for one in wanted)
    return next(filter(None, reasons), "")


def _widened(groups: Groups, a: Group, b: Group) -> bool:
    return a.transcendental and groups.elements(b) >= BROADCAST * groups.elements(a)
