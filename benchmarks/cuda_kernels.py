"""Which kernels onnxruntime's CUDA provider has, as a release of onnxruntime-gpu says itself; no GPU is needed.

The release is installed from the package index, and `ort_probe` asks it for its registry of kernels, as onnxruntime's
docs/OperatorKernels.md is made.  Its libraries are linked to those of CUDA, which want a driver: stand-ins take their
place, whose functions do nothing and say that all is well.  That is enough for a provider to come into being.

The answer goes to onnxfuse/targets/cuda_kernels.json, which `--target ort --provider cuda` and its report of fallbacks
consult.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environments import Environment, UnavailableError, build
from benchmarks.ort_versions import LATEST, PROBE
from onnxfuse.targets.cuda_provider import TABLE

PACKAGE, PROVIDER = "onnxruntime-gpu", "CUDAExecutionProvider"
DOMAINS = ("", "com.microsoft")
"""Of which kernels are kept; the registry has onnxruntime's internal ones besides."""
STAND_IN = """#include <stdlib.h>
static void *room[512], *table[256];
static void *same(void) { return room; }
__attribute__((constructor)) static void fill(void) { for (int i = 0; i < 256; i++) table[i] = same; room[0] = table; }
"""
"""An object in C++'s eyes, each of whose methods returns it."""
GIVES_OBJECT = re.compile(r"__cudaRegisterFatBinary|\w*(Error|Status)(Name|String)|\w+_INTERNAL")
"""Functions that return an address; all others return 0, which is CUDA's success."""
OF_THEIR_OWN = {
    "cudaGetDeviceCount": "int cudaGetDeviceCount(int *count) { *count = 1; return 0; }",
    "cudaMalloc": "int cudaMalloc(void **p, size_t n) { *p = malloc(n); return 0; }",
    "cudaMallocHost": "int cudaMallocHost(void **p, size_t n) { *p = malloc(n); return 0; }",
    "cudaHostAlloc": "int cudaHostAlloc(void **p, size_t n, unsigned f) { *p = malloc(n); return 0; }",
    "cudaMemGetInfo": "int cudaMemGetInfo(size_t *a, size_t *b) { *a = *b = (size_t)1 << 34; return 0; }",
}
"""Functions that must do more: a session wants a card and its memory, though it runs nothing."""


# ---------------------------------------------------------------------------------------------------------- stand-ins


