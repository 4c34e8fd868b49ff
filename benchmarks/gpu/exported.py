"""Whole models at full size, with random weights: in onnxruntime as exported and fused, and in PyTorch itself."""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import onnx

from models.catalogue import OPSETS, Export

from . import peers, sessions
from .machine import Machine
from .plan import Row, SkippedError, Step, one_line
from .sessions import GPU, Place, Racer

TS = "ts"
"""torch's exporter that needs no other package."""
EAGER = "torch"
MODES: dict[str, dict[str, Any]] = {"torch.compile": {}, "torch.compile, graph": {"mode": "reduce-overhead"}}
CLOSE = {"float32": 1e-3, "float16": 2e-2}
"""‖y − first‖ / ‖first‖ of an output, beyond which two sides compute different things."""
STEP_SECONDS, STEP_LIMIT = 60.0, 240.0


class Case(NamedTuple):
    """An architecture of models.base_architectures, and the size of its inputs."""

    architecture: str
    batch: int
    length: int
    dtype: str = "float16"

    @property
    def name(self) -> str:
        return f"{self.architecture} {self.dtype} {self.batch}x{self.length}"


CASES = (
    Case("bert_base", 8, 512),
    Case("llama_7b_block", 1, 4096),
    Case("gpt2_124m", 1, 1024),
    Case("t5_base_encoder", 8, 512),
    Case("vit_base", 32, 0),
    Case("bert_base", 1, 128),
    Case("llama_7b_block", 16, 1024),
    Case("bert_base", 8, 128, "float32"),
    Case("gpt2_124m", 1, 128),
)


def architecture(name: str) -> Any:
    """An Architecture.  Raises SkippedError where a package is missing."""
    try:
        return importlib.import_module("models.base_architectures").BASE[name]
    except ModuleNotFoundError as missing:
        raise SkippedError(f"{missing.name} is not installed") from None
    except (ImportError, AttributeError) as error:  # of another version
        raise SkippedError(one_line(error)) from None


def inputs_of(case: Case, found: Any) -> dict[str, Any]:
    """Inputs as tensors on the host."""
    made: Mapping[str, Any] = found.inputs(case.batch, case.length)
    half = case.dtype == "float16"
    return {name: x.half() if half and x.is_floating_point() else x for name, x in made.items()}


def export(case: Case, found: Any) -> onnx.ModelProto:
    """The model, compared with PyTorch on the host."""
    write_export = importlib.import_module("models.export").write_export
    # What the exporter makes of scaled_dot_product_attention with a boolean mask is not float16.
    half = case.dtype == "float16"
    wanted = Export(case.architecture, case.architecture, TS, OPSETS[TS], half=half, eager=half)
    with TemporaryDirectory() as folder:
        write_export(wanted, Path(folder), {case.architecture: found})
        return onnx.load(Path(folder) / wanted.file)


def compare(case: Case, machine: Machine, place: Place = GPU, seconds: float = sessions.SECONDS) -> Iterator[Row]:
    """A row of onnxruntime's sides where its provider is there, and one of PyTorch's, too, which replaces it."""
    module, found = peers.torch(), architecture(case.architecture)
    feeds, sides = inputs_of(case, found), dict[str, Racer]()
    row: Row = {"name": case.name, "dtype": case.dtype, "failed": {}}
    try:
        sessions.available()
    except SkippedError as reason:
        row["failed"]["onnxruntime"] = str(reason)
    else:
        start = time.monotonic()
        model = export(case, found)
        row["export_seconds"] = round(time.monotonic() - start, 1)
        sides, more = sessions.opened_sides(model, {name: x.numpy() for name, x in feeds.items()}, place)
        row |= more
        yield sessions.raced(sides, {**row, "failed": {**row["failed"]}}, partial(far, case.dtype), seconds / 3)
    with module.no_grad():
        sides |= torch_sides(module, case, found, feeds, place, row["failed"])
        row = sessions.raced(sides, row, partial(far, case.dtype), seconds)
    sides.clear()
    gc.collect()
    machine.release()
    peers.release()
    yield row


def torch_sides(
    module: Any, case: Case, found: Any, feeds: Mapping[str, Any], place: Place, failed: dict[str, str]
) -> dict[str, Racer]:
    """The same model op by op, and through torch.compile."""
    network = found.build()
    network = (network.half() if case.dtype == "float16" else network).to(place.memory)
    given = {name: x.to(place.memory) for name, x in feeds.items()}
    sides = {EAGER: racer(module, network, given, len(found.output_axes), place)}
    for name, mode in MODES.items():
        try:
            compiled = module.compile(network, dynamic=False, **mode)
            sides[name] = racer(module, compiled, given, len(found.output_axes), place)
        except Exception as error:
            failed[name] = one_line(error)
    return sides


def racer(module: Any, network: Callable[..., Any], given: Mapping[str, Any], outputs: int, place: Place) -> Racer:
    """What runs a network until the device is done; compiling is part of the first run."""
    last: list[Any] = []

    def run() -> None:
        last[:] = network(**given)[:outputs]
        if place.captures:
            module.cuda.synchronize()

    return Racer(run, lambda: [x.float().cpu().numpy() for x in last])


def far(dtype: str, wanted: Any, actual: Any) -> str:
    """Why an output is another, empty if it is not."""
    first = np.asarray(wanted, np.float64)
    distance = float(np.linalg.norm(np.asarray(actual, np.float64) - first) / np.linalg.norm(first))
    return "" if distance <= CLOSE[dtype] else f"differs from the first side's by {distance:.1e}"


def steps() -> list[Step]:
    """A step for each model."""
    return [Step("models", case.name, partial(compare, case), STEP_SECONDS, STEP_LIMIT) for case in CASES]
