"""NVRTC in a process of its own, since it may crash, seldom and on a busy machine: then only this process is gone.

    python nvrtc_process.py libnvrtc.so NAME OPTION... <source

writes what the compiler says, a zero byte and the binary to stdout.  Where it refuses the source, it says why and ends
with code 1.  It imports nothing of onnxfuse, so as to start at once.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence


def compiled(library: str, name: str, options: Sequence[str], text: bytes) -> tuple[int, bytes, bytes]:
    """NVRTC's result (0 where it compiled), what it says, and the binary."""
    nvrtc = ctypes.CDLL(library)
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    if code := nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name.encode(), 0, None, None):
        return code, b"NVRTC refuses the program", b""
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    code = nvrtc.nvrtcCompileProgram(program, len(options), given)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if code:
        return code, log.value, b""
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, binary)
    return 0, log.value, binary.raw


def main() -> int:
    """The exit code."""
    library, name, *options = sys.argv[1:]
    code, log, binary = compiled(library, name, options, sys.stdin.buffer.read())
    sys.stdout.buffer.write(log + b"\0" + binary if not code else log)
    return 1 if code else 0


if __name__ == "__main__":
    raise SystemExit(main())
