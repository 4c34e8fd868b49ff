"""The values inside one model, each seen in one run: what has been seen is known from then on.

A model of the size that users have takes a minute for a run, and much is asked of its values: which of them are those
of the fused model in another shape, what sites are fed, which of that has a meaning.  So all that may be asked is asked
at once, where that can be of the runs that give the outputs (`watch`), and what is asked besides of a run more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx

from onnxfuse.runtime.quiet import Session, SessionError

from .bfloat16 import emulated
from .input_values import Case
from .outlines import Outline, Watched, kept, outlines


class Inside:
    """Of values of a model, what has been seen in cases, which are told apart by their names."""

    def __init__(self, model: onnx.ModelProto, base_dir: Path | None = None) -> None:
        self._model, self.base_dir = model, base_dir
        self._watched: Watched | None = None
        self._known: dict[str, dict[str, Any]] = {}

    def watch(self, names: Collection[str], sizes: Mapping[str, Sequence[int]], exact: Collection[str]) -> None:
        """Let whoever makes a session of the model at these `sizes` of its inputs tell of values of these names."""
        self._watched = Watched(self._model, names, sizes, exact)

    @contextmanager
    def asked(self) -> Iterator[bool]:
        """The model gives what is watched besides its outputs, while a session is made of it; is there anything?"""
        if self._watched is None:
            yield False
            return
        with self._watched.asked():
            yield True

    def take(self, case: Case, values: Sequence[Any]) -> None:
        """What such a session has given in a case.  Of more than two the first and the last are kept, which tell most
        (`observed.telling`)."""
        assert self._watched is not None
        self._known[case.name] = self._watched.told(values)
        for name in list(self._known)[1:-1]:
            del self._known[name]

    def outlines(
        self, names: Collection[str], cases: Sequence[Case], exact: Collection[str] = ()
    ) -> list[dict[str, Any]]:
        """Inputs and values, or an `Outline` of what is large and not to be `exact`.

        Raises SessionError where the model does not run."""
        wanted = set(names).difference(*(case.inputs for case in cases[:1]))
        missing = {name for case in cases for name in wanted if not self._has(case, name, exact)}
        if missing:
            once = list({case.name: case for case in cases}.values())
            for case, found in zip(once, outlines(self._model, missing, once, self.base_dir, exact), strict=True):
                self._known.setdefault(case.name, {}).update((name, found[name]) for name in missing)
        return [dict(case.inputs) | {name: self._known[case.name][name] for name in wanted} for case in cases]

    def values(
        self, names: Collection[str], cases: Sequence[Case], exact: Collection[str] = ()
    ) -> list[dict[str, Any]]:
        """Inputs and values.  Of large ones that noise stands in for, which are not to be `exact`, shape and sign are
        right, if all of them are too much to hold.

        Raises SessionError where the model does not run."""
        seen = self.outlines(names, cases, exact)
        left: set[str] = set()
        for found in seen:
            for name, value in found.items():
                if isinstance(value, Outline):
                    found[name] = kept(value)
                    left |= {name} if found[name] is None else set()
        again = self.outlines(left, cases, exact=left)
        return [found | own for found, own in zip(seen, again, strict=True)]

    def _has(self, case: Case, name: str, exact: Collection[str]) -> bool:
        known = self._known.get(case.name, {})
        return name in known and not (name in exact and isinstance(known[name], Outline))


class Told:
    """A session of a model that tells of what is `inside` as well, where it runs so."""

    def __init__(self, model: onnx.ModelProto, base_dir: Path | None, inside: Inside) -> None:
        self._model, self._base_dir, self._inside = model, base_dir, inside
        self._outputs = len(model.graph.output)
        try:
            with inside.asked() as self._telling:
                self._session = self._made()
        except SessionError:
            if not self._telling:
                raise
            self._session, self._telling = self._made(), False

    def _made(self) -> Session:
        return Session(emulated(self._model), self._base_dir, optimize=False)

    def run(self, case: Case) -> list[Any]:
        """The outputs.  Raises SessionError where the model does not run."""
        try:
            values = self._session.run(case.inputs)
        except SessionError:
            if not self._telling:
                raise
            self._session, self._telling = self._made(), False
            return self._session.run(case.inputs)
        if self._telling:
            self._inside.take(case, values)
        return values[: self._outputs]
