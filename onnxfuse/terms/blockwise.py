"""Constants of which each of several blocks has its own, where a few blocks stand for all (`onnxfuse.fusing.repeats`).

Nobody reads the elements of one.  What depends on them is asked of every block, and the answers have to be the same
(`Blockwise.answer`).  What they merely flow into is kept as how it is computed, and evaluated when it is written:

    w of a file        at(k) = w[k]                        w[k] is what block k reads where block 0 reads w[0]
    f(u, v, c)         at(k) = f(at_u(k), at_v(k + 1), c)  f one op, v one block further on than u, c the same for all
    written as float16 at(k) = float16(at_u(k))            by one pass, to be read by the next

A small constant is known by what it holds, so small ones of blocks are the same where all blocks hold the same:

    let h(k) be the elements of block k.  Either h(k) are new, and no two are equal, or h(k) = h'(k + d) for all k: then
    the constant is that other one, d blocks on.  Anything else would make two blocks unlike (`UnevenError`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    from .term import Array

_Answer = TypeVar("_Answer", bound=Hashable)
_Digest: TypeAlias = bytes
_TAG = "onnxfuse: constant {} of block {}"
DEEPEST = 64
"""Steps of the longest chain by which a constant is computed."""
HELD = 8
"""Each of so many small constants of a chain is kept, so that the others need not be computed from its start."""


class UnevenError(Exception):
    """What is asked of a constant is not the same in all blocks: why, of which row, and in which blocks it is not what
    it is in most."""

    def __init__(self, reason: str, row: Row, odd: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.row, self.odd = row, odd


class Row(Protocol):
    """Blocks that are the same but for their weights."""

    @property
    def count(self) -> int:
        """How many there are."""

    def of_whole(self, block: int) -> int:
        """The block of all that one of the few is."""


class Reading:
    """The elements of one block's constants, each computed once."""

    def __init__(self, block: Callable[[int], int]) -> None:
        """`block` says which block of all is so many on."""
        self.block = block
        self._known: dict[tuple[int, int], Array] = {}

    def of(self, family: Family, step: int = 0) -> Array:
        """Those of a family, so many blocks on."""
        key = family.number, step
        if key not in self._known:
            self._known[key] = family.read(self, step)
        return self._known[key]


@dataclass(eq=False)
class Family:
    """A constant of each block of a row: one of k for each k that `span` more blocks follow."""

    row: Row
    span: int
    read: Callable[[Reading, int], Array]
    """Its elements, so many blocks on."""
    number: int
    families: Families
    depth: int = 0
    """Of how many steps the longest chain is by which it is computed."""
    known: dict[Hashable, object] = field(default_factory=dict)
    """Questions that all blocks have answered alike, and the answer."""
    same: tuple[Family, int] | None = None
    """The first that holds the same, and by how many blocks this one lies further on."""

    def at(self, block: int) -> Array:
        """The elements of a block of all."""
        return Reading(lambda step: block + step).of(self)

    @property
    def blocks(self) -> range:
        """The blocks of all that have one."""
        return range(self.row.count - self.span)

    def answer(self, question: Callable[..., _Answer], *asked: Hashable) -> _Answer:
        """What a question (elements, *asked) is answered by every block.  Raises UnevenError where that differs."""
        key = question, asked
        if key not in self.known:
            answers, kinds = list[_Answer](), Counter[_Answer]()
            for block in self.blocks:
                answers.append(question(self.at(block), *asked))
                kinds[answers[-1]] += 1
                if len(kinds) > 2:  # no block is the odd one
                    break
            (usual, _), *others = kinds.most_common()
            if others:
                odd = [block for block, answer in enumerate(answers) if answer != usual] if len(others) == 1 else []
                raise UnevenError(f"blocks differ by what is asked of a constant: {question.__name__}", self.row, odd)
            self.known[key] = usual
        return cast("_Answer", self.known[key])


@dataclass(frozen=True)
class Blockwise:
    """The elements of a constant that is one of a family."""

    family: Family
    block: int
    """The first block that it is computed of, as blocks are counted among the few."""

    @property
    def here(self) -> Array:
        """Its own elements, to be written and not to be looked at."""
        return Reading(lambda step: self.family.row.of_whole(self.block + step)).of(self.family)

    @property
    def tag(self) -> str:
        """What is noted in a file on a tensor that holds it."""
        return _TAG.format(self.family.number, self.block)

    def looked_at(self) -> Array:
        """Its elements, which are the same in all blocks.  Raises UnevenError where they are not."""
        self.family.answer(elements)
        return self.here

    def written(self, kind: Hashable, rounded: Callable[[Array], Array]) -> Blockwise:
        """What is read of it again when it was written as a type."""
        made = self.family.families.derived(("written", kind), [self], lambda arrays: rounded(_only(arrays)))
        assert made is not None
        return made


def elements(array: Array) -> _Digest:
    """What an array holds; real numbers by their value, whatever their type."""
    real = array.dtype.kind not in "iub"
    digest = blake2b(repr((array.shape, real)).encode(), digest_size=20)
    digest.update(np.ascontiguousarray(array.astype(np.float64) if real else array).tobytes())
    return digest.digest()


