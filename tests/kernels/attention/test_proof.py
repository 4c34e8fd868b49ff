"""Attention in the form of a card of compute capability 9.0 or 10.0, emulated: it is proved there before it runs, and
refused where it computes wrongly."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.errors import UsageError
from onnxfuse.kernels.attention import attention
from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.attention.proof import VARIABLE, Proofs, digest, samples
from onnxfuse.kernels.attention.tiles import TENSOR_MEMORY, WARPGROUPS, Form
from onnxfuse.kernels.device.architectures import OWN
from onnxfuse.kernels.emulator.device import Emulated
from tests.attention_cases import Case, expected
from tests.gemm_card import CARD, Card
from tests.row_cases import DTYPES, assert_close, run

_, HALF, BFLOAT = DTYPES
WHOLE, BEHIND = Case(70, 70, 128), Case(70, 70, past=30)
FORMS = pytest.mark.parametrize("form", [WARPGROUPS, TENSOR_MEMORY], ids=lambda form: form.macro)
BEHIND_THE_RESULT = "if (r >= rows || column >= head_v)", "if (r > rows || (r == rows && column > 32))"
MISTAKES = {
    "the next panel": (WARPGROUPS, "column / PANEL * NEXT_PANEL", "column / PANEL * PATTERN"),
    "values as they lie": (WARPGROUPS, "multiply_add<TYPE, true>(o", "multiply_add<TYPE, false>(o"),
    "where keys of a mask are": (WARPGROUPS, "(place ^ slot % 8 * CHUNK)", "place"),
    "no compiler takes it": (
        WARPGROUPS,
        "struct Warpgroup : Tensor {",
        "struct Warpgroup : Tensor { int wrong = nothing;",
    ),
    "behind the result": (WARPGROUPS, *BEHIND_THE_RESULT),
    "the next panel of queries": (TENSOR_MEMORY, "column / PANEL * ROWS * PATTERN_ROW", "column / PANEL * PATTERN"),
    "values as they lie, too": (TENSOR_MEMORY, "<TYPE, HEAD_V, true>()", "<TYPE, HEAD_V, false>()"),
    "lanes of another warp": (
        TENSOR_MEMORY,
        "% 4 * 32 + threadIdx.x / 128 * 16",
        "% 4 * 32 + threadIdx.x / 128 % 1 * 16",
    ),
    "where its keys of a mask are": (TENSOR_MEMORY, "(place ^ slot % 8 * CHUNK)", "place"),
    "no compiler takes that": (TENSOR_MEMORY, "struct TensorMemory {", "struct TensorMemory { int wrong = nothing;"),
    "behind its result": (TENSOR_MEMORY, *BEHIND_THE_RESULT),
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where verdicts of this test are kept."""
    kept = Proofs(tmp_path / "proofs.json")
    monkeypatch.setattr(attention, "proofs", lambda: kept)
    return tmp_path / "proofs.json"


def attend(device: Emulated, case: Case = WHOLE, dtype: np.dtype[np.generic] = HALF) -> None:
    """A node of its own, checked."""
    inputs = case.inputs(dtype)
    assert_close(run(device, Attention(case.node), inputs, wanted=(True,))[0], expected(case.node, inputs)[0])


def card(form: Form, before: str = "", after: str = "") -> Card:
    return Card(before, after, architecture=next(name for name, own in OWN.items() if own == form.architecture))


@FORMS
@pytest.mark.parametrize("case", [WHOLE, BEHIND], ids=["alone", "behind a past"])
def test_what_is_proved_runs(path: Path, case: Case, form: Form) -> None:
    device, own = card(form), form.architecture
    proved = ["", own] * len(samples(form))
    attend(device, case)
    assert [each for each in device.launched if each] == [own] * (len(samples(form)) + 1)
    before = len(device.launched)
    attend(device, case)
    assert device.launched[before:].count(own) == 1, "it is proved once"
    assert json.loads(path.read_text())["proofs"] == {CARD: {digest(form, "float16"): ""}}
    attend(device, WHOLE, BFLOAT)
    assert device.launched[-len(proved) - 1 :] == [*proved, own], "and for each element type"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_computes_wrongly_is_refused_and_the_result_right(path: Path, mistake: str) -> None:
    form, before_it, after_it = MISTAKES[mistake]
    device = card(form, before_it, after_it)
    with pytest.warns(
        RuntimeWarning, match=rf"^attention kernels of float16 {form.how} are refused on {CARD}: .*other forms run"
    ):
        attend(device)
    before = len(device.launched)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attend(device)
    assert device.launched[before:] == [""], "and it is not asked again"
    (reason,) = json.loads(path.read_text())["proofs"][CARD].values()
    assert reason
    assert (
        Proofs(path)
        .refusal("fake", form, "float16")
        .startswith(f"attention kernels {form.how} (float16) are refused on {CARD}: ")
    )
    assert Proofs(path).refusal("fake", form, "bfloat16") == Proofs(path).refusal("h200", form, "float16") == ""


@FORMS
def test_the_user_may_settle_on_warps(path: Path, monkeypatch: pytest.MonkeyPatch, form: Form) -> None:
    device = card(form)
    monkeypatch.setenv(VARIABLE, "warps")
    attend(device)
    assert device.launched == [""]
    monkeypatch.setenv(VARIABLE, "wgmma")
    with pytest.raises(UsageError, match=r"^ONNXFUSE_ATTENTION=wgmma: it is warps, or not set$"):
        attend(device)


def _capturing(device: Card) -> None:
    device.vendor.capturing = True


def _without_vendor(device: Card) -> None:
    device.vendor = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("device", "change", "case"),
    [
        (Card(), _capturing, WHOLE),
        (Card(), _without_vendor, WHOLE),
        (Card(architecture="sm_120"), None, WHOLE),
        (Card(), None, Case(1, 70)),
        (Card(architecture="sm_100"), None, Case(64, 70)),
        (Card(), None, Case(40, 70, 80)),
    ],
    ids=[
        "a graph is captured",
        "nothing to compare with",
        "another architecture",
        "decoding",
        "few rows",
        "another head",
    ],
)
def test_nothing_is_proved_where_it_would_not_run(
    path: Path, device: Card, change: Callable[[Card], None] | None, case: Case
) -> None:
    if change is not None:
        change(device)
    attend(device, case)
    assert device.launched == [""]
    assert not path.exists()
