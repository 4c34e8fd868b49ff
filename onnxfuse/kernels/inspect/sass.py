"""Machine code of a kernel as nvdisasm prints it: instructions, where they jump, loops, and the way through them.

nvdisasm is found in the wheel `nvidia-cuda-nvdisasm`, in the CUDA toolkit at $CUDA_PATH, or on $PATH.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from onnxfuse.errors import DependencyError, KernelError
from onnxfuse.kernels.emulator.build import kept_at
from onnxfuse.system.atomic_write import replace

from .nvrtc import toolkits

# .text.softmax:
FUNCTION = re.compile(r"^\.text\.(\w+):$")
# .L_x_3:
LABEL = re.compile(r"^(\.L_x?\w+):$")
# /*0420*/ @!P0 LDG.E.128.CONSTANT R4, [R2.64] ;
INSTRUCTION = re.compile(r"^/\*[0-9a-f]{4,}\*/\s+(?P<if>@!?U?P\w+\s+)?(?P<op>[A-Z][\w.]*)(?P<operands>[^;]*);")
# BRA P1, `(.L_x_3) : where it jumps to, and on which condition besides that in front
TARGET = re.compile(r"\.L_x?\w+")
CONDITION = re.compile(r"^\s*!?U?P\d")


@dataclass(frozen=True, slots=True)
class Instruction:
    """`op` is with its modifiers, "LDG.E.128.CONSTANT"; `target` the number of the instruction that it jumps to."""

    op: str
    operands: str
    conditional: bool
    target: int | None = None

    @property
    def name(self) -> str:
        return self.op.partition(".")[0]

    @property
    def ends(self) -> bool:
        """Whether nothing comes behind it, but where it jumps to."""
        return not self.conditional and self.name in ("BRA", "EXIT", "RET", "BRX", "JMP")


@cache
def _tool() -> str:
    places = [str(root / "bin") for root in toolkits()]
    found = shutil.which("nvdisasm", path=":".join(places)) or shutil.which("nvdisasm")
    if found is None:
        raise DependencyError(
            "compiled kernels are read by nvdisasm, which is not installed: python -m pip install nvidia-cuda-nvdisasm"
        )
    return found


@cache
def version() -> str:
    """nvdisasm's version, "13.5".  Raises DependencyError without it."""
    told = subprocess.run([_tool(), "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release (\d+\.\d+)", told)
    return found[1] if found else ""


def disassembled(cubin: bytes) -> str:
    """What nvdisasm says of a binary, asked once and kept.  Raises DependencyError without it, and KernelError where it
    refuses."""
    kept = kept_at(["sass", hashlib.sha256(cubin).hexdigest(), version()], ".sass.z")
    try:
        return zlib.decompress(kept.read_bytes()).decode()
    except (FileNotFoundError, zlib.error):
        pass
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        # How data flows is for those who want registers' lives: a quarter of the time, and the text is the same.
        done = subprocess.run([_tool(), "-c", "-ndf", file.name], capture_output=True, text=True)
    if done.returncode:
        raise KernelError(f"nvdisasm: {(done.stderr or done.stdout).strip()}")
    replace(kept, [zlib.compress(done.stdout.encode())])
    return done.stdout


def functions(text: str) -> dict[str, list[Instruction]]:
    """The functions of a disassembly, by name; without what fills the end of a function."""
    found: dict[str, list[tuple[str, str, bool]]] = {}
    labels: dict[str, int] = {}
    lines: list[tuple[str, str, bool]] = []
    for line in map(str.strip, text.splitlines()):
        if named := FUNCTION.match(line):
            lines = found.setdefault(named[1], [])
        elif label := LABEL.match(line):
            labels[label[1]] = len(lines)
        elif (code := INSTRUCTION.match(line)) and code["op"] != "NOP":
            by_operand = code["op"].startswith("BRA") and bool(CONDITION.match(code["operands"]))
            by_operand |= code["op"].startswith(("BRA.DIV", "BRA.CONV"))  # where lanes part, or have met
            lines.append((code["op"], code["operands"].strip(), bool(code["if"]) or by_operand))
    return {name: [_placed(at, line, labels) for at, line in enumerate(lines)] for name, lines in found.items()}


def _placed(at: int, line: tuple[str, str, bool], labels: dict[str, int]) -> Instruction:
    op, operands, conditional = line
    # For sm_80 the compiler leaves a loop by what it calls a call, and nothing returns.
    jumps = op.startswith("BRA") or (op.startswith("CALL") and conditional)
    to = TARGET.search(operands) if jumps else None
    return Instruction(op, operands, conditional, labels.get(to[0]) if to else None)


def loops(code: Sequence[Instruction]) -> list[tuple[int, int]]:
    """First and last instruction of each loop: where one jumps back.  What waits for ever behind the end is none, nor
    is what stands behind the end and returns to where it came from, as the waits for an mbarrier do."""
    back = [(i.target, at) for at, i in enumerate(code) if i.target is not None and i.target < at]
    ends = [at for at, i in enumerate(code) if i.name == "EXIT" and i.ends]
    return [(to, at) for to, at in back if not any(to < end < at for end in ends) or _dominates(code, to, at)]


def _dominates(code: Sequence[Instruction], one: int, other: int) -> bool:
    """Whether every way from the beginning to the other instruction leads through the one."""
    met, waiting = {one}, [0]
    while waiting:
        at = waiting.pop()
        if at == other:
            return at == one
        if at in met or at >= len(code):
            continue
        met.add(at)
        i = code[at]
        waiting += [] if i.ends else [at + 1]
        waiting += [] if i.target is None else [i.target]
    return True


Weights = tuple[int, ...]


def way(
    code: Sequence[Instruction], first: int, last: int, weigh: Callable[[Instruction], Weights]
) -> tuple[Weights, list[Instruction]]:
    """The way from one instruction to another that does the most work, of those the shortest: the sum of what its
    instructions weigh, the weightiest first, and its instructions.  A loop is walked through once."""
    most: list[tuple[tuple[Weights, int], int] | None] = [None] * (last + 1)
    for at in range(last, first - 1, -1):
        i = code[at]
        after = _after(code, at)
        reached = [(best[0], to) for to in after if to <= last and (best := most[to]) is not None]
        own = weigh(i)
        # Where nothing comes behind it within these instructions, it is the end of a way, or leads out of the loop.
        if at == last or (not reached and i.name in ("EXIT", "BRA", "RET")):
            most[at] = (own, -1), -1
        elif reached:
            (weights, slots), to = max(reached)
            most[at] = (tuple(a + b for a, b in zip(own, weights, strict=True)), slots - 1), to
    begin = most[first]
    if begin is None:
        raise KernelError("no way leads through these instructions")
    walked, at = [], first
    while at >= 0:
        walked.append(code[at])
        found = most[at]
        assert found is not None
        at = found[1]
    return begin[0][0], walked


def _after(code: Sequence[Instruction], at: int) -> list[int]:
    """What may come behind an instruction, further down: behind the end of a loop where else it is left."""
    i = code[at]
    after = [] if i.ends else [at + 1]
    if i.target is None:
        return after
    if i.target > at:
        return [*after, i.target]
    inside = code[i.target : at] if i.ends else ()
    return [*after, *(other.target for other in inside if other.target is not None and other.target > at)]
