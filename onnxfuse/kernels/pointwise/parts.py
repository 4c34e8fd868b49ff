"""Loops over elements that have nothing to do with each other, as one launch: the updates of many small parameters.

    blocks of the launch = those of the first part, then those of the second, ...

so that each block knows its part by its number.  Parts whose code is the same, all but sizes and addresses, call one
function of it ("multi-tensor apply", NVIDIA Apex, csrc/multi_tensor_apply.cuh, which takes addresses from a table: here
they are arguments, as there are few).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from onnx import NodeProto

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Array, Device, Launch, Source, TensorType
from onnxfuse.model.graph import elements_read
from onnxfuse.model.op_traits import SHAPE_QUERIES

from .expressions.source import OPENING
from .loops import BLOCKS, HEADER, THREADS, Loop, loops

ARGUMENTS = 450
"""Most of a launch: of 8 bytes at most, with the numbers of blocks among 4 kB."""
MOST = 128
"""Most parts."""


@dataclass(frozen=True)
class Part:
    """A loop, and the numbers of its arrays among those of the node."""

    loop: Loop
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def takes(self) -> Iterator[tuple[str, str]]:
        """C++ type and name of each of its parameters."""
        for line in self.loop.text.head:
            for each in line.split(", "):
                type, _, name = each.rpartition(" ")
                yield type, name


@dataclass(frozen=True)
class Parts:
    """One launch of several loops."""

    entry: str
    parts: tuple[Part, ...]
    launches: int = 1

    @property
    def read(self) -> int:
        """Bytes."""
        return sum(part.loop.read for part in self.parts)

    @property
    def flops(self) -> int:
        """Operations."""
        return sum(part.loop.flops for part in self.parts)

    @cached_property
    def source(self) -> Source:
        """A function for each code, and the kernel that calls them: for each part its arrays and numbers, then the
        number of the first block of each but the first, and last how many there are."""
        names: dict[str, str] = {}
        text, head, calls = [Source.file(HEADER).text], list[str](), list[str]()
        for number, part in enumerate(self.parts):
            body = part.loop.text.body
            if body not in names:
                names[body] = f"part{len(names)}"
                text.append(f"namespace {names[body]} {{\n{_called(body, self.entry)}}}\n")
            space, own = names[body], list[str]()
            for type, name in part.takes:
                own.append(f"p{number}_{name}")
                head.append(f"{space}::{type} {own[-1]}" if type == "Index" else f"{type} {own[-1]}")
            first = f"first{number}" if number else "0"
            given = ", ".join([f"block - {first}", f"first{number + 1} - {first}", *own])
            calls.append(f"if (block < first{number + 1}) return {space}::{self.entry}({given});")
        head += [f"int first{number + 1}" for number in range(len(self.parts))]
        lines = [f'extern "C" __global__ void __launch_bounds__({THREADS}) {self.entry}(', ",\n".join(head), ") {"]
        lines += ["const int block = blockIdx.x;", *calls, "}", ""]
        return Source(self.entry, "".join(text) + "\n".join(lines))

    def ends(self, multiprocessors: int) -> list[int]:
        """The number of blocks up to each part, and with it, on a card with so many: where there is no room for all at
        a time, each part has its share."""
        wanted, room = [-(-part.loop.vectors // THREADS) for part in self.parts], multiprocessors * BLOCKS
        whole = sum(wanted)
        counts = [count if whole <= room else max(count * room // whole, 1) for count in wanted]
        return [int(end) for end in np.cumsum(counts)]

    def run(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        """Launch it on the arrays of a node."""
        ends = self.ends(device.multiprocessors)
        arguments: list[Array | np.generic | None] = []
        for part in self.parts:
            arguments += [*(inputs[k] for k in part.inputs), *(outputs[k] for k in part.outputs)]
            arguments += part.loop.parameters
        launch = Launch(self.source, self.entry, (ends[-1],), (THREADS,))
        device.launch(launch, [*arguments, *map(np.int32, ends)])


def parts(
    entry: str,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, TensorType],
    outputs: Sequence[str],
    aligned: bool = True,
) -> tuple[tuple[TensorType, ...], list[Parts]]:
    """The types of the outputs of some nodes, and the one launch that computes them: `loops` for each set of nodes that
    has nothing to do with the others.

    Raises KernelError as `loops` does, and for what is too much for one launch."""
    types: dict[int, TensorType] = {}
    found: list[Part] = []
    given = {name: number for number, name in enumerate(inputs)}
    for members, wanted in apart(nodes, outputs):
        own = {name: inputs[name] for name in dict.fromkeys(n for node in members for n in node.input) if name in given}
        made, launches = loops(entry, members, own, [outputs[k] for k in wanted], aligned)
        types |= dict(zip(wanted, made, strict=True))
        places = [given[name] for name in own]
        for loop in launches:
            taken, written = (places[k] for k in loop.inputs), (wanted[k] for k in loop.outputs)
            found.append(Part(loop, tuple(taken), tuple(written)))
    arguments = sum(len(list(part.takes)) + 1 for part in found)
    if len(found) > MOST or arguments > ARGUMENTS:
        raise KernelError(f"{len(found)} loops with {arguments} arguments are too many for one launch")
    return tuple(types[k] for k in sorted(types)), [Parts(entry, tuple(found))] if found else []


def _called(body: str, entry: str) -> str:
    """A kernel as a function of the device, which is called for `block` of its `blocks`."""
    inner = body.replace(OPENING.format(entry), f"INLINE void {entry}(int block, int blocks,")
    return inner.replace("gridDim.x", "blocks").replace("blockIdx.x", "block")


def apart(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> Iterator[tuple[list[NodeProto], list[int]]]:
    """Nodes that have nothing to do with others, in order, and the numbers of the wanted outputs that they make.

    What is made of constants, shapes and types alone belongs to whoever reads it, and what nothing wanted needs to
    nobody."""
    maker = {name: at for at, node in enumerate(nodes) for name in node.output if name}
    fixed = set[str]()
    for node in nodes:
        if node.op_type in SHAPE_QUERIES or fixed.issuperset(elements_read(node)):
            fixed.update(node.output)
    sets: dict[int, tuple[set[int], list[int]]] = {}
    owner: dict[int, int] = {}
    for k, output in enumerate(outputs):
        pending, whole, wanted = [output], set[int](), [k]
        while pending:
            at = maker.get(pending.pop())
            if at is not None and at not in whole:
                whole.add(at)
                pending += nodes[at].input
        common = (owner[at] for at in whole if at in owner and fixed.isdisjoint(nodes[at].output))
        for other in sorted(set(common)) if output else ():
            more, also = sets.pop(other)
            whole, wanted = whole | more, also + wanted
        if output:
            sets[k] = whole, wanted
            owner |= dict.fromkeys(whole, k)
    for whole, wanted in sets.values():
        yield [nodes[at] for at in sorted(whole)], sorted(wanted)
