"""Kernel sources to shared libraries by g++, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from onnxfuse.errors import DependencyError, KernelError
from onnxfuse.kernels.device.device import Source
from onnxfuse.system.cache_folder import cache_folder

HERE = Path(__file__).parent
INCLUDE = HERE / "include"
RUNTIME_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden")
RUNTIME = (
    "fiber.cpp",
    "scheduler.cpp",
    "warpgroup.cpp",
    "bulk.cpp",
    "tensor_memory.cpp",
    "checker.cpp",
    "counter.cpp",
    "hooks.cpp",
)

LANGUAGE = ("-std=c++17", "-fPIC", "-w", "-fno-strict-aliasing", "-fno-gnu-unique", "-fno-threadsafe-statics")
NUMBERS = ("-ffp-contract=off", "-march=native")
"""Every operation rounded by itself, whether or not this CPU could fuse a product and a sum."""
SAFE = ("-fsanitize=alignment,integer-divide-by-zero", "-fno-sanitize-recover=integer-divide-by-zero")
"""What would stop this process, where a GPU stops only the kernel."""
REGISTERS = "-fira-region=one"
"""Registers are found for a function at once, not loop by loop: a tenth of what a kernel takes, and as fast a one."""
AS_FOUND = (
    "-fno-forward-propagate",
    "-fno-dse",
    "-fno-dce",
    "-fno-cprop-registers",
    "-fno-if-conversion",
    "-fno-if-conversion2",
    "-fno-combine-stack-adjustments",
    "-fno-compare-elim",
    "-fno-shrink-wrap",
    "-fno-reorder-blocks",
    "-fno-split-wide-types",
    "-fno-move-loop-invariants",
)
"""Instructions are not looked at again, once they are chosen: an eighth of what a kernel takes, and it runs a twentieth
longer.  What is checked is settled by then."""
CHECKED = (
    "-O1",
    REGISTERS,
    *AS_FOUND,
    "-g1",
    "-gdwarf-4",
    "-fno-var-tracking",
    "-fno-var-tracking-assignments",
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "-fsanitize=bounds,signed-integer-overflow",
    "-fno-sanitize-recover=bounds,signed-integer-overflow",
)
"""Of what is for debuggers only the lines: where variables are is a fifth of the compile time, and nobody asks.  What
the checker is told of does not come back (`fail`), so that nothing need be compiled for it to come back to: a tenth of
what an attention kernel takes."""
FAST = ("-O1", REGISTERS, *AS_FOUND)
"""-O2 takes half as long again, for kernels that run a twentieth faster: few run for as long as they are compiled."""

ALIGNED = r"(?:(?:__align__|alignas)\s*\([^)]*\)\s*)*"
BOUNDS = r"(?:__launch_bounds__\s*\([^)]*\)\s*)?"
DYNAMIC_SHARED = re.compile(
    rf"extern\s+{ALIGNED}__shared__\s+{ALIGNED}(?P<type>[\w:\s]+?)\s+(?P<name>\w+)\s*\[\s*\]\s*;"
)
LINE = re.compile(r'#line (?P<line>\d+) "(?P<file>.+)"')
ELSE = re.compile(r"\s*#\s*(?:else|elif|endif)\b.*(?<!\\)$")
"""Behind which the compiler goes on, and may have left out a `#line` before."""
ENTRY = re.compile(rf'extern\s+"C"\s+__global__\s+{BOUNDS}void\s+{BOUNDS}(\w+)\s*\(')
ERROR = re.compile(r"^(?P<where>[^\n:]+:\d+):\d+: (?:fatal )?error: (?P<message>.*)$", re.MULTILINE)


def build(source: Source, entry: str, checked: bool) -> Path:
    """The library that holds `entry`, built if it is not there yet.

    Raises DependencyError without g++, and KernelError (with file and line) if the source does not compile.
    """
    text = _translation_unit(source, entry)
    flags = (*LANGUAGE, *NUMBERS, *SAFE, *(CHECKED if checked else FAST))
    target = _cached([text, *flags, *RUNTIME_FLAGS, *_units().values()], ".so")
    needed = _needed()
    if not target.exists():
        objects = _runtime()
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            unit, compiled, library = Path(folder, "kernel.cpp"), Path(folder, "kernel.o"), Path(folder, "kernel.so")
            unit.write_text(text, encoding="utf-8")
            _compile(source.name, *flags, "-I", _precompiled(flags), "-I", INCLUDE, "-c", unit, "-o", compiled)
            options = (*_linker(), "-nostdlib", "-shared", "-Wl,-Bsymbolic,--no-as-needed,-rpath,$ORIGIN")
            _compile(source.name, *options, compiled, *objects, needed, "-lgcc", "-o", library)
            library.replace(target)
    return target


def compiler() -> str:
    """The path of g++.  Raises DependencyError if there is none."""
    path = shutil.which("g++")
    if path is None:
        raise DependencyError(
            "kernels run on a CPU by way of g++, which is not installed: install it (Debian and Ubuntu: "
            "apt-get install g++), or leave the kernels out"
        )
    return path


@cache
def _linker() -> tuple[str, ...]:
    """gold where there is one, which takes half as long as the usual linker."""
    return ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()


def _translation_unit(source: Source, entry: str) -> str:
    """What g++ is given: the kernel's text, and for each entry a function that takes its arguments by address."""
    entries = sorted({*_entries(source.text), entry})
    text = DYNAMIC_SHARED.sub(
        r"\g<type> *const \g<name> = (\g<type> *)::emulator::emulator_dynamic_shared;", source.text
    )
    exports = "".join(f"EMULATOR_EXPORT({name})\n" for name in entries)
    told = "".join(
        f'{code}\n#line {line + 1} "{file}"\n' if ELSE.match(code) else f"{code}\n"
        for file, line, code in lines(replace(source, text=text))
    )
    return f'#include "cuda_emulator.h"\n#line 1 "{_name(source)}"\n{told}\n#line 1 "exports"\n{exports}'


