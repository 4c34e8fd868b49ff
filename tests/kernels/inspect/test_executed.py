"""What launches execute, by the counts of compiled kernels."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.kernels.device.device import Launch, Source, TensorType
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from onnxfuse.kernels.inspect.executed import MULTIPLICATIONS, executed
from onnxfuse.kernels.inspect.instructions import committed
from onnxfuse.kernels.inspect.launches import launches
from onnxfuse.kernels.rows.norm import LayerNormalization

HALF = np.dtype(np.float16)


def product(m: int, k: int, n: int) -> list[Launch]:
    return launches(FusedMatMul({"activation": "Gelu"}), [TensorType(HALF, shape) for shape in ((m, k), (k, n))], 132)


@pytest.mark.parametrize("k", [1024, 4096])
def test_the_main_loop_is_walked_as_often_as_its_products_are_needed(k: int) -> None:
    (launch,) = product(4096, k, 4096)
    found = executed(launch, "sm_90", 4096.0 * k * 4096, 0.0)
    counts = committed()["FusedMatMul float16 large bare"]["sm_90"]["gemm"]
    assert counts.loop is not None
    assert found is not None
    assert found.products == pytest.approx(4096 * k * 4096 / MULTIPLICATIONS)
    each = counts.whole.instructions + (k // 32 - 1) * counts.loop.instructions
    assert found.instructions == pytest.approx(launch.blocks * 4 * each)


def test_what_moves_bytes_walks_its_loop_for_them() -> None:
    (launch,) = launches(LayerNormalization({}), [TensorType(HALF, (64, 768)), *[TensorType(HALF, (768,))] * 2], 132)
    once = executed(launch, "sm_90", 0.0, 0.0)
    assert once is not None
    assert once.products == 0
    assert once.instructions >= launch.blocks * 100


def test_what_no_counted_source_is_like_is_unknown() -> None:
    (launch,) = product(4096, 1024, 4096)
    assert executed(launch, "sm_86", 1.0, 0.0) is None
    assert executed(Launch(Source("other.cu", ""), "gemm", (1,), (32,)), "sm_90", 0.0, 0.0) is None
    (norm,) = launches(LayerNormalization({}), [TensorType(HALF, (64, 768)), *[TensorType(HALF, (768,))] * 2], 132)
    assert executed(norm, "sm_90", 1.0, 0.0) is None  # it multiplies nothing
