"""An order of groups in which none waits for one behind it, kept while groups become one.

Whether one group waits for another is then a search among those between them, however long the graph is.  Two become
one as in Pearce and Kelly, "A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs" (JEA 11, 2006): of those
between them, what the later one waits for is moved before, and what waits for the earlier one behind.

    a  x  y  z  b   with x before b and z behind a   →   x  ab  y  z   (y has nothing to do with either)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

Neighbours = Callable[[int], Collection[int]]
"""The groups next to one, by their numbers."""


class Order:
    """Of groups by their numbers; `before` and `behind` each stand those that are next to it, which whoever asks tells:
    kept here they would be a circle, which nothing frees while Python's collector of circles is off."""

    def __init__(self) -> None:
        self.at: dict[int, int] = {}
        """Position of each; empty until it is asked for."""

    def forget(self) -> None:
        """Groups have changed in another way than that two became one."""
        self.at = {}

    def know(self, numbers: Iterable[int], before: Neighbours) -> None:
        """Find an order of these, unless one is known."""
        opened, pending = set[int](), [] if self.at else sorted(numbers, reverse=True)
        while pending:
            number = pending[-1]
            if number in opened or number in self.at:  # what it waits for is placed
                self.at.setdefault(pending.pop(), len(self.at))
                continue
            opened.add(number)
            pending += (other for other in before(number) if other not in opened)

    def reaches(self, first: Iterable[int], last: int, behind: Neighbours) -> bool:
        """Is `last` among the `first` or behind one of them?"""
        end, seen = self.at[last], set[int]()
        pending = list(first)
        while pending:
            number = pending.pop()
            if number == last:
                return True
            if number not in seen and self.at[number] < end:
                seen.add(number)
                pending += behind(number)
        return False

    def between(self, a: int, b: int, before: Neighbours, behind: Neighbours) -> list[list[int]]:
        """Of those between two groups: what the later one waits for, and what waits for the earlier one, in order."""
        if not self.at:
            return [[], []]
        first, last = sorted((a, b), key=self.at.__getitem__)
        return [self._window(last, before, (first, last)), self._window(first, behind, (first, last))]

    def _window(self, number: int, neighbours: Neighbours, ends: tuple[int, int]) -> list[int]:
        low, high = (self.at[end] for end in ends)
        found, pending = set[int](), [number]
        while pending:
            for other in neighbours(pending.pop()):
                if other not in found and low < self.at[other] < high:
                    found.add(other)
                    pending.append(other)
        return sorted(found, key=self.at.__getitem__)

    def join(self, a: int, b: int, whole: int, between: list[list[int]]) -> None:
        """Two are one, which has the number `whole`; `between` is what they had between them."""
        if not self.at:
            return
        before, behind = between
        places = sorted(self.at[number] for number in (a, b, *before, *behind))
        del self.at[a], self.at[b]
        self.at |= zip((*before, whole, *behind), places, strict=False)  # one place is free
