"""Sources that are for some cards alone, compiled for them and kept.

CuPy compiles for the architecture of the card, "sm_90", without the instructions that no later card has either:
"sm_90a".  Its NVRTC knows that one, too, and from CUDA 12.9 on "sm_100f".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxfuse.errors import KernelError
from onnxfuse.system.atomic_write import replace
from onnxfuse.system.cache_folder import cache_folder

from .device import Source

WORD = 8
"""Bytes that the size of a binary is a multiple of: CuPy takes the last byte off, as if it were the end of a text, and
nothing that reads a file takes it then."""


def compiled(source: Source, options: Sequence[str], nvrtc: Any) -> Path:
    """A file with the binary of a source, by `nvrtc` (cupy.cuda.nvrtc) unless it is there already.

    Raises KernelError with the compiler's log where it refuses, and where the file cannot be kept."""
    arguments = (f"-arch={source.architecture}", *options)
    version = ".".join(map(str, nvrtc.getVersion()))
    digest = hashlib.sha256("\0".join([source.name, source.text, *arguments, version]).encode()).hexdigest()
    path = cache_folder("emulator") / f"{digest[:32]}.{source.architecture}.cubin"
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, [_compiled(source, arguments, nvrtc)])
        except OSError as error:
            raise KernelError(
                f"{path.parent}: cannot keep compiled kernels there ({error.strerror}); set ONNXFUSE_CACHE"
            ) from None
    return path


def _compiled(source: Source, arguments: Sequence[str], nvrtc: Any) -> bytes:
    program = nvrtc.createProgram(source.text, source.name, (), ())
    try:
        nvrtc.compileProgram(program, arguments)
        binary: bytes = nvrtc.getCUBIN(program)
        return binary + bytes(-len(binary) % WORD)
    except nvrtc.NVRTCError as error:
        raise KernelError(nvrtc.getProgramLog(program) or f"{source.name}: {error}") from None
    finally:
        nvrtc.destroyProgram(program)