def lines(source: Source) -> Iterator[tuple[str, int, str]]:
    """The lines of a source, and where each is from: a file, and its number there."""
    file, line = _name(source), 0
    for code in source.text.split("\n"):
        line += 1
        yield file, line, code
        if told := LINE.match(code):
            file, line = told["file"], int(told["line"]) - 1


def _name(source: Source) -> str:
    """As a `#line` can have it."""
    return source.name.replace("\\", "/").replace('"', "'")


def _entries(text: str) -> Iterator[str]:
    """The kernels of a text, but for those that a preprocessor line speaks of."""
    for found in ENTRY.finditer(text):
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        if not line.lstrip().startswith("#"):
            yield found[1]


def _runtime() -> list[Path]:
    """The object files of the emulator itself."""
    objects = []
    for name, digest in _units().items():
        target = _cached([digest, *RUNTIME_FLAGS], ".o")
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                compiled = Path(folder, "runtime.o")
                _compile(name, *RUNTIME_FLAGS, "-c", HERE / "runtime" / name, "-o", compiled)
                compiled.replace(target)
        objects.append(target)
    return objects


def _needed() -> Path:
    """A library that holds nothing and needs C++'s and C's.  Whatever is linked with it, and lies beside it, has these
    when it is loaded, and the linker does not read all their names again for each kernel: half of what it takes."""
    target = _cached(["needed"], ".so")
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            library = Path(folder, target.name)
            options = f"-Wl,--no-as-needed,-soname,{target.name}"
            _compile(target.name, "-shared", options, "-x", "c++", "/dev/null", "-o", library)
            library.replace(target)
    return target


@cache
def _units() -> dict[str, str]:
    """What stands for the text of each of the emulator's own, and of their headers."""
    headers = "".join(path.read_text(encoding="utf-8") for path in sorted((HERE / "runtime").glob("*.h")))
    return {name: _digest((HERE / "runtime" / name).read_text(encoding="utf-8"), headers) for name in RUNTIME}


def _precompiled(flags: Sequence[str]) -> Path:
    """The folder of the header that every kernel begins with, parsed: g++ takes it in place of the one in include/."""
    folder = _cached(["cuda_emulator.h", *flags], ".headers")
    target = folder / "cuda_emulator.h.gch"
    if not target.exists():
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            parsed = Path(scratch, target.name)
            _compile("cuda_emulator.h", *flags, "-x", "c++-header", INCLUDE / "cuda_emulator.h", "-o", parsed)
            parsed.replace(target)
    return folder


def _cached(parts: list[str], suffix: str) -> Path:
    """The place for what is made of these parts, of the emulator's headers, and by this compiler on this CPU."""
    return kept_at([*parts, _surroundings(_headers(), _platform())], suffix)


@cache
def _surroundings(headers: str, platform: str) -> str:
    """What stands for them: they are long, and asked for with each kernel."""
    return _digest(headers, platform)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def kept_at(parts: Sequence[str], suffix: str) -> Path:
    """The place, in a folder that is there, for what is made of these parts.

    Raises KernelError where there can be no such folder."""
    digest = _digest(*parts)
    folder = cache_folder("emulator")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KernelError(
            f"{folder}: cannot keep compiled kernels there ({error.strerror}); set ONNXFUSE_CACHE"
        ) from None
    return folder / (digest[:32] + suffix)


@cache
def _headers() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(INCLUDE.glob("*.h")))


@cache
def _platform() -> str:
    """The compiler's version and what `-march=native` means here."""
    version = subprocess.run([compiler(), "-dumpfullversion", "-dumpmachine"], capture_output=True, text=True)
    native = subprocess.run([compiler(), "-march=native", "-Q", "--help=target"], capture_output=True, text=True)
    return version.stdout + native.stdout


def _compile(name: str, *arguments: str | Path) -> None:
    """Run g++.  Raises KernelError with the first error."""
    result = subprocess.run([compiler(), *map(str, arguments)], capture_output=True, text=True)
    if result.returncode:
        found = ERROR.search(result.stderr)
        lines = result.stderr.strip().splitlines() or [f"g++ exited with {result.returncode}"]
        raise KernelError(f"{found['where']}: {found['message']}" if found else f"{name}: {lines[-1]}")