class Families:
    """All families there are where a few blocks stand for all."""

    def __init__(self, original: Container[str], leaf: Callable[[str], Blockwise | None]) -> None:
        """`leaf` says which initializers of the `original` are such constants."""
        self._original, self._leaf = original, leaf
        self._all: list[Family] = []
        self._derived: dict[Hashable, Family] = {}
        self._small: dict[_Digest, tuple[Family, int] | None] = {}
        """What small constants hold → which it is of a family; None for one that all blocks have in common."""

    def __copy__(self) -> Families:
        """Tables of terms that are forked share them."""
        return self

    def leaf(self, row: Row, load: Callable[[int], Array]) -> Family:
        """A family of which each block's elements are loaded."""
        return self._new(row, lambda reading, step: load(reading.block(step)))

    def _new(self, row: Row, read: Callable[[Reading, int], Array], span: int = 0, depth: int = 0) -> Family:
        family = Family(row, span, read, len(self._all), self, depth)
        self._all.append(family)
        return family

    def of(self, name: str, noted: str) -> Blockwise | None:
        """What an initializer is, by its name or what is noted on it; None for one that all blocks have in common."""
        return self._leaf(name) if name in self._original else self.tagged(noted)

    def tagged(self, tag: str) -> Blockwise | None:
        """The constant of which a tag is noted."""
        numbers = [int(word) for word in tag.split() if word.isdecimal()]
        if len(numbers) != 2 or tag != _TAG.format(*numbers) or numbers[0] >= len(self._all):
            return None
        return Blockwise(self._all[numbers[0]], numbers[1])

    def derived(
        self,
        said: Hashable,
        args: Sequence[Blockwise | Array | None],
        compute: Callable[[Sequence[Array | None]], Array],
    ) -> Blockwise | None:
        """What an op computes, `said` with all that it depends on besides.  None where no block has all of its
        operands, and at the end of a chain that is too long.

        Raises what `compute` raises of the first block."""
        own = [arg for arg in args if isinstance(arg, Blockwise)]
        row, first = own[0].family.row, min(arg.block for arg in own)
        span = max(arg.block + arg.family.span for arg in own) - first
        depth = 1 + max(arg.family.depth for arg in own)
        if any(arg.family.row != row for arg in own) or span >= row.count or depth > DEEPEST:
            return None
        steps = [arg.block - first if isinstance(arg, Blockwise) else 0 for arg in args]
        key = said, tuple(_key(arg, step) for arg, step in zip(args, steps, strict=True))
        if key not in self._derived:
            operands = [arg.family if isinstance(arg, Blockwise) else arg for arg in args]

            def read(reading: Reading, step: int) -> Array:
                pairs = zip(operands, steps, strict=True)
                return compute([reading.of(one, step + by) if isinstance(one, Family) else one for one, by in pairs])

            family = self._new(row, read, span, depth)
            family.at(0)
            self._derived[key] = family
        return Blockwise(self._derived[key], first)

    def small(self, own: Blockwise) -> Blockwise:
        """The constant that holds the same in all blocks.  Raises UnevenError where that depends on the block."""
        family = own.family
        if family.same is None:
            family.same = self._same(family)
        same, shift = family.same
        return Blockwise(same, own.block + shift)

    def _same(self, family: Family) -> tuple[Family, int]:
        found: list[_Digest] = []
        arrays: list[Array] = []
        for block in family.blocks:
            array = family.at(block)
            if family.depth % HELD == HELD - 1 and not family.span:
                arrays.append(array)
            flat = array.ravel()
            if flat[0] == flat[1] and (flat == flat[0]).all():
                raise UnevenError("a constant of one block is a single number throughout", family.row, [block])
            found.append(elements(array))
        if arrays:
            family.read = lambda reading, step: arrays[reading.block(step)]
        known = [self._small.get(each, self) for each in found]
        if set(known) == {self} and len(set(found)) == len(found):
            self._small |= {each: (family, block) for block, each in enumerate(found)}
            return family, 0
        shifts = {(one[0], one[1] - block) if isinstance(one, tuple) else None for block, one in enumerate(known)}
        shift = shifts.pop()
        if shifts or shift is None:
            raise UnevenError("a constant of one block equals another", family.row)
        return shift

    def common(self, array: Array) -> None:
        """Note a small constant that all blocks have in common.  Raises UnevenError if one block has it alone."""
        one = self._small.setdefault(elements(array), None)
        if one is not None:
            raise UnevenError("a constant of one block equals one that all have in common", one[0].row, [one[1]])


def _key(arg: Blockwise | Array | None, step: int) -> Hashable:
    """What tells an operand from others."""
    if isinstance(arg, Blockwise):
        return arg.family.number, step
    return None if arg is None else (arg.dtype.str, elements(arg))


def _only(arrays: Sequence[Array | None]) -> Array:
    (array,) = arrays
    assert array is not None
    return array
