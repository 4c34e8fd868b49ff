"""Whether two checkouts write the same fused files, byte for byte, for every model of a folder and every target.

    python -m benchmarks.same_files models more/ --record before.json              in one checkout
    python -m benchmarks.same_files models more/ --record after.json --against before.json       in the other

Nothing is proved: what is compared is what the rewriting does.  A model is known by its file and its folder.  Prints
each model and target whose files differ, are new or are missing, and ends with 1 if there is one.  A model that cannot
be fused for a target is compared by its error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import onnxfuse

TARGETS: Mapping[str, Mapping[str, Any]] = {
    "onnxfuse": {"target": "onnxfuse"},
    "onnx": {"target": "onnx"},
    "ort": {"target": "ort"},
    "ort cuda": {"target": "ort", "provider": "cuda"},
}


def digests(path: Path) -> dict[str, str]:
    """Target → sha256 of the files that are written for it, or the error."""
    return {
        f"{path.resolve().parent.name}/{path.name}, {name}": digest(path, options) for name, options in TARGETS.items()
    }


def digest(path: Path, options: Mapping[str, Any]) -> str:
    """The sha256 of what is written for one target, external data with it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            onnxfuse.optimize(path, Path(folder) / "fused.onnx", validate="off", **options)
        except onnxfuse.OnnxfuseError as error:
            return f"{type(error).__name__}: {error}".replace(str(path.parent), "").replace(folder, "")
        found = hashlib.sha256()
        for file in sorted(Path(folder).iterdir()):
            found.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            found.update(file.read_bytes())
        return found.hexdigest()


def models(places: Sequence[Path]) -> Iterator[Path]:
    """The .onnx files of folders, and files as they are."""
    for place in places:
        yield from sorted(place.rglob("*.onnx")) if place.is_dir() else [place]


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """A line for each model and target that is not the same on both sides."""
    lines = [f"{key}: differs" for key in before if key in after and before[key] != after[key]]
    lines += [f"{key}: was not there before" for key in after if key not in before]
    return lines + [f"{key}: is not there any more" for key in before if key not in after]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", type=Path, help="models, and folders of models")
    parser.add_argument("--record", type=Path, help="write the digests to this JSON file")
    parser.add_argument("--against", type=Path, help="compare with those of another checkout")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args(argv)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        found: dict[str, str] = {}
        for some in pool.map(digests, models(arguments.places)):
            found |= some
    if arguments.record:
        arguments.record.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if arguments.against is None:
        return 0
    lines = differences(json.loads(arguments.against.read_text()), found)
    print(*lines, f"{len(found)} outputs, {len(lines)} differences", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
