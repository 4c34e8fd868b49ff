"""Products by warpgroups on a card of compute capability 9.0, emulated: they are proved there before they run, and one
that computes wrongly is refused."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels import of_region
from onnxfuse.kernels.device import architectures
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.device.first_use import BEGUN
from onnxfuse.kernels.emulator import memory
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.gemm import forms, proof
from onnxfuse.kernels.gemm.autotune import TMA, VARIABLE, WGMMA, Class, Verdicts
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from onnxfuse.kernels.gemm.proof import Proofs
from onnxfuse.kernels.gemm.region import ProductRegion
from onnxfuse.kernels.gemm.tiles import WARPGROUPS
from tests.gemm_card import CARD, Card
from tests.gemm_cases import BFLOAT, FLOAT, HALF, assert_near, assert_right, attributes, operands
from tests.kernel_runs import run
from tests.region_runs import computed, function

from .test_gated import GEGLU, PACKED
from .test_siblings import BIASED, arrays, made, wanted

PROVED = ["", *[architectures.WARPGROUPS] * len(WARPGROUPS), architectures.WARPGROUPS]
"""The architectures that a first product launches kernels of."""
SMALL = (136, 264, 328)
"""Two tiles of rows and of columns, six steps; none of them whole at the end."""


PLAIN = Class("float16", 1, 256, 512, 512, False, 16)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where verdicts of this test are kept; products are small, and warpgroups compute them if they may."""
    monkeypatch.setattr(proof, "SIZE", SMALL)
    monkeypatch.setenv(VARIABLE, "wgmma")
    proof._launched.cache_clear()
    kept, path = Proofs(tmp_path / "proofs.json"), tmp_path / "proofs.json"
    monkeypatch.setattr(forms, "proofs", lambda: kept)
    yield path  # type: ignore[misc]
    proof._launched.cache_clear()


def product(device: Emulated, dtype: np.dtype[Any] = HALF, transposed: bool = False) -> Any:
    """A product with all that may be behind it, checked."""
    given = attributes("Gelu", alpha=0.125, transB=int(transposed))
    arrays = operands((136, 264), (264, 264), dtype, transposed=transposed, residual=(136, 264))
    (y,) = run(FusedMatMul(given), arrays, device)
    assert_right(y, arrays, given)
    return y


@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
def test_what_is_proved_runs(path: Path, dtype: np.dtype[Any], transposed: bool) -> None:
    device = Card()
    product(device, dtype, transposed)
    assert device.launched == PROVED, "those of the proof, and the product"
    product(device, dtype, transposed)
    assert device.launched[len(PROVED) :] == [architectures.WARPGROUPS], "it is proved once"
    found = json.loads(path.read_text())
    assert list(found["proofs"]) == [CARD]
    assert list(found["proofs"][CARD].values()) == [""]


REGION = (
    "(a, b, c, z) => (y) { p = MatMul(a, b) s = Add(p, c) g = Gelu(s) m = Mul(g, z) "
    "n = Constant<value = int64[4] {2, 96, 3, 88}>() r = Reshape(m, n) y = Transpose<perm = [0, 2, 1, 3]>(r) }",
    [(2, 96, 136), (136, 264), (264,), (2, 96, 264)],
)
"""A product with a further operand behind it, and its heads apart."""


@pytest.mark.parametrize(
    "text", [REGION[0], REGION[0].replace("p =", "w = Transpose(b) p =").replace("(a, b) s", "(a, w) s")]
)
def test_regions_have_the_same_form(path: Path, text: str) -> None:
    shapes = list(REGION[1])
    if "w =" in text:
        shapes[1] = shapes[1][::-1]
    device = Card()
    for found, true in zip(*computed((text, shapes), np.float16, device), strict=True):
        np.testing.assert_allclose(found, true, rtol=2e-3, atol=2e-2)
    assert device.launched == PROVED


FAMILIES = {
    "siblings": (BIASED, [(136, 264), (264, 136), (136,), (264, 200), (264, 8), (1, 8)]),
    "gate of turned weights": (GEGLU, [(136, 264), (136, 264), (136, 264)]),
    "gate of a packed matrix": (PACKED, [(136, 264), (264, 272)]),
    "rows": (
        "Region_MatMulNorm_1 (x0, x1, x2, x3) => (y0, y1) "
        "{ v0 = MatMul(x0, x1) y1 = Add(v0, x2) y0 = LayerNormalization(y1, x3) }",
        [(136, 264), (264, 264), (136, 264), (264,)],
    ),
}


