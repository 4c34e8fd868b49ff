"""What a compiled kernel executes, counted without a GPU: instructions, accesses by their width, conversions.

    python -m onnxfuse.kernels.inspect.instructions [WORDS]    count and print; without words, write instructions.json

Counted is one way through the machine code that nvdisasm prints: the one that multiplies and moves most, with no step
that the common case leaves out; a loop is walked through once.  Beside it stands the main loop alone: of all loops the
one with most products of matrices, or else the one that moves most bytes.  The table is committed, and the tests hold
every kernel to it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from onnxfuse.kernels.device.device import Source
from onnxfuse.kernels.device.types import DTYPES

from . import nvrtc
from .nvrtc import compiled, of, samples
from .sass import Instruction, disassembled, functions, loops, version, way

TABLE = Path(__file__).parent / "instructions.json"

COUNTED = re.compile(
    r"Attention (float16 (64|80|128)|bfloat16 128|float32 64|float16 64 one query)"
    r"|Attention float16 (64|128) (one warpgroup|(warpgroups|tensor memory)( (boolean|added) mask)?)"
    r"|Attention float16 ((64|128) (boolean|added) mask|128 turned|parts|present( turned)?)"
    r"|AttentionGrad (float16 (64|128)( added mask)?|float32 64)( of keys and values)?"
    r"|(SoftmaxCrossEntropy(Loss)?|GroupNormalization|Embedding)Grad float16"
    r"|FusedMatMul float16 (large|medium|few rows|large transposed|large odd|(large|few rows) partial|after .*)"
    r"|FusedMatMul float16 large (bare|Relu|Swish|Tanh|FastGelu|Gelu)"
    r"|FusedMatMul float16 warpgroups( bare| transposed| narrow| maps( transposed| narrow)?)?"
    r"|FusedMatMul float16 tensor memory( bare| transposed| narrow)?"
    r"|Region product (normalised )?float16 (large|warpgroups( maps)?|tensor memory|after .*)"
    r"|Siblings float16 (large|warpgroups( maps)?|tensor memory)"
    r"|Gated float16 (medium|warpgroups( maps)?|tensor memory)"
    r"|FusedMatMul float32 large|(Gelu|SwiGLU|GeGLU|PRelu|Transpose|RotaryEmbedding) .*float16|Gelu flat .*"
    r"|SkipLayerNormalization float16 (warp|block|wide)|LayerNormalization float16 (16k|odd)"
    r"|Softmax float16 (warp|columns|slabs)|(GroupNormalization|Region .*) float16"
)
"""The names of sources that stand for the others: to read one takes nvdisasm half a second."""

CONVERSIONS = ("F2F", "F2FP", "F2I", "I2F", "I2FP", "F2IP", "I2IP")
GLOBAL_READS, GLOBAL_WRITES, COPIES = ("LDG",), ("STG", "RED"), ("LDGSTS",)
ACCESSES = (*GLOBAL_READS, *GLOBAL_WRITES, *COPIES, "LDS", "LDSM", "STS")
WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1, "16": 2, "8": 1}
WARPGROUP, WARPS = re.compile(r"HGMMA\.(\d+)x(\d+)x(\d+)\."), 4
"""A product by a warpgroup, and its warps."""
TENSOR, HELD = "UTCHMMA", "tmem"
"""One with its sums in tensor memory, of 128 rows and 16 of k, and where its first operand is if not in shared
memory."""
COLUMNS = re.compile(r"^#define (TILE_N|KEYS|HEAD_V) (\d+)$", re.MULTILINE)
HMMA = (16, 8, 16)
SPECIAL = "MUFU"
MASKING = ("R2P", "HADD2.F32")
"""What only a mask takes in a loop of products: bits of a boolean one become predicates, halves numbers."""
WORD = 4
"""Bytes of an access that does not say how wide it is, of a matrix of LDSM for each lane."""


class Tensor(NamedTuple):
    """As how many HMMA of a warp a product counts whose sums are in tensor memory: with its first operand in shared
    memory, and in tensor memory."""

    shared: int
    held: int


@dataclass(frozen=True, slots=True)
class Way:
    """What a thread executes: instructions, products of matrices among them (HMMA, m16n8k16; one by a warpgroup counts
    as so many as each of its warps would need, one of a tile in tensor memory as each of two warpgroups' warps), bytes
    of global memory that it reads, writes, and copies to shared memory, and `special` functions (MUFU: exponentials,
    reciprocals)."""

    instructions: int
    products: int
    read: int
    written: int
    copied: int
    special: int = 0

    @property
    def moved(self) -> int:
        return self.read + self.written + self.copied


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one `__global__` function; `masked` is the way through the main loop of products that applies a mask to each
    score; accesses ("LDG 16", with their bytes) and conversions are of the whole way."""

    whole: Way
    loop: Way | None
    accesses: Mapping[str, int]
    conversions: int
    barriers: int
    masked: Way | None = None

    @property
    def main(self) -> Way:
        """What most of the time is spent in."""
        return self.loop or self.whole

    @property
    def per_product(self) -> float | None:
        """Instructions of the main loop for each product of matrices (HMMA) in it."""
        return self.main.instructions / self.main.products if self.main.products else None

    @property
    def masked_per_product(self) -> float | None:
        """The same where a mask is applied."""
        return self.masked.instructions / self.masked.products if self.masked else None

    def per_element(self, itemsize: int) -> float | None:
        """Instructions for each element that is written, of so many bytes: of the main loop where it writes, else of
        what is around it."""
        if self.loop is not None and self.loop.written:
            return self.loop.instructions / (self.loop.written / itemsize)
        around = self.whole.instructions - (self.loop.instructions if self.loop else 0)
        return around / (self.whole.written / itemsize) if self.whole.written else None

    @property
    def bytes_per_access(self) -> float:
        """Of global memory."""
        wide = {k: n for k, n in self.accesses.items() if k.split()[0] in ("LDG", "STG", "RED", "LDGSTS")}
        return sum(int(k.split()[1]) * n for k, n in wide.items()) / max(sum(wide.values()), 1)


def width(instruction: Instruction) -> int:
    """Bytes of a thread's access; of LDSM its share of the matrices."""
    modifiers = instruction.op.split(".")[1:]
    if instruction.name == "LDSM":
        return WORD * int(next((m for m in modifiers if m in ("2", "4")), 1))
    return next((WIDTHS[m] for m in modifiers if m in WIDTHS), WORD)


def _moves(i: Instruction) -> bool:
    """Whether an access is one.  A copy that may be of zeros is two instructions, of which one copies nothing."""
    return not (i.name in COPIES and i.operands.endswith("!PT"))


def _bytes(code: Sequence[Instruction], names: Sequence[str]) -> int:
    return sum(width(i) for i in code if i.name in names and _moves(i))


def _walked(
    code: Sequence[Instruction], first: int, last: int, tensor: Tensor, masks: bool = False
) -> tuple[Way, list[Instruction]]:
    """A way through a loop, or through all; loops inside it are for what is left over, where they can be left out.  It
    applies `masks` where that is said and any way does."""
    within = {
        id(i)
        for a, b in loops(code)
        if first <= a and b <= last and (a, b) != (first, last) and first
        for i in code[a : b + 1]
    }
    moves = (*GLOBAL_READS, *GLOBAL_WRITES, *COPIES)

    def weigh(i: Instruction) -> tuple[int, ...]:
        masked = masks and i.op.startswith(MASKING)
        return (_products(i, tensor), masked, -(id(i) in within), width(i) if i.name in moves and _moves(i) else 0)

    _, walked = way(code, first, last, weigh)
    found = Way(
        len(walked),
        sum(_products(i, tensor) for i in walked),
        _bytes(walked, GLOBAL_READS),
        _bytes(walked, GLOBAL_WRITES),
        _bytes(walked, COPIES),
        sum(i.name == SPECIAL for i in walked),
    )
    return found, walked


def _products(i: Instruction, tensor: Tensor) -> int:
    if i.name == TENSOR:
        return tensor.held if i.operands.startswith(HELD) else tensor.shared
    if shape := WARPGROUP.match(i.op):
        return prod(map(int, shape.groups())) // WARPS // prod(HMMA)
    return int(i.name == "HMMA")


def of_tile(source: Source) -> Tensor:
    """As how many products those of a source count whose sums are in tensor memory: they do not say their size.  Two
    warpgroups compute such a tile, each of whose warps has 16 rows of it."""
    columns = {name: int(size) // HMMA[1] for name, size in COLUMNS.findall(source.text)}
    return Tensor(columns.get("TILE_N", columns.get("KEYS", 1)), columns.get("HEAD_V", 1))


def counts(code: Sequence[Instruction], tensor: Tensor) -> Counts:
    """Of the instructions of a function; `tensor` as `of_tile` says."""
    whole, walked = _walked(code, 0, len(code) - 1, tensor)
    through = {(first, last): _walked(code, first, last, tensor)[0] for first, last in loops(code)}
    through = {at: one for at, one in through.items() if one.products or (not whole.products and one.moved)}
    at = _main(through)
    loop = through[at] if at else None
    masked, steps = _walked(code, *at, tensor, masks=True) if at and through[at].products else (None, [])
    if not any(i.op.startswith(MASKING) for i in steps):
        masked = None
    accesses = Counter(f"{i.name} {width(i)}" for i in walked if i.name in ACCESSES and _moves(i))
    conversions = sum(i.name in CONVERSIONS or i.op.startswith("HADD2.F32") for i in walked)
    barriers = sum(i.name == "BAR" for i in walked)
    return Counts(whole, loop, dict(sorted(accesses.items())), conversions, barriers, masked)


def _main(loops: Mapping[tuple[int, int], Way]) -> tuple[int, int] | None:
    """The one with most products, or else that moves most; but one inside it where that has more than half of them: the
    rest is done once."""

    def rank(at: tuple[int, int]) -> tuple[int, ...]:
        loop = loops[at]
        return loop.products, 0 if loop.products else loop.moved, -loop.instructions

    found = max(loops, key=rank, default=None)
    while found and loops[found].products:
        first, last, most = *found, loops[found].products
        inside = [at for at in loops if at != found and first <= at[0] and at[1] <= last]
        inner = max(inside, key=rank, default=None)
        if inner is None or 2 * loops[inner].products <= most:
            break
        found = inner
    return found


def counted(source: Source, architecture: str) -> dict[str, Counts]:
    """Of each `__global__` function of a source.

    Raises KernelError with the compiler's first error, and DependencyError without NVRTC or nvdisasm."""
    text = disassembled(compiled(source, architecture).cubin)
    return {entry: counts(code, of_tile(source)) for entry, code in functions(text).items()}


def chosen() -> Iterator[tuple[str, Source]]:
    """The sources that are counted, each under its name."""
    return ((name, source) for name, source in samples() if COUNTED.fullmatch(name))


Table = dict[str, dict[str, dict[str, Counts]]]
"""Source, architecture and entry to counts."""


def committed() -> Table:
    """The table in instructions.json."""
    kernels = json.loads(TABLE.read_text())["kernels"]
    return {
        name: {architecture: {e: _read(f) for e, f in entries.items()} for architecture, entries in found.items()}
        for name, found in kernels.items()
    }


def texts() -> dict[str, str]:
    """The digest of each text that the table was written of; none where another NVRTC or nvdisasm was asked."""
    return nvrtc.texts(TABLE) if json.loads(TABLE.read_text())["nvdisasm"] == version() else {}


def _read(figures: Mapping[str, Any]) -> Counts:
    loop, masked = (Way(*one) if (one := figures.get(name)) else None for name in ("loop", "masked"))
    rest = {name: figures[name] for name in ("accesses", "conversions", "barriers")}
    return Counts(Way(*figures["whole"]), loop, **rest, masked=masked)


SLACK = 1.02
"""By which versions of the compiler may differ."""


def worse(before: Counts, now: Counts) -> list[str]:
    """What has become worse by more than that, each with both figures: instructions for the work that is done, bytes of
    an access, conversions, barriers."""
    found = []
    ways = (("main loop", before.main, now.main), ("whole way", before.whole, now.whole))
    masked = (("tile with a mask", before.masked, now.masked),) if before.masked and now.masked else ()
    for name, old, new in (*ways, *masked):
        work = [w.products or w.moved or 1 for w in (old, new)]
        if new.instructions / work[1] > SLACK * old.instructions / work[0]:
            unit = "products" if old.products else "bytes"
            found.append(
                f"{name}: {old.instructions} instructions for {work[0]} {unit}, now {new.instructions} for {work[1]}"
            )
    if now.bytes_per_access * SLACK < before.bytes_per_access:
        found.append(f"bytes of an access: {before.bytes_per_access:.1f}, now {now.bytes_per_access:.1f}")
    scale = max(now.whole.moved / max(before.whole.moved, 1), 1)
    for name in ("conversions", "barriers"):
        old_count, new_count = getattr(before, name), getattr(now, name)
        if new_count > SLACK * scale * old_count:
            found.append(f"{name}: {old_count}, now {new_count}")
    return found


def told(name: str, architecture: str, entry: str, found: Counts) -> str:
    """One line: what there is of a kernel for each product, element, and access."""
    dtype = next((DTYPES[word] for word in name.split() if word in DTYPES), None)
    element = found.per_element(dtype.itemsize) if dtype is not None else None
    figures = [
        f"{found.whole.instructions:5} instructions",
        f"{found.main.instructions:5} in the main loop" if found.loop else " " * 22,
        f"{found.per_product:5.2f} a product" if found.per_product else " " * 15,
        *([f"{found.masked_per_product:5.2f} with a mask"] if found.masked_per_product else []),
        f"{element:6.1f} an element" if element else " " * 17,
        f"{found.bytes_per_access:5.1f} bytes an access  {found.conversions:4} conversions",
    ]
    return f"{name:44} {architecture:7} {entry:18} {'  '.join(figures)}"


def main(words: Sequence[str] = ()) -> int:
    """Count what is named by all words, and print it; write instructions.json where that is everything."""
    sources = {name: source for name, source in chosen() if all(word in name.split() for word in words)}
    asked = [(name, architecture) for name, source in sources.items() for architecture in of(source)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda one: counted(sources[one[0]], one[1]), asked))
    plain: dict[str, dict[str, dict[str, object]]] = {}
    for (name, architecture), entries in zip(asked, found, strict=True):
        for entry, one in entries.items():
            print(told(name, architecture, entry, one))
            given = ((k, v) for k, v in asdict(one).items() if v is not None or k != "masked")
            figures = {k: list(v.values()) if k in ("whole", "loop", "masked") and v else v for k, v in given}
            plain.setdefault(name, {}).setdefault(architecture, {})[entry] = figures
    if not words:
        TABLE.write_text(_written(plain, nvrtc.digests(sources)))
    return 0


def _written(kernels: Mapping[str, Mapping[str, Mapping[str, object]]], texts: Mapping[str, str]) -> str:
    """As JSON, an entry on a line."""
    sources = []
    for name, found in sorted(kernels.items()):
        lines = [f"   {json.dumps(a)}: {json.dumps(entries)}" for a, entries in found.items()]
        sources.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    known = ",\n".join(f"  {json.dumps(name)}: {json.dumps(digest)}" for name, digest in texts.items())
    tools = {"nvdisasm": version(), "nvrtc": nvrtc.version()}
    first = {"seal": nvrtc.seal({**tools, "texts": texts, "kernels": kernels}), **tools}
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in first.items())
    return f'{{\n{head} "texts": {{\n{known}\n }},\n "kernels": {{\n' + ",\n".join(sources) + "\n }\n}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
