"""The loop over tiles that are turned in shared memory as CUDA C++; `stage`, `load_word` and `store_word` are those of
staged.cuh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onnxfuse.kernels.device.types import TYPES

from .expressions.index import Guard, Index, divide, variable
from .expressions.scalars import Scalar
from .expressions.source import NARROW_LIMIT, OPENING, Text, Writer, division, table
from .staged import Plan, Staged, Walk

HEADER = "staged.cuh"
THREADS = 256
"""Of a block."""


class Lines(Writer):
    """Writes the elements of one row after another, each by itself."""

    def _square(self, number: int, offset: Index, guard: Guard) -> str:
        return ""


def text(
    entry: str,
    inputs: Mapping[int, str],
    elements: Sequence[tuple[str, Scalar]],
    used: Sequence[Scalar],
    plan: Plan,
    wide: bool = False,
) -> Text:
    """The kernel of a plan; parameters as `source.kernel` has them, with tiles in place of vectors.  `elements` are the
    element type and the expression of each output, `used` all that these are computed from."""
    first = Lines(inputs, wide=wide, positions=False)
    writers = [first]

    def writer() -> Lines:
        made = Lines(inputs, 1, wide, tables=first.tables, numbers=first.numbers, divisors=first.divisors)
        made.positions = False
        writers.append(made)
        return made

    lines = _tile(first, plan)
    for k, staged in enumerate(plan.staged):
        lines += _stage(writer(), k, staged, plan)
    lines += ["__syncthreads();", *_results(writer(), elements, used, plan), "__syncthreads();"]
    if not wide and max(w.largest for w in writers) >= NARROW_LIMIT:
        return text(entry, inputs, elements, used, plan, wide=True)
    head = [f"const {TYPES[dtype]}* __restrict__ in{k}" for k, dtype in inputs.items()]
    head += [f"{TYPES[dtype]}* __restrict__ out{k}" for k, (dtype, _) in enumerate(elements)]
    head += ["Index count", *(f"Index {name}" for name in first.numbers.values())]
    integer = np.int64 if wide else np.int32
    parameters: list[np.generic] = [integer(n) for n in (plan.tiles, *first.numbers)]
    prepared = []
    for n, name in first.divisors.items():
        head += [f"int {name}_number, unsigned {name}_multiplier, int {name}_shift"]
        prepared.append(f"const Divisor {name} = {{{name}_number, {name}_multiplier, {name}_shift}};")
        parameters += division(n)
    body = [
        f"\ntypedef {'long long' if wide else 'int'} Index;\n",
        *(table(name, *content) for content, name in first.tables.items()),
        OPENING.format(entry) + "\n" + ",\n".join(f"    {h}" for h in head) + ") {",
        *(f"    {line}" for line in (*_shared(inputs, plan), *prepared)),
        "    for (Index j = blockIdx.x; j < count; j += gridDim.x) {",
        *(f"        {line}" for line in lines),
        "    }",
        "}\n",
    ]
    return Text("\n".join(body), tuple(parameters), True, tuple(head))


def _shared(inputs: Mapping[int, str], plan: Plan) -> list[str]:
    """Tiles: a line of each for a column."""
    sizes = [(TYPES[inputs[s.number]], plan.lines * s.stride(plan.turn.column)) for s in plan.staged]
    return [f"__shared__ {kind} tile{k}[{size}];" for k, (kind, size) in enumerate(sizes)]


def _tile(writer: Lines, plan: Plan) -> list[str]:
    """Which tile is the one of `j`."""
    turn = plan.turn
    rest, across = divide(variable("j", plan.tiles), -(-turn.columns // plan.columns))
    outer, down = divide(rest, -(-turn.rows // plan.rows))
    starts = {
        "outer": writer.index(outer),
        "first_row": writer.index(down * plan.rows),
        "first_column": writer.index(across * plan.columns),
    }
    counts = {
        "rows": (plan.rows, turn.rows, "first_row"),
        "columns": (plan.columns, turn.columns, "first_column"),
    }
    return [
        *writer.outer,
        *(f"const Index {name} = {start};" for name, start in starts.items()),
        *(
            f"const Index {name} = minimum<Index>({writer.number(most)}, {writer.number(whole)} - {start});"
            for name, (most, whole, start) in counts.items()
        ),
    ]


def _stage(writer: Lines, k: int, staged: Staged, plan: Plan) -> list[str]:
    """The segments of a tile on their way to shared memory."""
    turn, offset, walk, stride = plan.turn, staged.offset, staged.walk, staged.stride(plan.turn.column)
    start = writer.index(Index(offset.const, {a: c for a, c in offset.terms.items() if a != turn.row}))
    size = writer.number(staged.load.payload[3])
    return [
        "{",
        *writer.outer,
        f"stage<{walk.lanes}, {walk.turns}, {_start(walk)}, {stride}, {_whole(staged.load, walk)}>(",
        f"    tile{k}, in{staged.number}, columns, rows, {size}, [&](Index line) {{",
        "        const Index column = first_column + line;",
        *(f"        {line}" for line in writer.inner),
        f"        return {start} + first_row;",
        "    });",
        "}",
    ]


def _start(walk: Walk) -> str:
    """Of what its first words are multiples, and elements of a word."""
    return f"{1 if walk.aligned else walk.sector}, {walk.word}"


def _whole(load: Scalar, walk: Walk) -> str:
    """Whether an array is whole words."""
    return "true" if load.payload[3] % walk.word == 0 else "false"


def _results(writer: Lines, elements: Sequence[tuple[str, Scalar]], used: Sequence[Scalar], plan: Plan) -> list[str]:
    """Rows of results, each in words."""
    turn, walk, place = plan.turn, plan.walk, plan.place
    for k, staged in enumerate(plan.staged):
        period, stride = staged.walk.period, staged.stride(turn.column)
        at = f"within * {stride} + (({writer.index(staged.offset)}) & {period - 1})"
        writer.statement(staged.load, "t", staged.load.type, f"value(tile{k}[{at}])", staged.load.depends)
    beside = [s for s in used if s.kind == "load" and s.payload[1] == place and not s.payload[2]]
    words = []
    for k, load in enumerate(beside):
        number, size = load.payload[0], writer.number(load.payload[3])
        words.append(f"{TYPES[writer.dtypes[number]]} word{k}[{walk.word}];")
        words.append(f"load_word<{_whole(load, walk)}>(word{k}, in{number}, at, {size});")
        writer.statement(load, "t", load.type, f"value(word{k}[v])", load.depends)
    results = [f"Rounded<{TYPES[dtype]}>::of({writer.scalar(s)})" for dtype, s in elements]
    start = writer.index(Index(place.const, {a: c for a, c in place.terms.items() if a != turn.column}))
    return [
        "{",
        *writer.outer,
        f"for (Index top = threadIdx.x / 32 * {32 // walk.lanes}; top < rows; top += {THREADS // walk.lanes}) {{",
        f"    const Index line = top + static_cast<int>(threadIdx.x % 32 / {walk.lanes}), row = first_row + line;",
        *(f"    {line}" for line in writer.middle),
        f"    const Index begin = {start} + first_column, end = begin + columns;",
        "    #pragma unroll",
        f"    for (int turn = 0; turn < {walk.turns}; ++turn) {{",
        f"        const Index at = word_of<{walk.lanes}, {_start(walk)}>(begin, turn);",
        f"        if (line < rows && at < end && at + {walk.word} > begin) {{",
        *(f"            {line}" for line in words),
        *(f"            {TYPES[dtype]} y{k}[{walk.word}];" for k, (dtype, _) in enumerate(elements)),
        "            #pragma unroll",
        f"            for (int v = 0; v < {walk.word}; ++v) {{",
        f"                const Index within = inside<{walk.word}>(at + v - begin, v, columns);",
        "                const Index column = first_column + within;",
        *(f"                {line}" for line in writer.inner),
        *(f"                y{k}[v] = {result};" for k, result in enumerate(results)),
        "            }",
        *(f"            store_word(out{k}, y{k}, at, begin, end);" for k in range(len(elements))),
        "        }",
        "        __syncwarp();",
        "    }",
        "}",
        "}",
    ]
