"""The launch of a row kernel: operands and outputs in their places, and the arrangement that fits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.access import ACCESS, aligned, vector_of
from onnxfuse.kernels.device.device import Argument, Array, Device, Launch
from onnxfuse.kernels.device.types import TYPES

from .arrangement import SECTOR, Arrangement, arrange, arrange_sectors
from .source import ENTRY, Choice, Program, Reach, Slot, source

FEW, FEW_ALONE = 64, 400
"""Columns below which vectors at the ends of rows are too many among all; and below which they are of ENOUGH bytes, but
where an operand of columns is beside them."""
ENOUGH = 8
"""Bytes of an access with which a row may begin anywhere in a sector."""
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
    walked = {
        name: (g.array, reaches.get(name, Reach.ELEMENT))
        for name, g in given.items()
        if g.spread is None and name not in ("mean", "inverse") and not name.endswith("_index")
    }
    spread = any(g.spread for g in given.values())
    how = _arranged(list(walked.values()), columns, rows > 2 * device.multiprocessors, spread, len(given))
    slots = tuple(
        Slot(
            name,
            TYPES[g.array.dtype.name],
            Reach.SPREAD if g.spread else reaches.get(name, Reach.ELEMENT),
            g.spread is not None and g.spread.divisor % how.vector == 0,
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


def _arranged(
    walked: Sequence[tuple[Array, Reach]], columns: int, crowded: bool, spread: bool, addresses: int
) -> Arrangement:
    """Threads for rows of these arrays, by the widest accesses that rows begin at, or else by lanes that begin at
    sectors: by vectors where all are of rows or of columns, and none is `spread`; by single elements where more is of
    rows than of columns, which begin at a sector anyway."""
    arrays, reaches = [array for array, _ in walked], [reach for _, reach in walked]
    itemsize = arrays[0].dtype.itemsize
    vector = vector_of(itemsize, (columns,), arrays)
    if vector * itemsize >= ENOUGH or not aligned(arrays):
        return arrange(columns, vector, itemsize, crowded, addresses=addresses)
    sizes = {array.dtype.itemsize for array in arrays}
    if columns >= FEW and not spread and len(sizes) == 1 and {Reach.ELEMENT, Reach.COLUMN} >= set(reaches):
        short = columns < FEW_ALONE and Reach.COLUMN not in reaches
        access, sector = max(1, (ENOUGH if short else ACCESS) // itemsize), SECTOR // itemsize
        found = arrange_sectors(columns, access, sector, itemsize, crowded, addresses=addresses)
        if found.sector > 1:
            return found
    if vector > 1 or 2 * reaches.count(Reach.ELEMENT) <= len(reaches):
        return arrange(columns, vector, itemsize, crowded, addresses=addresses)
    return arrange_sectors(columns, 1, SECTOR // min(sizes), itemsize, crowded, addresses=addresses)


def _choice(given: Given, indexed: bool) -> Choice:
    if given.period is None:
        return Choice.OWN
    return Choice.CYCLIC if indexed else Choice.COUNTED
