"""A shared library of one function, written here byte by byte: `RegisterCustomOps`, which onnxruntime looks for in one.

It jumps to the address in its variable `target`, which Python sets.  So no compiler is needed where onnxfuse runs, and
no binary is shipped.  The layout is that of the System V ABI, chapters 4 (object files) and 5 (dynamic linking).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from functools import cache

from onnxfuse.errors import DependencyError

ENTRY, TARGET = "RegisterCustomOps", "target"
_ALIGNMENT = 0x10000
"""Pages are 4 KiB on x86-64, up to 64 KiB on aarch64."""
_HEADER, _SEGMENT, _SYMBOL, _DYNAMIC = 64, 56, 24, 16
_READ_EXECUTE, _READ_WRITE = 5, 6
_LOAD, _DYNAMIC_SEGMENT, _STACK = 1, 2, 0x6474E551


def _jump_x86_64(distance: int) -> bytes:
    # mov rax, [rip + distance - 7]; jmp rax
    return b"\x48\x8b\x05" + struct.pack("<i", distance - 7) + b"\xff\xe0"


def _jump_aarch64(distance: int) -> bytes:
    # ldr x16, [pc + distance]; br x16
    return struct.pack("<II", 0x58000000 | (distance // 4) << 5 | 16, 0xD61F0200)


MACHINES = {"x86_64": (62, _jump_x86_64), "aarch64": (183, _jump_aarch64)}
"""Machine → its number in an ELF header, and what jumps to the address that stands `distance` bytes on."""


def image(machine: str) -> bytes:
    """The bytes of the library for a machine of `MACHINES`."""
    number, jump = MACHINES[machine]
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (ENTRY, TARGET))
    text = _HEADER + 4 * _SEGMENT
    symbols = _aligned(text + 16)
    strings = symbols + 3 * _SYMBOL
    hashes = _aligned(strings + len(names))
    code_end = hashes + 6 * 4
    # The second segment continues in the file where the first ends, and lies a page on in memory.
    data = _aligned(code_end)
    dynamic = _ALIGNMENT + data
    target = dynamic + 6 * _DYNAMIC
    code = jump(target - text)

    def segment(kind: int, flags: int, offset: int, address: int, size: int, alignment: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, alignment)

    def symbol(name: str, info: int, section: int, value: int, size: int) -> bytes:
        return struct.pack("<IBBHQQ", names.index(name.encode() + b"\0"), info, 0, section, value, size)

    writable = 6 * _DYNAMIC + 8
    parts = {
        0: struct.pack(
            "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, number, 1, 0, _HEADER, 0, 0, _HEADER, _SEGMENT, 4, 64, 0, 0
        ),
        _HEADER: segment(_LOAD, _READ_EXECUTE, 0, 0, code_end, _ALIGNMENT)
        + segment(_LOAD, _READ_WRITE, data, dynamic, writable, _ALIGNMENT)
        + segment(_DYNAMIC_SEGMENT, _READ_WRITE, data, dynamic, 6 * _DYNAMIC, 8)
        + segment(_STACK, _READ_WRITE, 0, 0, 0, 16),
        text: code,
        symbols: bytes(_SYMBOL) + symbol(ENTRY, 0x12, 1, text, len(code)) + symbol(TARGET, 0x11, 2, target, 8),
        strings: names,
        # One bucket, whose chain has both symbols.
        hashes: struct.pack("<6I", 1, 3, 1, 0, 2, 0),
        # DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_NULL
        data: struct.pack("<12Q", 4, hashes, 5, strings, 6, symbols, 10, len(names), 11, _SYMBOL, 0, 0) + bytes(8),
    }
    whole = bytearray(data + writable)
    for offset, part in parts.items():
        whole[offset : offset + len(part)] = part
    return bytes(whole)


def _aligned(offset: int) -> int:
    return offset + -offset % 16


@cache
def loaded() -> tuple[str, ctypes.c_void_p]:
    """The path of the library, which stays loaded, and its variable `target`.

    Raises DependencyError where there is no such library to be had.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        raise DependencyError(
            f"kernels run inside onnxruntime on Linux, on {' and '.join(MACHINES)}, not on {sys.platform} {machine}: "
            "open the model with onnxruntime.InferenceSession, which runs the function bodies"
        )
    # In memory: a temporary folder may forbid to execute what lies in it.  The file stays open as long as the process.
    file = os.memfd_create("onnxfuse")
    os.write(file, image(machine))
    path = f"/proc/self/fd/{file}"
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise DependencyError(f"the system does not load the library that connects onnxruntime: {error}") from error
    return path, ctypes.c_void_p.in_dll(library, TARGET)
