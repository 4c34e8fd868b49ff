"""Parallel branches of a convolution become one; BatchNormalizations behind and beside them go."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue

CATALOGUE = catalogue.load()
C = 8

Branch = dict[str, object]
"""kernel and attributes of a convolution with its BatchNormalization; of the input itself for kernel 0."""


def model(
    branches: list[Branch], size: list[int], *, adds: str = "Add", concat: bool = False, outer: bool = False
) -> onnx.ModelProto:
    rng, n = np.random.default_rng(0), len(size)
    nodes, constants, ends = [], {}, []

    def norm(name: str, x: str, channels: int) -> str:
        for part in ("scale", "shift", "mean"):
            constants[f"{name}.{part}"] = rng.standard_normal(channels).astype(np.float32)
        constants[f"{name}.var"] = rng.uniform(0.5, 2, channels).astype(np.float32)
        nodes.append(
            helper.make_node(
                "BatchNormalization", [x, *(f"{name}.{p}" for p in ("scale", "shift", "mean", "var"))], [name]
            )
        )
        return name

    for i, branch in enumerate(branches):
        attrs = dict(branch)
        kernel, normed, group = attrs.pop("kernel"), attrs.pop("norm", True), attrs.get("group", 1)
        end = "x"
        if kernel:
            kernel = [kernel] * n if isinstance(kernel, int) else kernel
            constants[f"w{i}"] = rng.standard_normal((C, C // group, *kernel)).astype(np.float32)
            attrs.setdefault("pads", [k // 2 for k in kernel] * 2)
            nodes.append(helper.make_node("Conv", ["x", f"w{i}"], [f"c{i}"], **attrs))
            end = f"c{i}"
        ends.append(norm(f"n{i}", end, C) if normed else end)
    if concat:
        nodes.append(helper.make_node("Concat", ends, ["sum"], axis=1))
    elif adds == "Sum":
        nodes.append(helper.make_node("Sum", ends, ["sum"]))
    else:
        for i, end in enumerate(ends[1:]):
            nodes.append(
                helper.make_node(
                    "Add", [end, ends[0] if not i else f"s{i}"], ["sum" if i == len(ends) - 2 else f"s{i + 1}"]
                )
            )
    last = norm("outer", "sum", C * len(branches) if concat else C) if outer else "sum"
    nodes.append(helper.make_node("Relu", [last], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", C, *size])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ops(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type.split("_")[0] for node in proto.graph.node]


ONE = {
    "RepVGG": ([{"kernel": 3}, {"kernel": 1}, {"kernel": 0}], [9, 8]),
    "RepVGG that strides": ([{"kernel": 3, "strides": [2, 2]}, {"kernel": 1, "strides": [2, 2]}], [9, 8]),
    "grouped": ([{"kernel": 3, "group": 4}, {"kernel": 1, "group": 4}, {"kernel": 0}], [9, 8]),
    "depthwise, FastViT": ([{"kernel": 7, "group": C}, {"kernel": 3, "group": C}], [9, 8]),
    "MobileOne": ([{"kernel": 3}, {"kernel": 3}, {"kernel": 3}, {"kernel": 1}, {"kernel": 0}], [9, 8]),
    "one-dimensional": ([{"kernel": 5}, {"kernel": 1}, {"kernel": 0}], [9]),
    "kernels longer along one axis": ([{"kernel": [3, 5]}, {"kernel": [1, 3]}, {"kernel": [3, 1]}], [9, 8]),
    "padding that is not alike": ([{"kernel": 4, "pads": [1, 2, 2, 1]}, {"kernel": 2, "pads": [0, 1, 1, 0]}], [9, 8]),
    "no padding": ([{"kernel": 3, "pads": [0, 0, 0, 0]}, {"kernel": 3, "pads": [0, 0, 0, 0], "norm": False}], [9, 8]),
}


@pytest.mark.parametrize(("branches", "size"), ONE.values(), ids=ONE)
@pytest.mark.parametrize("adds", ["Add", "Sum"])
def test_branches_become_one_convolution(branches: list[Branch], size: list[int], adds: str) -> None:
    done = onnxfuse.optimize(model(branches, size, adds=adds))
    assert ops(done.model) == ["FusedConv"]
    assert done.report.validation.verdict == "equal"


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_branches_come_in_any_order(order: tuple[int, ...]) -> None:
    branches = [ONE["RepVGG"][0][i] for i in order]
    assert ops(fuse(model(branches, [9, 8]), CATALOGUE).model) == ["FusedConv"]


APART = {
    "strides": (
        [
            {"kernel": 3, "strides": [2, 2]},
            {"kernel": 1, "strides": [2, 2]},
            {"kernel": 1, "strides": [2, 2], "group": 2},
        ],
        2,
    ),
    "dilations": ([{"kernel": 3, "dilations": [2, 2], "pads": [2, 2, 2, 2]}, {"kernel": 3}], 2),
    "a kernel that reaches beyond": ([{"kernel": [1, 3]}, {"kernel": [3, 1]}], 2),
    "groups": ([{"kernel": 3, "group": 2}, {"kernel": 1}], 2),
}


@pytest.mark.parametrize(("branches", "left"), APART.values(), ids=APART)
def test_what_cannot_be_one_stays_apart_and_right(branches: list[Branch], left: int) -> None:
    done = onnxfuse.optimize(model(branches, [9, 8]))
    assert sum("Conv" in op for op in ops(done.model)) == left
    assert "BatchNormalization" not in ops(done.model)
    assert done.report.validation.verdict == "equal"


@pytest.mark.parametrize(("size", "pads"), [([1, 1], [2, 2, 2, 2]), ([1], [2, 2]), ([1, 1], [1, 1, 3, 3])])
def test_an_input_of_one_position_beside_more_is_no_kernel_of_size_1(size: list[int], pads: list[int]) -> None:
    done = onnxfuse.optimize(model([{"kernel": 3, "pads": pads}, {"kernel": 0}], size))
    assert "BatchNormalization" in ops(done.model), "it is added at each position, not at its own"
    assert done.report.left_out == []
    assert done.report.validation.verdict == "equal"


@pytest.mark.parametrize("concat", [True, False], ids=["Concat", "Add"])
def test_batch_normalization_behind_two_convolutions_goes(concat: bool) -> None:
    branches: list[Branch] = [{"kernel": 3, "norm": False}, {"kernel": 1, "norm": False, "group": 2}]
    done = onnxfuse.optimize(model(branches, [9, 8], concat=concat, outer=True))
    assert "BatchNormalization" not in ops(done.model)
    assert done.report.validation.verdict == "equal"


@pytest.mark.parametrize("count", [2, 3, 5, 8, 33])
def test_batch_normalization_behind_any_number_of_convolutions_goes(count: int) -> None:
    branches: list[Branch] = [{"kernel": 1 + 2 * (i % 3), "norm": False, "group": 1 + i % 2} for i in range(count)]
    done = onnxfuse.optimize(model(branches, [9, 8], concat=True, outer=True))
    assert "BatchNormalization" not in ops(done.model)
    assert ops(done.model).count("Conv") == count
    assert done.report.validation.verdict == "equal"


def test_batch_normalization_stays_behind_what_is_no_convolution_or_is_read_elsewhere() -> None:
    branches: list[Branch] = [{"kernel": 3, "norm": False}, {"kernel": 0, "norm": False}, {"kernel": 1, "norm": False}]
    assert "BatchNormalization" in ops(fuse(model(branches, [9, 8], concat=True, outer=True), CATALOGUE).model)
    shared = model([{"kernel": 3, "norm": False}] * 5, [9, 8], concat=True, outer=True)
    shared.graph.output.append(onnx.ValueInfoProto(name="c2"))
    assert ops(fuse(shared, CATALOGUE).model).count("Conv") == 5
    assert "BatchNormalization" in ops(fuse(shared, CATALOGUE).model)


def test_a_branch_that_something_else_reads_is_not_computed_twice() -> None:
    proto = model(ONE["RepVGG that strides"][0], [9, 8])
    proto.graph.output.append(onnx.ValueInfoProto(name="n1"))
    assert sum("Conv" in op for op in ops(fuse(proto, CATALOGUE).model)) == 2
