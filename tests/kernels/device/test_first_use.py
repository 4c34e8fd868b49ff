"""What proves itself at its first use on a card: verdicts, whoever asks, and what a comparison is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.kernels.device.device import Buffer, TensorType
from onnxfuse.kernels.device.first_use import BEGUN, GUARD, POISON, FirstUse, results
from tests.gemm_card import CARD, Card, FakeVendor

VENDOR = FakeVendor()


def never() -> str:
    raise AssertionError("it is known")


def test_it_is_compared_once_for_each_card_and_text(tmp_path: Path) -> None:
    path = tmp_path / "proofs.json"
    verdicts = FirstUse(path)
    assert verdicts.proved(VENDOR, "a", lambda: "", "kernels")
    with pytest.warns(RuntimeWarning, match=rf"^kernels are refused on {CARD}: 3 are others; other forms run$"):
        assert not verdicts.proved(VENDOR, "b", lambda: "3 are others", "kernels")
    for known in (verdicts, FirstUse(path)):
        assert known.proved(VENDOR, "a", never, "kernels")
    assert not verdicts.proved(VENDOR, "b", never, "kernels")
    other = FakeVendor("Fake sm_90, driver 2")
    assert verdicts.proved(other, "b", lambda: "", "kernels"), "another driver"
    assert FirstUse(path).refused("sm_90", lambda: "b") is None, "not on all cards of the name"
    assert FirstUse(path).refused("1", lambda: "b") == (CARD, "3 are others")
    assert FirstUse(path).refused("1", lambda: "c") is FirstUse(path).refused("h200", never) is None


def test_what_did_not_end_is_a_refusal(tmp_path: Path) -> None:
    class ProcessLostError(BaseException):
        pass

    def lost() -> str:
        raise ProcessLostError

    with pytest.raises(ProcessLostError):
        FirstUse(tmp_path / "proofs.json").proved(VENDOR, "a", lost, "kernels")
    with pytest.warns(RuntimeWarning, match=BEGUN):
        assert not FirstUse(tmp_path / "proofs.json").proved(VENDOR, "a", never, "kernels")


def test_results_are_of_poisoned_bytes_with_a_guard_behind_them() -> None:
    device, seen = Card(), list[Callable[[], int]]()
    given = {"x": np.arange(5, dtype=np.float32), "m": np.ones((3, 3), np.bool_)}

    def run(arrays: Mapping[str, Buffer], whole: Buffer) -> None:
        assert [(a.shape, a.dtype) for a in arrays.values()] == [((5,), np.float32), ((3, 3), np.bool_)]
        assert not any(a.pointer % GUARD for a in (*arrays.values(), whole))
        device.vendor.write(Buffer(whole.pointer, (5,), np.dtype(np.float32)), 2 * device.vendor.read(arrays["x"]))
        seen.append(lambda: 1)

    found = results(device, device.vendor, given, TensorType(np.dtype(np.float32), (5,)), [run, lambda *_: None])
    assert len(seen) == 1
    np.testing.assert_array_equal(found[0][:20].view(np.float32), 2 * given["x"])
    assert (found[0][20:] == POISON).all()
    assert (found[1] == POISON).all()
    assert len(found[0]) >= 20 + GUARD
