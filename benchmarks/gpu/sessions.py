"""Fused models in onnxruntime on the CUDA provider, beside the originals with onnxruntime's own optimizations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

import onnxfuse
from models import split_stack
from onnxfuse.errors import DependencyError
from onnxfuse.performance import interleaved
from onnxfuse.proof import inputs, numerics
from onnxfuse.runtime.installed import CPU, CUDA, onnxruntime, why_not_cuda
from onnxfuse.runtime.session import register

from . import timing
from .contest import OURS
from .machine import Machine
from .plan import Row, SkippedError, Step, one_line

MODELS = (
    "bert.dynamo",
    "gpt2.ts",
    "llama.dynamo",
    "llama_half.ts",
    "vit.dynamo",
    "t5_encoder.ts",
    "whisper_encoder.dynamo",
    "convnext.dynamo",
)
FOLDER = Path(split_stack.__file__).parent
SECONDS = 3.0
"""For the rounds of a model."""


def available() -> None:
    """Raises SkippedError where onnxruntime has no CUDA provider that works."""
    try:
        onnxruntime()
        reason = why_not_cuda()
    except DependencyError:
        raise SkippedError("onnxruntime-gpu is not installed") from None
    if reason:
        raise SkippedError(reason)


@dataclass(frozen=True, slots=True)
class Place:
    """Where sessions run: a provider, the name of its memory, and whether it can replay a captured graph."""

    provider: str
    memory: str
    captures: bool


GPU = Place(CUDA, "cuda", True)


class Racer(NamedTuple):
    """What runs a model to its end, and what reads its outputs."""

    run: Callable[[], None]
    read: Callable[[], list[Any]]


def opened(model: onnx.ModelProto, fused: bool, captured: bool, place: Place = GPU) -> Any:
    """A session with every optimization of onnxruntime; `captured` replays a CUDA graph of its own."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4
    settings = {"enable_cuda_graph": "1" if captured else "0", "use_tf32": "0"} if place.captures else {}
    providers = list(dict.fromkeys([place.provider, CPU]))
    text = model.SerializeToString()
    make = onnxfuse.InferenceSession if fused else ort.InferenceSession
    session = make(text, options, providers=providers, provider_options=[settings, {}][: len(providers)])
    if place.provider not in session.get_providers():
        # onnxruntime goes on with the CPU, and says nothing.
        raise RuntimeError(f"{place.provider} was left out: {why_not_cuda() or 'onnxruntime gives no reason'}")
    return session


def compare(model: onnx.ModelProto, seconds: float = SECONDS, place: Place = GPU) -> Iterator[Row]:
    """One model, on inputs that the proof would generate: the fused one must compute the same; then all in turns."""
    import onnxruntime as ort

    host = ort.InferenceSession(model.SerializeToString(), providers=[CPU])

    def runs(case: inputs.Case) -> str:
        try:
            host.run(None, case.inputs)
        except Exception as error:  # onnxruntime's exceptions share no base class
            return one_line(error)
        return ""

    cases, reason = inputs.generate(model, runs, one=True)
    if not cases:
        raise SkippedError(reason)
    feeds = {key: np.asarray(value) for key, value in cases[0].inputs.items()}
    sides, row = opened_sides(model, feeds, place)
    yield raced(sides, row, lambda wanted, actual: numerics.compare(wanted, actual).reason, seconds)


def opened_sides(model: onnx.ModelProto, feeds: Mapping[str, Any], place: Place = GPU) -> tuple[dict[str, Racer], Row]:
    """The model as it is and fused, each plain and as a captured graph, and the row that says why one is not there."""
    import onnxruntime as ort

    fused = onnxfuse.optimize(model, validate="off").model
    served = register(ort.SessionOptions(), fused, [place.provider, CPU])
    row: Row = {"served": served.names, "bodies": served.reasons, "failed": {}}
    row["nodes"] = [len(model.graph.node), len(fused.graph.node)]
    sides: dict[str, Racer] = {}
    for side, proto in (("original", model), (OURS, fused)):
        for captured in (False, True)[: 1 + place.captures]:
            label = f"{side}, graph" if captured else side
            try:
                session = opened(proto, side == OURS, captured, place)
                plain = session if not captured else opened(proto, side == OURS, False, place)
                sides[label] = Racer(*bind(session, plain, feeds, place.memory))
            except Exception as error:
                row["failed"][label] = one_line(error)
    return sides, row


def raced(
    sides: Mapping[str, Racer], row: Row, differs: Callable[[Any, Any], str | None], seconds: float = SECONDS
) -> Row:
    """`row` with the times of all sides, if any; their outputs must be those of the first."""
    outputs: dict[str, list[Any]] = {}
    for label, side in sides.items():
        try:
            for _ in range(3):
                side.run()
            outputs[label] = side.read()
        except Exception as error:
            row["failed"][label] = one_line(error)
    for label, found in outputs.items():
        for wanted, actual in zip(next(iter(outputs.values())), found, strict=True):
            if difference := differs(wanted, actual):
                row["outcome"] = f"{label}: an output {difference}"
    if OURS in row["failed"]:
        row["outcome"] = row["failed"][OURS]
    if outputs:
        runs = {label: sides[label].run for label in outputs}
        samples = interleaved.measure(runs, next(iter(runs)), seconds=seconds)
        row["sides"] = {label: timing.summary(found) for label, found in samples.items()}
    return row


def bind(
    session: Any, plain: Any, feeds: Mapping[str, Any], memory: str
) -> tuple[Callable[[], None], Callable[[], list[Any]]]:
    """What runs a session with inputs and outputs that stay in the memory of its device, and what reads its outputs.

    `plain` is a session of the same model that captures nothing: it tells the shapes of the outputs.
    """
    import onnxruntime as ort

    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, memory, 0))
    values = [
        ort.OrtValue.ortvalue_from_shape_and_type(list(a.shape), a.dtype, memory, 0) for a in plain.run(None, feeds)
    ]
    for info, value in zip(session.get_outputs(), values, strict=True):
        binding.bind_ortvalue_output(info.name, value)

    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return run, lambda: [value.numpy() for value in values]


def overhead(machine: Machine) -> Iterator[Row]:
    """What a node costs besides its kernel: microseconds, by the kind of node."""
    available()
    from benchmarks import bridge
    from onnxfuse.runtime.custom_op import Backend

    rows = bridge.measure(49, Backend(CUDA, lambda stream: machine.device))
    yield {"microseconds": {row.node: row.microseconds for row in rows}}


def steps(names: Sequence[str] = MODELS) -> list[Step]:
    """A step for each model, split_stack among them, and one for the bridge alone."""

    def from_file(name: str, machine: Machine) -> Iterator[Row]:
        available()
        yield from compare(onnx.load(FOLDER / f"{name}.onnx"))

    def stack(machine: Machine) -> Iterator[Row]:
        available()
        yield from compare(split_stack.build())

    found = [Step("session", "split_stack", stack, 15.0), Step("session", "bridge", overhead, 10.0)]
    return found + [Step("session", name, partial(from_file, name), 15.0) for name in names]
