"""What goes into an embedding with the normalization behind it, and what stays outside."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from onnxfuse.fusing.fuse import fuse, lower
from onnxfuse.fusing.fused import Fused
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from onnxfuse.targets.target import Target
from tests.spellings.mutants import run
from tests.whole.test_fusion import ops
from tests.written import inputs, outputs

CATALOGUE = catalogue.load()
ALONE = CATALOGUE.choose(select=["EmbedLayerNormalization"])
"""Without the ops that take what this one leaves."""
OP = "onnxfuse.EmbedLayerNormalization"


def model(
    equations: str, inputs: str = "int64[batch, seq] ids", outputs: str = "float[batch, seq, 8] y", places: int = 9
) -> onnx.ModelProto:
    """Some equations over tables W [11,8], P [places,8], T [3,8], and a norm (s) → y with weights g and b."""
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => ({outputs})'
    text += "<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {"
    text += equations.replace("LENGTH", "shape = Shape (ids)\n n = Gather (shape, one)\n")
    made = parser.parse_model(text + "\n y = LayerNormalization <axis = -1> (s, g, b)}")
    rng = np.random.default_rng(0)
    for name, dims in (("W", (11, 8)), ("P", (places, 8)), ("T", (3, 8)), ("g", (8,)), ("b", (8,))):
        made.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(dims).astype(np.float32), name))
    onnx.checker.check_model(made, full_check=True)
    return made


def same(before: onnx.ModelProto, after: onnx.ModelProto, **given: np.ndarray) -> None:
    for want, got in zip(run(before, given), run(after, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def ids(*shape: int, below: int = 11) -> np.ndarray:
    return np.random.default_rng(1).integers(0, below, shape)


BERT = """LENGTH w = Gather (W, ids) t = Gather (T, types) p = Slice (P, zero, n, zero)
    wt = Add (w, t) s = Add (wt, p)"""


def test_words_positions_and_segments_are_one_op() -> None:
    before = model(BERT, "int64[batch, seq] ids, int64[batch, seq] types")
    fused = fuse(before, CATALOGUE)
    (node,) = fused.model.graph.node
    assert [node.domain, family_of(node)] == ["onnxfuse", "EmbedLayerNormalization"]
    assert list(node.input) == ["ids", "types", "W", "P", "T", "g", "b"]
    for batch, seq in ((2, 5), (1, 1), (3, 9), (0, 4)):
        same(before, fused.model, ids=ids(batch, seq), types=ids(batch, seq, below=3))
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="broadcast"):
        run(fused.model, {"ids": ids(2, 10), "types": ids(2, 10, below=3)})


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_targets_without_the_op_keep_the_pieces(target: str) -> None:
    before = model(BERT, "int64[batch, seq] ids, int64[batch, seq] types")
    after = lower(before, CATALOGUE.serving(Target(target)))[1].model
    assert not any("Embed" in name for name in ops(after.graph))
    same(before, after, ids=ids(2, 5), types=ids(2, 5, below=3))


def test_positions_behind_others_are_the_rest_of_the_table() -> None:
    before = model("LENGTH w = Gather (W, ids) e = Add (n, two) p = Slice (P, two, e, zero) s = Add (w, p)")
    after = fuse(before, CATALOGUE).model
    assert ops(after.graph) == [OP]
    table = next(
        t for t in after.graph.initializer if t.name == inputs(after, after.graph.node[0])["position_embedding"]
    )
    assert table.dims == [7, 8]
    same(before, after, ids=ids(2, 7))


def test_a_row_for_all_joins_the_positions() -> None:
    before = model("""LENGTH w = Gather (W, ids) p = Slice (P, zero, n, zero) c = Gather (T, two)
        wc = Add (w, c) s = Add (wc, p)""")
    after = fuse(before, CATALOGUE).model
    assert ops(after.graph) == [OP]
    same(before, after, ids=ids(2, 7))


@pytest.mark.parametrize("places", [1, 2])
def test_a_table_of_one_row_is_that_of_all_positions(places: int) -> None:
    """A Slice of it has one row, however many are asked for, and broadcasts."""
    before = model("LENGTH w = Gather (W, ids) p = Slice (P, zero, n, zero) s = Add (w, p)", places=places)
    after = fuse(before, CATALOGUE).model
    for seq in (1, 2) if places == 2 else (1, 2, 5):
        same(before, after, ids=ids(2, seq))


def test_the_sum_is_an_output_where_something_else_uses_it() -> None:
    before = model(
        "LENGTH w = Gather (W, ids) p = Slice (P, zero, n, zero) s = Add (w, p) z = Relu (s)",
        outputs="float[batch, seq, 8] y, float[batch, seq, 8] z",
    )
    after = fuse(before, CATALOGUE).model
    assert ops(after.graph) == [OP, "Relu"]
    assert outputs(after, after.graph.node[0])["embedding_sum"] == "s"
    same(before, after, ids=ids(2, 5))


def test_two_norms_of_the_same_words() -> None:
    """One of them gathers, the other reads what it kept."""
    before = model(
        "s = Gather (W, ids) z = LayerNormalization <axis = -1> (s, b, g)",
        outputs="float[batch, seq, 8] y, float[batch, seq, 8] z",
    )
    after = fuse(before, CATALOGUE).model
    assert sorted(ops(after.graph)) == ["LayerNormalization", OP]
    same(before, after, ids=ids(2, 5))


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_ids_of_any_integer_type(kind: str) -> None:
    before = model("s = Gather (W, ids)", f"{kind}[batch, seq] ids")
    after = fuse(before, CATALOGUE).model
    assert ops(after.graph) == ["Cast"] * (kind == "int32") + [OP]
    same(before, after, ids=ids(2, 5).astype(kind))


PATCHES = "int64[batch, seq] ids, float[batch, seq, 8] patches"


@pytest.mark.parametrize(
    ("equations", "inputs", "reason"),
    [
        ("w = Gather (W, ids) s = Add (w, patches)", PATCHES, "no rows that are the same along its leading axes"),
        ("s = Gather (patches, ids)", "int64[batch, seq] ids, float[3, 8] patches", ""),
        ("V = Relu (W) s = Gather (V, ids)", "int64[batch, seq] ids, float[1] patches", ""),
        ("V = Relu (patches) s = Gather (V, ids)", "int64[batch, seq] ids, float[3, 8] patches", "isconst(word_embed"),
        (
            "w = Gather (W, ids) s = Add (w, patches)",
            "int64[1, seq] ids, float[batch, 1, 8] patches",
            "whether batch equals 1 depends on the input",
        ),
        (
            "w = Gather (W, ids) t = Gather (T, other) s = Add (w, t)",
            "int64[n, 1] ids, int64[1, m] other",
            "equals 1 dep",
        ),
    ],
    ids=["patches", "input", "folded", "computed", "per sequence", "mesh"],
)
def test_what_is_no_row_of_a_table(equations: str, inputs: str, reason: str) -> None:
    fused = fuse(model(equations, inputs, "float[a, b, 8] y"), ALONE, why="EmbedLayerNormalization")
    assert (OP in ops(fused.model.graph)) == (not reason)
    assert any(reason in near.reason for near in fused.near_misses) or not reason, reasons(fused)


def reasons(fused: Fused) -> list[str]:
    return [near.reason for near in fused.near_misses]


def test_in_half_precision_the_body_widens_rows_and_not_tables() -> None:
    table = numpy_helper.from_array(np.random.default_rng(0).standard_normal((11, 8)).astype(np.float16), "W")
    weight = numpy_helper.from_array(np.ones(8, np.float16), "g")
    nodes = [
        helper.make_node("Gather", ["W", "ids"], ["s"]),
        helper.make_node("LayerNormalization", ["s", "g"], ["y"], axis=-1),
    ]
    given = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"])]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["batch", "seq", 8])]
    graph = helper.make_graph(nodes, "g", given, made, [table, weight])
    (body,) = fuse(onnx_model(graph), CATALOGUE).model.functions
    widened = {node.input[0] for node in body.node if family_of(node) == "Cast"}
    assert "gamma" in widened
    assert "word_embedding" not in widened


def onnx_model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
