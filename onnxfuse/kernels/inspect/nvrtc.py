"""Kernels compiled without a GPU: what NVRTC says of registers, spills and shared memory.

    python -m onnxfuse.kernels.inspect.nvrtc        compile everything and write resources.json anew

The table is committed, and the tests hold every kernel to it.  It says of which texts it was written, and is sealed:
of such texts one in four is compiled again, for one architecture, any other text for all.  NVRTC is found in the wheel
`nvidia-cuda-nvrtc` or in the CUDA toolkit at $CUDA_PATH; the headers of float16, bfloat16 and matrix fragments are in
`nvidia-cuda-runtime` and `nvidia-cuda-crt`.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from onnxfuse.errors import DependencyError, KernelError
from onnxfuse.kernels.device.cuda import OPTIONS, first_error
from onnxfuse.kernels.device.device import Source
from onnxfuse.kernels.emulator.build import kept_at
from onnxfuse.system.atomic_write import replace

from . import nvrtc_process

SAMPLED: tuple[str, ...] = ("attention.samples", "gemm.samples", "pointwise.samples", "rows.samples")
"""Modules of this package with a function `samples() -> Iterable[tuple[str, Source]]`: every source that is compiled
here, each under a name that says what it is specialised for ("softmax float16 warp")."""

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
ALWAYS = "sm_90"
"""What is compiled for even where the table was written of the same text."""
SAMPLE = 4
"""Of so many texts that a table was written of, one is compiled again: the same compiler says the same of the same, and
one that does not, or another count, shows in any of them."""
TABLE = Path(__file__).parent / "resources.json"
TRIES = 2
"""How often a source is given to NVRTC that crashes on it."""

ENTRY = re.compile(
    r"Compiling entry function '(?P<entry>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, "
    r"(?P<spill_stores>\d+) bytes spill stores, (?P<spill_loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers(?:[^\n]*?(?P<shared>\d+) bytes smem)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Resources:
    """What a thread of a kernel needs (registers; stack and spills in bytes) and a block (static shared bytes)."""

    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int


def resources(source: Source, architecture: str) -> dict[str, Resources]:
    """Compile for an architecture ("sm_90"): the resources of each `__global__` function.

    What the compiler said and made is kept beside the emulator's libraries, and not asked again.  Raises KernelError
    with the compiler's first error, and DependencyError without NVRTC.
    """
    log = compiled(source, architecture).log
    return {
        found["entry"]: Resources(
            int(found["registers"]),
            int(found["shared"] or 0),
            int(found["stack"]),
            int(found["spill_stores"]),
            int(found["spill_loads"]),
        )
        for found in ENTRY.finditer(log)
    }


class Compiled(NamedTuple):
    """What NVRTC makes of a source: what it says while it does, and the binary."""

    log: str
    cubin: bytes


def compiled(source: Source, architecture: str) -> Compiled:
    """A source compiled for an architecture, or what was kept of it; see `resources` for what is raised."""
    kept = _kept(source, architecture)
    try:
        log, _, cubin = zlib.decompress(kept.read_bytes()).partition(b"\0")
    except (FileNotFoundError, zlib.error):
        found = _compiled(source, architecture)
        log, cubin = found.log.encode(), found.cubin
        replace(kept, [zlib.compress(log + b"\0" + cubin)])
    return Compiled(log.decode(), cubin)


def _options(architecture: str) -> list[str]:
    return [f"-arch={architecture}", *OPTIONS, "-ftz=true", "-Xptxas=-v"]


def _kept(source: Source, architecture: str) -> Path:
    """The file for what this compiler says of this source."""
    library = Path(_library()[0]._name)
    parts = [source.name, source.text, *_options(architecture), version(), library.name, str(library.stat().st_size)]
    return kept_at(parts, ".cubin.z")


def _compiled(source: Source, architecture: str) -> Compiled:
    library, include = _library()
    command = [sys.executable, "-I", nvrtc_process.__file__, library._name, source.name]
    command += [*_options(architecture), f"-I{include}"]
    for _ in range(TRIES):
        done = subprocess.run(command, input=source.text.encode(), capture_output=True, check=False)
        if done.returncode >= 0:
            break
    else:
        raise KernelError(f"{source.name}: NVRTC crashed with {signal.Signals(-done.returncode).name}, {TRIES} times")
    log, _, cubin = done.stdout.partition(b"\0")
    if done.returncode:
        raise KernelError(f"{first_error((log or done.stderr).decode(errors='replace'))} (for {architecture})")
    return Compiled(log.decode(errors="replace"), cubin)


def version() -> str:
    """NVRTC's version, "13.5"."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library()[0].nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def architectures() -> tuple[str, ...]:
    """Those of ARCHITECTURES that this compiler knows."""
    library = _library()[0]
    count = ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    known = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(known)
    return tuple(name for name in ARCHITECTURES if int(name.removeprefix("sm_")) in list(known))


