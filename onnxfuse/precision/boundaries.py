"""Where a model can be divided with few Casts: what float32 on one side gives to half precision on the other."""

from __future__ import annotations

from itertools import accumulate

from .ports import SHARED
from .scope import Scope


def boundaries(scope: Scope) -> list[int]:
    """How many values cross from the nodes before each place to those behind it, and would be cast there.

    Place p lies before node p, and the last one behind all nodes.  Inputs are cast anyway, and constants are in the
    type that they are read in."""
    steps = [0] * (len(scope.nodes) + 1)
    for name, index in scope.producer.items():
        last = max((reader for reader, port in scope.readers.get(name, ()) if port == SHARED), default=index)
        if name not in scope.constants and last > index and scope.port_of(name) == SHARED:
            steps[index + 1] += 1
            steps[last + 1] -= 1
    return list(accumulate(steps))
