"""Kernels that work on the rows of a matrix: how threads share a row, and the code between memory and registers.

The device side of a family is a file such as row_norm.cu.  What it reads and writes is an `Expression` of operands each
time, so that what comes before (a residual sum, a bias, a gathered embedding) is computed on the read and what comes
after (scale, bias, activation, cast) on the write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np

from ..errors import KernelError
from .device import Array, Device, Source, address

TYPES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16", "int64": "long long", "int32": "int"}
HELD = 32
"""Elements of a row that a thread holds in registers at most: with the rest of the kernel, 64 registers, as many as
1,024 threads may have each."""
HELD_OF_WIDE = 16
"""The same where the row is longer, and as many elements again are on their way."""
RESIDENT_OF_ROWS = 768
"""Threads that a multiprocessor must have room for where a warp has rows of its own: up to 80 registers each."""
MOST_ITEMS = 16
"""Accesses of a thread at most: each has an address and a condition, too."""
MOST_CROWDED = 8
"""The same where more threads could share the row."""
WARPS_OF_ROWS = 4
"""Warps of a block where each has rows of its own."""
IN_FLIGHT = 64
"""Bytes that a thread has asked for before it waits for the first: an H200 needs about 32 KB for each multiprocessor,
and has about 1,000 threads there with the registers that these kernels take."""
MOST_COLUMNS = 2**30
"""Columns are counted in 32 bits."""


class Reach(Enum):
    """Which element of an operand belongs to an element of the matrix."""

    ELEMENT = "its own: the operand has the matrix's shape"
    COLUMN = "that of its column"
    SPREAD = "that which broadcasting or groups of channels give, see Spread"
    GATHERED = "that of its column in the row of a table that an index for each row names"


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that an expression reads, under the name it has there.  A gathered one is a table; its indices are an
    array named `{name}_index`, an integer for each row."""

    name: str
    reach: Reach = Reach.ELEMENT


@dataclass(frozen=True, slots=True)
class Expression:
    """A value for each element, computed in float32: C++ over the names of the operands, on the write also `value`.
    `functions` are the device functions that it calls."""

    text: str
    operands: tuple[Operand, ...] = ()
    functions: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """The operand of row r and column c is its element `(r % groups) * channels + c // divisor % modulus`."""

    divisor: int
    modulus: int
    groups: int = 1
    channels: int = 0


@dataclass(frozen=True, slots=True)
class Given:
    """An array in its place: an operand, spread where its reach says so, or an output."""

    array: Array
    spread: Spread | None = None


@dataclass(frozen=True, eq=False)
class Program:
    """A kernel family with its expressions.

    `file` defines a device function that `call` calls, as the file's header says; `scalars` are the names that `call`
    has besides `fused`, `rows` and `columns`, with their C types.  One object is one program: it is compared by
    identity.
    """

    file: str
    call: str
    read: Expression
    write: Expression
    scalars: tuple[tuple[str, str], ...] = ()
    defines: tuple[tuple[str, object], ...] = ()

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (*self.read.operands, *self.write.operands)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How threads share rows; rows.cuh says what each number means."""

    lanes: int
    threads: int
    """Of a block."""
    vector: int
    items: int
    wide: bool

    def blocks(self, rows: int) -> int:
        return -(-rows * self.lanes // self.threads) if self.lanes else rows


@lru_cache(maxsize=1024)
def arrange(columns: int, vector: int, itemsize: int, crowded: bool) -> Arrangement:
    """Threads for rows of so many columns, read `vector` elements of `itemsize` bytes at a time.  Where rows are not
    `crowded`, they alone do not keep the device busy: then each gets as many threads as it has use for."""
    vectors = max(1, -(-columns // vector))
    most = min(HELD // vector, MOST_ITEMS)
    if vectors <= 32 * most:
        lanes = min(32, 1 << (vectors - 1).bit_length())
        return Arrangement(lanes, 32 * WARPS_OF_ROWS, vector, -(-vectors // lanes), False)
    if vectors > 1024 * most:
        return Arrangement(0, 1024, vector, min(HELD_OF_WIDE // vector, MOST_CROWDED), True)
    least = -(-vectors // 1024)
    items = max(least, min(MOST_CROWDED, max(1, IN_FLIGHT // (vector * itemsize)))) if crowded else least
    threads = 32 * -(-vectors // (32 * items))
    return Arrangement(0, threads, vector, -(-vectors // threads), False)


def vector_of(columns: int, arrays: Sequence[Array]) -> int:
    """Elements of one access to arrays whose rows have so many columns: 16 bytes of the first, less where the length
    of the rows or an address forbids it."""
    vector = math.gcd(16 // arrays[0].dtype.itemsize, columns)
    for array in arrays:
        while vector > 1 and address(array) % min(16, vector * array.dtype.itemsize):
            vector //= 2
    return vector


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
    walked = [
        g.array
        for name, g in given.items()
        if g.spread is None and name not in ("mean", "inverse") and not name.endswith("_index")
    ]
    vector = vector_of(columns, walked)
    how = arrange(columns, vector, walked[0].dtype.itemsize, rows > 2 * device.multiprocessors)
    slots = tuple(
        Slot(
            name,
            TYPES[g.array.dtype.name],
            Reach.SPREAD if g.spread else reaches.get(name, Reach.ELEMENT),
            g.spread is not None and g.spread.divisor % vector == 0,
        )
        for name, g in given.items()
    )
    arguments: list[Array | np.generic] = []
    for name, g in given.items():
        arguments.append(g.array)
        if reaches.get(name) is Reach.GATHERED:
            arguments.append(np.int64(g.array.shape[0]))
        if g.spread:
            arguments += map(np.int32, (g.spread.divisor, g.spread.modulus, g.spread.groups, g.spread.channels))
    arguments += [np.int64(rows), np.int32(columns), *scalars]
    device.launch(source(program, how, slots), ENTRY, (how.blocks(rows),), (how.threads,), arguments)


# ------------------------------------------------------------------------------------------- generated code

ENTRY = "rows"
STORED = ("output", "kept", "mean", "inverse")


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter of the generated kernel.  `even` says that a vector of a spread operand is one element."""

    name: str
    type: str
    reach: Reach
    even: bool = False

    @property
    def members(self) -> list[str]:
        """Declarations, for the kernel's parameters and the members of `Fused` alike."""
        constant = "" if self.name in STORED else "const "
        made = [f"{constant}{self.type}* __restrict__ {self.name}"]
        if self.reach is Reach.GATHERED:
            made.append(f"long long {self.name}_rows")
        if self.reach is Reach.SPREAD:
            made += [f"int {self.name}_{number}" for number in ("divisor", "modulus", "groups", "channels")]
        return made

    def load(self) -> str:
        """Statements that put the operand's elements into the array `{name}_`."""
        name = self.name
        text = f"float {name}_[VECTOR];\n"
        if self.reach is Reach.ELEMENT:
            return text + f"load_floats({name}_, {name} + row * columns + column);\n"
        if self.reach is Reach.COLUMN:
            return text + f"load_floats({name}_, {name} + column);\n"
        if self.reach is Reach.GATHERED:
            chosen = f"chosen({name}_index[row], {name}_rows)"
            return text + f"load_row({name}_, {name}, {chosen}, column, columns);\n"
        group = f"row % {name}_groups * {name}_channels"
        if self.even:
            return text + f"fill({name}_, to_float({name}[{group} + column / {name}_divisor % {name}_modulus]));\n"
        index = f"{group} + (column + i) / {name}_divisor % {name}_modulus"
        return text + f"#pragma unroll\nfor (int i = 0; i < VECTOR; i++) {name}_[i] = to_float({name}[{index}]);\n"


