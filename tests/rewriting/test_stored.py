"""What depends on constants alone is stored at any size, as long as the file does not grow by more than it may."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import onnxfuse
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.targets.target import Target
from tests.spellings.mutants import run

CATALOGUE = catalogue.load()
RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((8, 16, 5, 5)).astype(np.float32)
"""12,800 bytes."""

STANDARDIZED = {
    "timm's": [
        ("Reshape", ["w", "rows"], "r", {}),
        ("ReduceMean", ["r"], "m", {"axes": [0, 2]}),
        ("Sub", ["r", "m"], "d", {}),
        ("Mul", ["d", "d"], "q", {}),
        ("ReduceMean", ["q"], "v", {"axes": [0, 2], "keepdims": 0}),
        ("ReduceMean", ["r"], "n", {"axes": [0, 2], "keepdims": 0}),
        ("BatchNormalization", ["r", "gain", "zeros", "n", "v"], "b", {"training_mode": 1, "epsilon": 1e-4}),
        ("Reshape", ["b", "back"], "k", {}),
    ],
    "written out": [
        ("ReduceMean", ["w"], "m", {"axes": [1, 2, 3]}),
        ("Sub", ["w", "m"], "d", {}),
        ("Mul", ["d", "d"], "q", {}),
        ("ReduceMean", ["q"], "v", {"axes": [1, 2, 3]}),
        ("Add", ["v", "epsilon"], "e", {}),
        ("Sqrt", ["e"], "s", {}),
        ("Div", ["d", "s"], "k", {}),
    ],
    "a view": [("Transpose", ["t"], "k", {"perm": [3, 2, 0, 1]})],
}


def model(
    steps: list[tuple[str, list[str], str, dict[str, object]]], initializers: dict[str, np.ndarray]
) -> onnx.ModelProto:
    nodes = [
        helper.make_node(op, inputs, [out, "r1", "r2"] if op == "BatchNormalization" else [out], **attrs)
        for op, inputs, out, attrs in steps
    ]
    nodes.append(helper.make_node("Conv", ["x", "k"], ["y"], pads=[2, 2, 2, 2]))
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8, 9, 9])],
        [numpy_helper.from_array(value, name) for name, value in initializers.items() if name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CONSTANTS = {
    "w": WEIGHT,
    "t": np.ascontiguousarray(WEIGHT.transpose(2, 3, 1, 0)),
    "rows": np.array([1, 8, -1]),
    "back": np.array([8, 16, 5, 5]),
    "gain": RNG.standard_normal(8).astype(np.float32),
    "zeros": np.zeros(8, np.float32),
    "epsilon": np.array(1e-4, np.float32),
}


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


@pytest.mark.parametrize("steps", STANDARDIZED.values(), ids=STANDARDIZED)
@pytest.mark.parametrize("target", [Target(), Target("onnx"), Target("ort")], ids=lambda t: t.name)
def test_a_standardized_weight_is_stored(
    steps: list[tuple[str, list[str], str, dict[str, object]]], target: Target
) -> None:
    before = model(steps, CONSTANTS)
    after = fuse(before, CATALOGUE.serving(target, 0)).model
    assert operators(after) == ["Conv"]
    assert after.ByteSize() <= before.ByteSize()
    feeds = {"x": RNG.standard_normal((2, 16, 9, 9)).astype(np.float32)}
    for got, want in zip(run(after, feeds), run(before, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


GROWING = [("Expand", ["one", "dims"], "k", {})]
ONE = {"one": RNG.standard_normal((8, 16, 1, 1)).astype(np.float32), "dims": np.array([8, 16, 5, 5])}


@pytest.mark.parametrize(("growth", "kept"), [(0, True), (12_000, True), (13_000, False), (1_000_000, False)])
def test_a_file_grows_by_no_more_than_it_may(growth: int, kept: bool) -> None:
    before = model(GROWING, ONE)
    after = fuse(before, CATALOGUE.serving(Target(), growth)).model
    assert operators(after) == (["Expand", "Conv"] if kept else ["Conv"])
    assert after.ByteSize() <= before.ByteSize() + growth


def test_what_does_not_fit_keeps_its_node_but_not_those_before() -> None:
    """12,800 bytes are too many, the 6,400 before them are not."""
    steps = [("Expand", ["half", "wide"], "e", {}), ("Sin", ["e"], "n", {}), ("Concat", ["n", "n"], "k", {"axis": 0})]
    half = {"half": RNG.standard_normal((4, 16, 5, 1)).astype(np.float32), "wide": np.array([4, 16, 5, 5])}
    after = fuse(model(steps, half), CATALOGUE.serving(Target(), 7_000)).model
    assert operators(after) == ["Concat", "Conv"]


def test_what_several_read_is_stored_once() -> None:
    steps = [("Transpose", ["t"], "k", {"perm": [3, 2, 0, 1]}), ("Transpose", ["t"], "again", {"perm": [3, 2, 0, 1]})]
    before = model(steps, CONSTANTS)
    before.graph.node.append(helper.make_node("Conv", ["x", "again"], ["z"]))
    before.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 8, 5, 5]))
    after = fuse(before, CATALOGUE.serving(Target(), 0)).model
    assert operators(after) == ["Conv", "Conv"]
    assert sum(len(numpy_helper.to_array(t).ravel()) == WEIGHT.size for t in after.graph.initializer) == 1


def test_a_graph_output_stays_computed() -> None:
    before = model(STANDARDIZED["a view"], CONSTANTS)
    before.graph.output.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, WEIGHT.shape))
    assert operators(fuse(before, CATALOGUE).model) == ["Transpose", "Conv"]


def test_weights_stored_in_half_precision_stay_so_where_there_is_no_room() -> None:
    before = model([("Cast", ["w"], "k", {"to": TensorProto.FLOAT})], CONSTANTS | {"w": WEIGHT.astype(np.float16)})
    assert operators(fuse(before, CATALOGUE.serving(Target(), 0)).model) == [
        "Cast",
        "Conv",
    ]  # it would be twice as large
    assert operators(fuse(before, CATALOGUE).model) == ["Conv"]


@pytest.mark.parametrize(
    ("width", "limit", "stored"), [(512, 1_000_000, True), (512, 8_000, False), (70_000, 1 << 30, False)]
)
def test_a_table_that_is_repeated_for_each_picture_is_stored_where_there_is_room(
    width: int, limit: int, stored: bool
) -> None:
    """Four rows, which are no constant themselves, as the batch is not known.  A rule that would take them as they are
    knows no limit, and so there is none that is very large."""
    before = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
    g (float[b,3,4,6] x) => (float[b,4,{width}] y)
    <int64[1] four = {{4}}, int64 rows = {{1}}, int64[1] last = {{2}}> {{
        s = Shape <start = 0, end = 1> (x)  all = Concat <axis = 0> (s, four)
        ones = ConstantOfShape <value = float[1] {{1}}> (all)  i = CumSum (ones, rows)
        u = Unsqueeze (i, last)  d = Div (u, scales)  y = Sin (d) }}""")
    before.graph.initializer.append(numpy_helper.from_array(np.arange(1, width + 1, dtype=np.float32), "scales"))
    made = onnxfuse.optimize(before, target="onnx", fold_limit=limit)
    assert made.report.validation.verdict == "equal"
    assert ("Sin" not in {node.op_type for node in made.model.graph.node}) == stored
