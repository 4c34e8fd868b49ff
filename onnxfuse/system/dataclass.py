"""Dataclasses that are quick to import: their methods are compiled when one of them is first called.

The standard library compiles up to six functions for each dataclass while its module is imported, of which a command
calls few: for two hundred classes that is an eighth of a short command.  Fields, `replace`, `asdict`, matching and
slots are the standard library's; a type checker sees its decorator.

An `InitVar` or an order is not had here, and `__dataclass_params__` says nothing of what is added: a frozen dataclass
of the standard library cannot derive from one of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

Method = Callable[..., Any]

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True):
        """What `dataclasses.dataclass` makes of a class, later.  The arguments mean what they mean there."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, slots=slots, eq=eq)
        documented = cls.__doc__ is not None
        if not documented:
            cls.__doc__ = cls.__name__  # else its signature, which takes long to find out
        explicit_hash = _has_hash(cls)
        cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots)
        names = ["__init__", "__repr__", *(["__eq__"] if eq else [])]
        if eq and frozen and not explicit_hash:
            names.append("__hash__")
        for name in names:
            if name == "__hash__" or name not in vars(cls):
                setattr(cls, name, _Later(cls, name, frozen))
        if eq and not frozen and not explicit_hash:
            cls.__hash__ = None
        if frozen:
            cls.__setattr__, cls.__delattr__ = _refusals(cls)
            if slots:
                cls.__getstate__, cls.__setstate__ = _state_of, _set_state
        return cls


class _Absent:
    def __repr__(self) -> str:
        return "<factory>"


ABSENT = _Absent()
"""The default of a parameter for which something is made; signatures show it as the standard library's."""


class _Later:
    """Stands for a method until it is asked for."""

    def __init__(self, cls: type, name: str, frozen: bool) -> None:
        self.cls, self.name, self.frozen = cls, name, frozen

    def __get__(self, instance: object, owner: type) -> Any:
        method = MADE[self.name](self.cls, self.frozen)
        method.__module__, method.__qualname__ = self.cls.__module__, f"{self.cls.__qualname__}.{self.name}"
        setattr(self.cls, self.name, method)
        return method.__get__(instance, owner)


def _has_hash(cls: type) -> bool:
    """Has the class a `__hash__` of its own?  Python sets None for a class that has an `__eq__` alone."""
    if "__hash__" not in vars(cls):
        return False
    return not (vars(cls)["__hash__"] is None and "__eq__" in vars(cls))


def _compiled(head: str, body: Sequence[str], known: dict[str, Any]) -> Method:
    """The function of a text, which knows these names."""
    exec(f"def {head}:\n " + "\n ".join(body or ["pass"]), known)
    made: Method = known[head.partition("(")[0]]
    return made


def _init(cls: type, frozen: bool) -> Method:
    known: dict[str, Any] = {"_set": object.__setattr__, "_absent": ABSENT}
    parameters, by_keyword, body = list[str](), list[str](), list[str]()
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        given = name
        if field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = field.default_factory
            given, value = f"{name}=_absent", f"_make_{name}() if {name} is _absent else {name}"
            if not field.init:
                value = f"_make_{name}()"
        elif field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            given = f"{name}=_default_{name}"
            if not field.init:
                continue  # the class has it
        elif not field.init:
            continue
        if field.init:
            (by_keyword if field.kw_only else parameters).append(given)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    if by_keyword:
        parameters += ["*", *by_keyword]
    made = _compiled(f"__init__({', '.join(['self', *parameters])})", body, known)
    made.__annotations__ = {f.name: f.type for f in dataclasses.fields(cls) if f.init} | {"return": None}
    return made


def _repr(cls: type, frozen: bool) -> Method:
    shown = ", ".join(f"{f.name}={{self.{f.name}!r}}" for f in dataclasses.fields(cls) if f.repr)
    made = _compiled("__repr__(self)", [f"return self.__class__.__qualname__ + f'({shown})'"], {})
    return recursive_repr()(made)


def _eq(cls: type, frozen: bool) -> Method:
    names = [f.name for f in dataclasses.fields(cls) if f.compare]
    body = [
        "if other.__class__ is not self.__class__:",
        " return NotImplemented",
        f"return {_tuple('self', names)} == {_tuple('other', names)}",
    ]
    return _compiled("__eq__(self, other)", body, {})


def _hash(cls: type, frozen: bool) -> Method:
    names = [f.name for f in dataclasses.fields(cls) if (f.compare if f.hash is None else f.hash)]
    return _compiled("__hash__(self)", [f"return hash({_tuple('self', names)})"], {})


def _tuple(owner: str, names: Sequence[str]) -> str:
    return "(" + "".join(f"{owner}.{name}, " for name in names) + ")"


MADE = {"__init__": _init, "__repr__": _repr, "__eq__": _eq, "__hash__": _hash}
"""What makes each method of a class, which is frozen or not."""


def _refusals(cls: Any) -> tuple[Method, Method]:
    """`__setattr__` and `__delattr__` of a frozen class; what derives from it may have attributes besides."""
    names = frozenset(f.name for f in dataclasses.fields(cls))

    def __setattr__(self: Any, name: str, value: Any) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


def _state_of(self: Any) -> list[Any]:
    """What is pickled of a frozen object with slots."""
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: Sequence[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
