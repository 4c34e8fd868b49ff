"""What kernels of each family cost on a card, counted without one, beside what is aimed at.

    python -m onnxfuse.kernels.inspect.traffic [WORDS]    count and print the cases whose names have all words;
                                                          without words, write traffic.json and docs/traffic.md

Each case of `cases` is a launch, or a few that follow each other, on small arrays: the emulator counts what its
accesses cost (emulator/counts.py), NVRTC and nvdisasm what its code needs.  Both tables are committed, and the tests
hold every kernel to them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
from onnx import parser

from onnxfuse.kernels.device.device import Array, TensorType
from onnxfuse.kernels.device.kernel import Kernel
from onnxfuse.kernels.device.recorder import MULTIPROCESSORS
from onnxfuse.kernels.emulator.counts import Counts
from onnxfuse.kernels.emulator.device import Emulated

from . import instructions, nvrtc
from .cases import CASES, WAVEFRONTS, Case
from .launches import launches, resident

TABLE = Path(__file__).parent / "traffic.json"
PAGE = Path(__file__).parents[3] / "docs" / "traffic.md"
BEGIN, END = "<!-- made by python -m onnxfuse.kernels.inspect.traffic -->", "<!-- until here -->"
SLACK = 0.005
"""By which a figure may be above what the table says, which has two digits."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a case: sectors of global memory and wavefronts of shared memory for each that is needed, bytes that blocks
    move for each that all of them must."""

    sectors: float
    wavefronts: float
    moved: float

    def worse(self, now: Figures) -> list[str]:
        """What is above these figures, each with both."""
        pairs = {name: (getattr(self, name), getattr(now, name)) for name in self.__slots__}
        return [f"{name}: {old}, now {new}" for name, (old, new) in pairs.items() if new > old + SLACK]


@dataclass(frozen=True, slots=True)
class Code:
    """Of the first launch of a case: registers, bytes spilled, instructions for each element written, bytes of an
    access of global memory, and blocks that a multiprocessor runs at a time."""

    registers: int
    spilled: int
    instructions: float
    access: float
    resident: int


Table = Mapping[str, tuple[Figures, Mapping[str, Code]]]
"""Case → its figures, and what its code needs on each architecture."""


def kernel_of(case: Case) -> Kernel:
    """The kernel of an op, or that of a region's body."""
    from onnxfuse import kernels

    if not case.op.startswith("("):
        return kernels.find(case.op)(case.attributes)
    body = parser.parse_function(f'<opset_import: ["": 20], domain: "onnxfuse"> Region_1 {case.op}')
    return kernels.of_region(body, [t.name for t in case.types], [case.dtype.name] * len(body.output))({})


