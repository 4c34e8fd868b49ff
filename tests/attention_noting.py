"""An emulated card that notes in which form each attention is launched."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfuse.kernels.device.device import Argument, Launch
from onnxfuse.kernels.emulator.device import Emulated


class Noting(Emulated):
    """Of an architecture, whose own form it runs, as far as that is allowed."""

    def __init__(self, architecture: str, order: str = "forward") -> None:
        super().__init__(checked=True, order=order, architecture=architecture)  # type: ignore[arg-type]
        self.launched: list[str] = []

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        self.launched += [launch.source.architecture] * (launch.entry == "attention")
        super().launch(launch, arguments)
