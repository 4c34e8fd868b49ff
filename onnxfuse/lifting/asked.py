"""Which constants somebody has wanted to know the elements of, where most are only ever passed on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from onnxfuse.terms.term import Array


@dataclass
class Asked:
    """Initializers of more than one element whose values have been read."""

    apart: Collection[str] = frozenset()
    """Those that nothing in the model equals: they are known by name, however small, and read on demand."""
    names: set[str] = field(default_factory=set)

    def telling(self, name: str, load: Callable[[], Array]) -> Callable[[], Array]:
        """A way to read an initializer that is noted."""

        def read() -> Array:
            self.names.add(name)
            return load()

        return read
