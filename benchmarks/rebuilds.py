"""What the search for a guilty fusion costs: user CPU of fusing a model again and again, each time without another one.

    python -m benchmarks.rebuilds models/bert.ts.onnx models/gpt2.ts.onnx --tries 20

A bisection does just this, and so does the weighing of fusions on a card.  Nothing is proved here.
Prints for each model its nodes, the first fusing, and the median of the tries.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
from pathlib import Path

import onnx

from onnxfuse.fusing.fuse import fuse, lower
from onnxfuse.language.catalogue import load
from onnxfuse.model.graph import count_nodes
from onnxfuse.rewriting.provenance import keys
from onnxfuse.targets.target import DEFAULT


def user_seconds() -> float:
    """User CPU time of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def rebuilt(path: Path, tries: int) -> tuple[float, list[float]]:
    """Seconds that the first fusing of a model takes, and each of `tries` without one of its fusions."""
    catalogue = load().serving(DEFAULT)
    model = onnx.load(path, load_external_data=False)
    start = user_seconds()
    source, fused = lower(model, catalogue, base_dir=path.parent)
    first, seconds = user_seconds() - start, list[float]()
    for site in itertools.islice(itertools.cycle(fused.sites), tries):
        start = user_seconds()
        fuse(source, catalogue, base_dir=path.parent, banned=frozenset(keys(site, site.matches[-1:])))
        seconds.append(user_seconds() - start)
    return first, seconds


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--tries", type=int, default=20)
    settings = parser.parse_args()
    for path in settings.models:
        nodes = count_nodes(onnx.load(path, load_external_data=False))
        first, seconds = rebuilt(path, settings.tries)
        again = f"{statistics.median(seconds):.3f}" if seconds else "nothing to leave out"
        print(f"{path.name}: {nodes} nodes, first {first:.3f} s, again {again} s", flush=True)


if __name__ == "__main__":
    main()
