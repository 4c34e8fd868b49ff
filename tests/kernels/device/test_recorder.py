"""A device that launches nothing keeps what it was asked for."""

from __future__ import annotations

import numpy as np

from onnxfuse.kernels.device.recorder import Recorder
from tests.kernels.device.test_device import LAUNCH


def test_a_recorder_keeps_launches() -> None:
    device = Recorder()
    device.launch(LAUNCH, [np.int32(1)])
    with device.scratch(1000):
        device.launch(LAUNCH, [])
    assert device.launches == [LAUNCH, LAUNCH]
    assert device.scratched == 1000
