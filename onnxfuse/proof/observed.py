"""Values inside a model, as it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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


class Asked:
    """Values inside a model that a session of it gives besides its outputs."""

    def __init__(self, model: onnx.ModelProto, names: Iterable[str]) -> None:
        self._model, self._names = model, sorted(set(names))
        outputs = [output.name for output in model.graph.output]
        self._extra = [name for name in self._names if name not in outputs]
        self._order = {name: index for index, name in enumerate((*outputs, *self._extra))}

    @contextmanager
    def added(self) -> Iterator[None]:
        """The model has them as outputs, for the time of serializing: a copy would hold all weights twice."""
        outputs = self._model.graph.output
        count = len(outputs)
        try:
            outputs.extend(onnx.ValueInfoProto(name=name) for name in self._extra)
            yield
        finally:
            del outputs[count:]

    def told(self, values: Sequence[Any]) -> dict[str, Any]:
        """By name, of all that a run has given."""
        return {name: values[self._order[name]] for name in self._names}


def observe(
    model: onnx.ModelProto, names: Iterable[str], cases: Sequence[Case], base_dir: Path | None = None
) -> Iterator[dict[str, Any]]:
    """The inputs and the values of these names, in one case after another.

    Raises SessionError where the model does not run."""
    asked = Asked(model, set(names).difference(*(case.inputs for case in cases[:1])))
    with asked.added():
        session = Session(emulated(model), base_dir, optimize=False)
    for case in cases:
        yield dict(case.inputs) | asked.told(session.run(case.inputs))


def _filled(case: Case) -> bool:
    return all(value.size for value in case.inputs.values() if isinstance(value, np.ndarray))
