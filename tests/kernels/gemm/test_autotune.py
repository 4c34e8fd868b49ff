"""Which form of a product runs: what is measured, when, and what is kept of it."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxfuse.errors import KernelError, UsageError
from onnxfuse.kernels.device import device
from onnxfuse.kernels.device.device import After, Array, Product
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.gemm import autotune
from onnxfuse.kernels.gemm.autotune import MARGIN, ROUNDS, VARIABLE, Class, Forms, Verdicts, best

WHICH = Class("float16", 1, 128, 1024, 256, False, 16)


class FakeVendor:
    """A card on which each form takes as long as `takes` says; the clock goes by what has run."""

    def __init__(self, card: str | None = "Fake sm_90", **takes: float) -> None:
        self.card, self.capturing = card, False
        self.takes = takes
        self.now = 0.0
        self.ran: list[str] = []

    def product(self, product: Product, a: Array, b: Array, y: Array) -> None:
        raise AssertionError("forms are run as a whole")

    def fuses(self, activation: str, dtype: np.dtype[Any]) -> bool:
        raise AssertionError("forms are known by now")

    def fused(self, product: Product, a: Array, b: Array, y: Array, after: After, workspace: Array) -> None:
        raise AssertionError("forms are run as a whole")

    def read(self, array: Array) -> NDArray[Any]:
        raise AssertionError("forms are run as a whole")

    def write(self, array: Array, values: NDArray[Any]) -> None:
        raise AssertionError("forms are run as a whole")

    def run(self, form: str) -> None:
        if self.takes[form] < 0:
            raise KernelError(f"{form} is refused")
        self.ran.append(form)
        self.now += self.takes[form]

    def clock(self, run: Callable[[], None]) -> Callable[[], float]:
        def seconds() -> float:
            before = self.now
            run()
            return self.now - before

        return seconds


def forms(vendor: FakeVendor) -> Forms:
    return {form: functools.partial(vendor.run, form) for form in vendor.takes}


def chosen(verdicts: Verdicts, vendor: FakeVendor, which: Class = WHICH) -> str:
    """The form that ran last, which is the one that is said to have run."""
    form = verdicts.choose(vendor, which, forms(vendor))
    assert vendor.ran[-1] == form
    return form


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path / "cache" / "products.json"


def test_the_faster_form_runs(path: Path) -> None:
    verdicts = Verdicts(path)
    assert chosen(verdicts, FakeVendor(tiled=1e-5, vendor=2e-5)) == "tiled"
    other = WHICH._replace(m=4096)
    assert chosen(verdicts, FakeVendor(tiled=3e-5, vendor=2e-5), other) == "vendor"
    assert verdicts.measured("Fake", WHICH) == {"tiled": pytest.approx(1e-5), "vendor": pytest.approx(2e-5)}
    assert verdicts.measured("Fake", other) == {"tiled": pytest.approx(3e-5), "vendor": pytest.approx(2e-5)}
    assert verdicts.measured("another", WHICH) is None
    assert verdicts.measured("fak", WHICH) is None
    assert verdicts.measured("sm_90 fake", WHICH) is not None


def test_what_is_not_clearly_faster_does_not_run(path: Path) -> None:
    for near in (1.0, 1 - MARGIN / 2):
        verdicts = Verdicts(path.with_name(f"{near}.json"))
        assert chosen(verdicts, FakeVendor(tiled=near * 1e-5, vendor=1e-5)) == "vendor"


def test_a_class_is_measured_once(path: Path) -> None:
    verdicts, vendor = Verdicts(path), FakeVendor(tiled=1e-5, vendor=2e-5)
    chosen(verdicts, vendor)
    assert len(vendor.ran) == 2 * (1 + ROUNDS) + 1
    for _ in range(3):
        chosen(verdicts, vendor)
    assert len(vendor.ran) == 2 * (1 + ROUNDS) + 4
    chosen(verdicts, vendor, WHICH._replace(dtype="float32"))
    assert len(vendor.ran) == 4 * (1 + ROUNDS) + 5


def test_forms_are_measured_in_turns(path: Path) -> None:
    vendor = FakeVendor(tiled=1e-5, vendor=2e-5)
    autotune.measure(vendor, forms(vendor))
    assert vendor.ran == ["tiled", "vendor"] * (1 + ROUNDS)


def test_verdicts_outlive_the_process(path: Path) -> None:
    chosen(Verdicts(path), FakeVendor(tiled=1e-5, vendor=2e-5))
    vendor = FakeVendor(tiled=9e-5, vendor=1e-5)
    assert chosen(Verdicts(path), vendor) == "tiled"
    assert vendor.ran == ["tiled"]
    found = json.loads(path.read_text())
    assert found["schema"] == autotune.SCHEMA
    ((name, times),) = found["seconds"]["Fake sm_90"].items()
    assert name.endswith("float16 1x128x256x1024 16")
    assert times == {"tiled": pytest.approx(1e-5), "vendor": pytest.approx(2e-5)}
    assert [file.name for file in path.parent.iterdir()] == ["products.json"]


def test_verdicts_of_other_kernels_and_of_another_way_to_measure_are_not_looked_at(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen(Verdicts(path), FakeVendor(tiled=1e-5, vendor=2e-5))
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"schema": autotune.SCHEMA - 1}))
    assert chosen(Verdicts(path), FakeVendor(tiled=9e-5, vendor=1e-5)) == "vendor"
    path.write_text(json.dumps(kept))
    monkeypatch.setattr(autotune, "_digest", lambda: "01234567")
    assert chosen(Verdicts(path), FakeVendor(tiled=9e-5, vendor=1e-5)) == "vendor"
    assert len(json.loads(path.read_text())["seconds"]["Fake sm_90"]) == 2


def test_a_verdict_depends_on_all_of_our_side_of_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {autotune._digest()}
    real = Path.read_text

    for changed in (*(f"{name}.py" for name in autotune.LAUNCHING), "gemm.cu", "gemm_wmma.cuh", "gemm_epilogue.cu"):

        def read(path: Path, changed: str = changed, **options: Any) -> str:
            return real(path, **options) + ("# changed" if path.name == changed else "")

        device._read.cache_clear()
        autotune._digest.cache_clear()
        monkeypatch.setattr(Path, "read_text", read)
        found.add(autotune._digest())
    monkeypatch.undo()
    device._read.cache_clear()
    autotune._digest.cache_clear()
    assert len(found) == 1 + len(autotune.LAUNCHING) + 3


def test_what_cannot_be_timed_is_not_kept(path: Path) -> None:
    verdicts, vendor = Verdicts(path), FakeVendor(tiled=1e-5, vendor=2e-5)

    def clock(run: Callable[[], None]) -> Callable[[], float]:
        raise KernelError("not captured in a CUDA graph")

    vendor.clock = clock  # type: ignore[method-assign]
    assert chosen(verdicts, vendor) == "vendor"
    before = len(vendor.ran)
    assert chosen(verdicts, vendor) == "vendor"
    assert len(vendor.ran) == before + 1, "and not tried again"
    assert not path.exists()


def test_another_card_has_verdicts_of_its_own(path: Path) -> None:
    verdicts = Verdicts(path)
    assert chosen(verdicts, FakeVendor(tiled=1e-5, vendor=2e-5)) == "tiled"
    assert chosen(verdicts, FakeVendor("Other sm_80", tiled=2e-5, vendor=1e-5)) == "vendor"
    assert len(json.loads(path.read_text())["seconds"]) == 2


def test_two_processes_add_to_one_file(path: Path) -> None:
    first, second = Verdicts(path), Verdicts(path)
    others = [WHICH._replace(n=n) for n in (64, 128)]
    assert first.seconds("Fake sm_90", WHICH) is None
    assert second.seconds("Fake sm_90", WHICH) is None
    for verdicts, which in zip((first, second), others, strict=True):
        chosen(verdicts, FakeVendor(tiled=1e-5, vendor=2e-5), which)
    assert all(Verdicts(path).measured("fake", which) for which in others)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2, "seconds": {}}', '{"schema": 3, "seconds": {"a": 3}}'])
def test_a_file_that_cannot_be_read_counts_as_empty(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    assert chosen(Verdicts(path), FakeVendor(tiled=1e-5, vendor=2e-5)) == "tiled"
    assert json.loads(path.read_text())["seconds"]["Fake sm_90"]


def test_a_folder_that_cannot_be_written_is_left_alone(path: Path) -> None:
    path.parent.write_text("a file where the folder should be")
    verdicts, vendor = Verdicts(path), FakeVendor(tiled=1e-5, vendor=2e-5)
    assert chosen(verdicts, vendor) == "tiled"
    before = len(vendor.ran)
    chosen(verdicts, vendor)
    assert len(vendor.ran) == before + 1


def test_nothing_is_measured_while_a_graph_is_captured(path: Path) -> None:
    verdicts, vendor = Verdicts(path), FakeVendor(tiled=1e-5, vendor=2e-5)
    vendor.capturing = True
    assert chosen(verdicts, vendor) == "vendor"
    assert vendor.ran == ["vendor"]
    assert not path.exists()
    vendor.capturing = False
    assert chosen(verdicts, vendor) == "tiled"
    vendor.capturing = True
    assert chosen(verdicts, vendor) == "tiled"


def test_one_thread_measures_while_the_others_take_the_vendors(path: Path) -> None:
    verdicts, vendor = Verdicts(path), FakeVendor(tiled=1e-5, vendor=2e-5)
    seen: list[str] = []

    def clock(run: Callable[[], None]) -> Callable[[], float]:
        if not seen:
            other = FakeVendor(tiled=1e-5, vendor=2e-5)
            thread = threading.Thread(target=lambda: seen.append(chosen(verdicts, other)))
            thread.start()
            thread.join()
            assert other.ran == ["vendor"]
        return FakeVendor.clock(vendor, run)

    vendor.clock = clock  # type: ignore[method-assign]
    assert chosen(verdicts, vendor) == "tiled"
    assert seen == ["vendor"]


def test_a_form_that_the_card_refuses_is_not_chosen(path: Path) -> None:
    assert chosen(Verdicts(path), FakeVendor(tiled=-1, vendor=2e-5)) == "vendor"
    path.unlink()
    assert chosen(Verdicts(path), FakeVendor(tiled=1e-5, vendor=-1)) == "tiled"
    path.unlink()
    with pytest.raises(KernelError, match="vendor is refused"):
        chosen(Verdicts(path), FakeVendor(tiled=-1, vendor=-1))


def test_the_choice_can_be_made_by_hand(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form in ("tiled", "vendor", "cublaslt"):
        monkeypatch.setenv(VARIABLE, form)
        vendor = FakeVendor(tiled=1e-5, vendor=2e-5, cublaslt=3e-5)
        assert chosen(Verdicts(path), vendor) == form
        assert vendor.ran == [form]
    monkeypatch.setenv(VARIABLE, "fastest")
    with pytest.raises(
        UsageError, match="ONNXFUSE_PRODUCT=fastest: it is tiled, wgmma, tma, tcgen05, vendor, cublaslt, or not set"
    ):
        chosen(Verdicts(path), FakeVendor(tiled=1e-5, vendor=2e-5))


def test_without_a_gpu_ours_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = FakeVendor(None, tiled=2e-5, vendor=1e-5)
    assert chosen(Verdicts(path), vendor) == "tiled"
    assert vendor.ran == ["tiled"]
    assert Emulated().vendor.card is None
    ours = FakeVendor(tiled=1e-5)
    assert Verdicts(path).choose(None, WHICH, forms(ours)) == "tiled"
    monkeypatch.setenv(VARIABLE, "vendor")
    assert Verdicts(path).choose(None, WHICH, forms(ours)) == "tiled"
    assert ours.ran == ["tiled", "tiled"]


def test_empty_sums_are_ours(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "vendor")
    assert chosen(Verdicts(path), FakeVendor(tiled=2e-5, vendor=1e-5), WHICH._replace(k=0)) == "tiled"


def test_classes() -> None:
    product = Product(m=100, n=1024, k=1025, transposed=True, batch=3)
    which = Class.of(product, 2, "float16", 4)
    assert which == Class("float16", 8, 128, 1024, 2048, True, 4)
    assert str(which).endswith(" float16 8x128x2048x1024 transposed 4")
    assert Class.of(Product(m=1, n=1, k=0), 1, "float32", 4).k == 0
    assert str(Class.of(product, 2, "float16", 4, "Relu bias")) == f"{which} Relu bias"


def test_the_fastest_of_three_forms_runs(path: Path) -> None:
    other = WHICH._replace(epilogue="Relu bias")
    verdicts = Verdicts(path)
    assert chosen(verdicts, FakeVendor(tiled=2e-5, vendor=3e-5, cublaslt=1e-5), other) == "cublaslt"
    assert chosen(verdicts, FakeVendor(tiled=2e-5, vendor=3e-5)) == "tiled"
    near = (1 - MARGIN / 2) * 1e-5
    assert best({"tiled": 2e-5, "vendor": 1e-5, "cublaslt": near}) == "vendor"
    assert best({"tiled": near, "vendor": 2e-5, "cublaslt": 1e-5}) == "tiled"
    assert best({"tiled": 1.0}) == "tiled"


def test_a_fast_form_that_refuses_one_product_gives_way_to_the_vendors(path: Path) -> None:
    verdicts = Verdicts(path)
    assert chosen(verdicts, FakeVendor(tiled=2e-5, vendor=3e-5, cublaslt=1e-5)) == "cublaslt"
    vendor = FakeVendor(tiled=2e-5, vendor=3e-5, cublaslt=-1)
    assert chosen(verdicts, vendor) == "vendor"
    assert vendor.ran == ["vendor"]


def test_a_form_that_a_product_cannot_have_gives_way_to_the_vendors(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = Verdicts(path)
    assert chosen(verdicts, FakeVendor(tiled=2e-5, vendor=3e-5, cublaslt=1e-5)) == "cublaslt"
    assert chosen(verdicts, FakeVendor(tiled=2e-5, vendor=3e-5)) == "vendor"
    monkeypatch.setenv(VARIABLE, "cublaslt")
    assert chosen(verdicts, FakeVendor(tiled=2e-5, vendor=3e-5)) == "vendor"
    with pytest.raises(KernelError, match="cublaslt is refused"):
        chosen(verdicts, FakeVendor(tiled=2e-5, vendor=3e-5, cublaslt=-1))
