"""Products with sums in tensor memory on a card of compute capability 10.0, emulated: they are proved there before they
run, and one that computes wrongly is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels import of_region
from onnxfuse.kernels.device import architectures
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.gemm import forms, proof
from onnxfuse.kernels.gemm.autotune import TCGEN05, VARIABLE
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from onnxfuse.kernels.gemm.proof import Proofs
from onnxfuse.kernels.gemm.region import ProductRegion
from tests.gemm_card import CARD, Card
from tests.gemm_cases import BFLOAT, HALF, assert_right, attributes, operands
from tests.kernel_runs import run
from tests.region_runs import computed, function

from .test_proof import FAMILIES, PLAIN, REGION, SMALL, family, product

PROVED = ["", *[architectures.TENSOR_MEMORY] * 3]
"""The architectures that a first product launches kernels of: by warps and in both tiles for the proof, and its own."""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where verdicts of this test are kept; products are small, and have this form if they may."""
    monkeypatch.setattr(proof, "SIZE", SMALL)
    monkeypatch.setenv(VARIABLE, TCGEN05)
    proof._launched.cache_clear()
    kept = Proofs(tmp_path / "proofs.json")
    monkeypatch.setattr(forms, "proofs", lambda: kept)
    yield tmp_path / "proofs.json"
    proof._launched.cache_clear()


def card(before: str = "", after: str = "", architecture: str = "sm_100") -> Card:
    return Card(before, after, architecture=architecture)


@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
def test_what_is_proved_runs(path: Path, dtype: np.dtype[Any], transposed: bool) -> None:
    device = card()
    product(device, dtype, transposed)
    assert device.launched == PROVED
    product(device, dtype, transposed)
    assert device.launched[len(PROVED) :] == [architectures.TENSOR_MEMORY], "it is proved once"
    assert list(json.loads(path.read_text())["proofs"][CARD].values()) == [""]


def test_all_products_have_the_form(path: Path) -> None:
    """Regions, batches, several products of one operand, a gate and rows."""
    device = card()
    for found, true in zip(*computed(REGION, np.float16, device), strict=True):
        np.testing.assert_allclose(found, true, rtol=2e-3, atol=2e-2)
    assert device.launched == PROVED
    for a, b in (((2, 136, 264), (2, 264, 136)), ((136, 264), (3, 264, 136))):
        device.launched.clear()
        arrays = operands(a, b, HALF)
        (y,) = run(FusedMatMul(attributes("Relu")), arrays, device)
        assert_right(y, arrays, attributes("Relu"))
        assert set(device.launched) == {architectures.TENSOR_MEMORY}, "what is behind it needs no other proof"
    for name in FAMILIES:
        device.launched.clear()
        family(name, device)
        assert set(device.launched) == {"", architectures.TENSOR_MEMORY} or name == "rows", name
        assert device.launched[-1] == architectures.TENSOR_MEMORY, name


@pytest.mark.parametrize(("architecture", "there"), [("sm_90", False), ("sm_103", True), ("sm_120", False)])
def test_cards_of_its_family_alone_have_it(path: Path, architecture: str, there: bool) -> None:
    device = card(architecture=architecture)
    product(device)
    assert (architectures.TENSOR_MEMORY in device.launched) == there


def test_it_needs_tensor_maps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = card()
    monkeypatch.setattr(device, "maps", False)
    product(device)
    assert set(device.launched) == {""}


MISTAKES = {
    "a pattern of 64 bytes": ("1ull << 46 | 2ull << 61", "1ull << 46 | 4ull << 61"),
    "the next instruction's k": ("left + i * FURTHER_A, right", "left + i * FURTHER_A * 2 % 8, right"),
    "two panels": ("TRANSPOSED ? 0 : TILE_K * PATTERN_ROW", "TRANSPOSED ? 0 : 32 * PATTERN_ROW"),
    "sums of before": ("i || !first)", "true)"),
    "bfloat16": ("instruction_descriptor<TYPE,", "instruction_descriptor<__nv_bfloat16,"),
    "another warp's lanes": ("threadIdx.x / 32 % 4 * 32; }", "(3 - threadIdx.x / 32 % 4) * 32; }"),
    "no wait for the last product": ("mbarrier_wait(done, 0);", ""),
    "what it cannot compile": ("struct Sums {", "struct Sums { nothing"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_computes_wrongly_is_refused_and_the_product_right(path: Path, mistake: str) -> None:
    device = card(*MISTAKES[mistake])
    told = rf"^products of float16 with sums in tensor memory are refused on {CARD}: .*other forms run"
    with pytest.warns(RuntimeWarning, match=told):
        product(device)
    assert device.launched[-1] == ""
    refused = Proofs(path).refusal("fake", PLAIN, TCGEN05)
    assert refused.startswith(f"products with sums in tensor memory (float16) are refused on {CARD}: ")
    assert Proofs(path).refusal("fake", PLAIN) == "", "of another form nothing is known"


def test_rows_leave_shared_memory_without_bank_conflicts(path: Path) -> None:
    """What is counted of shared memory are the sums on their way out, once in and once out; not what products read."""
    device = Emulated(checked=True, architecture="sm_100")
    arrays, given = operands((256, 264), (264, 256), HALF), attributes("Relu")
    with device.counting() as counts:
        run(FusedMatMul(given), arrays, device)
    total = counts[-1].total("shared")
    assert total.units == total.ideal
    assert 2 * 256 * 256 * 4 < total.bytes < 2 * 256 * 256 * 4 + 8192


def test_a_region_says_what_it_would_launch() -> None:
    made = of_region(function(REGION[0]), ["float16"] * 4, ["float16"])({})
    assert isinstance(made, ProductRegion)
    (found,) = made.by_warpgroups([TensorType(HALF, shape) for shape in REGION[1]], 148, "sm_100")
    (launch,) = found.launches
    assert (found.form, launch.source.architecture, launch.threads) == (TCGEN05, architectures.TENSOR_MEMORY, 288)
