"""Loops that have nothing to do with each other are one launch."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.inspect import nvrtc
from onnxfuse.kernels.pointwise.loops import THREADS
from onnxfuse.kernels.pointwise.parts import ARGUMENTS, MOST, apart, parts
from tests.region_runs import computed, expected, function, given, launches

STEPS = "(p, g, r, p2, g2, r2, p3, g3, r3) => (a, m, a2, m2, a3, m3) {{ {} }}".format(
    " ".join(
        f"c{k} = Constant<value_float = 0.9>() d{k} = Mul(r{k}, c{k}) m{k} = Add(d{k}, g{k}) e{k} = Mul(m{k}, c{k}) "
        f"a{k} = Sub(p{k}, e{k})"
        for k in ("", "2", "3")
    )
)
"""SGD with momentum over three parameters."""
SIZES = [(8, 5), (8, 5), (8, 5), (7,), (7,), (7,), (600,), (600,), (600,)]


def test_updates_of_several_parameters_are_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = launches(monkeypatch)
    got, wanted = computed((STEPS, SIZES))
    for a, b in zip(got, wanted, strict=True):
        assert np.allclose(a, b, rtol=1e-6, atol=1e-7)
    assert len(seen) == 1


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_sizes_of_all_kinds(dtype: type[np.generic]) -> None:
    """Empty, one element, fewer than a vector, more than a block, and what vectors leave over."""
    text = "(x, y, z, u) => (a, b, c, d) { a = Exp(x) b = Neg(y) c = Abs(z) t = Transpose(u) d = Neg(t) }"
    case = (text, [(0,), (1,), (3,), (3, 2 * THREADS + 5)])
    got, wanted = computed(case, dtype)
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        assert np.allclose(a.astype(np.float32), b, rtol=2e-3, atol=1e-3)


def test_parts_of_one_code_call_one_function() -> None:
    body = function(STEPS)
    sizes = [(8, 64)] * 3 + [(16, 64)] * 3 + [(4, 64)] * 3
    types = {name: TensorType(np.dtype(np.float32), shape) for name, shape in zip(body.input, sizes, strict=True)}
    _, (launch,) = parts("steps", list(body.node), types, list(body.output))
    assert launch.source.text.count("namespace part") == 1
    assert launch.source.text.count("return part0::steps(") == 3
    assert [part.loop.vectors for part in launch.parts] == [128, 256, 64]
    assert launch.ends(132) == [1, 2, 3]


def test_it_compiles_and_spills_nothing() -> None:
    body = function(STEPS)
    types = {name: TensorType(np.dtype(np.float32), shape) for name, shape in zip(body.input, SIZES, strict=True)}
    _, (launch,) = parts("steps", list(body.node), types, list(body.output))
    for entries in nvrtc.measured(launch.source).values():
        assert {name: (needs.spill_loads, needs.spill_stores) for name, needs in entries.items()} == {"steps": (0, 0)}


def test_a_card_is_shared_out() -> None:
    body = function("(x, y) => (a, b) { a = Exp(x) b = Neg(y) }")
    types = {"x": TensorType(np.dtype(np.float32), (1 << 22,)), "y": TensorType(np.dtype(np.float32), (5,))}
    _, (launch,) = parts("both", list(body.node), types, list(body.output))
    assert launch.ends(4) == [31, 32]
    assert launch.ends(10_000) == [4096, 4097]


def test_more_blocks_than_a_card_has_room_for_walk_on() -> None:
    case = ("(x, y) => (a, b) { a = Exp(x) b = Neg(y) }", [(70_000,), (5,)])
    arrays = [np.linspace(-1, 1, 70_000, dtype=np.float32), np.arange(5, dtype=np.float32)]
    for a, b in zip(given(case, arrays, Emulated()), expected(function(case[0]), arrays), strict=True):
        assert np.allclose(a, b, rtol=1e-6)


def test_what_reads_common_constants_and_inputs_is_apart() -> None:
    body = function(
        "(x, y, l) => (a, b, c, d) { n = Constant<value_float = 2.0>() k = CastLike(n, x) s = Mul(x, k) a = Mul(s, l) "
        "b = Neg(s) c = Mul(y, k) d = Mul(y, l) }"
    )
    found = [(len(nodes), wanted) for nodes, wanted in apart(list(body.node), list(body.output))]
    assert found == [(5, [0, 1]), (3, [2]), (1, [3])]
    assert [wanted for _, wanted in apart(list(body.node), ["a", "", "c", ""])] == [[0], [2]]


def test_what_is_computed_of_two_sets_makes_them_one() -> None:
    body = function("(x, y) => (a, b, c) { a = Neg(x) b = Neg(y) c = Add(a, b) }")
    ((nodes, wanted),) = apart(list(body.node), list(body.output))
    assert (len(nodes), wanted) == (3, [0, 1, 2])


def test_too_much_for_one_launch_is_refused() -> None:
    nodes = [helper.make_node("Neg", [f"x{k}"], [f"y{k}"]) for k in range(MOST + 1)]
    types = {f"x{k}": TensorType(np.dtype(np.float32), (4,)) for k in range(MOST + 1)}
    with pytest.raises(KernelError, match=f"{MOST + 1} loops with 516 arguments are too many for one launch"):
        parts("steps", nodes, types, [f"y{k}" for k in range(MOST + 1)])
    assert ARGUMENTS * 8 < 4096
