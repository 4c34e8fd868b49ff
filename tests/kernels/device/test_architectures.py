"""Binaries that a card runs besides those for all: of its own, or of its family."""

from __future__ import annotations

import pytest

from onnxfuse.kernels.device import architectures
from onnxfuse.kernels.gemm.samples import samples
from onnxfuse.kernels.inspect import nvrtc, sass


@pytest.mark.parametrize(
    ("card", "own"),
    [("sm_80", ""), ("sm_90", "sm_90a"), ("sm_100", "sm_100f"), ("sm_103", "sm_100f"), ("sm_120", ""), ("", "")],
)
def test_whose_binaries_a_card_runs(card: str, own: str) -> None:
    assert architectures.own(card) == own


def test_a_family_has_the_code_of_its_first() -> None:
    """Products in tensor memory need nothing that 10.0 has and 10.3 has not: the compiler makes the same of both."""
    source = dict(samples())["FusedMatMul float16 tensor memory narrow"]
    made = [sass.functions(sass.disassembled(nvrtc.compiled(source, of).cubin)) for of in ("sm_100f", "sm_100a")]
    assert made[0] == made[1]
