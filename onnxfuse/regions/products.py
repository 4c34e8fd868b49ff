"""Products of one tensor with constant weights, which one launch computes: Q, K and V, gate and up, the keys and values
of all layers of a decoder.

The weights stay the tensors that they are, and each product writes its own result: those who read the results read
them as before.  With one matrix of all weights there would be one result, in rows as long as all of them: whoever reads
it would have to know the strides, and a runtime without our kernels would copy it apart.  What is to be gained is the
same, the launches and the operand that is read again.

Each product keeps what is done to it (bias, activation), and no two wait for each other, for they read one tensor and
constants alone.  Where two of them are all that an elementwise group reads, as SwiGLU reads a gate and what it gates,
that becomes part of their launch, and they are never written (`gates`, before anything goes into one product alone).
A product whose columns a Split takes apart writes them apart, the Split as part of its launch.  All else is done last,
when the rest has its groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import chain

from onnxfuse.kernels.gemm.members import MOST
from onnxfuse.kernels.gemm.source import PRODUCT

from .groups import Group, Groups
from .scope import Scope
from .spelled import body, refusal, standard


def gates(groups: Groups, *, packed: bool) -> None:
    """Let products go into the elementwise group that alone reads them: two of one tensor, or, if they may be `packed`,
    one of which it takes the columns apart."""
    for group in list(groups):
        if group.fixed or group.rows or group.product:
            continue
        sources = [groups.of[number] for number in sorted(groups.sources(group))]
        keys = {_operand(groups.scope, source) for source in sources}
        apart = packed and any("Split" in launch.ops for launch in group.launches)
        if len(keys) != 1 or None in keys or len(sources) != (1 if apart else 2):
            continue
        whole = reduce(Group.joined, [*sources, group])
        written = groups.written(whole, [each.number for each in (*sources, group)])
        if (apart or len(written) == 1) and not refusal(groups.scope, body(groups.scope, whole.indices, written)):
            reduce(groups.join, [*sources, group])


def side_by_side(groups: Groups) -> None:
    """Make one group of the products of each tensor."""
    families: dict[tuple[str, bool], list[Group]] = {}
    for group in groups:
        key = _operand(groups.scope, group)
        if key is not None:
            families.setdefault(key, []).append(group)
    for family in families.values():
        for first in range(0, len(family), MOST):
            _join(groups, family[first : first + MOST])


def _join(groups: Groups, family: Sequence[Group]) -> None:
    """Make one of them, else of those that one kernel computes together with the first."""
    if _together(groups, family):
        kept = list(family)
    else:
        kept = [family[0]]
        kept += [other for other in family[1:] if _together(groups, [*kept, other])]
    whole = kept[0]
    for other in kept[1:]:
        whole = groups.join(whole, other)


def _together(groups: Groups, family: Sequence[Group]) -> bool:
    """Does one kernel compute them?"""
    indices = sorted(chain.from_iterable(group.indices for group in family))
    outputs = list(chain.from_iterable(groups.written(group) for group in family))
    return not refusal(groups.scope, body(groups.scope, indices, outputs))


def _operand(scope: Scope, group: Group) -> tuple[str, bool] | None:
    """The tensor that a product is of, and whether its weights are transposed; None for what is no such product, or
    needs anything else that is no constant."""
    own = [launch for launch in group.launches if launch.kind == "product" and PRODUCT in launch.ops]
    if len(own) != 1 or any(launch.kind != "pointwise" for launch in group.launches if launch is not own[0]):
        return None
    launch = own[0]
    a = launch.node.input[0]
    if group.waits != {scope.root(a)}:
        return None
    steps = standard(scope, launch.index)
    made = {name for step in steps for name in step.output}
    product = next(step for step in steps if step.op_type == PRODUCT)
    return (a, product.input[1] in made) if product.input[0] == a else None


def together(group: Group, said: Sequence[str]) -> str:
    """How reports name several products; `said` is what each launch is called."""
    others = [word for launch, word in zip(group.launches, said, strict=True) if launch.kind != "product"]
    return " ".join([f"{len(said) - len(others)} products of one input", *(["and", *others] if others else [])])
