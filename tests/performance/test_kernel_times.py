"""Times of launches by what is counted of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.device.device import Launch, TensorType
from onnxfuse.kernels.device.kernel import Kernel, Work
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from onnxfuse.kernels.inspect.executed import MULTIPLICATIONS, Executed
from onnxfuse.kernels.inspect.launches import launches
from onnxfuse.performance.gpus import CARDS
from onnxfuse.performance.kernel_times import BRIDGE, CALL, TENSOR, counted, host, own, told, vendors

H100, A100 = CARDS["h100"], CARDS["a100"]
HALF = np.dtype(np.float16)


def made(kernel: Kernel, *shapes: tuple[int, ...]) -> tuple[Work, list[Launch]]:
    types = [TensorType(HALF, shape) for shape in shapes]
    given = [*types, *[None] * (len(kernel.signature.inputs) - len(types))]
    return kernel.work(given), launches(kernel, given, 132)


def test_a_clock_is_that_of_the_data_sheet() -> None:
    assert A100.clock == pytest.approx(1.41e9, rel=0.01)
    assert H100.clock == pytest.approx(1.98e9, rel=0.01)
    assert A100.warp_tensor == A100.tensor
    assert H100.warp_tensor < 0.7 * H100.tensor


def test_tensor_cores_and_instructions_add_up() -> None:
    work, (launch,) = made(FusedMatMul({}), (4096, 4096), (4096, 4096))
    (found,) = counted(work, [launch], True, H100.tensor, H100)
    assert found is not None
    times = own(work, [launch], [found], H100.tensor, H100)
    multiplying = 2 * MULTIPLICATIONS * found.products / H100.warp_tensor
    uneven = -(-1024 // 132) * 132 / 1024
    assert times.instructions == pytest.approx((multiplying + found.instructions / H100.issued) * uneven)
    assert times.bound == "instructions"
    assert times.seconds == pytest.approx(times.instructions + H100.launch)


def test_products_by_warpgroups_go_on_beside_their_loop() -> None:
    kernel, types = FusedMatMul({}), [TensorType(HALF, (4096, 4096))] * 2
    (launch,) = kernel.by_warpgroups([*types, None, None], 132, "sm_90")[0].launches
    work = kernel.work([*types, None, None])
    (found,) = counted(work, [launch], True, H100.tensor, H100)
    assert found is not None
    assert 0 < found.around < 0.1 * found.instructions
    assert found.products == pytest.approx(work.flops / 2 / MULTIPLICATIONS)
    times, uneven = own(work, [launch], [found], H100.tensor, H100), 4 * 132 / 512
    multiplying = work.flops / (0.945 * 989e12)
    assert times.instructions == pytest.approx((multiplying + found.around / H100.issued) * uneven)
    assert times.instructions < own(work, *_by_warps(work), H100.tensor, H100).instructions / 1.5
    slow = found._replace(instructions=100 * found.instructions)
    assert own(work, [launch], [slow], H100.tensor, H100).instructions > 10 * times.instructions


def _by_warps(work: Work) -> tuple[list[Launch], list[Executed | None]]:
    _, launched = made(FusedMatMul({}), (4096, 4096), (4096, 4096))
    return launched, counted(work, launched, True, H100.tensor, H100)


def test_fewer_instructions_take_less() -> None:
    work, (launch,) = made(FusedMatMul({}), (4096, 4096), (4096, 4096))
    slow, fast = (own(work, [launch], [Executed(count, 1e6)], H100.tensor, H100) for count in (2e9, 1e9))
    assert fast.instructions < slow.instructions


def test_the_vendors_product_moves_its_result_three_times() -> None:
    work, launched = made(FusedMatMul({}), (4096, 4096), (4096, 4096))
    times = vendors(work, launched, H100.tensor, H100)
    assert times.bytes == pytest.approx((work.read + 3 * work.written) / H100.bandwidth)
    assert times.launches == 2 * H100.launch
    assert times.instructions == 0


def test_parts_of_a_sum_are_put_together_besides() -> None:
    """Only the first of the two launches multiplies."""
    work, launched = made(FusedMatMul({"activation": "Gelu"}), (4, 4096), (4096, 4096))
    partial, finish = counted(work, launched, True, H100.tensor, H100)
    assert partial is not None
    assert finish is not None
    assert partial.products > 0
    assert finish.products == 0


def test_products_without_tensor_cores_are_not_counted() -> None:
    work, launched = made(FusedMatMul({}), (64, 64), (64, 64))
    assert counted(work, launched, True, H100.float32, H100) == [None]


def test_attention_on_an_h100_is_near_what_flash_attention_2_publishes() -> None:
    """335 to 400 TFLOP/s at heads of 128 without causal order (Shah et al. 2024, figure 5): the model is within a
    quarter of that."""
    work, launched = made(Attention({}), *[(4, 16, 4096, 128)] * 3)
    times = own(work, launched, counted(work, launched, True, H100.tensor, H100), H100.tensor, H100)
    assert 0.75 * 335e12 < work.flops / times.seconds < 1.25 * 400e12


def test_what_is_told_of_a_launch() -> None:
    work, (launch,) = made(FusedMatMul({"activation": "Gelu"}), (8192, 1024), (1024, 2048))
    (found,) = counted(work, [launch], True, H100.tensor, H100)
    said = told(launch, found, H100)
    assert said.waves == 4  # of 2 * 132 blocks, of 1,024
    assert said.instructions == round(found.instructions if found else 0)
    assert told(launch, None, replace(H100, architecture="sm_86")).waves is None
    assert {on.architecture for on in said.occupancy} == {"sm_80", "sm_90", "sm_100"}


def test_nothing_to_launch_takes_nothing() -> None:
    empty = Work(0, 0, 0)
    assert own(empty, [], [], H100.tensor, H100).seconds == vendors(empty, [], H100.tensor, H100).seconds == 0.0


def test_the_processor_takes_more_for_more_tensors() -> None:
    assert host(2) == BRIDGE + CALL
    assert host(8) == pytest.approx(BRIDGE + CALL + 6 * TENSOR)
