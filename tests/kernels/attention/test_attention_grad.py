"""The kernels of attention's gradients against NumPy in float64, their real source run by the emulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.attention import grad_source
from onnxfuse.kernels.attention.attention_grad import AttentionGrad
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.emulator.counts import by_kernel
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.inspect.launches import launches
from onnxfuse.language.catalogue import load
from tests.attention_cases import Case
from tests.attention_grad_cases import expected, inputs, node
from tests.kernel_runs import reference, shifted
from tests.row_cases import DTYPES, Values, assert_close, misaligned, run

FAST, CHECKED = Emulated(checked=False), Emulated(checked=True)
FLOAT, HALF, BFLOAT = DTYPES


def check(
    case: Case, dtype: np.dtype[Any], device: Emulated = FAST, place: Callable[[Values], Values] = lambda a: a
) -> None:
    """All gradients of a case."""
    given = inputs(case, dtype)
    got = run(device, AttentionGrad(node(case)), given, place=place)
    for name, one, want in zip(("Q", "K", "V", "Bias"), got, expected(node(case), given), strict=True):
        try:
            assert_close(one, want)
        except AssertionError as error:
            raise AssertionError(f"d{name} of {case}: {error}") from None


CASES = {
    "one key": Case(1, 1, 32),
    "one query": Case(1, 70, 32, heads=8, kv_heads=1),
    "more keys than queries": Case(7, 131, 32),
    "more queries than keys": Case(131, 7, 32),
    "causal": Case(70, 70, 40, head_v=24, attributes={"is_causal": 1}),
    "causal, more keys than queries": Case(37, 131, 32, attributes={"is_causal": 1}),
    "causal, more queries than keys": Case(131, 37, 32, attributes={"is_causal": 1}),
    "causal, of groups": Case(70, 70, 32, heads=6, kv_heads=2, attributes={"is_causal": 1}),
    "grouped": Case(37, 70, 32, heads=8, kv_heads=1),
    "flat": Case(37, 70, 40, heads=8, kv_heads=2, flat=True, head_v=24),
    "a negative scale": Case(37, 70, 32, attributes={"scale": -0.3}),
    "a scale of 0": Case(37, 70, 32, attributes={"scale": 0.0}),
    "added": Case(37, 70, 32, mask=(2, 2, 37, 70)),
    "added for batches": Case(37, 70, 32, mask=(2, 1, 1, 70)),
    "added for keys": Case(37, 70, 32, mask=(70,)),
    "added for rows": Case(37, 70, 32, mask=(37, 1)),
    "added for heads of groups": Case(37, 70, 32, heads=4, kv_heads=2, mask=(4, 1, 1), attributes={"is_causal": 1}),
    "added to heads of 128": Case(37, 70, 128, batches=1, mask=(37, 70)),
    "rows hidden by the lowest number": Case(37, 70, 32, mask=(37, 70), hidden=(0, 36), lowest=True),
    "boolean": Case(37, 131, 32, mask=(2, 2, 37, 131), boolean=True),
    "hidden rows that are 0": Case(
        37, 70, 32, mask=(37, 70), boolean=True, hidden=(0, 36), attributes={"nan_to_zero": 1}
    ),
    "rows that a boolean mask hides": Case(37, 70, 32, mask=(37, 70), boolean=True, hidden=(0, 36)),
    "added rows that are 0": Case(37, 70, 32, mask=(37, 70), hidden=(0, 36), attributes={"nan_to_zero": 1}),
    "hidden rows that are 0 beside what is NaN": Case(
        37, 70, 32, mask=(37, 70), hidden=(0, 36), attributes={"nan_to_zero": 2, "bias_axes": [-4]}
    ),
    "causal and boolean": Case(
        70, 70, 32, mask=(70, 70), boolean=True, attributes={"nan_to_zero": 1, "is_causal": 1}
    ),
    "wide": Case(37, 40, 256, batches=1, heads=1, kv_heads=1, head_v=144),
    "wide values": Case(20, 40, 64, batches=1, heads=1, kv_heads=1, head_v=256),
    "single channels": Case(20, 40, 1, head_v=3),
    "a bias of all batches": Case(37, 70, 32, batches=5, mask=(2, 37, 70), attributes={"bias_axes": [-4]}),
    "a bias of all heads": Case(37, 71, 40, heads=6, kv_heads=2, mask=(2, 1, 37, 71), attributes={"bias_axes": [-3]}),
    "a bias of all scores": Case(
        20, 70, 24, batches=3, heads=4, flat=True, mask=(20, 70), attributes={"bias_axes": [-4, -3], "is_causal": 1}
    ),
    "a bias of windows": Case(9, 9, 8, batches=70, mask=(2, 9, 9), attributes={"bias_axes": [-4]}),
}  # fmt: skip
BIASES = ("a bias of all batches", "a bias of all heads", "a bias of all scores", "a bias of windows")
FEW = (BIASES[2], "causal, of groups", "rows hidden by the lowest number", "hidden rows that are 0", "flat")
"""For bfloat16, which differs from float16 by its numbers alone."""


LOWEST = "rows hidden by the lowest number"
"""Of float16 it leaves scores some of their digits, and float32 keeps only those."""
RUNS = [(name, dtype) for name in CASES for dtype in (FLOAT, HALF) if (name, dtype) != (LOWEST, HALF)]


@pytest.mark.parametrize(("name", "dtype"), [*RUNS, *((name, BFLOAT) for name in FEW)], ids=str)
def test_what_an_attention_may_have(name: str, dtype: np.dtype[Any]) -> None:
    check(CASES[name], dtype)


@pytest.mark.parametrize("name", ["causal", "flat", "added", "hidden rows that are 0", "causal, of groups", *BIASES])
def test_numpy_and_the_function_body_agree(name: str) -> None:
    case = CASES[name]
    given = inputs(case, FLOAT)
    bodies = reference("AttentionGrad", node(case), given, load(), 4)
    for body, want in zip(bodies, expected(node(case), given), strict=True):
        np.testing.assert_allclose(body, want.value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
@pytest.mark.parametrize(
    "name", ["causal, of groups", "causal, more keys than queries", "hidden rows that are 0", "wide", *BIASES[1:]]
)
def test_no_race_and_no_access_out_of_bounds(name: str, dtype: np.dtype[Any], order: Any) -> None:
    check(CASES[name], dtype, Emulated(checked=True, order=order))


@pytest.mark.parametrize(("dtype", "head"), [(FLOAT, 40), (HALF, 32), (BFLOAT, 33)], ids=str)
def test_misaligned_arrays(dtype: np.dtype[Any], head: int) -> None:
    check(Case(7, 70, head, mask=(7, 70)), dtype, CHECKED, misaligned)


def test_half_precision_without_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = grad_source.Source.file

    def older(name: str, **defines: object) -> grad_source.Source:
        return whole(name, **{**defines, **({"TENSOR": 0} if "TENSOR" in defines else {})})

    monkeypatch.setattr(grad_source.Source, "file", older)
    grad_source.grad_source.cache_clear()
    check(CASES["causal, of groups"], HALF, CHECKED)
    grad_source.grad_source.cache_clear()


def test_nothing_at_all() -> None:
    for case in (Case(0, 5, 32), Case(5, 7, 32, batches=0), Case(0, 0, 32), Case(5, 0, 32)):
        check(case, HALF)


def test_the_same_each_time_whatever_the_order() -> None:
    case = CASES["causal, of groups"]
    given = inputs(case, HALF)
    once, again = (
        run(Emulated(checked=True, order=order), AttentionGrad(node(case)), given) for order in ("forward", "random")
    )
    for a, b in zip(once, again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("wanted", [tuple(i == one for i in range(4)) for one in range(4)])
@pytest.mark.parametrize("name", ["grouped", "wide", "a bias of all heads"])
def test_gradients_that_nobody_asks_for(name: str, wanted: tuple[bool, ...]) -> None:
    case = CASES[name]
    given = inputs(case, HALF)
    got = run(CHECKED, AttentionGrad(node(case)), given, wanted=wanted)
    assert [one is not None for one in got] == list(wanted)
    for one, want in zip(got, expected(node(case), given), strict=True):
        if one is not None:
            assert_close(one, want)


def test_scores_far_from_zero() -> None:
    """A row whose log-sum-exp has no digits left beside its greatest score."""
    case = Case(20, 70, 32, batches=1, attributes={"scale": 1.0})
    given = inputs(case, FLOAT)
    for at in (1, 2):
        array = given[at]
        assert array is not None
        array[...] = 0
        array[..., 0] = 4096.0
    (dq, dk, dv, db) = run(FAST, AttentionGrad(node(case)), given)
    for got, want in zip((dq, dk, dv, db), expected(node(case), given), strict=True):
        assert_close(got, want)


def test_nan_stays_in_its_batch() -> None:
    case = Case(37, 70, 32, heads=2)
    given = inputs(case, HALF)
    assert given[1] is not None
    given[1][0, 0, 3, 5] = np.nan
    dq, dk, dv, _ = run(FAST, AttentionGrad(node(case)), given)
    assert dq is not None
    assert np.isnan(dq[0, 0, 3]).all()
    assert np.isnan(dq.astype(np.float64)).sum() == 32
    for got in (dk, dv):
        assert got is not None
        assert np.isnan(got[0, 0].astype(np.float64)).all()
        assert not np.isnan(got[0, 1:].astype(np.float64)).any()
        assert not np.isnan(got[1:].astype(np.float64)).any()


@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
def test_a_mask_in_float32_beside_half_precision(dtype: np.dtype[Any]) -> None:
    case = Case(33, 40, 32, mask=(2, 1, 33, 40))
    given = inputs(case, dtype)
    mask = np.where(np.random.default_rng(0).random((2, 1, 33, 40)) < 0.5, 0.3, np.finfo(np.float32).min)
    mask[0, 0, 0] = np.finfo(np.float32).min
    given[4] = mask.astype(np.float32)
    got = run(CHECKED, AttentionGrad(node(case)), given)
    for one, want in zip(got, expected(node(case), given), strict=True):
        assert_close(one, want)


@pytest.mark.parametrize(("dtype", "wavefronts"), [(HALF, 1.0), (FLOAT, 1.02)], ids=str)
def test_no_access_is_wasted(dtype: np.dtype[Any], wavefronts: float) -> None:
    case = Case(128, 128, batches=1)
    given = [None if a is None else shifted(a.shape, a.dtype, 0) for a in inputs(case, dtype)]
    outputs = [shifted(a.shape, a.dtype, 0) for a in given[1:4] if a is not None]
    device = Emulated()
    with device.counting() as counts:
        AttentionGrad(node(case)).launch(device, given, outputs)
    for found in by_kernel(counts):
        assert found.total("global").excess <= 1.005
        assert found.total("shared").excess <= wavefronts + 0.005
        assert found.moved <= 1.405 * found.compulsory


def test_launches_and_memory() -> None:
    """Two launches, three where both sums of wide heads would not stay in registers; 16 bytes for each row."""

    def entries(head: int) -> list[str]:
        types = [TensorType(HALF, (2, 4, 128, head))] * 4
        found = launches(AttentionGrad({"scale": 0.1}), types, 132, (True, True, True, False))
        return [launch.entry.removeprefix("attention_grad_") for launch in found]

    assert entries(64) == entries(128) == ["queries", "keys"]
    assert entries(160) == ["queries", "keys", "keys"]


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ([(2, 4, 7, 16), (2, 4, 7, 16), (2, 3, 9, 16), (2, 3, 9, 16)], "do not fit each other"),
        ([(2, 4, 7, 8), (2, 4, 7, 16), (2, 4, 9, 16), (2, 4, 9, 16)], "dY"),
        ([(2, 4, 7, 16), (2, 4, 7, 16), (2, 4, 9, 16), (2, 4, 9, 16), (7, 5)], "for 9 keys"),
        ([(2, 4, 7, 300), (2, 4, 7, 300), (2, 4, 9, 300), (2, 4, 9, 300)], "head sizes from 1 to 256"),
    ],
)
def test_what_does_not_fit_is_refused(shapes: list[tuple[int, ...]], says: str) -> None:
    with pytest.raises(KernelError, match=says):
        AttentionGrad({"scale": 0.1}).outputs([TensorType(FLOAT, shape) for shape in shapes])


def test_work_counts_what_is_seen() -> None:
    types = [TensorType(HALF, (1, 2, 64, 32))] * 4
    whole, half = (AttentionGrad({"scale": 0.1, "is_causal": c}).work(types) for c in (0, 1))
    assert AttentionGrad({"scale": 0.1, "bias_axes": [-4]}).work(types).written == whole.written + 2 * 64 * 64 * 2
    assert whole.read == whole.written + types[0].shape[1] * 64 * 32 * 2
    assert half.flops * 2 * 64 == whole.flops * 65


def test_heads_between() -> None:
    for head in (96, 160):
        check(replace(CASES["flat"], batches=1, head=head, head_v=head), HALF)


def test_rows_of_nan_stay_so_where_hidden_ones_are_0() -> None:
    case = Case(5, 7, 16, batches=1, heads=1, kv_heads=1, mask=(5, 7), hidden=(3,), attributes={"nan_to_zero": 2})
    given = inputs(case, FLOAT)
    assert given[4] is not None
    given[4][1, 2] = np.inf
    _, _, _, bias = run(FAST, AttentionGrad(node(case)), given)
    assert bias is not None
    assert np.isnan(bias[0, 0]).all(-1).tolist() == [False, True, False, False, False]
    assert (bias[0, 0, 3] == 0).all()
    (*_, body) = reference("AttentionGrad", node(case), given, load(), 4)
    np.testing.assert_allclose(body, bias, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("mask", "boolean", "dtype"),
    [((5, 7), False, FLOAT), ((5, 7), True, FLOAT), ((), False, FLOAT), ((), False, HALF), ((5, 7), True, HALF)],
)
def test_rows_of_nan_are_0_where_attention_has_them_so(
    mask: tuple[int, ...], boolean: bool, dtype: np.dtype[Any]
) -> None:
    """As in its body, 0 times what is NaN stays NaN: all gradients of keys, not those of values."""
    attributes = {"nan_to_zero": 1, "bias_axes": [-4]}
    case = Case(5, 7, 16, batches=2, heads=1, kv_heads=1, mask=mask, boolean=boolean, attributes=attributes)
    given = inputs(case, dtype)
    assert given[1] is not None
    given[1][0, 0, 2, 3] = np.nan
    given[1][1, 0, 4] = np.inf
    made = run(FAST, AttentionGrad(node(case)), given)
    dq, _, _, bias = made
    assert dq is not None
    assert bias is not None
    assert (dq[0, 0, 2] == 0).all()
    assert np.isfinite(bias).all()
    rounding = 1e-6 if dtype == FLOAT else 4e-3
    for got, want in zip(made, reference("AttentionGrad", node(case), given, load(), 4), strict=True):
        np.testing.assert_allclose(got, want, rtol=max(1e-4, rounding), atol=rounding)
