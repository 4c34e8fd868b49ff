"""The code between memory and the registers of a row kernel, generated around a file such as row_norm.cu.

What the kernel reads and what it writes is an `Expression` of operands each time, so that what comes before (a residual
sum, a bias, a gathered embedding) is computed on the read, and what comes after (scale, bias, activation, cast) on the
write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from onnxfuse.kernels.device.device import Source

from .arrangement import Arrangement

ENTRY = "rows"
STORED = ("output", "kept", "mean", "inverse")
"""Parameters that are written; each but the first only where it is asked for."""


class Reach(Enum):
    """Which element of an operand belongs to an element of the matrix."""

    ELEMENT = "its own: the operand has the matrix's shape"
    COLUMN = "that of its column"
    SPREAD = "that which broadcasting or groups of channels give, see Spread"
    GATHERED = "that of its column in the row of a table that an index for each row names"


class Choice(Enum):
    """Which row of its table a gathered operand has for a row of the matrix."""

    OWN = "that which an array of indices says, one for each row"
    CYCLIC = "the same, and the indices begin again after `period` rows"
    COUNTED = "the rows of the table in turn, from the first again after `period` rows"


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that an expression reads, under the name it has there.  A gathered one is a table; its indices, where a
    `Choice` has any, are an array of integers named `{name}_index`."""

    name: str
    reach: Reach = Reach.ELEMENT


@dataclass(frozen=True, slots=True)
class Expression:
    """A value for each element, computed in float32: C++ over the names of the operands, on the write also `value`.
    `functions` are the device functions that it calls."""

    text: str
    operands: tuple[Operand, ...] = ()
    functions: str = ""

    @classmethod
    def of(cls, name: str, function: str, operands: tuple[Operand, ...], first: tuple[str, ...] = ()) -> Expression:
        """What pointwise's `device_function` wrote: its arguments are `first` (on the write, `value`), the operands and
        a reference to the result."""
        names = (*first, *(operand.name for operand in operands))
        parameters = ", ".join(f"float {n}" for n in names)
        result = f"float y; {name}({', '.join((*names, 'y'))}); return y;"
        value = f"__device__ __forceinline__ float value_of_{name}({parameters}) {{ {result} }}\n"
        return cls(f"value_of_{name}({', '.join(names)})", operands, f"{function}\n{value}")


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
class Slot:
    """A parameter of the generated kernel.

    `even` says that a vector of a spread operand is one element, `choice` which rows a gathered one has."""

    name: str
    type: str
    reach: Reach
    even: bool = False
    choice: Choice = Choice.OWN

    @property
    def members(self) -> list[str]:
        """Declarations, for the kernel's parameters and the members of `Fused` alike."""
        constant = "" if self.name in STORED else "const "
        made = [f"{constant}{self.type}* __restrict__ {self.name}"]
        if self.reach is Reach.GATHERED:
            made.append(f"long long {self.name}_rows")
            made += [f"long long {self.name}_period"] if self.choice is not Choice.OWN else []
        if self.reach is Reach.SPREAD:
            made += [f"int {self.name}_{number}" for number in ("divisor", "modulus", "groups", "channels")]
        return made

    def load(self, partial: bool = False) -> str:
        """Statements that put the operand's elements into the array `{name}_`; vectors may be `partial`."""
        name = self.name
        text = f"float {name}_[VECTOR];\n"
        if partial and self.reach is Reach.ELEMENT:
            return text + f"load_part({name}_, {name}, row * columns + column, elements);\n"
        if partial and self.reach is Reach.COLUMN:
            return text + f"load_columns({name}_, {name}, column, columns);\n"
        if self.reach is Reach.ELEMENT:
            return text + f"load_floats({name}_, {name} + row * columns + column);\n"
        if self.reach is Reach.COLUMN:
            return text + f"load_floats({name}_, {name} + column);\n"
        if self.reach is Reach.GATHERED:
            turn = "row" if self.choice is Choice.OWN else f"row % {name}_period"
            index = turn if self.choice is Choice.COUNTED else f"{name}_index[{turn}]"
            chosen = f"chosen({index}, {name}_rows)"
            return text + f"load_row({name}_, {name}, {chosen}, column, columns);\n"
        group = f"row % {name}_groups * {name}_channels"
        if self.even:
            return text + f"fill({name}_, to_float({name}[{group} + column / {name}_divisor % {name}_modulus]));\n"
        index = f"{group} + (column + i) / {name}_divisor % {name}_modulus"
        return text + f"#pragma unroll\nfor (int i = 0; i < VECTOR; i++) {name}_[i] = to_float({name}[{index}]);\n"


