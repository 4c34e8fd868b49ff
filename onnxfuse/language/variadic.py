"""What a `*` in a rule stands for: a list with a value for each of any number of operands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


class Each(tuple[Any, ...]):
    """The values of one name, or of one expression behind a `*`, in the order of the operands."""


def one_by_one(values: Mapping[str, Any], names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """What names stand for, once for each operand: of the lists among `names` its value alone.

    Raises ValueError where these have different lengths, or none of them is one."""
    lists = {name: values[name] for name in sorted(names) if isinstance(values.get(name), Each)}
    counts = {len(value) for value in lists.values()}
    if len(counts) != 1:
        raise ValueError(f"{', '.join(lists)} differ in length" if lists else "no name in it stands for a list")
    for index in range(counts.pop()):
        yield {**values, **{name: value[index] for name, value in lists.items()}}


def spread(values: Sequence[Any]) -> list[Any]:
    """The operands of an op, those behind a `*` in their places."""
    return [one for value in values for one in (value if isinstance(value, Each) else (value,))]
