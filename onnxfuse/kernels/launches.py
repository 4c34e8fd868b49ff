"""What a kernel launches, without a device: sources, grids, and the multiprocessors that they keep busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import prod

from .device import Buffer, Source, TensorType
from .kernel import Kernel
from .nvrtc import SAMPLED, committed
from .recorder import ADDRESS, Recorder


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch."""

    source: Source
    entry: str
    blocks: int
    threads: int
    """Of a block."""
    shared: int
    """Bytes of dynamic shared memory."""


def launches(kernel: Kernel, inputs: Sequence[TensorType | None], multiprocessors: int) -> list[Launch]:
    """What a kernel launches for aligned inputs of these types, all its outputs of the op's element type asked for."""
    device = Recorder(multiprocessors)
    given = [None if t is None else Buffer(ADDRESS, t.shape, t.dtype) for t in inputs]
    made = zip(kernel.signature.outputs, kernel.outputs(inputs), strict=True)
    outputs = [Buffer(ADDRESS, t.shape, t.dtype) if p.type == "T" else None for p, t in made]
    kernel.launch(device, given, outputs)
    return [Launch(r.source, r.entry, prod(r.grid), prod(r.block), r.shared) for r in device.launches]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a multiprocessor has room for (CUDA C++ Programming Guide, table of compute capabilities)."""

    threads: int
    blocks: int
    registers: int
    shared: int
    """Bytes."""


LIMITS = {
    "sm_80": Limits(2048, 32, 65536, 164 * 1024),
    "sm_90": Limits(2048, 32, 65536, 228 * 1024),
    "sm_100": Limits(2048, 32, 65536, 228 * 1024),
}
WARP, REGISTERS_AT_A_TIME, SHARED_AT_A_TIME, RESERVED = 32, 256, 128, 1024
"""Threads of a warp; units in which a warp gets registers and a block shared memory; bytes of the latter that each
block has beside its own."""


def resident(architecture: str, threads: int, registers: int, shared: int) -> int:
    """Blocks that a multiprocessor runs at a time: `registers` are those of a thread, `shared` all bytes of a block."""
    limits = LIMITS[architecture]
    warps = -(-threads // WARP)
    of_warp = -(-registers * WARP // REGISTERS_AT_A_TIME) * REGISTERS_AT_A_TIME
    of_block = -(-shared // SHARED_AT_A_TIME) * SHARED_AT_A_TIME + RESERVED
    return min(
        limits.blocks,
        limits.threads // (warps * WARP),
        limits.registers // (max(of_warp, 1) * warps),
        limits.shared // of_block,
    )


def occupancy(launch: Launch, architecture: str) -> int | None:
    """Blocks of a launch that a multiprocessor runs at a time, with the registers of the compiled source that is most
    like it; None where none is like it."""
    defines = _defines(launch.source)
    best: tuple[int, int, int] | None = None
    table = committed()
    for name, source in _samples().items():
        needs = table.get(name, {}).get(architecture, {}).get(launch.entry)
        if source.name != launch.source.name or needs is None:
            continue
        key = (len(defines & _defines(source)), needs.registers, needs.shared)
        best = key if best is None else max(best, key)
    if best is None or architecture not in LIMITS:
        return None
    return resident(architecture, launch.threads, best[1], best[2] + launch.shared)


def _defines(source: Source) -> frozenset[str]:
    """The lines that say what a source is specialised for."""
    return frozenset(line for line in source.text.split("#line", 1)[0].splitlines() if line.startswith("#define"))


@cache
def _samples() -> dict[str, Source]:
    return {name: source for module in SAMPLED for name, source in import_module(f".{module}", __package__).samples()}
