"""One run of a model in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from onnxfuse.errors import ModelError
from onnxfuse.proof import inputs
from onnxfuse.runtime.quiet import Session, SessionError
from onnxfuse.runtime.session import counted

if TYPE_CHECKING:
    from onnxfuse.kernels.emulator.counts import Counts


@dataclass(frozen=True, slots=True)
class Run:
    """What a run was fed, and what came out."""

    case: str
    """Sizes of the inputs, such as ``batch=3 sequence=7``."""
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    """Output name → array, list of arrays for a sequence, or None for an optional that is empty."""
    kernels: tuple[str, ...]
    """Fused ops that ran kernels."""
    bodies: dict[str, str]
    """Other fused ops, and why each ran its function body."""
    counts: tuple[Counts, ...] = ()
    """What each launch of a kernel costs on a card, where that was asked for."""


def run(
    model: onnx.ModelProto,
    path: Path,
    *,
    given: Mapping[str, Any] | None = None,
    provider: str = "cpu",
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    emulate: bool = False,
    rules: Sequence[Path] = (),
    in_memory: bool = False,
    count: bool = False,
) -> Run:
    """Run `model`, which lies at `path`, or is only called so if it is `in_memory`, on what is `given`, or on generated
    inputs.  With `count`, kernels that are emulated are counted, in a second run.

    Raises ModelError where onnxruntime loads or runs it on no inputs, UsageError where inputs or shapes do not fit.
    """
    session = opened(model if in_memory else path, str(path), provider=provider, emulate=emulate, rules=rules)
    case, outputs = first_case(model, str(path), session, given=given, shapes=shapes, seed=seed)
    named, served = dict(zip(session.outputs, outputs, strict=True)), session.served
    counts: list[Counts] = []
    if count:
        with counted() as counts:
            session.run(case.inputs)
    return Run(case.name, case.inputs, named, tuple(sorted(served.sources)), served.bodies, tuple(counts))


def opened(model: onnx.ModelProto | Path, name: str, base_dir: Path | None = None, **options: Any) -> Session:
    """A session with every optimization on.  Raises ModelError, which calls the model `name`."""
    try:
        return Session(model, base_dir, optimize=True, spinning=True, **options)
    except SessionError as error:
        raise ModelError(f"{name}: onnxruntime does not load it: {error}") from error


def first_case(
    model: onnx.ModelProto,
    name: str,
    session: Session,
    *,
    given: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
) -> tuple[inputs.Case, list[Any]]:
    """The first inputs on which the session of `model` runs, and its outputs.  Raises ModelError if there are none."""
    outputs: list[Any] = []

    def runs(case: inputs.Case) -> str:
        try:
            outputs[:] = session.run(case.inputs)
        except SessionError as error:
            return str(error)
        return ""

    cases, reason = inputs.generate(model, runs, seed=seed, shapes=shapes, given=given, one=True)
    if not cases:
        raise ModelError(f"{name}: onnxruntime does not run it: {reason}")
    return cases[0], outputs
