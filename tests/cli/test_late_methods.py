"""Methods of dataclasses that are compiled late do what they do when they are compiled at once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from onnxfuse.cli.late_methods import COMPILES, compile_late

compiled: list[str] = []
"""The methods that have been compiled since the fixture began, by name."""


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    now = getattr(dataclasses, COMPILES, None)
    if now is None:
        pytest.skip("this Python compiles all methods of a class at once")

    def told(name: str, *given: Any, **options: Any) -> Any:
        compiled.append(name)
        return now(name, *given, **options)

    compiled.clear()
    monkeypatch.setattr(dataclasses, COMPILES, told)
    compile_late()


def test_nothing_is_compiled_that_nobody_calls() -> None:
    @dataclass(frozen=True, order=True)
    class Point:
        x: int
        y: int = 0

    assert not compiled
    assert Point(1) == Point(1, 0)
    assert Point(2) == Point(2)
    assert compiled == ["__init__", "__eq__"]
    assert (Point.__init__.__qualname__, Point.__init__.__code__.co_varnames) == (
        f"{Point.__qualname__}.__init__",
        ("self", "x", "y"),
    )


def test_methods_are_what_they_are() -> None:
    @dataclass(frozen=True, order=True)
    class Point:
        x: int
        y: int = 0
        words: list[str] = field(default_factory=list, compare=False)

    point = Point(1, words=["a"])
    assert repr(point) == f"{Point.__qualname__}(x=1, y=0, words=['a'])"
    assert repr(point) == repr(replace(point))
    assert (hash(point), point < Point(2), point >= Point(2)) == (hash(Point(1)), True, False)
    assert compiled.count("__repr__") == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Point(1, z=2)  # type: ignore[call-arg]


def test_a_method_is_that_of_the_class_that_has_it() -> None:
    @dataclass
    class Outer:
        x: int

        def __post_init__(self) -> None:
            self.twice = 2 * self.x

    class Plain(Outer):
        pass

    @dataclass(slots=True)
    class Inner(Outer):
        y: int

        def __post_init__(self) -> None:
            Outer.__post_init__(self)

    assert (Plain(3).twice, Outer(4).twice) == (6, 8)
    assert "__init__" not in vars(Plain)
    assert (Inner(1, 2).y, Inner(y=5, x=4).x) == (2, 4)
    assert compiled == ["__init__", "__init__"]
