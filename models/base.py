"""Writes base-sized exports with random weights, each with inputs of an ordinary size beside it.

They are what a deployment runs: large enough that matrix products take most of the time.  They are not committed, since
together they take some gigabytes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from models.catalogue import OPSETS, Export

NAMES = (
    "bert_base",
    "distilbert_base",
    "gpt2_124m",
    "vit_base",
    "swin_tiny",
    "convnext_tiny",
    "efficientnet_b0",
    "t5_base_encoder",
    "t5_base_decoder",
    "whisper_base_encoder",
    "llama_7b_block",
)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code, which is 1 if an export failed."""
    parser = argparse.ArgumentParser(prog="python -m models.base", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write NAME.EXPORTER.onnx and NAME.EXPORTER.npz")
    parser.add_argument("name", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all when none is named")
    parser.add_argument("--exporter", choices=OPSETS, help="only this one of torch's exporters")
    parsed = parser.parse_args(arguments)
    if unknown := [name for name in parsed.name if name not in NAMES]:
        parser.error(f"no model is called {unknown[0]}; the names are {', '.join(NAMES)}")
    if not parsed.folder.is_dir():
        parser.error(f"there is no folder {parsed.folder}: make it first")
    try:
        from models.base_architectures import BASE, write_inputs
        from models.export import write_export
    except ModuleNotFoundError as missing:
        print(f"needs {missing.name}; install it with: pip install -e '.[cpu,models]'", file=sys.stderr)
        return 2
    failed = False
    for name in parsed.name or NAMES:
        for exporter in [parsed.exporter] if parsed.exporter else OPSETS:
            export, start = Export(name, name, exporter, OPSETS[exporter]), time.perf_counter()
            path = parsed.folder / export.file
            try:
                write_export(export, parsed.folder, BASE)
            except Exception as error:  # the exporters raise whatever their passes raise
                path.unlink(missing_ok=True)
                print(f"{path.name}: {str(error).strip().splitlines()[0]}", file=sys.stderr, flush=True)
                failed = True
                continue
            write_inputs(BASE[name], path.with_suffix(".npz"))
            print(f"{path.name}  {path.stat().st_size / 1e6:.0f} MB  {time.perf_counter() - start:.0f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