def family(name: str, device: Emulated) -> None:
    """Products of one operand, or one with its norm, checked."""
    text, shapes = FAMILIES[name]
    given = arrays(shapes, HALF)
    for y, true in zip(run(made(text, "float16"), given, device), wanted(text, given), strict=True):
        assert_near(y, true, 8.0 * 264)


@pytest.mark.parametrize("form", [WGMMA, TMA])
def test_so_have_products_of_one_operand_and_rows(path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """All of them prove themselves: a gate's tile has two products side by side, those of several choose one."""
    monkeypatch.setenv(VARIABLE, form)
    device = Card()
    for name in FAMILIES:
        if form == TMA and "turned" in name:
            continue  # what is another by maps is the same of those that are not
        device.launched.clear()
        family(name, device)
        assert device.launched == PROVED, name


def test_a_gate_of_one_product_alone_is_refused(path: Path) -> None:
    device = Card("(to + TILE_N / 2 * TILE_K, c, column_c", "(to + TILE_N / 2 * TILE_K, b, column_b")
    with pytest.warns(RuntimeWarning, match="numbers of a product .* are others"):
        family("gate of a packed matrix", device)
    assert device.launched == ["", architectures.WARPGROUPS, architectures.WARPGROUPS, ""]


@pytest.mark.parametrize(
    ("form", "before", "after"),
    [(WGMMA, "b = b1, bias", "b = b0, bias"), (TMA, "b = &b1", "b = &b0"), (TMA, "b = &b1, bias", "b = &a, bias")],
)
def test_several_products_that_take_another_matrix_are_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, form: str, before: str, after: str
) -> None:
    monkeypatch.setenv(VARIABLE, form)
    device = Card(before, after)
    with pytest.warns(RuntimeWarning, match="numbers of a product .* are others|proof failed"):
        family("siblings", device)
    assert device.launched[-1] == ""


@pytest.mark.parametrize("after", ["0};", "1 - number};", "number + 1};"])
def test_a_batch_that_takes_another_matrix_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    monkeypatch.setenv(VARIABLE, TMA)
    device = Card("stride ? number : 0};", after)
    with pytest.warns(RuntimeWarning, match="numbers of a product .* are others"):
        product(device)
    assert device.launched == ["", architectures.WARPGROUPS, architectures.WARPGROUPS, ""]


@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
def test_operands_may_come_by_tensor_maps(path: Path, monkeypatch: pytest.MonkeyPatch, transposed: bool) -> None:
    """By a proof of its own, a batch too; a device that has none multiplies by warps where they were asked for."""
    monkeypatch.setenv(VARIABLE, TMA)
    device = Card()
    product(device, HALF, transposed)
    assert device.launched == PROVED
    if transposed:
        return
    device.launched.clear()
    computed((REGION[0], REGION[1]), np.float16, device)
    assert device.launched == [architectures.WARPGROUPS], "what is behind it needs no other"
    for a, b in (((2, 136, 264), (2, 264, 136)), ((136, 264), (3, 264, 136)), ((2, 1, 136, 264), (1, 2, 264, 136))):
        device.launched.clear()
        arrays = operands(a, b, HALF)
        (y,) = run(FusedMatMul(attributes("Relu")), arrays, device)
        assert_right(y, arrays, attributes("Relu"))
        assert set(device.launched) == {architectures.WARPGROUPS}
    monkeypatch.setattr(device, "maps", False)
    device.launched.clear()
    product(device)
    assert architectures.WARPGROUPS not in device.launched


