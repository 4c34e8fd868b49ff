"""Graphs of training steps, fused: how many nodes and launches are left, how many bytes live between forward and
backward, and whether gradients are still those that torch computed.

    python -m benchmarks.training FOLDER                  each model beside NAME.npz, with inputs in:X and outputs out:Y
    python -m benchmarks.training FOLDER --mutants 200    and models with a mistake in their backward part

A model is optimized without a proof, so that it is the rules that are judged.  Its outputs are compared with the stored
ones; an error is relative to the largest element of an output, or to a hundredth of the largest of all outputs, since
of a gradient that is zero only rounding is left.  A mutant is a model with one node changed: a sign, a factor, an axis,
a term that is missing, another op.  What is compared is the fused mutant with the mutant: a rule that takes a wrong
gradient for the right one gives the right numbers, and is wrong.  A mistake may make a model that rounding moves
farther than others: what is beyond the tolerance and no farther than that is counted by itself.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

import onnxfuse
from onnxfuse.pipeline import Optimized
from onnxfuse.proof.draws import Distance
from onnxfuse.proof.roundings import Roundings
from onnxfuse.reporting.records import Report
from onnxfuse.runtime.quiet import Session, SessionError

from .torch_compile_launches import STEPS

Arrays = Mapping[str, npt.NDArray[np.float32]]

TOLERANCE = 1e-5
SWAPPED = {
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "Add",
    "Erf": "Tanh",
    "Tanh": "Erf",
    "Exp": "Tanh",
    "Sigmoid": "Tanh",
    "Sqrt": "Abs",
    "LessOrEqual": "Less",
    "ReduceSum": "ReduceMean",
    "ReduceMean": "ReduceSum",
}
"""Ops → others that take the same inputs."""
FACTORS = (-1.0, 0.5, 2.0, 1.01)


def read(path: Path) -> tuple[dict[str, npt.NDArray[np.float32]], dict[str, npt.NDArray[np.float32]]]:
    """The inputs and outputs that are stored beside a model."""
    with np.load(path.with_suffix(".npz")) as stored:
        both = [
            {name[len(side) :]: stored[name] for name in stored if name.startswith(side)} for side in ("in:", "out:")
        ]
    return both[0], both[1]


def run(model: onnx.ModelProto, inputs: Arrays) -> list[npt.NDArray[np.float32]]:
    """Raises SessionError."""
    wanted = {value.name for value in model.graph.input}
    return list(Session(model, None, optimize=False).run({n: v for n, v in inputs.items() if n in wanted}))


def error(got: Sequence[npt.NDArray[np.float32]], wanted: Sequence[npt.NDArray[np.float32]]) -> float:
    """The largest relative error among outputs; infinite where one is finite and the other is not."""
    tops = [float(np.abs(w[np.isfinite(w)]).max(initial=0)) for w in wanted]
    worst, floor = 0.0, max(tops, default=0.0) / 100 or 1.0
    for a, b, top in zip(got, wanted, tops, strict=True):
        if a.shape != b.shape or (np.isfinite(a) != np.isfinite(b)).any():
            return np.inf
        finite = np.isfinite(b)
        far = np.abs(a[finite].astype(np.float64) - b[finite].astype(np.float64))
        worst = max(worst, float(far.max(initial=0)) / max(top, floor))
    return worst


def is_rounding(
    model: onnx.ModelProto,
    inputs: Arrays,
    got: Sequence[npt.NDArray[np.float32]],
    wanted: Sequence[npt.NDArray[np.float32]],
) -> bool:
    """Are the outputs off by no more than rounding alone moves those of the model?"""
    roundings, fed = Roundings(model, None), {n.name: inputs[n.name] for n in model.graph.input}
    each = enumerate(zip(got, wanted, strict=True))
    return error(got, wanted) < np.inf and all(
        error([a], [b]) <= TOLERANCE or Distance.of(a, b) <= roundings.allow("", fed, wanted, k) for k, (a, b) in each
    )


# ------------------------------------------------------------------------------------------------ mutants


def _swap(model: onnx.ModelProto, node: onnx.NodeProto, rng: random.Random) -> bool:
    """Another op of the same inputs."""
    if node.op_type not in SWAPPED:
        return False
    node.op_type = SWAPPED[node.op_type]
    return True


def _turn(model: onnx.ModelProto, node: onnx.NodeProto, rng: random.Random) -> bool:
    """Operands the other way round."""
    if node.op_type not in ("Sub", "Div", "Where", "MatMul") or node.input[-1] == node.input[-2]:
        return False
    node.input[-1], node.input[-2] = node.input[-2], node.input[-1]
    return True


def _drop(model: onnx.ModelProto, node: onnx.NodeProto, rng: random.Random) -> bool:
    """A term or a factor is missing."""
    if node.op_type not in ("Add", "Sub", "Mul"):
        return False
    node.op_type = "Identity"
    del node.input[1 - rng.randrange(2)]
    return True


def _scale(model: onnx.ModelProto, node: onnx.NodeProto, rng: random.Random) -> bool:
    """A constant of one element, or what a node gives, times a factor."""
    if node.op_type not in ("Add", "Sub", "Mul", "Div", "Exp", "MatMul", "ReduceSum", "Where", "Tanh", "Erf"):
        return False
    factor = f"{node.output[0]}_factor"
    model.graph.initializer.append(numpy_helper.from_array(np.array(rng.choice(FACTORS), np.float32), factor))
    inner = f"{node.output[0]}_unscaled"
    place = next(i for i, other in enumerate(model.graph.node) if other is node or other.output == node.output)
    scaled = helper.make_node("Mul", [inner, factor], [node.output[0]])
    node.output[0] = inner
    model.graph.node.insert(place + 1, scaled)
    return True


def _axis(model: onnx.ModelProto, node: onnx.NodeProto, rng: random.Random) -> bool:
    """Another axis of a reduction or a softmax."""
    if node.op_type in ("Softmax", "LogSoftmax"):
        attribute = next((a for a in node.attribute if a.name == "axis"), None)
        if attribute is None:
            node.attribute.append(helper.make_attribute("axis", -2))
        else:
            attribute.i = -2 if attribute.i != -2 else -1
        return True
    stored = {t.name: t for t in model.graph.initializer}
    if not node.op_type.startswith("Reduce") or len(node.input) < 2 or node.input[1] not in stored:
        return False
    axes = numpy_helper.to_array(stored[node.input[1]])
    moved = np.asarray([a - 1 if a > 0 else a + 1 for a in axes] if len(axes) == 1 else axes[:-1], np.int64)
    name = f"{node.output[0]}_axes"
    model.graph.initializer.append(numpy_helper.from_array(moved, name))
    node.input[1] = name
    return True


KINDS: tuple[Callable[[onnx.ModelProto, onnx.NodeProto, random.Random], bool], ...] = (
    _swap,
    _turn,
    _drop,
    _scale,
    _axis,
)


def mutants(model: onnx.ModelProto, count: int, seed: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """So many models with one node changed, each with what was done to it."""
    rng = random.Random(seed)
    while count:
        mutant = onnx.ModelProto()
        mutant.CopyFrom(model)
        place, kind = rng.randrange(len(mutant.graph.node)), rng.choice(KINDS)
        node = mutant.graph.node[place]
        about = f"{kind.__name__[1:]} {node.op_type} {node.output[0]}"
        if kind(mutant, node, rng):
            del mutant.graph.value_info[:]
            count -= 1
            yield about, mutant


# ------------------------------------------------------------------------------------------------ the command


def fused(model: onnx.ModelProto, target: Any, recompute: int | None = None) -> Optimized:
    """The model that is written, unproved, and what is said of it."""
    return onnxfuse.optimize(model, target=target, recompute=recompute, validate="off")


class Counts(NamedTuple):
    """Of a model, or of several: each before and after."""

    nodes: tuple[int, int] = (0, 0)
    launches: tuple[int, int] = (0, 0)
    kept: tuple[int, int] = (0, 0)
    """Bytes that live between forward and backward."""
    compiled: int = 0
    """Launches of torch.compile, where they are known; else those that are left here."""

    @staticmethod
    def of(name: str, report: Report) -> Counts:
        """Those of a report."""
        held, left = report.held, report.after.launches
        compiled = STEPS.get(name.partition(".")[0])
        return Counts(
            (report.nodes_before, report.nodes_after),
            (report.before.launches, left),
            (held.before, held.after) if held is not None else (0, 0),
            compiled.launches if compiled is not None else left,
        )

    def plus(self, other: Counts) -> Counts:
        """Both together."""
        nodes, launches, kept = (
            (a[0] + b[0], a[1] + b[1])
            for a, b in ((self.nodes, other.nodes), (self.launches, other.launches), (self.kept, other.kept))
        )
        return Counts(nodes, launches, kept, self.compiled + other.compiled)

    def __str__(self) -> str:
        share = f"{self.kept[1] / self.kept[0]:4.0%}" if self.kept[0] else "    "
        launches = f"{self.launches[0]:5} -> {self.launches[1]:4} (torch.compile {self.compiled:4})"
        return f"nodes {self.nodes[0]:5} -> {self.nodes[1]:4}  launches {launches}  kept {share} of {self.kept[0]:9,} B"


def main() -> None:
    """A line for each model, and one for each mutant that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="onnxfuse", choices=["onnxfuse", "onnx", "ort"])
    parser.add_argument("--recompute", type=int, metavar="BYTES", help="keep at most so many for backward")
    parser.add_argument("--mutants", type=int, default=0, help="of all models together")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    paths = sorted(path for path in arguments.folder.glob("*.onnx") if path.with_suffix(".npz").exists())
    totals, far = Counts(), 0
    for path in paths:
        model, (inputs, outputs) = onnx.load(path), read(path)
        wanted = [outputs[value.name] for value in model.graph.output]
        done = fused(model, arguments.target, arguments.recompute)
        worst = error(run(done.model, inputs), wanted)
        counts = Counts.of(path.stem, done.report)
        totals, far = totals.plus(counts), far + (worst > TOLERANCE)
        print(f"{path.stem:26} {counts}  error {worst:.1e}", flush=True)
    print(f"{f'{len(paths)} models':26} {totals}  {far} further than {TOLERANCE:g} from what is stored")
    tried = wrong = skipped = rounded = 0
    for number, path in enumerate(paths if arguments.mutants else ()):
        share = arguments.mutants // len(paths) + (number < arguments.mutants % len(paths))
        inputs, _ = read(path)
        for about, mutant in mutants(onnx.load(path), share, arguments.seed + number):
            try:
                wanted = run(mutant, inputs)
            except SessionError:
                skipped += 1  # its shapes do not fit
                continue
            got = run(fused(mutant, arguments.target).model, inputs)
            worst, tried = error(got, wanted), tried + 1
            if worst > TOLERANCE:
                moved = is_rounding(mutant, inputs, got, wanted)
                wrong, rounded = wrong + (not moved), rounded + moved
                told = ", no farther than rounding moves the mutant itself" if moved else ""
                print(f"{path.stem}: {about}: error {worst:.1e}{told}", flush=True)
    if arguments.mutants:
        print(f"{tried} mutants that run ({skipped} more do not), {wrong} wrong, {rounded} off by their own rounding")


if __name__ == "__main__":
    main()
