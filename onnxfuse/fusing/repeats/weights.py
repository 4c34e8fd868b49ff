"""The weights of blocks: of each that is worked on, those of all blocks that stand where it does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from onnx import TensorProto

from onnxfuse.lifting.constants import is_missing, reader
from onnxfuse.terms.blockwise import Blockwise, Families, Family, UnevenError
from onnxfuse.terms.term import Array

from .few import Few, by_content
from .runs import Run


class Weights:
    """The initializers of a model of which each block has its own."""

    def __init__(self, few: Few, base_dir: Path | None) -> None:
        self.few, self.base_dir = few, base_dir
        self.families = Families(few.codes.initializers, cache(self._leaf))
        self._known: dict[tuple[Run, int, int], Family | None] = {}

    def _leaf(self, name: str) -> Blockwise | None:
        """What an initializer is to its block; None for one that all have in common."""
        codes = self.few.codes
        place = codes.place.get(name)
        run = None if place is None or by_content(codes.initializers[name], codes) else self.few.run_of(place[0])
        if place is None or run is None:
            return None
        first = (run.start + (place[0] - run.start) % run.period, place[1])
        key = run, *first
        if key not in self._known:
            names = [codes.shifted(first, run, block) for block in range(run.count)]
            self._known[key] = self._family(run, names) if len(set(names)) > 1 else None
        family = self._known[key]
        return None if family is None else Blockwise(family, run.block(place[0]))

    def _family(self, run: Run, names: Sequence[str]) -> Family:
        tensors = [self.few.codes.initializers[name] for name in names]
        return self.families.leaf(run, lambda block: self._elements(run, tensors[block]))

    def _elements(self, run: Run, tensor: TensorProto) -> Array:
        if is_missing(tensor, self.base_dir):
            raise UnevenError(f"the elements of {tensor.name} are wanted, and are not there", run)
        return reader(tensor, self.base_dir)()