def test_a_map_of_another_pattern_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver made of it would be wrong: the copies by threads, which it does not concern, are not refused."""
    monkeypatch.setenv(VARIABLE, TMA)
    monkeypatch.setattr(memory, "PATTERN", 64)
    device = Card()
    with pytest.warns(RuntimeWarning, match="by warpgroups and tensor maps are refused"):
        product(device)
    assert device.launched[-1] == ""
    told = Proofs(path).refusal("fake", PLAIN, TMA)
    assert told.startswith("products by warpgroups and tensor maps (float16) are refused on")
    assert Proofs(path).refusal("fake", PLAIN) == ""


def test_why_it_is_refused_is_told_of_a_card_by_its_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one of its drivers and compilers has not refused it, it is not; of another class nothing is known."""
    device, other = Card(), Card(card="Fake sm_90, driver 2")
    monkeypatch.setattr(proof, "difference", lambda device, *_: "" if device is other else "3 numbers are others")
    with pytest.warns(RuntimeWarning):
        assert not Proofs(path).holds(device, device.vendor, PLAIN)
    assert Proofs(path).refusal("fake", PLAIN) == (
        f"products by warpgroups (float16) are refused on {CARD}: 3 numbers are others"
    )
    assert Proofs(path).refusal("fake", PLAIN, TMA) == ""
    for card, which in (("h200", PLAIN), ("fake", PLAIN._replace(transposed=True))):
        assert Proofs(path).refusal(card, which) == ""
    assert Proofs(path).holds(other, other.vendor, PLAIN)
    assert Proofs(path).refusal("Fake sm_90", PLAIN) == ""


def test_a_region_says_what_it_would_launch() -> None:
    made = of_region(function(REGION[0]), ["float16"] * 4, ["float16"])({})
    assert isinstance(made, ProductRegion)
    types = [TensorType(HALF, shape) for shape in REGION[1]]
    for found, form, threads in zip(made.by_warpgroups(types, 132, "sm_90"), (WGMMA, TMA), (256, 288), strict=True):
        (launch,) = found.launches
        assert (launch.source.architecture, launch.entry, launch.blocks) == (architectures.WARPGROUPS, "product", 2 * 3)
        assert (found.form, launch.threads) == (form, threads)
    assert made.by_warpgroups(types, 132, "sm_80") == []