POSITION = "long long row, int column, int columns"


@lru_cache(maxsize=4096)
def source(program: Program, how: Arrangement, slots: tuple[Slot, ...]) -> Source:
    """The translation unit: defines, the family's file, `Fused`, and the kernel."""
    by_name = {slot.name: slot for slot in slots}
    file = Source.file(
        program.file,
        LANES=how.lanes,
        VECTOR=how.vector,
        ITEMS=how.items,
        WIDE=int(how.wide),
        **dict(program.defines),
    )
    members = [member for slot in slots for member in slot.members]
    names = ", ".join(member.split()[-1] for member in members)
    parameters = ", ".join([*members, POSITION_OF_KERNEL, *(f"{kind} {name}" for kind, name in program.scalars)])
    bounds = 1 << (how.threads - 1).bit_length()
    resident = RESIDENT_OF_ROWS if how.lanes else 1024
    text = [
        *(e.functions for e in (program.read, program.write)),
        function("on_read", program.read, ()),
        function("on_write", program.write, ("value",)),
        "struct Fused {\n",
        *(f"{member};\n" for member in members),
        f"__device__ void read(float (&value)[VECTOR], {POSITION}) const {{\n",
        applied("on_read", program.read, by_name, ()),
        "}\n",
        f"__device__ void keep(const float (&value)[VECTOR], {POSITION}) const {{\n",
        "store_floats(kept + row * columns + column, value);\n" if "kept" in by_name else "",
        "}\n",
        f"__device__ void write(float (&value)[VECTOR], {POSITION}) const {{\n",
        applied("on_write", program.write, by_name, ("value",)),
        "store_floats(output + row * columns + column, value);\n}\n",
        "__device__ void statistics(long long row, float center, float scale) const {\n",
        "assign(mean[row], center);\n" if "mean" in by_name else "",
        "assign(inverse[row], scale);\n" if "inverse" in by_name else "",
        "}\n};\n",
        f'extern "C" __global__ void __launch_bounds__({bounds}, {resident // bounds}) {ENTRY}({parameters}) {{\n',
        f"const Fused fused{{{names}}};\n{program.call};\n}}\n",
    ]
    return Source(file.name, file.text + "".join(text))


POSITION_OF_KERNEL = "long long rows, int columns"


def function(name: str, expression: Expression, first: tuple[str, ...]) -> str:
    """The expression as a device function of its operands."""
    parameters = ", ".join(f"float {p}" for p in (*first, *(o.name for o in expression.operands)))
    return f"__device__ __forceinline__ float {name}({parameters}) {{ return {expression.text}; }}\n"


def applied(name: str, expression: Expression, slots: Mapping[str, Slot], first: tuple[str, ...]) -> str:
    """Statements that load the operands and put the expression's values into `value`."""
    loads = "".join(slots[o.name].load() for o in expression.operands)
    arguments = ", ".join(f"{p}[i]" for p in (*first, *(f"{o.name}_" for o in expression.operands)))
    return f"{loads}#pragma unroll\nfor (int i = 0; i < VECTOR; i++) value[i] = {name}({arguments});\n"
