"""Methods that `dataclass` writes are compiled when they are first called.

Before Python 3.13, `dataclass` compiles each by itself as soon as a class is made.  A report imports 190 such
classes, of which most are never compared or printed, and many never made: to compile their thousand methods takes half
as long as to import onnx.  Those that are called are compiled without annotations, which nobody asks for: a third less
text.  As in `postponed`, this is for the process of a command alone, and where Python has no such function any more, it
changes nothing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

COMPILES = "_create_fn"
"""What compiles one method in `dataclasses`: (name, parameters, lines of the body, ...) → the function."""
TYPE = re.compile(r":_type_\w+")
"""How it writes the type of a parameter, and what it calls it."""


def compile_late() -> None:
    """Compile methods late from now on in this process."""
    now = getattr(dataclasses, COMPILES, None)
    if now is not None:
        setattr(dataclasses, COMPILES, partial(_late, now))


def _late(
    compiled: Callable[..., Any],
    name: str,
    parameters: Sequence[str],
    body: Sequence[str],
    *,
    locals: dict[str, Any] | None = None,
    return_type: object = None,
    **options: Any,
) -> Callable[..., Any]:
    """What stands for a method until it is called: then the class has the method itself."""
    made: list[Callable[..., Any]] = []

    def method(self: Any, /, *args: Any, **named: Any) -> Any:
        if not made:
            untyped = [TYPE.sub("", parameter) for parameter in parameters]
            known = {key: value for key, value in (locals or {}).items() if not TYPE.match(f":{key}")}
            made.append(compiled(name, untyped, body, locals=known, **options))
            made[0].__qualname__ = method.__qualname__
            for owner in type(self).__mro__:
                if vars(owner).get(name) is method:
                    setattr(owner, name, made[0])
        return made[0](self, *args, **named)

    method.__name__ = name
    return method
