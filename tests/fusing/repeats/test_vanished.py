"""What left no node in few blocks left none in all: each match under the names of the blocks that it is of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from onnxfuse.fusing.repeats.alike import DifferentError
from onnxfuse.fusing.repeats.few import Few
from onnxfuse.fusing.repeats.moves import Moves
from onnxfuse.fusing.repeats.runs import HEAD, TAIL, Run
from onnxfuse.fusing.repeats.vanished import everywhere
from onnxfuse.rewriting.provenance import Vanished

from .blocks import chain
from .test_once import two_runs

COUNT = 9
FEW, LAST = HEAD + TAIL, COUNT - 1


@dataclass(frozen=True)
class Named:
    """The name of a rule."""

    name: str


@dataclass
class Match:
    """What is told of a match: its rule, and the values that name it."""

    values: set[str]
    rule: Named = field(default_factory=lambda: Named("Rule"))


class Model:
    """A run of nine blocks, of which five are worked on; a value is called by its block and by where in it."""

    def __init__(self) -> None:
        few = Few.of(chain(1 + COUNT), frozenset())  # the first is none of the run, for what it reads is an input
        assert few is not None
        (self.run,) = few.runs
        self.few = few
        given = {f"{self.at(block, 2)}+": (self.at(block, 2), "+") for block in range(COUNT)}
        self.moves = Moves(few, [], given)

    def at(self, block: int, offset: int) -> str:
        """A value of a block of the whole."""
        return self.few.codes.shifted((self.run.start + offset, 0), self.run, block)

    def of_few(self, block: int, offset: int) -> str:
        """A value of one of the blocks that are worked on."""
        return self.at(self.run.of_whole(block), offset)

    def told(self, found: Iterable[set[str]]) -> list[list[str]]:
        """What is told of all blocks, of what was found in few."""
        gone = [Vanished(Match(values), "") for values in found]  # type: ignore[arg-type]
        return sorted(sorted(one.match.values) for one in everywhere(gone, self.moves))


def ordered(names: Iterable[set[str]]) -> list[list[str]]:
    return sorted(map(sorted, names))


@pytest.fixture
def model() -> Model:
    return Model()


def test_one_of_each_block(model: Model) -> None:
    found = [{model.of_few(block, 1)} for block in range(FEW)]
    assert model.told(found) == ordered({model.at(block, 1)} for block in range(COUNT))


def test_the_first_block_and_the_last_have_their_own(model: Model) -> None:
    ends = [{model.at(0, 1)}, {model.at(0, 2), f"{model.at(1, 2)}+"}, {model.at(LAST, 3), model.at(LAST - 1, 3)}]
    assert model.told(ends) == ordered(ends)


def test_one_of_each_two_blocks(model: Model) -> None:
    found = [{model.of_few(block, 3), f"{model.of_few(block + 1, 2)}+"} for block in range(FEW - 1)]
    wanted = ordered({model.at(block, 3), f"{model.at(block + 1, 2)}+"} for block in range(COUNT - 1))
    assert model.told(found) == wanted
    assert model.told(found[1:3]) == [names for names in wanted if names not in (sorted(found[0]), sorted(found[3]))]


@pytest.mark.parametrize("outside", [(), ("x",)])
def test_one_of_each_block_and_all_behind_it(model: Model, outside: Sequence[str]) -> None:
    def sums(count: int, at: Run | None) -> list[set[str]]:
        """Named by the value of a block and of all behind it, and by one of the blocks behind those."""
        called = model.of_few if at is None else model.at
        return [
            {called(block, 1) for block in range(first, count)}
            | {f"{called(block, 2)}+" for block in range(first + 1, count)}
            | set(outside)
            for first in range(count)
        ]

    assert model.told(sums(FEW, None)) == ordered(sums(COUNT, model.run))
    assert model.told(sums(FEW, None) * 2) == ordered(sums(COUNT, model.run) * 2)


@pytest.mark.parametrize(
    "blocks",
    [
        [[1]],  # and not in the next
        [[1], [2]],
        [[0], [2], [3], [4]],
        [[1], [1], [2], [3]],  # twice in one
        [[1, 2]],
        [[0, 1, 2]],  # would it go on in all, or end at the third?
        [[0, 2]],
        [[0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]],  # all before it
        [[1, 2, 3, 4]],
        [[2, 3, 4]],
        [[1, 2, 3, 4], [2, 3, 4]],
    ],
)
def test_what_is_not_the_same_in_all_blocks_is_not_told(model: Model, blocks: list[list[int]]) -> None:
    with pytest.raises(DifferentError):
        model.told({model.of_few(block, 1) for block in each} for each in blocks)


def test_one_rule_is_not_another(model: Model) -> None:
    gone = [Vanished(Match({model.of_few(n, 1)}, Named("One" if n == 2 else "Two")), "") for n in range(FEW)]  # type: ignore[arg-type]
    with pytest.raises(DifferentError):
        list(everywhere(gone, model.moves))


def test_two_runs() -> None:
    few = Few.of(two_runs(), frozenset())
    assert few is not None
    one, two = few.runs
    assert one.gap != two.gap

    def at(run: Run, block: int) -> str:
        return few.codes.shifted((run.start, 0), run, block)

    def found(first: int, second: int) -> list[set[str]]:
        """Of each block of the first run, and of each of the second with the last of the first."""
        return [{at(one, n)} for n in range(first)] + [{at(two, n), at(one, one.count - 1)} for n in range(second)]

    last = found(one.count, two.count)
    kept = [[*range(HEAD), *range(run.count - TAIL, run.count)] for run in few.runs]
    given = [last[n] for n in kept[0]] + [last[one.count + n] for n in kept[1]]
    gone = [Vanished(Match(values), "") for values in given]  # type: ignore[arg-type]
    told = everywhere(gone, Moves(few, [], {}))
    assert sorted(sorted(each.match.values) for each in told) == ordered(last)
