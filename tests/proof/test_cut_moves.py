"""Folded numbers are rounded: of many channels none is taken for another equation, and a wrong one is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.proof import cut_moves
from onnxfuse.proof.cut_proof import compare_sites
from onnxfuse.proof.oracle import Oracle

CHANNELS = 2048


def graph(nodes: list[onnx.NodeProto], **constants: np.ndarray) -> onnx.ModelProto:
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", CHANNELS, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", CHANNELS, 16])],
        [numpy_helper.from_array(value.astype(np.float32)[:, None], name) for name, value in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("ulps", "wrong"), [(0, 0), (200, 1)])
def test_a_folded_number_of_many_that_moved_as_what_it_was_folded_from(ulps: int, wrong: int) -> None:
    """Where the mean is small beside the shift, what is folded is the shift in another rounding."""
    rng = np.random.default_rng(0)
    k, shift = rng.uniform(1e-3, 2e-3, CHANNELS), rng.uniform(1, 2, CHANNELS)
    k, shift, mean = (v.astype(np.float32) for v in (k, shift, rng.uniform(-1e-3, 1e-3, CHANNELS)))
    folded = (shift - mean.astype(np.float64) * k).astype(np.float32)
    folded[CHANNELS // 3] += ulps * np.spacing(folded[CHANNELS // 3])
    node = helper.make_node
    original = graph(
        [node("Sub", ["x", "mean"], ["d"]), node("Mul", ["d", "k"], ["m"]), node("Add", ["m", "shift"], ["y"])],
        k=k,
        shift=shift,
        mean=mean,
    )
    fused = graph([node("Mul", ["x", "k"], ["p"]), node("Add", ["p", "folded"], ["y"])], k=k, folded=folded)
    assert len(compare_sites(original, fused, Oracle(original).cases).wrong) == wrong


@pytest.mark.parametrize("folded", [True, False])
def test_tensors_move_first_where_one_was_folded(folded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights are soon moved often enough; numbers beside them would be moved in vain before."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(1, 2, CHANNELS).astype(np.float32) for _ in range(2))
    k = np.array([0.1], np.float32)
    node = helper.make_node
    product = (a.astype(np.float64) * b).astype(np.float32)
    if folded:
        original = graph([node("Mul", ["x", "a"], ["m"]), node("Mul", ["m", "b"], ["y"])], a=a, b=b)
        fused = graph([node("Mul", ["x", "ab"], ["y"])], ab=product)
    else:
        original = graph([node("Mul", ["x", "k"], ["m"]), node("Mul", ["m", "k"], ["y"])], k=k)
        fused = graph([node("Mul", ["x", "kk"], ["y"])], kk=np.array([0.01], np.float32))
    tensors: list[bool] = []
    moved = cut_moves._moved

    def counted(*given: Any) -> Any:
        tensors.append(given[5])
        return moved(*given)

    monkeypatch.setattr(cut_moves, "_moved", counted)
    assert compare_sites(original, fused, Oracle(original).cases).wrong == {}
    assert tensors[0] == folded


WILD = "g (float[n, 16] a, float[n, 16] b) => (float[n, 16] y) <float k = {FACTOR}> { NODES }"


@pytest.mark.parametrize(("factor", "wrong"), [("1", 0), ("1.001", 1)])
def test_where_rounding_has_the_whole_say_in_float32_that_of_float64_tells_how_far_equations_are_apart(
    factor: str, wrong: int
) -> None:
    """An exponential of large numbers in another function: as gradients through several saturated softmaxes."""
    graph = '<ir_version: 9, opset_import: ["": 18]>\n' + WILD.replace("FACTOR", factor)
    original = graph.replace("NODES", "s = Add(a, b) e = Exp(s) y = Sin(e)")
    fused = graph.replace("NODES", "p = Exp(a) q = Exp(b) r = Mul(p, q) f = Mul(r, k) y = Sin(f)")
    before, after = (onnx.parser.parse_model(text) for text in (original, fused))
    assert len(compare_sites(before, after, Oracle(before).cases).wrong) == wrong
