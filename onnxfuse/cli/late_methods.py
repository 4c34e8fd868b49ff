"""Methods that `dataclass` writes are compiled when they are first called.

Before Python 3.13, `dataclass` compiles each by itself as soon as a class is made.  A report imports 190 such
classes, of which most are never compared or printed, and many never made: to compile their thousand methods takes half
as long as to import onnx.  As in `postponed`, this is for the process of a command alone, and where Python has no such
function any more, it changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

COMPILES = "_create_fn"
"""What compiles one method in `dataclasses`: (name, parameters, lines of the body, ...) → the function."""


def compile_late() -> None:
    """Compile methods late from now on in this process."""
    now = getattr(dataclasses, COMPILES, None)
    if now is not None:
        setattr(dataclasses, COMPILES, partial(_late, now))


def _late(compiled: Callable[..., Any], name: str, *given: Any, **options: Any) -> Callable[..., Any]:
    """What stands for a method until it is called: then the class has the method itself."""
    made: list[Callable[..., Any]] = []

    def method(self: Any, /, *args: Any, **named: Any) -> Any:
        if not made:
            made.append(compiled(name, *given, **options))
            made[0].__qualname__ = method.__qualname__
            for owner in type(self).__mro__:
                if vars(owner).get(name) is method:
                    setattr(owner, name, made[0])
        return made[0](self, *args, **named)

    method.__name__ = name
    return method
