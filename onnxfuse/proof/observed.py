"""Values inside a model, as it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfuse.runtime.quiet import Session

from .bfloat16 import emulated
from .input_values import Case


def telling(cases: Sequence[Case]) -> tuple[Case, Case]:
    """A usual case and the last unusual one; an empty one shows nothing."""
    return cases[0], next((case for case in cases[::-1] if case.unusual and _filled(case)), cases[0])


def observe(
    model: onnx.ModelProto, names: Iterable[str], cases: Sequence[Case], base_dir: Path | None = None
) -> Iterator[dict[str, Any]]:
    """The inputs and the values of these names, in one case after another.

    Raises SessionError where the model does not run."""
    wanted = sorted(set(names).difference(*(case.inputs for case in cases[:1])))
    outputs = {output.name: index for index, output in enumerate(model.graph.output)}
    extra = [name for name in wanted if name not in outputs]
    count = len(outputs)
    try:
        # The outputs are added in place, for the time of serializing: a copy would hold all weights twice.
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
        session = Session(emulated(model), base_dir, optimize=False)
    finally:
        del model.graph.output[count:]
    order = outputs | {name: count + index for index, name in enumerate(extra)}
    for case in cases:
        values = session.run(case.inputs)
        yield dict(case.inputs) | {name: values[order[name]] for name in wanted}


def _filled(case: Case) -> bool:
    return all(value.size for value in case.inputs.values() if isinstance(value, np.ndarray))