STORE = "store_floats({0} + row * columns + column, value);\n"
POSITION = "long long row, int column, int columns"
"""Parameters of the functions that reach memory."""


@lru_cache(maxsize=4096)
def source(program: Program, how: Arrangement, slots: tuple[Slot, ...], even: bool = False) -> Source:
    """The translation unit: defines, the family's file, `Fused`, and the kernel; `even` says that no thread of a row
    has columns behind its last."""
    by_name = {slot.name: slot for slot in slots}
    partial = how.sector > 1 and how.vector > 1
    store = "store_part({0} + row * columns, value, column, columns);\n" if partial else STORE
    file = Source.file(
        program.file,
        LANES=how.lanes,
        VECTOR=how.vector,
        ITEMS=how.items,
        WIDE=int(how.wide),
        EVEN=int(even),
        SECTOR=how.sector,
        **dict(program.defines),
    )
    members = [member for slot in slots for member in slot.members]
    names = ", ".join([*(member.split()[-1] for member in members), *(["rows * columns"] if partial else [])])
    parameters = ", ".join(
        [*members, "long long rows, int columns", *(f"{kind} {name}" for kind, name in program.scalars)]
    )
    bounds = ", ".join(map(str, how.bounds))
    text = [
        *(e.functions for e in (program.read, program.write)),
        function("on_read", program.read, ()),
        function("on_write", program.write, ("value",)),
        "struct Fused {\n",
        *(f"{member};\n" for member in members),
        "long long elements;\n" if partial else "",
        f"__device__ void read(float (&value)[VECTOR], {POSITION}) const {{\n",
        applied("on_read", program.read, by_name, (), partial),
        "}\n",
        f"__device__ void keep(const float (&value)[VECTOR], {POSITION}) const {{\n",
        store.format("kept") if "kept" in by_name else "",
        "}\n",
        f"__device__ void write(float (&value)[VECTOR], {POSITION}) const {{\n",
        applied("on_write", program.write, by_name, ("value",), partial),
        store.format("output") + "}\n",
        "__device__ void statistics(long long row, float center, float scale) const {\n",
        "assign(mean[row], center);\n" if "mean" in by_name else "",
        "assign(inverse[row], scale);\n" if "inverse" in by_name else "",
        "}\n};\n",
        f'extern "C" __global__ void __launch_bounds__({bounds}) {ENTRY}({parameters}) {{\n',
        f"const Fused fused{{{names}}};\n{program.call};\n}}\n",
    ]
    return Source(file.name, file.text + "".join(text))


def function(name: str, expression: Expression, first: tuple[str, ...]) -> str:
    """The expression as a device function of its operands."""
    parameters = ", ".join(f"float {p}" for p in (*first, *(o.name for o in expression.operands)))
    return f"__device__ __forceinline__ float {name}({parameters}) {{ return {expression.text}; }}\n"


def applied(
    name: str, expression: Expression, slots: Mapping[str, Slot], first: tuple[str, ...], partial: bool = False
) -> str:
    """Statements that load the operands and put the expression's values into `value`; vectors may be `partial`."""
    loads = "".join(slots[o.name].load(partial) for o in expression.operands)
    arguments = ", ".join(f"{p}[i]" for p in (*first, *(f"{o.name}_" for o in expression.operands)))
    return f"{loads}#pragma unroll\nfor (int i = 0; i < VECTOR; i++) value[i] = {name}({arguments});\n"
