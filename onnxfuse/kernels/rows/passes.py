"""The kernel of several reductions of rows: a schedule's passes as CUDA C++, and the launch that sums columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfuse.kernels.device.access import ACCESS
from onnxfuse.kernels.device.device import Array, Device, Launch, Source, TensorType
from onnxfuse.kernels.pointwise.expressions.carried import Carried, Functions, Stored
from onnxfuse.kernels.pointwise.expressions.index import LANE
from onnxfuse.kernels.pointwise.expressions.scalars import FLOAT, Scalar
from onnxfuse.kernels.pointwise.expressions.substitute import Substitution
from onnxfuse.kernels.pointwise.loops import bytes_read, reached

from .arrangement import Arrangement, arrange, arrange_across, arrange_sectors
from .fused import CROWDED
from .places import Matrix, PlaceError, kinds_of
from .quotients import Quotients
from .schedule import Pass, Reduction, Schedule, Varies, schedule
from .turned import Turned, turned
from .vectors import SINGLE, Layout, Moves

ENTRY, SUMS = "row_passes", "column_sums"
DEPTH = 8
"""Threads that share the parts of a column, as row_passes.cu has it."""
PARTS = 4
"""Blocks of a multiprocessor at most that have a part of the sums of columns each."""
OPS = {
    "SUM": ("sum", "Add", "{a} += {{}};"),
    "MEAN": ("sum", "Add", "{a} += {{}};"),
    "MAX": ("top", "Highest", "{a} = maximum({a}, {{}});"),
    "MIN": ("low", "Lowest", "{a} = minimum({a}, {{}});"),
}
"""Kind of a reduction → the array that its values are taken together in, how, and how one more is."""


@dataclass(frozen=True)
class Columns:
    """The launch behind the passes: `count` sums of each column, and what is stored of them."""

    count: int
    columns: int
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    parameters: tuple[np.generic, ...]


@dataclass(frozen=True)
class Passes:
    """One launch, or two where columns are summed; numbers of arrays as in a `Loop`."""

    source: Source
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: tuple[np.generic, ...]
    how: Arrangement
    rows: int
    read: int
    """Bytes."""
    flops: int
    sums: Columns | None = None
    tiles: Turned | None = None

    @property
    def launches(self) -> int:
        return 1 if self.sums is None else 2

    def run(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        """Launch it on the arrays of a node."""
        given = [*(inputs[k] for k in self.inputs), *(outputs[k] for k in self.outputs), *self.parameters]
        blocks, sums, tiles = self.how.blocks(self.rows), self.sums, self.tiles
        if sums is None:
            blocks, shared = (blocks, 0) if tiles is None else (tiles.blocks(self.rows), tiles.shared)
            device.launch(Launch(self.source, ENTRY, (blocks,), (self.how.threads,), shared), given)
            return
        blocks = min(blocks, device.multiprocessors * min(PARTS, self.how.bounds[1]))
        with device.scratch(4 * blocks * sums.count * sums.columns) as parts:
            device.launch(Launch(self.source, ENTRY, (blocks,), (self.how.threads,)), [*given, parts])
            own = [*(inputs[k] for k in sums.inputs), *(outputs[k] for k in sums.outputs), *sums.parameters]
            launch = Launch(self.source, SUMS, (-(-sums.columns // 32),), (32, DEPTH))
            device.launch(launch, [*own, parts, np.int32(blocks)])


def passes(
    matrix: Matrix,
    reductions: Sequence[Reduction],
    sums: Sequence[Reduction],
    stores: Sequence[Stored],
    inputs: Sequence[TensorType],
    aligned: bool = True,
) -> Passes:
    """The launches for some reductions of the rows of a matrix, sums of its columns and what is stored, of arrays of
    these types.  Raises PlaceError where something needs sums of columns and elements of rows."""
    behind = behind_sums(reductions, sums, stores)
    varies = Varies()
    plain = _Work(reductions, sums, [stored for stored in stores if stored not in behind])
    plain = plain.made(Quotients(matrix.scalars, lambda s: not varies(s)), {})
    own, roots = plain.stores, plain.elements
    used, columns = reached(roots), matrix.columns
    first, last = kinds_of(used, inputs), kinds_of(reached([s.element for s in behind]), inputs)
    moves = Moves(matrix.scalars, matrix.rows, columns, [s for s in used if s.kind == "load"], own, first)
    tiles = None if sums else turned(moves, aligned)
    layout = SINGLE if tiles else moves.along(aligned) if sums else moves.layout(aligned)
    work = plain.moved(matrix, layout)
    plan = schedule(work.reductions, work.sums, work.stores, layout=layout)
    sector = moves.sector() if layout == SINGLE and aligned and not sums else 1
    arrays = max(1, len(plan.registers) + len(sums))
    how = (
        tiles.arrangement(sector, arrays) if tiles else _arranged(moves, layout, sector, arrays, len(first) + len(own))
    )
    if how.wide:
        plan = schedule(work.reductions, work.sums, work.stores, hold=False, layout=layout)
    text = _text(plan, work.sums, behind, how, first, last, tiles)
    file = Source.file(
        "row_turned.cu" if tiles else "row_passes.cu",
        LANES=how.lanes,
        VECTOR=how.vector,
        ITEMS=how.items,
        WIDE=int(how.wide),
        EVEN=int(how.even(columns)),
        ACROSS=how.across,
        THREADS=how.threads,
        SECTOR=how.sector,
    )
    rows, count = matrix.rows // layout.width if layout.across else matrix.rows, matrix.rows * columns
    ordered = [stored for one in plan.passes for stored in one.stores] + list(plan.once)
    return Passes(
        Source(file.name, file.text + text.first + text.second),
        tuple(first),
        tuple(stored.number for stored in ordered),
        (*text.carried.values, np.int64(rows), np.int32(columns), *(tiles.parameters if tiles else ())),
        how,
        rows,
        bytes_read(used, inputs, count),
        count * (sum(s.flops for s in used) + len(reductions) + len(sums)),
        Columns(len(sums), columns, tuple(s.number for s in behind), tuple(last), (*text.after, np.int32(columns)))
        if sums
        else None,
        tiles,
    )


@dataclass(frozen=True)
class _Work:
    """What is reduced, of rows and of columns, and what is stored."""

    reductions: Sequence[Reduction]
    sums: Sequence[Reduction]
    stores: Sequence[Stored]

    @property
    def elements(self) -> list[Scalar]:
        return [*(s.element for s in self.stores), *(r.element for r in (*self.reductions, *self.sums))]

    def moved(self, matrix: Matrix, layout: Layout) -> _Work:
        """In the lanes of vectors.  Where these are rows, each has results of its own."""
        if layout.width == 1:
            return self
        names = {r.name: f"{r.name}[v]" if layout.across else r.name for r in self.reductions}
        depends = LANE if layout.across else 0
        lanes = layout.lanes(
            matrix.scalars,
            matrix.rows if layout.across else matrix.columns,
            lambda name: matrix.scalars.argument(names.get(name, name), FLOAT, depends),
        )
        return self.made(lanes, names)

    def made(self, of: Substitution, names: Mapping[str, str]) -> _Work:
        """Of other elements; results may have other names."""
        reductions, sums = (
            [Reduction(r.kind, of.scalar(r.element), names.get(r.name, r.name)) for r in each]
            for each in (self.reductions, self.sums)
        )
        stores = [Stored(s.number, s.dtype, of.scalar(s.element), of.index(s.place)) for s in self.stores]
        return _Work(reductions, sums, stores)


def _arranged(moves: Moves, layout: Layout, sector: int, arrays: int, addresses: int) -> Arrangement:
    if layout.across:
        return arrange_across(moves.columns, layout.width, moves.itemsize(), arrays, layout.mixed, moves.crooked())
    itemsize = max(ACCESS // layout.width, 4) if layout.width == 1 else ACCESS // layout.width
    if sector > 1:
        return arrange_sectors(moves.columns, 1, sector, itemsize, moves.rows > CROWDED, arrays, addresses)
    return arrange(moves.columns, layout.width, itemsize, moves.rows > CROWDED, arrays, addresses)


def behind_sums(reductions: Sequence[Reduction], sums: Sequence[Reduction], stores: Sequence[Stored]) -> list[Stored]:
    """What is stored of sums of columns.  Raises PlaceError where that needs results of rows as well."""
    columns, rows = ({one.name for one in some} for some in (sums, reductions))
    behind = [stored for stored in stores if _arguments(stored.element) & columns] if sums else []
    if any(_arguments(stored.element) & rows for stored in behind):
        raise PlaceError("what is behind sums of columns needs results of rows")
    return behind


def _arguments(element: Scalar) -> set[str]:
    return {s.payload for s in reached([element]) if s.kind == "argument"}


@dataclass(frozen=True)
class _Text:
    first: str
    second: str
    carried: Carried
    after: tuple[np.generic, ...]


def _text(
    plan: Schedule,
    sums: Sequence[Reduction],
    behind: Sequence[Stored],
    how: Arrangement,
    inputs: Mapping[int, str],
    read_behind: Mapping[int, str],
    tiles: Turned | None,
    wide: bool = False,
) -> _Text:
    """Both kernels; numbers, never sizes, are in the text."""
    read, written = (tiles.read, tiles.written) if tiles else ({}, {})
    functions, after = Functions(inputs, wide, how.vector, read, written), Functions(read_behind, wide)
    body = _row(plan, sums, how, functions)
    if tiles:
        turn = tiles.around(body, functions, how)
    elif sums:
        turn = _turns(["const Row me = row_of(turn, rows, columns);", *body], len(sums), how)
    else:
        turn = ["const Row me = own_row(rows, columns);", *body]
    stored = after.stores(behind)
    if not (wide or (functions.narrow and after.narrow)):
        return _text(plan, sums, behind, how, inputs, read_behind, tiles, True)
    carried, carried_after = functions.carried(), after.carried()
    given = [*carried.parameters, "long long rows", "int columns", *(["float* parts"] if sums else [])]
    given += tiles.names if tiles else []
    head = f'extern "C" __global__ void __launch_bounds__({", ".join(map(str, how.bounds))}) {ENTRY}('
    first = [*carried.head, head, ",\n".join(given) + ") {", *carried.divisors, *turn, "}\n"]
    return _Text("\n".join(first), _second(carried_after, stored, len(sums)), carried, carried_after.values)


def _turns(turn: Sequence[str], count: int, how: Arrangement) -> list[str]:
    """What a block does with rows in turn, and the sums of its columns behind that."""
    part = "parts + (static_cast<long long>(blockIdx.x) * {} + {}) * columns"
    sums = [f"float total{k}[ITEMS][VECTOR] = {{}};" for k in range(count)] if not how.wide else []
    sums += [f"float* const part{k} = {part.format(count, k)};" for k in range(count)]
    at_once = "1" if how.lanes == 0 else "blockDim.x / LANES"
    loop = f"for (long long turn = blockIdx.x; turn * ({at_once}) < rows; turn += gridDim.x) {{"
    again = ["__syncthreads();"] if how.lanes == 0 else []  # what is reduced next has the same shared memory
    own = "row_of(0, rows, columns), columns"
    after = [] if how.wide else [f"add_rows(total{k}, {own}, part{k});" for k in range(count)]
    return [*sums, loop, *turn, *again, "}", *after]


def _second(carried: Carried, stored: Sequence[str], count: int) -> str:
    """The kernel that sums the parts of blocks."""
    if not count:
        return ""
    head = [line for line in carried.head if "typedef" not in line]
    given = [*carried.parameters, "int columns", "const float* parts", "int count"]
    return "\n".join(
        [
            *head,
            f'extern "C" __global__ void __launch_bounds__({32 * DEPTH}) {SUMS}(',
            ",\n".join(given) + ") {",
            *carried.divisors,
            "const int column_ = blockIdx.x * 32 + threadIdx.x;",
            f"float total[{count}];",
            "add_parts(total, parts, count, column_, columns);",
            "if (threadIdx.y || column_ >= columns) return;",
            "const Index column = static_cast<Index>(column_);",
            *(f"const float sum{k}_ = total[{k}];" for k in range(count)),
            *stored,
            "}\n",
        ]
    )


def _row(plan: Schedule, sums: Sequence[Reduction], how: Arrangement, functions: Functions) -> list[str]:
    """All that is done to a row."""
    lines = ["const Index row = static_cast<Index>(me.live ? me.index : 0);"]
    lines += [f"{kind} {name}[ITEMS][VECTOR];" for name, kind in plan.registers.items()]
    lines += [f"{kind} {name};" for name, kind in plan.own.items()]
    for number, one in enumerate(plan.passes):
        lines += _pass(number, one, sums, how, functions)
    if plan.once:
        stored = functions.statements((), plan.once, plan.last, once=not how.across)
        lines += ["if (me.live && me.lane == 0) {", *stored, "}"]
    return lines


def _pass(number: int, one: Pass, sums: Sequence[Reduction], how: Arrangement, functions: Functions) -> list[str]:
    """One pass over a row, and the results of its reductions."""
    before, v = dict(one.known.items() - one.own.items()), "v" if how.vector > 1 else "0"
    each = f" * VECTOR + {v}" if how.across else ""
    own = functions.statements([(s, f"{name} = {{}};") for s, name in one.own.items()], (), before, once=not how.across)
    lines = ["{", *own, "}"] if one.own else []
    found: dict[str, list[Reduction]] = {}
    uses: list[tuple[Scalar, str]] = []
    for reduction in one.reduced:
        array, _, more = OPS[reduction.kind]
        group = found.setdefault(array, [])
        uses.append((reduction.element, more.format(a=f"{array}{number}[{len(group)}{each}]")))
        group.append(reduction)
    for reduction in one.summed:
        k = sums.index(reduction)
        added = f"turn == blockIdx.x ? {{0}} : part{k}[column_ + {v}] + {{0}}"
        held = f"total{k}[item][{v}] += {{}};"
        uses.append((reduction.element, f"part{k}[column_ + {v}] = {added};" if how.wide else held))
    uses += [(s, f"{name} = {{}};") for s, name in one.held.items()]
    for array, group in found.items():
        op = OPS[group[0].kind][1]
        size = f"{len(group)} * VECTOR" if how.across else len(group)
        lines.append(f"float {array}{number}[{size}];\nfill({array}{number}, {op}().identity());")
    lines += [
        "for (int start = 0; start == 0 || (WIDE && start < columns); start += span()) {",
        "#pragma unroll",
        "for (int item = 0; item < ITEMS; item++) {",
        "const int column_ = column_of(me, start, item);",
        "if (me.live && inside(column_, columns)) {",
        "const Index column = static_cast<Index>(column_ / ALONG);",
        *functions.statements(uses, one.stores, one.known),
        "}",
        *(["abreast();"] if how.sector > 1 else []),
        "}\n}",
    ]
    for array, group in found.items():
        lines.append(f"row_reduce<{number}>({array}{number}, {OPS[group[0].kind][1]}());")
        for k, reduction in enumerate(group):
            whole = " / static_cast<float>(columns)" if reduction.kind == "MEAN" else ""
            if reduction.name.endswith("]"):
                lines.append(f"float {reduction.name.replace('[v]', '[VECTOR]')};\n#pragma unroll")
                lines.append(f"for (int v = 0; v < VECTOR; v++) {reduction.name} = {array}{number}[{k}{each}]{whole};")
            else:
                lines.append(f"const float {reduction.name} = {array}{number}[{k}{each}]{whole};")
    return lines
