"""Who wants to know the elements of which constants, where most are only ever passed on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from onnxfuse.terms.term import Array


@dataclass
class Asked:
    """What initializers of more than one element are read for."""

    apart: Collection[str]
    """Those that nothing in the model equals: they are known by name, however small, and read on demand."""
    wanted: Callable[[str], None]
    """Called with the name of one whenever it is read."""

    def telling(self, name: str, load: Callable[[], Array]) -> Callable[[], Array]:
        """A way to read an initializer that is told of."""

        def read() -> Array:
            self.wanted(name)
            return load()

        return read
