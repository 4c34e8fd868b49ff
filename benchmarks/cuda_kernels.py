"""Which kernels onnxruntime's CUDA provider has, from docs/OperatorKernels.md of its repository, which says so.

The document is made by onnxruntime's build on a machine with a GPU; this reads its tables and needs none.  The result
goes to onnxfuse/targets/cuda_kernels.json, which `--target ort --provider cuda` and its report of fallbacks consult.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from onnxfuse.targets.cuda_provider import TABLE

PROVIDER = "CUDAExecutionProvider"
DOMAINS = ("ai.onnx", "com.microsoft")
"""Of which kernels are kept; the document has onnxruntime's internal ones besides."""


def rows(document: str) -> list[tuple[str, str, str, str, str]]:
    """(domain, op, parameters, versions, types) of each kernel of the provider.

    Raises ValueError where the document has no table of it."""
    start = document.find(f"## Operators implemented by {PROVIDER}")
    if start < 0:
        raise ValueError(f"no table of {PROVIDER}: is this docs/OperatorKernels.md of onnxruntime?")
    found, domain, op, parameters = [], "", "", ""
    for line in document[start:].splitlines()[1:]:
        if line.startswith("## "):
            break
        heading = re.match(r"\|\*\*Operator Domain:\*\* \*([^*]+)\*", line)
        if heading:
            domain = heading[1]
            continue
        cells = line.split("|")[1:-1]
        if not domain or len(cells) != 4 or not cells[2].strip():
            continue
        if cells[0]:  # further versions of an op leave its name and parameters out
            op, parameters = cells[0], cells[1]
        found.append((domain, op, parameters, cells[2], cells[3]))
    return found


def versions(text: str) -> tuple[int, int | None]:
    """Opsets of `13+`, `[6, 12]` or `12`, as first and last; None for an open end."""
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    return numbers[0], None if text.endswith("+") else numbers[-1]


def types(text: str) -> dict[str, list[str]]:
    """Type parameter → its tensors' element types; sequences are left out."""
    found = {}
    for name, kinds in re.findall(r"\*\*(\w+)\*\* = ([^*<]*)", text):
        found[name] = sorted(re.findall(r"(?<![(\w])tensor\((\w+)\)", kinds))
    return {name: kinds for name, kinds in found.items() if kinds}


def table(document: str) -> dict[str, dict[str, Any]]:
    """Op, with its domain if that is not ai.onnx → the type parameters of its inputs, and its kernels."""
    found: dict[str, dict[str, Any]] = {}
    for domain, op, parameters, opsets, constraints in rows(document):
        if domain not in DOMAINS:
            continue
        name = op if domain == "ai.onnx" else f"{domain}.{op}"
        first = parameters.split("<br><br>or")[0]
        inputs = re.findall(r"\*in\* [\w.]+:\*\*([^*]+)\*\*", first)
        since, until = versions(opsets)
        entry = found.setdefault(name, {"inputs": inputs, "kernels": []})
        entry["kernels"].append({"since": since, "until": until, "types": types(constraints)})
    return found


def written(found: dict[str, dict[str, Any]], version: str, source: str) -> str:
    """The JSON, an op a line."""
    head = {"onnxruntime": version, "source": source, "provider": PROVIDER}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    ops = ",\n".join(f"  {json.dumps(op)}: {json.dumps(found[op])}" for op in sorted(found))
    return "\n".join(["{", *lines, ' "ops": {', ops, " }", "}"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python -m benchmarks.cuda_kernels OperatorKernels.md --version 1.26.0 --source URL",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("document", type=Path, help="docs/OperatorKernels.md of an onnxruntime release.")
    parser.add_argument("--version", required=True, help="The release.")
    parser.add_argument("--source", required=True, help="Where the document comes from: its address at a tag.")
    parser.add_argument("--output", type=Path, default=TABLE)
    given = parser.parse_args()
    try:
        found = table(given.document.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        parser.error(f"{given.document}: {error}")
    given.output.write_text(written(found, given.version, given.source), encoding="utf-8")
    print(f"{given.output}: {len(found)} ops, {sum(len(entry['kernels']) for entry in found.values())} kernels")


if __name__ == "__main__":
    main()
