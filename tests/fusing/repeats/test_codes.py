"""What makes nodes of two blocks the same, and what does not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfuse.fusing.repeats.codes import Codes, has_bodies
from onnxfuse.fusing.repeats.runs import Run

PERIOD = 6
COUNT = 9


def graph(blocks: int = COUNT) -> GraphProto:
    """Blocks of six nodes, each with a weight of its own, on what the block before gives."""
    nodes: list[NodeProto] = []
    weights = []
    value = "x"
    for block in range(blocks):
        names = [f"{block}.{step}" for step in range(PERIOD)]
        nodes += [
            helper.make_node("MatMul", [value, f"{block}.w"], [names[0]]),
            helper.make_node("Relu", [names[0]], [names[1]]),
            helper.make_node("Softmax", [names[1]], [names[2]], axis=-1),
            helper.make_node("Mul", [names[2], "scale"], [names[3]]),
            helper.make_node("Neg", [names[3]], [names[4]]),
            helper.make_node("Add", [names[4], value], [names[5]]),
        ]
        weights.append(numpy_helper.from_array(np.full((64, 64), block, np.float32), f"{block}.w"))
        value = names[-1]
    weights.append(numpy_helper.from_array(np.float32(3), "scale"))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in ("x", value)]
    return helper.make_graph(nodes, "g", values[:1], values[1:], weights)


def read(given: GraphProto, banned: Mapping[str, frozenset[str]] | None = None) -> Codes:
    codes = Codes(given, banned or {})
    codes.read()
    return codes


def unlike(codes: Codes) -> set[int]:
    """The nodes, from the second block on, that are not as they were a block before."""
    last = len(codes.nodes) - PERIOD
    return {node + PERIOD for node in range(PERIOD, last) if codes.matches(node, PERIOD) is None}


LAST = COUNT * PERIOD - 1


def test_equal_blocks_have_equal_nodes_but_for_what_is_an_output() -> None:
    assert unlike(read(graph())) == {LAST}


def test_a_run_may_only_begin_behind_what_all_its_blocks_read() -> None:
    given = graph()
    for block in range(2, COUNT):
        given.node[block * PERIOD + 4].op_type = "Add"
        given.node[block * PERIOD + 4].input.append("0.1")
    codes = read(given)
    assert codes.matches(2 * PERIOD + 4, PERIOD) == 2
    assert codes.matches(2 * PERIOD + 5, PERIOD) == 0


@pytest.mark.parametrize("what", ["attribute", "op", "domain", "shape of a weight", "absent input", "declared type"])
def test_what_a_node_says_tells_it_apart(what: str) -> None:
    given, at = graph(), 5 * PERIOD
    match what:
        case "attribute":
            at += 2
            given.node[at].attribute[0].i = 0
        case "op":
            at += 4
            given.node[at].op_type = "Abs"
        case "domain":
            at += 1
            given.node[at].domain = "own"
        case "shape of a weight":
            given.initializer[5].CopyFrom(numpy_helper.from_array(np.zeros((64, 64, 1), np.float32), "5.w"))
        case "absent input":
            at += 4
            given.node[at].input.append("")
        case "declared type":
            at += 4
            given.value_info.append(helper.make_tensor_value_info(given.node[at].output[0], TensorProto.FLOAT, [1, 64]))
    assert unlike(read(given)) == {at, at + PERIOD, LAST}


def test_large_weights_may_hold_anything_and_small_ones_count() -> None:
    given = graph()
    for block in range(COUNT):
        same = block != 5
        given.initializer.append(numpy_helper.from_array(np.array([1, 2 if same else 3], np.int64), f"{block}.small"))
        given.node[block * PERIOD + 4].input.append(f"{block}.small")
    assert unlike(read(given)) == {5 * PERIOD + 4, 6 * PERIOD + 4, LAST}


def test_small_weights_that_equal_no_other_are_told_by_name() -> None:
    given = graph()
    for block in range(COUNT):
        shared = block in (4, 5)
        numbers = np.array([0, 1 if shared else block + 10], np.float32)
        given.initializer.append(numpy_helper.from_array(numbers, f"{block}.bias"))
        given.node[block * PERIOD + 4].input.append(f"{block}.bias")
    codes = read(given)
    assert codes.apart == {f"{block}.bias" for block in range(COUNT) if block not in (4, 5)}
    assert unlike(codes) == {4 * PERIOD + 4, 6 * PERIOD + 4, LAST}


def test_where_a_rule_is_banned_a_block_is_another() -> None:
    codes = read(graph(), {"5.2": frozenset({"Rule"})})
    assert unlike(codes) == {5 * PERIOD + 2, 6 * PERIOD + 2, LAST}


def test_names_of_dimensions_may_count_with_the_blocks_and_not_otherwise() -> None:
    given = graph()
    for block in range(COUNT):
        name = f"size{block}" if block != 5 else "size0"
        given.value_info.append(helper.make_tensor_value_info(f"{block}.2", TensorProto.FLOAT, [name, 64]))
    codes = read(given)
    assert unlike(codes) == {5 * PERIOD + 2, 6 * PERIOD + 2, LAST}
    assert codes.symbol(codes.symbols["size1"], Run(PERIOD, PERIOD, COUNT - 1), 2) == "size3"


def test_runs_end_where_they_must() -> None:
    assert Codes(graph(), {}).runs([]) == [Run(PERIOD, PERIOD, COUNT - 2)], "neither with the input nor the output"
    given = graph(30)
    given.output.append(helper.make_tensor_value_info("15.5", TensorProto.FLOAT, ["n", 64]))
    first, second = Codes(given, {}).runs([])
    apart = 15 * PERIOD + 5
    assert first.stop <= apart < second.start
    assert (first.count, second.count) == (14, 13)


def test_a_run_that_is_not_wanted_is_not_taken_again() -> None:
    assert Codes(graph(), {}).runs(range(COUNT * PERIOD)) == []


def test_control_flow_is_seen() -> None:
    assert not has_bodies(graph().node)
    branch = helper.make_graph([], "branch", [], [])
    assert has_bodies([*graph().node, helper.make_node("If", ["c"], ["z"], then_branch=branch)])
