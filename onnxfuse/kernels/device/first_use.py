"""Kernels of one architecture prove themselves at their first use on a card, against those that all cards run.

Verdicts are kept in a file, by card (with the versions of its driver and compiler) and by the digest of the kernels'
text: "" where they are proved, else why they are refused.  A proof that was begun and did not end has taken its process
with it: it stands as a refusal until another text, driver or compiler comes, or the file goes::

    {"schema": 1, "proofs": {"NVIDIA H200 sm_90, driver 13000, NVRTC 13.2, ...": {"1f0c89ab77d01c3e": ""}}}
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .by_card import ByCard, is_named
from .device import Buffer, Device, TensorType, Vendor, address

SCHEMA = 1
GUARD = 256
"""Bytes behind each result that nobody may write, and a multiple of which each array begins at."""
POISON = 0xFF
BEGUN = "its proof was begun there, and did not end"
EMULATED = "emulated"
"""The card where there is none."""

Known = dict[str, dict[str, str]]
"""Card → digest of a kernel's text → why it is refused, empty if it is not."""


class FirstUse:
    """The verdicts, in memory and in a file.  Several threads and processes may share them."""

    def __init__(self, path: Path) -> None:
        self._file = ByCard(path, SCHEMA, "proofs", str)
        self._lock = threading.Lock()
        self._known: Known | None = None
        self._read: Known | None = None

    def proved(self, vendor: Vendor, digest: str, difference: Callable[[], str], what: str) -> bool:
        """Whether kernels whose text has a digest may run on a device; the first time `difference` says there in what
        they differ from others, empty if in nothing.

        A RuntimeWarning says once for each process and kernel that `what` is refused.  Nothing is compared, and nothing
        unknown holds, while a graph is captured."""
        card = vendor.card or EMULATED
        known = self._known
        if known is not None and digest in known.get(card, {}):
            return not known[card][digest]
        if vendor.capturing:
            return False
        with self._lock:
            found = (self._known or {}).get(card, {}).get(digest)
            if found is None and vendor.card:
                found = self._file.read().get(card, {}).get(digest)
            if found is None:
                self._keep(vendor, card, digest, BEGUN)
                found = difference()
            self._keep(vendor, card, digest, found)
        if found:
            warnings.warn(f"{what} are refused on {card}: {found}; other forms run", RuntimeWarning, stacklevel=3)
        return not found

    def refused(self, card: str, digest: Callable[[], str]) -> tuple[str, str] | None:
        """A card that goes by this name and why kernels are refused on it; None where they are not, on one of them, and
        where nothing is known."""
        if self._read is None:
            self._read = self._file.read()
        verdicts = {name: known for name, known in self._read.items() if is_named(card, name)}
        text = digest() if verdicts else ""
        found = {name: known[text] for name, known in verdicts.items() if text in known}
        return None if not found or "" in found.values() else max(found.items())

    def _keep(self, vendor: Vendor, card: str, digest: str, verdict: str) -> None:
        """Remember a verdict, and add it to what other processes have put into the file; none of an emulated card."""
        known = self._file.read() if vendor.card else {}
        for other, verdicts in (self._known or {}).items():
            known.setdefault(other, {}).update(verdicts)
        known.setdefault(card, {})[digest] = verdict
        if vendor.card:
            self._file.write(known)
        if verdict != BEGUN:
            self._known = known


Run = Callable[[Mapping[str, Buffer], Buffer], None]
"""Launches kernels on named arrays and on the bytes of their result."""


def results(
    device: Device, vendor: Vendor, given: Mapping[str, NDArray[Any]], result: TensorType, runs: Sequence[Run]
) -> list[NDArray[np.uint8]]:
    """What each run leaves in the bytes of a result [count of elements and GUARD], which were POISON before."""
    size = prod(result.shape) * result.dtype.itemsize
    sizes = [-(-each // GUARD) * GUARD + GUARD for each in (*(a.nbytes for a in given.values()), size)]
    starts = list(accumulate(sizes, initial=0))
    with device.scratch(starts[-1]) as memory:
        first = address(memory)
        arrays = {
            name: Buffer(first + start, a.shape, a.dtype)
            for (name, a), start in zip(given.items(), starts, strict=False)
        }
        for name, values in given.items():
            vendor.write(arrays[name], values)
        whole = Buffer(first + starts[-2], (sizes[-1],), np.dtype(np.uint8))
        found = []
        for run in runs:
            vendor.write(whole, np.full(whole.shape, POISON, np.uint8))
            run(arrays, whole)
            found.append(vendor.read(whole))
    return found