def _aligned(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> np.ndarray:
    """Zeros at a multiple of 256 bytes, as arrays on a card begin."""
    count = math.prod(shape) * dtype.itemsize
    memory = np.zeros(count + 256, np.uint8)
    start = -memory.ctypes.data % 256
    return memory[start : start + count].view(dtype).reshape(shape)


def counted(case: Case) -> list[Counts]:
    """What the emulator counts of each launch of a case."""
    kernel, random = kernel_of(case), np.random.default_rng(0)
    inputs = [_aligned(shape, dtype) for shape, dtype in zip(case.shapes, case.types, strict=True)]
    for array in inputs:
        array[...] = random.standard_normal(array.shape) if array.dtype.kind not in "bi" else array.dtype.kind == "b"
    types = kernel.outputs([TensorType(a.dtype, a.shape) for a in inputs])
    wanted = case.asked(types)
    outputs: list[Array | None] = [_aligned(t.shape, t.dtype) for t in types[:wanted]]
    device = Emulated()
    with device.counting() as counts:
        kernel.launch(device, inputs, [*outputs, *[None] * (len(types) - wanted)])
    return counts


def figures(counts: Sequence[Counts]) -> Figures:
    """Of the launches of a case together."""
    excess = {}
    for space in ("global", "shared"):
        found = [one.total(space) for one in counts]
        units, ideal = sum(f.units for f in found), sum(f.ideal for f in found)
        excess[space] = round(units / ideal, 2) if ideal else 1.0
    moved = sum(one.moved for one in counts) / max(sum(one.compulsory for one in counts), 1)
    return Figures(excess["global"], excess["shared"], round(moved, 2))


def code(case: Case, architecture: str) -> Code:
    """Of the first launch of a case, at sizes that are typical of it.

    Raises KernelError with the compiler's first error, and DependencyError without NVRTC or nvdisasm."""
    kernel = kernel_of(case)
    types = [TensorType(dtype, shape) for shape, dtype in zip(case.large or case.shapes, case.types, strict=True)]
    made = kernel.outputs(types)
    wanted = [place < case.asked(made) for place in range(len(made))]
    launch = launches(kernel, types, MULTIPROCESSORS, wanted)[0]
    needs = nvrtc.resources(launch.source, architecture)[launch.entry]
    found = instructions.counted(launch.source, architecture)[launch.entry]
    return Code(
        needs.registers,
        needs.spill_loads + needs.spill_stores,
        round(found.per_element(made[0].dtype.itemsize) or 0.0, 1),
        round(found.bytes_per_access, 1),
        resident(architecture, launch.threads, needs.registers, needs.shared + launch.shared),
    )


def committed() -> Table:
    """The table in traffic.json."""
    kernels = json.loads(TABLE.read_text())["kernels"]
    return {
        name: (Figures(*found["figures"]), {a: Code(*needs) for a, needs in found["code"].items()})
        for name, found in kernels.items()
    }


def misses(case: Case, found: Figures) -> bool:
    """Whether accesses cost more than is aimed at."""
    return any(value > goal + SLACK for value, goal in _aimed(case, found))


def _aimed(case: Case, found: Figures) -> Sequence[tuple[float, float]]:
    return (found.sectors, case.goal), (found.wavefronts, WAVEFRONTS)


def page(table: Table) -> str:
    """The tables of docs/traffic.md, one for each family."""
    lines = []
    for family in dict.fromkeys(case.family for case in CASES.values()):
        lines += ["", f"### {family}", "", *HEAD]
        for name, case in CASES.items():
            if case.family == family:
                lines.append(_row(case, *table[name]))
    missed = [f"- {name}: {case.why}." for name, case in CASES.items() if misses(case, table[name][0])]
    told = ["What misses its goal, and why:", "", *missed] if missed else ["All of them reach their goals."]
    return "\n".join([*lines, "", *told, ""])


HEAD = (
    "| | sectors | goal | wavefronts | bytes moved | instructions an element, sm_80, 90, 100 | bytes an access "
    "| registers | spilled | blocks at a time |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def _row(case: Case, found: Figures, needs: Mapping[str, Code]) -> str:
    each = list(needs.values())
    one = needs["sm_90"]
    aimed = _aimed(case, found)
    sectors, wavefronts = (f"**{value:.2f}**" if value > goal + SLACK else f"{value:.2f}" for value, goal in aimed)
    cells = (
        sectors,
        f"{case.goal:.2f}",
        wavefronts,
        f"{found.moved:.2f}",
        ", ".join(f"{c.instructions:.1f}" for c in each),
        f"{one.access:.1f}",
        ", ".join(str(c.registers) for c in each),
        str(max(c.spilled for c in each)),
        str(one.resident),
    )
    return f"| {case.name} | {' | '.join(cells)} |"


def paged(text: str, made: str) -> str:
    """The page with what stands between its marks made anew."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{made}{END}{rest.split(END)[1]}"


def main(words: Sequence[str] = ()) -> int:
    """Count the cases whose names have all words, and print them; write both tables where that is everything."""
    found: dict[str, tuple[Figures, dict[str, Code]]] = {}
    for name, case in CASES.items():
        if all(word in name or word == case.family for word in words):
            found[name] = figures(counted(case)), {a: code(case, a) for a in nvrtc.architectures()}
            print(_row(case, *found[name]))
    if not words:
        plain = {
            name: {"figures": astuple(f), "code": {a: astuple(c) for a, c in of.items()}}
            for name, (f, of) in found.items()
        }
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in plain.items())
        TABLE.write_text(f'{{\n "kernels": {{\n{lines}\n }}\n}}\n')
        PAGE.write_text(paged(PAGE.read_text(), page(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