def _told(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wanted(libraries: Iterable[Path]) -> dict[str, dict[str, bool]]:
    """Library of NVIDIA's that these are linked to → the functions that they take from it, and whether by version."""
    found: dict[str, dict[str, bool]] = {}
    for library in libraries:
        needed = re.findall(r"\(NEEDED\).*\[(lib(?:cu|nv)[^]]*)\]", _told("readelf", "-d", library))
        for name in needed:
            found.setdefault(name, {})
        symbols = _told("nm", "-D", "--undefined-only", "--with-symbol-versions", library)
        for symbol, version in re.findall(r"^\s+U (\w+)(?:@(\S+))?$", symbols, re.MULTILINE):
            if version in found:
                found[version][symbol] = True
            elif needed and not version and not symbol.startswith("Provider_"):
                found[needed[-1]].setdefault(symbol, False)
    return found


def stand_in(folder: Path, name: str, functions: dict[str, bool]) -> None:
    """Compile a library of this name with these functions.  Versions of symbols are called as their library is."""
    lines = [STAND_IN]
    for function in functions:
        if function in OF_THEIR_OWN:
            lines.append(OF_THEIR_OWN[function])
        elif GIVES_OBJECT.fullmatch(function):
            lines.append(f"void *{function}(void) {{ return room; }}")
        else:
            lines.append(f"long {function}(void) {{ return 0; }}")
    source, versions = folder / f"{name}.c", folder / f"{name}.map"
    source.write_text("\n".join(lines), encoding="utf-8")
    versions.write_text(f"{name} {{ global: *; }};\n", encoding="utf-8")
    linked = [f"-Wl,-soname,{name}", *([f"-Wl,--version-script={versions}"] if any(functions.values()) else [])]
    _told("gcc", "-shared", "-fPIC", "-w", "-o", folder / name, source, *linked)


# ------------------------------------------------------------------------------------------------------------- table


def asked(environment: Environment) -> dict[str, Any]:
    """What `ort_probe` finds in an environment with onnxruntime-gpu."""
    found: dict[str, Any] = answered(environment, PROBE, [], PROVIDER)
    return found


def answered(environment: Environment, script: Path, questions: Any, *arguments: str) -> Any:
    """What a script answers to questions, both of which it finds pickled, in an environment with onnxruntime-gpu."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        asked, answers = folder / "questions", folder / "answers"
        libraries = sorted((environment.folder / "onnxruntime" / "capi").glob("libonnxruntime_providers_*.so"))
        for name, functions in wanted(libraries).items():
            stand_in(folder, name, functions)
        asked.write_bytes(pickle.dumps(questions))
        variables = {**environment.variables(), "LD_LIBRARY_PATH": temporary}
        command = environment.command(script, str(asked), str(answers), *arguments)
        subprocess.run(command, check=True, env=variables, stderr=subprocess.DEVNULL)
        return pickle.loads(answers.read_bytes())


def table(kernels: Iterable[Sequence[Any]], schemas: Iterable[Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """Op, with its domain if that is not ai.onnx → the type parameters of its inputs, and its kernels, those of newer
    editions first.  `kernels` and `schemas` are as `ort_probe` gives them."""
    newest = {(domain, op): inputs for domain, op, _, inputs, _ in sorted(schemas, key=lambda row: int(row[2]))}
    found: dict[str, dict[str, Any]] = {}
    for domain, op, since, until, types in kernels:
        if domain in DOMAINS:
            entry = found.setdefault(f"{domain}.{op}".strip("."), {"inputs": newest[domain, op], "kernels": []})
            said = {"since": since, "until": None if until == LATEST else until, "types": tensors(types)}
            entry["kernels"].append(said)
    for entry in found.values():
        entry["kernels"] = sorted(merged(entry["kernels"]), key=lambda k: (-k["since"], json.dumps(k["types"])))
    return found


def tensors(types: dict[str, list[str]]) -> dict[str, list[str]]:
    """Type parameter → its tensors' element types; sequences are left out."""
    short = {name: sorted(kind[7:-1] for kind in kinds if kind.startswith("tensor(")) for name, kinds in types.items()}
    return {name: kinds for name, kinds in sorted(short.items()) if kinds}


def merged(kernels: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same kernels, two as one wherever they differ in one type parameter alone."""
    left: list[dict[str, Any]] = []
    for kernel in kernels:
        while near := next((other for other in left if _differ_in_one(kernel, other)), None):
            left.remove(near)
            both = {name: sorted({*kinds, *near["types"][name]}) for name, kinds in kernel["types"].items()}
            kernel = kernel | {"types": both}
        left.append(kernel)
    return left


def _differ_in_one(one: dict[str, Any], other: dict[str, Any]) -> bool:
    a, b = one["types"], other["types"]
    if any(one[key] != other[key] for key in ("since", "until")) or a.keys() != b.keys():
        return False
    return len([name for name in a if a[name] != b[name]]) <= 1


def written(found: dict[str, dict[str, Any]], version: str, source: str) -> str:
    """The JSON, an op a line."""
    head = {"onnxruntime": version, "source": source, "provider": PROVIDER}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    ops = ",\n".join(f"  {json.dumps(op)}: {json.dumps(found[op])}" for op in sorted(found))
    return "\n".join(["{", *lines, ' "ops": {', ops, " }", "}"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python -m benchmarks.cuda_kernels --version 1.31",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", required=True, metavar="X.Y", help="The release of onnxruntime-gpu.")
    parser.add_argument("--output", type=Path, default=TABLE)
    given = parser.parse_args()
    try:
        environment = build([f"{PACKAGE}=={given.version}.*", "numpy<3"])
    except UnavailableError as reason:
        parser.error(str(reason))
    answers = asked(environment)
    found = table(answers["kernels"], answers["schemas"])
    release = environment.versions[PACKAGE.replace("-", "_")]
    source = f"the registry of kernels of {PACKAGE} {release}, by benchmarks/cuda_kernels.py"
    given.output.write_text(written(found, release, source), encoding="utf-8")
    print(f"{given.output}: {len(found)} ops, {sum(len(entry['kernels']) for entry in found.values())} kernels")


if __name__ == "__main__":
    main()
