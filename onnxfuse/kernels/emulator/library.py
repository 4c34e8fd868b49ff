"""A built kernel library in this process: its entries, their parameters, and launches."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxfuse.errors import KernelError

from .counts import CountsEntry

_stacks: list[int] = []
"""Stacks that no launch is using.  They belong to the process: it may have 65,530 mappings, and many libraries."""

CODE = re.compile("@([0-9a-f]+)@")
VARIABLE = re.compile("^([0-9a-f]+) ([0-9a-f]+) [bB] (.+)$", re.MULTILINE)
SHARED = re.compile(r"byte (\d+) of shared memory")

MESSAGE_BYTES = 2048
DESCRIPTION_BYTES = 4096


class RegionEntry(ctypes.Structure):
    """Memory that the kernel may touch: `Region` in runtime/launch.h."""

    _fields_ = [
        ("first", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("written", ctypes.c_void_p),
        ("writable", ctypes.c_uint32),
    ]


class Run(ctypes.Structure):
    """A launch, or some of its blocks: `Launch` in runtime/launch.h."""

    _fields_ = [
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("first_block", ctypes.c_uint64),
        ("last_block", ctypes.c_uint64),
        ("stacks", ctypes.c_void_p),
        ("shared", ctypes.c_void_p),
        ("shared_bytes", ctypes.c_uint64),
        ("dynamic_bytes", ctypes.c_uint64),
        ("image", ctypes.c_void_p),
        ("regions", ctypes.POINTER(RegionEntry)),
        ("region_count", ctypes.c_uint32),
        ("checked", ctypes.c_uint32),
        ("order", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("message", ctypes.c_char_p),
        ("message_bytes", ctypes.c_uint64),
        ("counts", ctypes.POINTER(CountsEntry)),
        ("without_file", ctypes.c_char_p),
        ("without_line", ctypes.c_uint32),
        ("planted", ctypes.c_uint32),
    ]


@dataclass(frozen=True, slots=True)
class ParameterType:
    """A parameter of an entry: `kind` is one of p(ointer), c(onstant pointer), i(nteger), f(loating), o(ther)."""

    kind: str
    size: int
    """Bytes of the value, or of what a pointer points to."""


class Library:
    """One copy of a library's code and shared memory: it runs one launch at a time."""

    def __init__(self, path: Path, image: Path | None = None) -> None:
        """Load `path`; line tables are read from `image` where that is another file."""
        self._image = image or path
        self._library = ctypes.CDLL(str(path))
        layout = (ctypes.c_void_p * 3)()
        self._library.emulator_layout(layout)
        self._base, self._shared = layout[0], layout[1]
        self._shared_bytes = (layout[2] or 0) - (layout[1] or 0)
        self._run = self._library.emulator_launch
        self._make_stacks = self._library.emulator_stacks
        self._make_stacks.restype = ctypes.c_void_p

    def parameters(self, entry: str) -> tuple[ParameterType, ...]:
        """The parameters of an entry, in order."""
        text = ctypes.create_string_buffer(DESCRIPTION_BYTES)
        self._library[f"emulator_describe_{entry}"](text)
        return tuple(ParameterType(word[0], int(word[1:])) for word in text.value.decode().split())

    def launch(self, entry: str, run: Run) -> None:
        """Run it.  Raises KernelError with what was found wrong, where the source says so by file and line."""
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        run.kernel = ctypes.cast(self._library[f"emulator_call_{entry}"], ctypes.c_void_p)
        run.image, run.shared, run.shared_bytes = self._base, self._shared, self._shared_bytes
        run.message, run.message_bytes = ctypes.cast(message, ctypes.c_char_p), MESSAGE_BYTES
        try:
            stacks = _stacks.pop()
        except IndexError:
            stacks = self._make_stacks()
        if not stacks:
            raise KernelError(f"{entry}: no memory for the stacks of a block's threads")
        run.stacks = stacks
        failed = self._run(ctypes.byref(run))
        _stacks.append(stacks)
        if failed:
            text = message.value.decode(errors="replace")
            text = CODE.sub(lambda found: self.lines([int(found[1], 16)])[0].partition(" ")[0], text)
            raise KernelError(SHARED.sub(lambda found: self._variable(int(found[1])), text))

    def _variable(self, offset: int) -> str:
        """What is so many bytes into static shared memory: a byte of a variable, where the symbol table names one."""
        tool = shutil.which("nm")
        at = (self._shared or 0) - (self._base or 0) + offset
        listed = [tool, "--demangle", "--print-size", str(self._image)] if tool else ["true"]
        for first, size, name in VARIABLE.findall(subprocess.run(listed, capture_output=True, text=True).stdout):
            if int(first, 16) <= at < int(first, 16) + int(size, 16):
                return f"byte {at - int(first, 16)} of {name.rpartition('::')[2]}"
        return f"byte {offset} of shared memory"

    def lines(self, codes: Sequence[int]) -> list[str]:
        """The source line of each code address: the innermost one that is the kernel's, not the emulator's, and in
        brackets, where it is in another file, that of the kernel from which it is called."""
        tool = shutil.which("addr2line")
        if tool is None:
            return [f"code {code:x}" for code in codes]
        command = [tool, "-a", "-i", "-e", str(self._image)]
        asked = "\n".join(f"{code:x}" for code in codes)
        told = subprocess.run(command, input=asked, capture_output=True, text=True).stdout
        parts = re.split(r"^0x[0-9a-f]+\n", told, flags=re.MULTILINE)[1:]
        if len(parts) != len(codes):  # it does not understand the library, or failed
            return [f"code {code:x}" for code in codes]
        return [_line(code, part) for code, part in zip(codes, parts, strict=True)]


def _line(code: int, told: str) -> str:
    """What addr2line says of an address, innermost first, as one place."""
    places = [line.split(" ")[0] for line in told.split("\n") if line and not line.startswith("?")]
    own = [place for place in places if "/emulator/include/" not in place]
    names = [Path(place).name for place in own or places] or [f"code:{code:x}"]
    innermost, outermost = names[0], names[-1]
    same = innermost.partition(":")[0] == outermost.partition(":")[0]
    return innermost if same else f"{innermost} ({outermost})"
