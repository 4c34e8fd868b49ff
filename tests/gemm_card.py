"""An emulated card of compute capability 9.0 or 10.0, on which kernels that it alone has may be mistaken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Argument, Array, Launch, Product
from onnxfuse.kernels.device.host_products import NumPy
from onnxfuse.kernels.emulator.device import Emulated

CARD = "Fake sm_90, driver 1"


class FakeVendor(NumPy):
    """A library that has no products, on a card that says what it is called."""

    def __init__(self, card: str | None = CARD) -> None:
        super().__init__(lambda array: None)
        self.card, self.capturing = card, False  # type: ignore[assignment]

    def product(self, product: Product, a: Array, b: Array, y: Array) -> None:
        raise KernelError("not asked for")

    def fuses(self, activation: str, dtype: np.dtype[Any]) -> bool:
        return False

    def clock(self, run: Callable[[], None]) -> Callable[[], float]:
        raise KernelError("not asked for")


class Card(Emulated):
    """An emulated card on which kernels of one architecture have other text in one place."""

    def __init__(self, before: str = "", after: str = "", card: str | None = CARD, architecture: str = "sm_90") -> None:
        super().__init__(checked=False, architecture=architecture)
        self.vendor = FakeVendor(card)
        self.launched: list[str] = []
        self._before, self._after = before, after

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        source = launch.source
        self.launched.append(source.architecture)
        if source.architecture and self._before:
            assert self._before in source.text
            launch = replace(launch, source=replace(source, text=source.text.replace(self._before, self._after)))
        super().launch(launch, arguments)
