"""The kernel of group normalization's gradients against NumPy in float64, its real source run by the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.rows.group_norm_grad import GroupNormalizationGrad
from onnxfuse.language.catalogue import load
from tests.kernel_runs import reference
from tests.row_cases import DTYPES, Values, Wanted, assert_close, group_norm_gradient, misaligned, run

CHECKED = Emulated(checked=True)
FLOAT, HALF, _ = DTYPES
EPSILON = 0.1
CASES = (((2, 6, 20), 3), ((3, 4, 5, 7), 1), ((1, 8, 900), 8), ((2, 40, 3), 2), ((2, 4, 1), 4))
"""(shape, groups): channels that several warps share, groups of more channels than warps, rows of one element."""


def inputs(shape: tuple[int, ...], dtype: np.dtype[Any] = FLOAT) -> list[Values | None]:
    rng = np.random.default_rng(len(shape))
    dy, x, scale = rng.standard_normal(shape), 2 + rng.standard_normal(shape), rng.standard_normal(shape[1])
    return [dy.astype(dtype), x.astype(dtype), scale.astype(dtype)]


def expected(given: list[Values | None], groups: int) -> list[Wanted]:
    dy, x, scale = (np.asarray(one) for one in given)
    return group_norm_gradient(dy, x, scale, groups, EPSILON)


@pytest.mark.parametrize(("shape", "groups"), CASES)
def test_groups_of_any_size(shape: tuple[int, ...], groups: int) -> None:
    given = inputs(shape)
    got = run(CHECKED, GroupNormalizationGrad({"num_groups": groups, "epsilon": EPSILON}), given)
    for own, wanted in zip(got, expected(given, groups), strict=True):
        assert_close(own, wanted)


def test_numpy_and_the_function_body_agree() -> None:
    given = inputs((2, 6, 20))
    (body,) = reference("GroupNormalizationGrad", {"num_groups": 3, "epsilon": EPSILON}, given, load())
    np.testing.assert_allclose(body, expected(given, 3)[0].value, rtol=1e-9, atol=1e-12)


def test_no_race_and_no_access_out_of_bounds() -> None:
    given = inputs((2, 6, 20), HALF)
    device = Emulated(checked=True, order="random")
    for own, wanted in zip(
        run(device, GroupNormalizationGrad({"num_groups": 3, "epsilon": EPSILON}), given, place=misaligned),
        expected(given, 3),
        strict=True,
    ):
        assert_close(own, wanted)


def test_what_is_not_asked_for_is_not_given() -> None:
    given = inputs((2, 6, 20))
    kernel = GroupNormalizationGrad({"num_groups": 3, "epsilon": EPSILON})
    whole = run(CHECKED, kernel, given)
    for wanted in ((True, False, False), (False, True, False), (False, False, True)):
        for own, every, asked in zip(run(CHECKED, kernel, given, wanted), whole, wanted, strict=True):
            assert (own is not None) == asked
            assert own is None or np.array_equal(own, np.asarray(every))


def test_of_no_samples_the_sums_are_0() -> None:
    dx, *sums = run(CHECKED, GroupNormalizationGrad({"num_groups": 3, "epsilon": EPSILON}), inputs((0, 6, 20)))
    assert dx is not None
    assert dx.size == 0
    assert not any(np.asarray(one).any() for one in sums)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(KernelError, match="needs num_groups"):
        GroupNormalizationGrad({})
    types = [TensorType(FLOAT, shape) for shape in ((2, 6, 5), (2, 6, 5), (6,))]
    with pytest.raises(KernelError, match=r"\[2, 6, 5\], \[2, 6, 5\], \[6\] are not of 4 groups of channels"):
        GroupNormalizationGrad({"num_groups": 4}).outputs(types)


def test_work_is_one_pass() -> None:
    work = GroupNormalizationGrad({"num_groups": 3, "epsilon": EPSILON}).work(
        [TensorType(FLOAT, s) for s in ((2, 6, 5), (2, 6, 5), (6,))]
    )
    assert (work.read, work.written, work.flops) == (4 * 126, 4 * 72, 16 * 60)
