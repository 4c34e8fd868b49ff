"""Re-creates the models in this folder, their truth.json, and the table in README.md."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx

from models.catalogue import EXPORTS, Export
from models.handmade import HANDMADE, Handmade

FOLDER = Path(__file__).parent
BEGIN, END = "<!-- table: written by models.make -->", "<!-- end of table -->"
HEADER = (
    "| file | what it is | exporter | opset | nodes | what is in it to fuse |",
    "|---|---|---|---:|---:|---|",
)
EXPORTERS = {"ts": "TorchScript", "dynamo": "dynamo"}


def make_handmade(name: str, handmade: Handmade) -> tuple[str, dict[str, int]]:
    """Writes a hand-made model; returns its row of the table and its blocks."""
    path = FOLDER / f"{name}.onnx"
    model = handmade.build()
    if handmade.external:
        data = path.with_suffix(".onnx.data")
        data.unlink(missing_ok=True)
        onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=1024)
    else:
        onnx.save(model, path)
    return row(path, handmade.build.__doc__, "by hand", handmade.blocks), handmade.blocks


def make_export(export: Export) -> tuple[str, dict[str, int]]:
    """Exports a model; returns its row of the table and its blocks."""
    from models.architectures import ARCHITECTURES
    from models.export import write_export

    blocks = write_export(export, FOLDER)
    doc = (ARCHITECTURES[export.architecture].build.__doc__ or "").splitlines()[0]
    doc = f"{doc.rstrip('.')} ({export.variant})." if export.variant else doc
    return row(FOLDER / export.file, doc, EXPORTERS[export.exporter], blocks), blocks


def row(path: Path, doc: str | None, exporter: str, blocks: dict[str, int]) -> str:
    """A model's row of the table in README.md."""
    model = onnx.load(path, load_external_data=False)
    nodes = sum(1 for graph in (model.graph, *model.functions) for _ in every_node(graph.node))
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    inside = ", ".join(f"{count} {kind}" for kind, count in blocks.items())
    what = (doc or "").splitlines()[0].rstrip(".")
    return f"| {path.name} | {what} | {exporter} | {opset} | {nodes} | {inside} |"


def every_node(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and those of their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from every_node(attribute.g.node)


def write_truth(made: dict[str, dict[str, int]]) -> None:
    """Enters these models' blocks into truth.json, leaving the others as they are."""
    path = FOLDER / "truth.json"
    truth = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(dict(sorted({**truth, **made}.items())), indent=1) + "\n")


def write_table(rows: Iterable[str]) -> None:
    """Enters these rows into the table of README.md, leaving the others as they are."""
    path = FOLDER / "README.md"
    before, rest = path.read_text().split(BEGIN)
    old, after = rest.split(END)
    table = {line.split("|")[1]: line for line in old.strip().splitlines()[len(HEADER) :]}
    table.update((line.split("|")[1], line) for line in rows)
    path.write_text("\n".join([before + BEGIN, *HEADER, *(table[name] for name in sorted(table)), END + after]))


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    names = list(dict.fromkeys([*(export.name for export in EXPORTS), *HANDMADE]))
    parser = argparse.ArgumentParser(
        prog="python -m models.make",
        description=__doc__,
        epilog=f"Example: python -m models.make bert softmax.  Names: {', '.join(names)}.",
    )
    parser.add_argument("name", nargs="*", metavar="NAME", help="a model to re-create; all of them when none is named")
    wanted = parser.parse_args(arguments).name or names
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"no model is called {unknown[0]}; the names are {', '.join(names)}")

    rows: list[str] = []
    truth: dict[str, dict[str, int]] = {}
    jobs = [export for export in EXPORTS if export.name in wanted] + [name for name in HANDMADE if name in wanted]
    for number, job in enumerate(jobs, 1):
        start = time.perf_counter()
        file = job.file if isinstance(job, Export) else f"{job}.onnx"
        try:
            line, blocks = make_export(job) if isinstance(job, Export) else make_handmade(job, HANDMADE[job])
        except ModuleNotFoundError as missing:
            print(f"{file}: needs {missing.name}; install it with: pip install -e '.[cpu,models]'", file=sys.stderr)
            return 2
        rows.append(line)
        truth[file.split(".")[0]] = blocks
        size = (FOLDER / file).stat().st_size / 1000
        seconds = time.perf_counter() - start
        print(f"[{number}/{len(jobs)}] {file}  {size:.0f} kB  {seconds:.1f} s", flush=True)
    write_truth(truth)
    write_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
