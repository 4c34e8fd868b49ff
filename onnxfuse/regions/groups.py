"""Sets of launches that are to run together, and what each reads and writes at every stage of a partition.

A launch may be in several groups, which then compute it again; the tensors that it makes are written by one of them,
where anything outside needs them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from onnxfuse.matching.cost import launches_of
from onnxfuse.model.dims import Dim

from .order import Order
from .scope import Kind, Launch, Scope

_place = attrgetter("index")


@dataclass(eq=False)
class Group:
    """Launches in their order.  `number` tells groups apart: that of the first launch it began with."""

    number: int
    launches: list[Launch]
    made: AbstractSet[str]
    reads: Mapping[str, int]
    """Tensors of other groups, and inputs of the scope → bytes."""
    waits: AbstractSet[str]
    """The tensors of other groups, and inputs of the scope, that it waits for."""
    kinds: AbstractSet[Kind]
    matrix: AbstractSet[Dim]
    """The numbers of elements of the rows that it reduces and of the results, or of its product; else none."""
    reduced: int
    """About how many elements the rows have that it reduces."""
    early: bool = False
    """Of a training step: does the loss wait for it?"""

    @staticmethod
    def of(number: int, launches: Sequence[Launch], *, early: bool = False) -> Group:
        """What these launches are together."""
        made = {name for launch in launches for name in launch.makes}
        reads: dict[str, int] = {}
        for launch in launches:
            for name, size in launch.reads.items():
                if name not in made:
                    reads[name] = max(reads.get(name, 0), size)
        return Group(
            number,
            list(launches),
            made,
            reads,
            {name for launch in launches for name in launch.waits} - made,
            {launch.kind for launch in launches},
            {size for launch in launches for size in launch.sizes},
            max((launch.elements for launch in launches if launch.kind == "rows"), default=0),
            early,
        )

    def joined(self, other: Group) -> Group:
        """Both as one, found from what is known of each: a group is made anew for every launch that joins it."""
        launches = dict.fromkeys(sorted((*self.launches, *other.launches), key=_place))
        made = self.made | other.made
        reads = {name: size for name, size in self.reads.items() if name not in made}
        for name, size in other.reads.items():
            if name not in made:
                reads[name] = max(reads.get(name, 0), size)
        return Group(
            min(self.number, other.number),
            list(launches),
            made,
            reads,
            (self.waits | other.waits) - made,
            self.kinds | other.kinds,
            self.matrix | other.matrix,
            max(self.reduced, other.reduced),
            self.early or other.early,
        )

    @property
    def fixed(self) -> bool:
        return "fixed" in self.kinds

    @property
    def rows(self) -> bool:
        """Does it reduce rows?"""
        return "rows" in self.kinds

    @property
    def product(self) -> bool:
        """Is there a product of matrices in it?"""
        return "product" in self.kinds

    @cached_property
    def indices(self) -> list[int]:
        """Those of its nodes."""
        return [launch.index for launch in self.launches]

    @cached_property
    def transcendental(self) -> bool:
        return any(launch.transcendental for launch in self.launches)

    @cached_property
    def ops(self) -> int:
        """How many it computes."""
        return sum(len(launch.ops) for launch in self.launches)

    @cached_property
    def nodes(self) -> int:
        """Most nodes of its body."""
        return sum(launch.nodes for launch in self.launches)

    @cached_property
    def most(self) -> int:
        """Most launches that it may take: two where a node has sums over all rows, as gradients of a scale are."""
        return max(launches_of(launch.node) for launch in self.launches)

    @property
    def first(self) -> int:
        return self.launches[0].index

    @property
    def last(self) -> int:
        return self.launches[-1].index


@dataclass(frozen=True)
class Spread:
    """What was before users of a group began to compute its results themselves."""

    group: Group
    users: list[Group]
    writers: Mapping[str, int]


class Groups:
    """All groups of a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.of: dict[int, Group] = {}
        self.users: dict[str, set[int]] = {}
        """Tensors → the groups that read each from memory; those that none reads are not there."""
        self.waiting: dict[str, set[int]] = {}
        """Tensors → the groups that wait for each, which may ask it for its shape alone."""
        self.writer: dict[str, int] = {}
        """Tensors → the group that writes each, if anything asks for it."""
        self.order = Order()
        for launch in scope.launches:
            self._enter(Group.of(launch.index, [launch], early=launch.index in scope.forward))

    def __iter__(self) -> Iterator[Group]:
        return iter([self.of[number] for number in sorted(self.of)])

    def _enter(self, group: Group) -> None:
        self.of[group.number] = group
        for name in group.reads:
            self.users.setdefault(name, set()).add(group.number)
        for name in group.waits:
            self.waiting.setdefault(name, set()).add(group.number)
        for name in group.made:
            if self.writer.get(name) not in self.of:
                self.writer[name] = group.number

    def _leave(self, group: Group) -> None:
        del self.of[group.number]
        for name in group.reads:
            self._forget(self.users, name, group)
        for name in group.waits:
            self._forget(self.waiting, name, group)

    @staticmethod
    def _forget(asking: dict[str, set[int]], name: str, group: Group) -> None:
        asking[name].discard(group.number)
        if not asking[name]:
            del asking[name]

    def readers(self, name: str) -> AbstractSet[int]:
        """The groups that read a tensor from memory."""
        return self.users.get(name, frozenset())

    def wanted(self, group: Group) -> AbstractSet[str]:
        """Those of a group's tensors that something may read from memory: of a large group they are few."""
        return (group.made & self.users.keys()) | (group.made & self.scope.needed)

    def written(self, group: Group, within: Iterable[int] = ()) -> list[str]:
        """The tensors that a group writes, had those `within` become part of it."""
        own, wanted = {group.number, *within}, self.wanted(group)
        made = (name for launch in group.launches for name in launch.makes if name in wanted)
        return [name for name in made if self.writer[name] in own and self._left(name, own)]

    def _left(self, name: str, own: AbstractSet[int]) -> bool:
        """Is a tensor asked for when all that some groups do is done?"""
        return name in self.scope.needed or not self.readers(name) <= own

    def asked(self, name: str, a: Group, b: Group) -> bool:
        """Would two groups as one have to write a tensor that they make?"""
        own = {a.number, b.number}
        return self.writer[name] in own and self._left(name, own)

    def join(self, a: Group, b: Group) -> Group:
        """Make one group of two."""
        whole, own = a.joined(b), (a.number, b.number)
        between = self.order.between(*own, self._before, self._behind)
        self._leave(a)
        self._leave(b)
        for name in a.made | b.made:
            if self.writer[name] in own:
                self.writer[name] = whole.number
        self._enter(whole)
        self.order.join(*own, whole.number, between)
        return whole

    def spread(self, group: Group, names: Collection[str]) -> Spread:
        """Let every user of some of a group's results compute again what it needs of the group, which keeps what its
        other results need."""
        numbers = sorted({user for name in names for user in self.readers(name)})
        others = [name for name in self.written(group) if name not in names]
        done = Spread(group, [self.of[number] for number in numbers], {name: self.writer[name] for name in group.made})
        self.order.forget()
        self._leave(group)
        for user in done.users:
            launches = {launch.index: launch for launch in (*needed(group.launches, user.reads), *user.launches)}
            self._leave(user)
            self._enter(Group.of(user.number, [launches[index] for index in sorted(launches)], early=user.early))
        rest = needed(group.launches, others)
        if rest:
            self._enter(Group.of(group.number, rest, early=group.early))
            kept = {name for launch in rest for name in launch.makes}
            self.writer |= dict.fromkeys(kept, group.number)
        return done

    def gather(self, spread: Spread) -> None:
        """Undo that."""
        self.order.forget()
        for number in {spread.group.number, *(user.number for user in spread.users)} & self.of.keys():
            self._leave(self.of[number])
        for each in (spread.group, *spread.users):
            self._enter(each)
        self.writer |= spread.writers

    def traffic(self, group: Group) -> int:
        """About how many bytes of activations and constants a group moves."""
        weights = sum(launch.weights for launch in group.launches)
        return sum(group.reads.values()) + weights + sum(map(self.scope.bytes, self.written(group)))

    def sources(self, group: Group) -> set[int]:
        """The groups whose results a group reads."""
        found = {self.writer[name] for name in group.reads if name in self.writer}
        return found - {group.number}

    def targets(self, group: Group) -> set[int]:
        """The groups that read what a group writes."""
        names = (name for name in group.made & self.users.keys() if self.writer[name] == group.number)
        return {user for name in names for user in self.users[name]} - {group.number}

    def following(self, group: Group) -> set[int]:
        """The groups that wait for what a group writes."""
        names = (name for name in group.made & self.waiting.keys() if self.writer[name] == group.number)
        return {user for name in names for user in self.waiting[name]} - {group.number}

    def awaited(self, group: Group) -> set[int]:
        """The groups that write what a group waits for."""
        found = {self.writer.get(name, group.number) for name in group.waits}
        return {number for number in found if number in self.of} - {group.number}

    def _before(self, number: int) -> set[int]:
        return self.awaited(self.of[number])

    def _behind(self, number: int) -> set[int]:
        return self.following(self.of[number])

    def longer(self, a: Group, b: Group) -> int:
        """About how many more bytes would live between forward and backward of a training step, were two groups one.

        As one with what the loss waits for, a backward group would give its results before the loss; what it alone
        reads of forward would be needed no longer.  What it waits for itself comes first, too."""
        if a.early == b.early:
            return 0
        late = b if a.early else a
        if any(not self.of[number].early for number in self.sources(late)):
            return sum(map(self.scope.bytes, late.made)) + 1
        more = (name for name in self.written(late) if self._late_readers(name) - {late.number})
        less = (
            name
            for name in late.reads
            if name in self.writer and self._late_readers(name) == {late.number} and name not in self.scope.needed
        )
        return sum(map(self.scope.bytes, more)) - sum(map(self.scope.bytes, less))

    def _late_readers(self, name: str) -> set[int]:
        return {number for number in self.readers(name) if not self.of[number].early}

    def reaches(self, a: Group, b: Group, *, direct: bool = True) -> bool:
        """Does `b` wait for `a`?  Not `direct`: by way of others."""
        self.order.know(self.of, self._before)
        first = [number for number in self.following(a) if direct or number != b.number]
        return self.order.reaches(first, b.number, self._behind)

    def together(self, a: Group, b: Group) -> set[Dim]:
        """The numbers of elements that two groups would write as one."""
        return self.sizes(name for name in self.wanted(a) | self.wanted(b) if self.asked(name, a, b))

    def sizes(self, names: Iterable[str]) -> set[Dim]:
        """The numbers of elements of tensors."""
        return {number for name in names if (number := self.scope.numel(name)) is not None}

    def elements(self, group: Group) -> int:
        """About how many elements a group computes: of rows those that it reads, else those that it writes."""
        if group.rows:
            return group.reduced
        return max(map(self.scope.elements, self.written(group) or group.made), default=0)


def needed(launches: Sequence[Launch], read: Iterable[str]) -> list[Launch]:
    """Those of the launches that give what is read, and what they need."""
    asked, found = set(read), list[Launch]()
    for launch in reversed(launches):
        if asked.intersection(launch.makes):
            found.append(launch)
            asked.update(launch.reads)
    return found[::-1]
