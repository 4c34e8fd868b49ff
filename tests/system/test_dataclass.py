"""Dataclasses whose methods are compiled late behave as the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from onnxfuse.system.dataclass import dataclass

KINDS = [
    {},
    {"eq": False},
    {"slots": True},
    {"frozen": True},
    {"frozen": True, "eq": False},
    {"frozen": True, "slots": True},
    {"slots": True, "eq": False},
]


def point(decorator: Callable[..., Any], **kind: bool) -> Any:
    """A class with a field of every sort."""

    @decorator(**kind)
    class Point:
        label: ClassVar[str] = "p"
        x: int
        y: float = 2.0
        tags: list[str] = dataclasses.field(default_factory=list, hash=False)
        seen: int = dataclasses.field(default=0, compare=False, repr=False)
        last: int = dataclasses.field(default=7, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "seen", self.seen + self.x)

    return Point


def outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(kind) or "plain")
def test_as_the_standard_library(kind: dict[str, bool]) -> None:
    def behaviour(decorator: Callable[..., Any]) -> list[Any]:
        cls = point(decorator, **kind)
        a, b, other = cls(1), cls(1, 2.0, []), cls(1, 3.0, last=8)
        return [
            [f.name for f in dataclasses.fields(cls)],
            str(inspect.signature(cls)),
            cls.__init__.__annotations__,
            cls.__match_args__,
            hasattr(a, "__dict__"),
            dataclasses.asdict(other),
            (a == b, a == other, a == 1, a != b),
            (cls.__hash__ is None, cls.__hash__ is object.__hash__, cls.__eq__ is object.__eq__),
            outcome(lambda: hash(a) == hash(b)) if kind.get("eq", True) else None,
            repr(a),
            dataclasses.replace(a, y=5.0).y,
            a.tags is b.tags,
            a.seen,
            outcome(lambda: setattr(a, "x", 9)),
            outcome(lambda: delattr(a, "y")),
            outcome(lambda: setattr(a, "unheard", 9)) is None,  # Python 3.11 raises a TypeError of its own for slots
            copy.copy(other).last,
            copy.deepcopy(other).y,
            [type(outcome(lambda: cls())), outcome(lambda: cls(1, unheard=2))[0]],
        ]

    assert behaviour(dataclass) == behaviour(dataclasses.dataclass)


def test_numbers_that_are_not_equal_to_themselves_are_where_they_are_the_same_object() -> None:
    nan = float("nan")
    cls = point(dataclass)
    assert cls(1, nan) == cls(1, nan)
    assert cls(1, nan) != cls(1, float("nan"))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two."""

    left: int
    right: str = "r"


@dataclass(frozen=True)
class Longer:
    first: Pair
    second: Any = dataclasses.field(init=False, default=3)
    third: list[int] = dataclasses.field(init=False, default_factory=list)


@dataclass(frozen=True)
class Longest(Longer):
    fourth: int = 4

    def __repr__(self) -> str:
        return "own"


class Loose(Longer):
    pass


def test_a_frozen_object_with_slots_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Pair(1, "b"))) == Pair(1, "b")


def test_what_is_not_given_at_the_start() -> None:
    made = Longer(Pair(1))
    assert (made.second, made.third) == (3, [])
    assert made.third is not Longer(Pair(1)).third
    assert str(inspect.signature(Longer)) == "(first: 'Pair') -> None"


def test_what_derives_from_one() -> None:
    made = Longest(Pair(1))
    assert (repr(made), made.fourth, made.second) == ("own", 4, 3)
    assert made == Longest(Pair(1))
    assert made != Longer(Pair(1))
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'first'"):
        made.first = Pair(2)  # type: ignore[misc]
    loose: Any = Loose(Pair(1))
    loose.besides = 5
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'first'"):
        loose.first = Pair(2)


def test_a_hash_of_its_own_stays() -> None:
    @dataclass
    class Own:
        x: int

        def __hash__(self) -> int:
            return 12

    assert hash(Own(1)) == 12


def test_an_object_that_holds_itself_is_shown() -> None:
    @dataclass
    class Ring:
        next: Any = None

    ring = Ring()
    ring.next = ring
    assert repr(ring).endswith("Ring(next=...)")


def test_methods_are_compiled_when_they_are_called() -> None:
    @dataclass
    class Late:
        x: int

    def made() -> set[str]:
        return {name for name in ("__init__", "__repr__", "__eq__") if inspect.isfunction(vars(Late)[name])}

    assert made() == set()
    one = Late(1)
    assert made() == {"__init__"}
    assert one == Late(1)
    assert made() == {"__init__", "__eq__"}
    assert one.__init__.__qualname__.endswith("Late.__init__")  # type: ignore[misc]


def test_a_class_without_a_docstring_takes_its_name() -> None:
    assert Longer.__doc__ == "Longer"
    assert Pair.__doc__ == "Two."
