"""Which form of a product runs, for arrays of shapes that were there before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.device.device import Argument, Buffer, Launch, Product, Source
from onnxfuse.kernels.device.recorder import ADDRESS
from onnxfuse.kernels.device.replay import Capture, record
from onnxfuse.kernels.gemm import forms
from onnxfuse.kernels.gemm.autotune import TILED, VENDOR, Class
from onnxfuse.kernels.gemm.forms import Forms, Products

FLOAT = np.dtype(np.float32)
WHICH = Class.of(Product(8, 8, 8), 1, "float32", 16, "")


class Card:
    multiprocessors = 132
    architecture = ""
    maps = False

    def __init__(self, vendor: Any = None) -> None:
        self.vendor = vendor
        self.launched: list[str] = []

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        self.launched.append(launch.entry)


class Node:
    """Products that are planned and counted."""

    def __init__(self) -> None:
        self.planned = 0
        self.run = Products(self.plan)

    def plan(self, device: Any, inputs: Any, outputs: Any) -> Forms | None:
        self.planned += 1
        if 0 in outputs[0].shape:
            return None

        def tiled(recorder: Capture, inputs: Any, outputs: Any) -> None:
            recorder.launch(Launch(Source("x.cu", ""), "tiled", (1,), (32,)), [*inputs, *outputs])

        def others(device: Any, vendor: Any, inputs: Any, outputs: Any) -> dict[str, Any]:
            return {VENDOR: lambda: device.launched.append("vendor")}

        return Forms(WHICH, record(tiled, device, inputs, outputs), others)


def array(*shape: int, at: int = ADDRESS) -> Buffer:
    return Buffer(at, shape, FLOAT)


def test_shapes_and_alignment_are_planned_once() -> None:
    node, card = Node(), Card()
    for at in (ADDRESS, 2 * ADDRESS):
        node.run(card, [array(8, 8, at=at)], [array(8, 8, at=at)])  # type: ignore[arg-type]
    assert node.planned == 1
    node.run(card, [array(8, 8, at=ADDRESS + 4)], [array(8, 8)])  # type: ignore[arg-type]
    node.run(card, [array(4, 8)], [array(4, 8)])  # type: ignore[arg-type]
    assert node.planned == 3
    for _ in range(2):
        node.run(card, [array(0, 8)], [array(0, 8)])  # type: ignore[arg-type]
    assert node.planned == 4, "nothing to do is known, too"
    assert card.launched == ["tiled"] * 4


@pytest.mark.parametrize("vendor", [None, object()])
def test_our_own_form_is_asked_for_until_it_is_settled(vendor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = iter([VENDOR, TILED]), []

    def choose(vendor: Any, which: Class, found: Any) -> str:
        form = TILED if vendor is None else next(answers)
        asked.append(sorted(found))
        found[form]()
        return form

    monkeypatch.setattr(forms, "choose", choose)
    node, card = Node(), Card(vendor)
    for _ in range(4):
        node.run(card, [array(8, 8)], [array(8, 8)])  # type: ignore[arg-type]
    if vendor is None:
        assert (asked, card.launched) == ([[TILED]], ["tiled"] * 4)
    else:
        assert (asked, card.launched) == ([[TILED, VENDOR]] * 2, ["vendor", *["tiled"] * 3])
