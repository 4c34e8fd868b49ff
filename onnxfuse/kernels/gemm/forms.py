"""What a node of products runs: our own launches, repeated for arrays like those of a call before, or another form.

Where our form was found to be the fastest for a class of shapes, nothing is asked any more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from onnxfuse.kernels.device.device import Array, Buffer, Device, Launch, TensorType, Vendor
from onnxfuse.kernels.device.recorder import ADDRESS, Recorder
from onnxfuse.kernels.device.replay import KNOWN, Arrays, Key, Launches, key_of

from .autotune import TILED, Class, choose, forced
from .proof import proofs

Run: TypeAlias = Callable[[], None]
Others: TypeAlias = Callable[[Device, Vendor, Arrays, Arrays], dict[str, Run]]
"""The forms that take the vendor's library, by name, for a device, inputs and outputs."""


@dataclass(slots=True)
class Forms:
    """The forms for arrays of known shapes and alignment, on one device."""

    which: Class
    tiled: Launches
    others: Others
    warpgroups: Mapping[str, Launches] = field(default_factory=dict)
    """Ours by warpgroups, by name, where there are any."""
    settled: Launches | None = None
    """One of our own, of which nothing is asked any more."""

    @classmethod
    def alone(cls, launches: Launches) -> Forms:
        """Launches that have no other form."""
        return cls(Class("", 0, 0, 0, 0, False, 0), launches, lambda *_: {}, settled=launches)

    def __call__(self, device: Device, inputs: Arrays, outputs: Arrays) -> None:
        """Compute the outputs by the form that is the fastest."""
        vendor, which = device.vendor, self.which
        own = {TILED: self.tiled}
        if vendor is not None:
            for form, launches in self.warpgroups.items():
                if not forced(but=form) and proofs().holds(device, vendor, which, form):
                    own[form] = launches
        forms: dict[str, Run] = {form: partial(launches, (*inputs, *outputs)) for form, launches in own.items()}
        if vendor is not None:
            forms |= self.others(device, vendor, inputs, outputs)
        self.settled = own.get(choose(vendor, which, forms))


class ByWarpgroups(NamedTuple):
    """What a form by warpgroups launches for products of a class."""

    form: str
    which: Class
    launches: Sequence[Launch]


class Products:
    """Runs what `plan(device, inputs, outputs)` found for arrays of these shapes, types and alignment; None is nothing
    to do.

    It may be called from several threads at a time.
    """

    def __init__(self, plan: Callable[[Device, Arrays, Arrays], Forms | None]) -> None:
        self._plan = plan
        self._known: dict[Key, Forms | None] = {}

    def by_warpgroups(
        self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType], recorder: Recorder
    ) -> list[ByWarpgroups]:
        """The forms by warpgroups for aligned arrays of these types."""
        given = [None if t is None else Buffer(ADDRESS, t.shape, t.dtype) for t in inputs]
        made = [Buffer(ADDRESS, t.shape, t.dtype) for t in outputs]
        found = self._plan(recorder, given, made)
        forms: list[ByWarpgroups] = []
        if found is None:
            return forms
        for form, launches in found.warpgroups.items():
            launches((*given, *made))
            forms.append(ByWarpgroups(form, found.which, tuple(recorder.launches)))
            recorder.launches.clear()
        return forms

    def __call__(self, device: Device, inputs: Arrays, outputs: Arrays) -> None:
        arrays = (*inputs, *outputs)
        key = key_of(device, inputs, arrays)
        known = self._known.get(key)
        if known is None:
            if key not in self._known:
                found = self._plan(device, inputs, outputs)
                if len(self._known) >= KNOWN:
                    self._known.clear()
                self._known[key] = found
            known = self._known[key]
            if known is None:
                return
        if known.settled is not None:
            known.settled(arrays)
        else:
            known(device, inputs, outputs)


class ByForms(ABC):
    """A kernel that runs its products in the fastest of their forms."""

    _run: Products

    @abstractmethod
    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """See `Kernel.outputs`."""

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        """See `Kernel.launch`."""
        self._run(device, inputs, outputs)

    def by_warpgroups(
        self, inputs: Sequence[TensorType | None], multiprocessors: int, architecture: str
    ) -> list[ByWarpgroups]:
        """See `Products.by_warpgroups`."""
        return self._run.by_warpgroups(inputs, self.outputs(inputs), Recorder(multiprocessors, architecture))
