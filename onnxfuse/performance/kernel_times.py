"""How long the launches of our kernels take on a card, by what is counted of them.

Bytes and operations are those of the kernel's `Work`.  Where instructions of the compiled kernel are counted, its
multiprocessors issue them, and its tensor cores multiply: a warp waits for one before it goes on with the other, so
that the times add up, as they do in the published figures of FlashAttention-2; products by warpgroups go on beside
their main loop, but for those of attention.  A grid of fewer blocks than there are
multiprocessors gets that share of the bandwidth, and all else waits for the multiprocessor with the most blocks.

A product is the vendor's, with a pass behind it, where that takes less: `kernels.gemm.autotune` sees to it on the card.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.attention.tiles import TENSOR_MEMORY
from onnxfuse.kernels.device.device import Launch
from onnxfuse.kernels.device.kernel import Work
from onnxfuse.kernels.inspect.executed import MULTIPLICATIONS, Executed, executed
from onnxfuse.kernels.inspect.launches import occupancy
from onnxfuse.kernels.inspect.nvrtc import ARCHITECTURES
from onnxfuse.reporting.records import Launched, Occupancy

from .gpus import Card
from .roofline import Times

NOTHING = Times(0.0, 0.0, 0.0)
BRIDGE, TENSOR, CALL = 5.0e-6, 1.1e-6, 2.3e-6
"""Seconds of the processor for a node with one input: from onnxruntime to Python and back; for each further input and
output; for launches at shapes seen before (benchmarks/README.md, `bridge.py`)."""
TURNS = 0.85
"""Of the rate of what takes longest, what blocks that take turns reach: heads of 128 come to 71 % of a B200's tensor
cores, which is published of FlashAttention-4 (Zadouri et al. 2026), that takes turns as they do."""


def own(work: Work, made: Sequence[Launch], found: Sequence[Executed | None], rate: float, card: Card) -> Times:
    """Of the launches of a kernel, whose operations have that rate, and what each executes."""
    if not made:
        return NOTHING
    tensor = rate == card.tensor
    multiplied = card.warpgroup_tensor if any(one.source.architecture for one in made) else card.warp_tensor
    instructions = math.fsum(
        _issue(each, one, card) * _uneven(one.blocks, card)
        for one, each in zip(made, found, strict=True)
        if each is not None
    )
    return Times(
        _bytes(work) / card.bandwidth / _filled(made, card),
        work.flops / (multiplied if tensor else rate) * _uneven(max(one.blocks for one in made), card),
        len(made) * card.launch,
        instructions,
    )


def vendors(work: Work, made: Sequence[Launch], rate: float, card: Card) -> Times:
    """Of the vendor's product and a pass over it, in place of those launches."""
    if not made:
        return NOTHING
    return Times(
        (_bytes(work) + 2 * work.written) / card.bandwidth / _filled(made, card),
        work.flops / rate * _uneven(max(one.blocks for one in made), card),
        (len(made) + 1) * card.launch,
    )


def counted(work: Work, made: Sequence[Launch], multiplies: bool, rate: float, card: Card) -> list[Executed | None]:
    """What each launch of a kernel executes, one that multiplies matrices or not; None where no source that is counted
    is like it, and for products without tensor cores.  Launches that multiply share the operations by their blocks,
    and where none does, all of them the bytes."""
    if multiplies and rate != card.tensor:
        return [None] * len(made)
    if not multiplies:
        return [executed(one, card.architecture, 0.0, _bytes(work) / len(made)) for one in made]
    those = [executed(one, card.architecture, 1.0, 0.0) is not None for one in made]
    blocks = sum(one.blocks for one, does in zip(made, those, strict=True) if does)
    return [
        executed(one, card.architecture, work.flops / 2 * one.blocks / blocks if does else 0.0, 0.0)
        for one, does in zip(made, those, strict=True)
    ]


def told(launch: Launch, found: Executed | None, card: Card) -> Launched:
    """What reports say of a launch."""
    needs = {name: occupancy(launch, name) for name in (*ARCHITECTURES, card.architecture)}
    on = needs[card.architecture]
    return Launched(
        f"{launch.source.name} {launch.entry}",
        launch.blocks,
        launch.threads,
        launch.shared,
        tuple(Occupancy(name, *figures) for name in ARCHITECTURES if (figures := needs[name]) is not None),
        -(-launch.blocks // (max(on.resident, 1) * card.multiprocessors)) if on is not None else None,
        round(found.instructions) if found is not None else None,
    )


def host(tensors: int) -> float:
    """Seconds of the processor for a node with so many inputs and outputs."""
    return BRIDGE + CALL + TENSOR * max(tensors - 2, 0)


def _issue(found: Executed, launch: Launch, card: Card) -> float:
    """Seconds of a launch's instructions, and of the products that a warp waits for.

    Those of warpgroups, which sources for one architecture have, go on by themselves beside the main loop; what is
    around it waits for them, for a multiprocessor has room for one block of the large tile.  Those of attention add up
    with its instructions, which comes to 50 % of the tensor cores' rate for heads of 64 and to 65 % for 128: about what
    is published of FlashAttention-3 (Shah et al. 2024), which takes turns as it does.  With scores in tensor memory the
    two blocks of a multiprocessor take turns, and one multiplies while the other has its exponentials."""
    products = 2 * MULTIPLICATIONS * found.products
    slots = max(found.instructions / card.issued, found.special / card.special)
    if launch.source.architecture and launch.entry == Attention.name:
        own = products / card.warpgroup_tensor
        in_turns = launch.source.architecture == TENSOR_MEMORY.architecture
        return max(slots, own) / TURNS if in_turns else slots + own
    if launch.source.architecture:
        beside = (found.instructions - found.around) / card.issued
        return max(products / card.warpgroup_tensor, beside) + found.around / card.issued
    return slots + products / card.warp_tensor


def _filled(made: Sequence[Launch], card: Card) -> float:
    return min(1.0, max(one.blocks for one in made) / card.multiprocessors)


def _uneven(blocks: int, card: Card) -> float:
    """How much longer the multiprocessor with the most blocks takes than all of them on average."""
    return math.ceil(blocks / card.multiprocessors) * card.multiprocessors / blocks


def _bytes(work: Work) -> int:
    return work.read + work.written
