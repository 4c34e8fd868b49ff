"""The launch of a row kernel: operands and outputs in their places, and the arrangement that fits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.access import aligned, vector_of
from onnxfuse.kernels.device.device import Argument, Array, Device, Launch
from onnxfuse.kernels.device.types import TYPES

from .arrangement import SECTOR, arrange, arrange_sectors
from .source import ENTRY, Choice, Program, Reach, Slot, source

MOST_COLUMNS = 2**30
"""Columns are counted in 32 bits."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The operand of row r and column c is its element `(r % groups) * channels + c // divisor % modulus`."""

    divisor: int
    modulus: int
    groups: int = 1
    channels: int = 0


@dataclass(frozen=True, slots=True)
class Given:
    """An array in its place: an operand, spread where its reach says so, or an output.  The rows that are taken from a
    table begin again after `period`, see `Choice`."""

    array: Array
    spread: Spread | None = None
    period: int | None = None


def launch(
    device: Device,
    program: Program,
    rows: int,
    columns: int,
    given: Mapping[str, Given],
    scalars: Sequence[np.generic] = (),
) -> None:
    """Run a program on a matrix of rows.

    `given` has the operands by their names, `output`, and of `kept`, `mean` and `inverse` those that are asked for:
    what was read, and two float values for each row.  Raises KernelError if a row has more than 2^30 columns.
    """
    if columns > MOST_COLUMNS:
        raise KernelError(f"{program.file}: a row of {columns} elements is longer than 2^30")
    if not rows:
        return
    reaches = {operand.name: operand.reach for operand in program.operands}
    by_name = {
        name: g.array
        for name, g in given.items()
        if g.spread is None and name not in ("mean", "inverse") and not name.endswith("_index")
    }
    walked = list(by_name.values())
    vector = vector_of(walked[0].dtype.itemsize, (columns,), walked)
    itemsize, crowded = walked[0].dtype.itemsize, rows > 2 * device.multiprocessors
    if vector > 1 or not aligned(walked):
        how = arrange(columns, vector, itemsize, crowded, addresses=len(given))
    else:
        own = [a.dtype.itemsize for name, a in by_name.items() if reaches.get(name, Reach.ELEMENT) is Reach.ELEMENT]
        sector = SECTOR // min(own) if 2 * len(own) > len(walked) else 1  # what is not of rows begins at one anyway
        how = arrange_sectors(columns, sector, itemsize, crowded, addresses=len(given))
    slots = tuple(
        Slot(
            name,
            TYPES[g.array.dtype.name],
            Reach.SPREAD if g.spread else reaches.get(name, Reach.ELEMENT),
            g.spread is not None and g.spread.divisor % vector == 0,
            _choice(g, f"{name}_index" in given),
        )
        for name, g in given.items()
    )
    arguments: list[Argument] = []
    for name, g in given.items():
        arguments.append(g.array)
        if reaches.get(name) is Reach.GATHERED:
            arguments.append(np.int64(g.array.shape[0]))
            arguments += [] if g.period is None else [np.int64(g.period)]
        if g.spread:
            arguments += map(np.int32, (g.spread.divisor, g.spread.modulus, g.spread.groups, g.spread.channels))
    arguments += [np.int64(rows), np.int32(columns), *scalars]
    code = source(program, how, slots, how.even(columns))
    device.launch(Launch(code, ENTRY, (how.blocks(rows),), (how.threads,)), arguments)


def _choice(given: Given, indexed: bool) -> Choice:
    if given.period is None:
        return Choice.OWN
    return Choice.CYCLIC if indexed else Choice.COUNTED