def of(source: Source) -> tuple[str, ...]:
    """What a source is compiled for: its own architecture, where it is for one alone, or all."""
    return (source.architecture,) if source.architecture else architectures()


def samples() -> Iterator[tuple[str, Source]]:
    """Every source that is compiled here."""
    for name in SAMPLED:
        yield from importlib.import_module(f"onnxfuse.kernels.{name}").samples()


def committed() -> dict[str, dict[str, dict[str, Resources]]]:
    """The table in resources.json: source, architecture and entry to resources."""
    kernels: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]] = json.loads(TABLE.read_text())["kernels"]
    return {
        source: {
            architecture: {entry: Resources(**figures) for entry, figures in entries.items()}
            for architecture, entries in found.items()
        }
        for source, found in kernels.items()
    }


def toolkits() -> list[Path]:
    """Folders that may hold parts of the CUDA toolkit: that of its wheels, and $CUDA_PATH."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) / "cu13" for root in (spec.submodule_search_locations or [])] if spec else []
    return [*roots, Path(toolkit)] if (toolkit := os.environ.get("CUDA_PATH")) else roots


@cache
def _library() -> tuple[ctypes.CDLL, Path]:
    """NVRTC and the folder of CUDA's headers."""
    for root in toolkits():
        for folder in ("lib", "lib64"):
            for path in sorted((root / folder).glob("libnvrtc.so*")):
                return ctypes.CDLL(str(path)), root / "include"
    raise DependencyError(
        "kernels are compiled without a GPU by NVRTC, which is not installed: "
        "python -m pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt"
    )


def digest(source: Source) -> str:
    """What stands for all that the compiler is given, but for the architecture."""
    return hashlib.sha256("\0".join([source.text, *_options("")]).encode()).hexdigest()[:16]


def texts(table: Path = TABLE) -> dict[str, str]:
    """The digest of each text that a table was written of; none where another compiler was asked, or where a figure is
    not as it was written."""
    said = json.loads(table.read_text())
    written: dict[str, str] = said["texts"]
    return written if said["nvrtc"] == version() and said["seal"] == seal(said) else {}


def seal(said: Mapping[str, object]) -> str:
    """What stands for all that a table says, so that a figure put in by hand, or by a merge, is measured."""
    plain = json.dumps({key: value for key, value in said.items() if key != "seal"}, sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def digests(sources: Mapping[str, Source]) -> dict[str, str]:
    """As a table has them."""
    return {name: digest(source) for name, source in sorted(sources.items())}


def unsettled(name: str, source: Source, written: Mapping[str, str]) -> tuple[str, ...]:
    """The architectures of which a table, `written` of such texts, may be wrong: all, or of one text in SAMPLE the one
    that is looked at nevertheless, or none."""
    found = digest(source)
    if written.get(name) != found:
        return of(source)
    return (source.architecture or ALWAYS,) if int(found, 16) % SAMPLE == 0 else ()


def measured(source: Source, among: Sequence[str] | None = None) -> dict[str, dict[str, Resources]]:
    """The resources of a source on architectures, by default on each."""
    return {architecture: resources(source, architecture) for architecture in (of(source) if among is None else among)}


def main() -> int:
    """Write resources.json and print it."""
    sources = dict(samples())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(sources, pool.map(measured, sources.values()), strict=True))
    plain = {
        name: {
            architecture: {entry: asdict(figures) for entry, figures in entries.items()}
            for architecture, entries in table.items()
        }
        for name, table in sorted(found.items())
    }
    written = {"nvrtc": version(), "texts": digests(sources), "kernels": plain}
    TABLE.write_text(json.dumps({"seal": seal(written), **written}, indent=1) + "\n")
    for name, table in sorted(found.items()):
        for architecture, entries in table.items():
            for entry, figures in entries.items():
                spills = figures.spill_stores + figures.spill_loads
                print(f"{name:40} {architecture:7} {entry:32} {figures.registers:4} registers "
                      f"{figures.shared:6} bytes shared {spills:6} bytes spilled")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