def test_what_it_is_compared_with_must_be_right(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product by warps that computes nothing there proves nothing."""
    device = Card()
    monkeypatch.setattr(Emulated, "launch", lambda *_: None)
    with pytest.warns(RuntimeWarning, match="those by warps, which it is compared with, are wrong there"):
        assert not Proofs(path).holds(device, device.vendor, PLAIN)


MISTAKES = {
    "a pattern of its own": ("piece % 8 ^ r % 8", "piece % 8"),
    "the next instruction's k": ("i * FURTHER_A,", "i * FURTHER_A * 2 % 8,"),
    "two panels": ("TRANSPOSED ? 0 : TILE_K * PATTERN_ROW", "TRANSPOSED ? 0 : 32 * PATTERN_ROW"),
    "rows of the other warpgroup": ("threadIdx.x / 128, 0)", "1 - threadIdx.x / 128, 0)"),
    "a column beside its own": ("placed(j + lane % 4 * 2)", "placed(j + (lane + 1) % 4 * 2)"),
    "one step less": ("if (step + AHEAD < last) begin(", "if (step + AHEAD < last - 1) begin("),
    "what it cannot compile": ("struct Sums {", "struct Sums { nothing"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_computes_wrongly_is_refused_and_the_product_right(path: Path, mistake: str) -> None:
    device = Card(*MISTAKES[mistake])
    with pytest.warns(
        RuntimeWarning, match=rf"^products of float16 by warpgroups are refused on {CARD}: .*other forms run"
    ):
        y = product(device)
    before = len(device.launched)
    assert device.launched in (
        ["", architectures.WARPGROUPS, architectures.WARPGROUPS, ""],
        ["", architectures.WARPGROUPS, ""],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(product(device), y)
    assert device.launched[before:] == [""], "and it is not asked again"
    (reason,) = json.loads(path.read_text())["proofs"][CARD].values()
    assert reason


def test_a_verdict_outlives_its_process(path: Path) -> None:
    with pytest.warns(RuntimeWarning):
        product(Card(*MISTAKES["two panels"]))
    other, kernel = Proofs(path), Card()
    with pytest.warns(RuntimeWarning, match="numbers of a product 136 x 328 x 264 are others"):
        assert not other.holds(kernel, kernel.vendor, PLAIN)
    assert kernel.launched == [], "what was found is not found again"
    elsewhere = Card(card="Fake sm_90, driver 2")
    assert other.holds(elsewhere, elsewhere.vendor, PLAIN)
    found = json.loads(path.read_text())["proofs"]
    assert {card: [bool(reason) for reason in verdicts.values()] for card, verdicts in found.items()} == {
        CARD: [True],
        elsewhere.vendor.card: [False],
    }


def test_a_proof_that_did_not_end_is_a_refusal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ProcessLostError(BaseException):
        pass

    def lost(*_: Any) -> str:
        raise ProcessLostError

    device = Card()
    with monkeypatch.context() as patch:
        patch.setattr(proof, "difference", lost)
        with pytest.raises(ProcessLostError):
            Proofs(path).holds(device, device.vendor, PLAIN)
    with pytest.warns(RuntimeWarning, match=BEGUN):
        assert not Proofs(path).holds(device, device.vendor, PLAIN)
    assert device.launched == []


def test_what_writes_too_much_is_refused(path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="behind its result"):
        product(Card("if (row >= rows) return;", "if (row > rows || (row == rows && column > 32)) return;"))


def test_nothing_is_proved_while_a_graph_is_captured(path: Path) -> None:
    device, kept = Card(), Proofs(path)
    device.vendor.capturing = True
    assert not kept.holds(device, device.vendor, PLAIN)
    assert device.launched == []
    device.vendor.capturing = False
    assert kept.holds(device, device.vendor, PLAIN)
    device.vendor.capturing = True
    assert kept.holds(device, device.vendor, PLAIN), "what is known is known"


def test_an_emulated_card_leaves_nothing_behind(path: Path) -> None:
    device = Card(card=None)
    product(device)
    assert device.launched == PROVED
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2, "proofs": {}}', '{"schema": 1, "proofs": {"a": 3}}'])
def test_a_file_that_cannot_be_read_counts_as_empty(path: Path, text: str) -> None:
    path.write_text(text)
    device = Card()
    assert Proofs(path).holds(device, device.vendor, PLAIN)
    assert json.loads(path.read_text())["proofs"][CARD]


def test_another_form_that_was_asked_for_needs_no_proof(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "tiled")
    device = Card()
    product(device)
    assert device.launched == [""]


@pytest.mark.parametrize(
    ("architecture", "m", "k", "n", "dtype"),
    [
        ("sm_80", 136, 264, 264, HALF),
        ("sm_100", 136, 264, 264, HALF),
        ("sm_90", 128, 264, 264, HALF),
        ("sm_90", 136, 260, 264, HALF),
        ("sm_90", 136, 264, 260, HALF),
        ("sm_90", 136, 264, 264, FLOAT),
    ],
)
def test_other_cards_and_products_have_no_such_form(
    path: Path, architecture: str, m: int, k: int, n: int, dtype: np.dtype[Any]
) -> None:
    device = Card()
    device.architecture = architecture
    arrays = operands((m, k), (k, n), dtype)
    (y,) = run(FusedMatMul(attributes("Relu")), arrays, device)
    assert_right(y, arrays, attributes("Relu"))
    assert architectures.WARPGROUPS not in device.launched
    assert not path.exists()


def test_the_fastest_form_runs_and_nothing_is_asked_any_more(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    verdicts, device = Verdicts(tmp_path / "products.json"), Card()
    monkeypatch.setattr(forms, "choose", verdicts.choose)

    def clock(run: Callable[[], None]) -> Callable[[], float]:
        before = len(device.launched)
        run()
        takes = 1.0 if architectures.WARPGROUPS in device.launched[before:] else 2.0
        return lambda: takes

    device.vendor.clock = clock  # type: ignore[method-assign]
    given, arrays = attributes("Relu"), operands((136, 264), (264, 264), HALF)
    kernel = FusedMatMul(given)
    for _ in range(2):
        (y,) = run(kernel, arrays, device)
        assert_right(y, arrays, given)
    ((times),) = json.loads((tmp_path / "products.json").read_text())["seconds"][CARD].values()
    assert times == {"tiled": 2.0, "wgmma": 1.0, "tma": 1.0}
    settled = next(iter(kernel._run._known.values()))
    assert settled is not None
    assert settled.settled is settled.warpgroups[WGMMA]
    assert device.launched[-1] == architectures.WARPGROUPS
