"""Op → the function that draws uses of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .drawing import Drawing

Drawer: TypeAlias = Callable[[Drawing], None]
DRAWERS: dict[str, Drawer] = {}
"""Every op that the standard defines by a body."""


def draws(*ops: str) -> Callable[[Drawer], Drawer]:
    """Decorator: this function draws uses of these ops."""

    def register(drawer: Drawer) -> Drawer:
        DRAWERS.update(dict.fromkeys(ops, drawer))
        return drawer

    return register
