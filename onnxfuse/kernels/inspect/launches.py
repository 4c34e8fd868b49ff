"""What a kernel launches, without a device: sources, grids, and the multiprocessors that they keep busy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from typing import NamedTuple, TypeVar

from onnxfuse.kernels.device.architectures import own
from onnxfuse.kernels.device.device import Buffer, Launch, Source, TensorType
from onnxfuse.kernels.device.kernel import Kernel
from onnxfuse.kernels.device.recorder import ADDRESS, Recorder

from .nvrtc import SAMPLED, Resources, committed


def launches(
    kernel: Kernel, inputs: Sequence[TensorType | None], multiprocessors: int, wanted: Sequence[bool] | None = None
) -> list[Launch]:
    """What a kernel launches for aligned inputs of these types; `wanted` are the outputs asked for, if not all of them
    that have the op's element type."""
    device = Recorder(multiprocessors)
    given = [None if t is None else Buffer(ADDRESS, t.shape, t.dtype) for t in inputs]
    parameters, types = kernel.signature.outputs, kernel.outputs(inputs)
    asked = [p.type == "T" for p in parameters] if wanted is None else [*wanted, *[False] * len(parameters)]
    outputs = [Buffer(ADDRESS, t.shape, t.dtype) if ask else None for t, ask in zip(types, asked, strict=False)]
    kernel.launch(device, given, outputs)
    return device.launches


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


class Occupancy(NamedTuple):
    """What a launch takes of a multiprocessor."""

    registers: int
    """Of a thread."""
    shared: int
    """Bytes of a block, beside those of dynamic shared memory."""
    resident: int
    """Blocks at a time."""


def occupancy(launch: Launch, architecture: str) -> Occupancy | None:
    """Of a launch on an architecture, with the resources of the compiled source that is most like it; None where none
    is like it."""
    needs = {name: found[launch.entry] for name, found in _needs(architecture).items() if launch.entry in found}
    name = most_alike(launch.source, {name: (one.registers, one.shared) for name, one in needs.items()})
    if name is None or architecture not in LIMITS:
        return None
    found = needs[name]
    blocks = resident(architecture, launch.threads, found.registers, found.shared + launch.shared)
    return Occupancy(found.registers, found.shared, blocks)


def most_alike(source: Source, others: Mapping[str, tuple[int, ...]]) -> str | None:
    """Which compiled source, of those named in `others`, is specialised for most of what a source of the same file is
    specialised for; of several the one whose numbers there are the greatest.  None where none is of that file."""
    defines, known = _defines(source), _samples()
    kind = source.name, source.architecture
    alike = [name for name in others if name in known and (known[name].name, known[name].architecture) == kind]
    return max(alike, key=lambda name: (len(defines & _defines(known[name])), others[name]), default=None)


T = TypeVar("T")


def there(table: Mapping[str, Mapping[str, T]], architecture: str) -> dict[str, T]:
    """What a table has of each source for an architecture, those that not all cards run ("sm_90a") among them."""
    both = {name: found.get(architecture, found.get(own(architecture))) for name, found in table.items()}
    return {name: found for name, found in both.items() if found is not None}


@cache
def _needs(architecture: str) -> dict[str, dict[str, Resources]]:
    """What each compiled source needs there."""
    return there(committed(), architecture)


@lru_cache(maxsize=4096)
def _defines(source: Source) -> frozenset[str]:
    """The lines that say what a source is specialised for."""
    return frozenset(line for line in source.text.split("#line", 1)[0].splitlines() if line.startswith("#define"))


@cache
def _samples() -> dict[str, Source]:
    return {
        name: source for module in SAMPLED for name, source in import_module(f"onnxfuse.kernels.{module}").samples()
    }
