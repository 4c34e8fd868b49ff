"""Sites of a model of one length are judged on shorter sequences, and at their own length where those do not do."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from onnxfuse.proof import cut_proof
from onnxfuse.proof.cut_feeds import feed
from onnxfuse.proof.cut_proof import Compared, compare_sites
from onnxfuse.proof.cuts import Cut
from onnxfuse.proof.lengths import Lengths
from onnxfuse.proof.oracle import Oracle

HEADS = "<int64[4] split = {1, 300, 2, 32}, int64[3] joined = {1, 300, 64}, float scale = {0.25}>"
ATTENTION = f"""g (float[1, 300, 64] x, float[1, 300, 64] z) => (float[1, 300, 64] y) {HEADS} {{
    q = Reshape(x, split) t = Transpose<perm = [0, 2, 1, 3]>(q) k = Reshape(z, split)
    u = Transpose<perm = [0, 2, 3, 1]>(k) v = Transpose<perm = [0, 2, 1, 3]>(k)
    s = MatMul(t, u) m = Mul(s, scale) w = Softmax(m) o = MatMul(w, v)
    h = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(h, joined) }}"""
FUSED = "g (float[1, 300, 64] x, float[1, 300, 64] z) => (float[1, 300, 64] y) { y = own.Attention(x, z) }"
BODY = """<domain: "own", opset_import: ["": 18]> Attention (x, z) => (y) {
    scale = Constant<value_float = SCALE>() split = Constant<value_ints = [0, 0, 2, 32]>()
    joined = Constant<value_ints = JOINED>()
    q = Reshape(x, split) t = Transpose<perm = [0, 2, 1, 3]>(q) k = Reshape(z, split)
    u = Transpose<perm = [0, 2, 3, 1]>(k) v = Transpose<perm = [0, 2, 1, 3]>(k)
    r = Mul(t, scale) s = MatMul(r, u) w = Softmax(s) o = MatMul(w, v)
    h = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(h, joined) }"""


def parse(*texts: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 18, "own": 1]>\n' + "\n".join(texts))


def body(scale: str = "0.25", joined: str = "[0, 0, 64]") -> str:
    return BODY.replace("SCALE", scale).replace("JOINED", joined)


def compare(
    before: onnx.ModelProto, after: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, axis: int = 1
) -> tuple[Any, list[int]]:
    """What is found, and the lengths of an axis that sites were judged on."""
    lengths: list[int] = []

    def fed(sites: Any, *args: Any, **options: Any) -> Any:
        found = own(sites, *args, **options)
        lengths.extend(value.shape[axis] for name, value in found.items() if name.endswith("/x"))
        return found

    own = cut_proof.cut_feeds.feed
    with monkeypatch.context() as patch:
        patch.setattr(cut_proof.cut_feeds, "feed", fed)
        found: Compared = compare_sites(before, after, Oracle(before).cases)
    return found, list(dict.fromkeys(lengths))


def test_attention_of_one_length_is_judged_on_a_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    found, lengths = compare(parse(ATTENTION), parse(FUSED, body()), monkeypatch)
    assert (found.count, len(found.exactly), found.wrong, lengths) == (1, 1, {}, [12])


def test_a_mistake_is_seen_on_a_few_rows_and_confirmed_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found, lengths = compare(parse(ATTENTION), parse(FUSED, body("0.250003")), monkeypatch)
    assert (found.count, len(found.wrong), lengths) == (1, 1, [12, 300])


def test_a_body_that_knows_its_length_is_judged_at_that(monkeypatch: pytest.MonkeyPatch) -> None:
    found, lengths = compare(parse(ATTENTION), parse(FUSED, body(joined="[1, 300, 64]")), monkeypatch)
    assert (found.count, found.wrong, lengths) == (1, {}, [300])


def length(nodes: str, shape: tuple[int, ...] = (2, 150, 256), **tensors: Any) -> tuple[int, int] | None:
    """What becomes of which size of y = ...(x)."""
    model = parse(f"g (float[n, c, d] x) => (float[n, c, d] y) {{ {nodes} }}")
    for name, value in tensors.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    cone = tuple(range(len(model.graph.node)))
    value = np.random.default_rng(0).standard_normal(shape, np.float32)
    found = Lengths(model, model, [{"x": value}]).shorter(Cut("y", ("x",), (), cone, cone))
    return found[0].length if found else None


WEIGHTS = np.zeros((256, 256), np.float32)


def test_one_size_becomes_smaller_with_its_multiples() -> None:
    nodes = "r = Reshape(x, rows) p = MatMul(r, w) y = Reshape(p, whole)"
    assert length(nodes, w=WEIGHTS, rows=[300, 256], whole=[2, 150, 256]) == (150, 12)
    assert length(nodes, w=WEIGHTS, rows=[300, 256], whole=[-1, 150, 256]) == (150, 12)
    assert length("y, z = Split<axis = 1>(x, parts)", parts=[50, 100]) == (50, 12)
    assert length("y = MatMul(x, w)", (2, 151, 256), w=WEIGHTS) == (151, 11)
    assert length("y = MatMul(x, w)", (12, 150, 256), w=WEIGHTS) == (150, 14), "12 heads are there already"


@pytest.mark.parametrize(
    ("nodes", "tensors"),
    [
        # Tables of positions, and what is as long by its numbers.
        ("y = Add(x, t)", {"t": np.zeros((1, 150, 256), np.float32)}),
        ("y = Add(x, t)", {"t": np.zeros((1, 150, 1), np.float32)}),
        # Of twelve rows, nothing is left from 100 on.
        ("y = Slice(x, begin, end, axis)", {"begin": [100], "end": [150], "axis": [1]}),
        ("y = Gather<axis = 1>(x, at)", {"at": [3, 99]}),
        ("e = Constant<value_ints = [150]>() y = Slice(x, begin, e, axis)", {"begin": [1], "axis": [1]}),
    ],
)
def test_what_counts_rows_keeps_them(nodes: str, tensors: dict[str, Any]) -> None:
    assert length(nodes, **tensors) is None


@pytest.mark.parametrize(
    "tensors",
    [
        {"begin": [1], "end": [2**62], "axis": [1]},
        {"begin": [1], "end": [150], "axis": [1]},
        {"begin": [0], "end": [256], "axis": [2]},
    ],
)
def test_the_first_few_the_end_and_other_sizes_stay_what_they_are(tensors: dict[str, Any]) -> None:
    nodes = "p = MatMul(x, w) y = Slice(p, begin, end, axis)"
    assert length(nodes, w=WEIGHTS, **tensors) == (150, 12)


def test_sides_become_smaller_and_not_the_square_of_a_small_one() -> None:
    nodes = "p = MatMul(x, w) y = Reshape(p, pixels)"
    assert length(nodes, (2, 784, 256), w=WEIGHTS, pixels=[2, 28, 28, 256]) == (28, 12)
    assert length(nodes, (2, 196, 256), w=WEIGHTS, pixels=[2, 14, 14, 256]) == (14, 6)
    assert length(nodes, (2, 100, 256), w=WEIGHTS, pixels=[2, 10, 10, 256]) is None
    # Nothing is left of windows of six from the seventh place on.
    nodes = "r = Reshape(x, pixels) y = Slice(r, begin, end, axis)"
    assert length(nodes, (2, 196, 256), pixels=[2, 14, 14, 256], begin=[3], end=[2**62], axis=[1]) == (14, 6)
    assert length(nodes, (2, 196, 256), pixels=[2, 14, 14, 256], begin=[6], end=[2**62], axis=[1]) != (14, 6)


def ways(nodes: str, shape: tuple[int, ...], **tensors: Any) -> list[Cut]:
    """In which y = ...(x) is tried."""
    model = parse(f"g (float[n, c, d] x) => (float[n, c, d] y) {{ {nodes} }}")
    for name, value in tensors.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    cone = tuple(range(len(model.graph.node)))
    values = {"x": np.broadcast_to(np.float32(0.5), shape)}
    return Lengths(model, model, [values]).shorter(Cut("y", ("x",), (), cone, cone))


def shapes(nodes: str, shape: tuple[int, ...], **tensors: Any) -> list[tuple[int, ...]]:
    """Sizes that x has in these ways."""
    values = {"x": np.broadcast_to(np.float32(0.5), shape)}
    return [made.shapes(values)["x"] for made in ways(nodes, shape, **tensors)]


def test_channels_keep_their_size_at_the_end_or_behind_the_first_axis() -> None:
    nodes = "p = MatMul(x, w) y = Reshape(p, pixels)"
    assert shapes(nodes, (2, 1024, 256), w=WEIGHTS, pixels=[2, 32, 32, 256])[0] == (2, 144, 256)
    assert shapes("y = Mul(x, s)", (2, 32, 32, 256), s=np.ones(256, np.float32))[0] == (2, 12, 12, 256)
    # Of three equal sizes, that of the channels is found by trying.
    scale = np.ones((256, 1, 1), np.float32)
    assert shapes("y = Mul(x, s)", (2, 256, 256, 256), s=scale) == [(2, 256, 12, 12), (2, 12, 12, 256)]
    nodes, one = "n = InstanceNormalization(x, one, one) y = Reshape(n, pixels)", np.ones(32, np.float32)
    assert shapes(nodes, (1, 32, 16 * 64 * 64), one=one, pixels=[1, 512, 64, 64])[0] == (1, 32, 16 * 12 * 12)
    nodes = "n = InstanceNormalization(x, one, one) r = Reshape(n, pixels) y = Mul(r, s)"
    tensors = {"one": one, "s": scale, "pixels": [1, 256, 256, 256]}
    assert ways(nodes, (1, 32, 8 * 256**2), **tensors)[0].resized_shape((1, 256, 256, 256)) == (1, 256, 12, 12)


def test_heads_that_are_as_wide_as_a_picture_keep_their_width() -> None:
    nodes = "p = MatMul(x, w) r = Reshape(p, heads) y = Transpose<perm = [0, 2, 1, 3]>(r)"
    tensors = {"w": np.zeros((128, 128), np.float32), "heads": [2, 1024, 4, 32]}
    assert shapes(nodes, (2, 1024, 128), **tensors)[0][1:] == (144, 128)
    site = Cut("y", ("x",), (), (0,), (0,), length=(32, 12), channels=frozenset({128, 32}))
    assert site.resized_all(np.array([2, 1024, 4, 32])).tolist() == [2, 144, 4, 32]
    assert site.resized_all(np.array([64, 32, 32, 4, 32])).tolist() == [24, 12, 12, 4, 32]
    first = Cut("y", ("x",), (), (0,), (0,), length=(32, 12), channels=frozenset({128, 32}), channels_first=True)
    assert first.resized_all(np.array([32, 4, 32, 32, 64])).tolist() == [12, 4, 32, 12, 24]


def test_what_is_short_keeps_its_length() -> None:
    assert length("y = MatMul(x, w)", (10, 19, 256), w=WEIGHTS) is None
    assert length("y = MatMul(x, w)", (1, 40, 256), w=WEIGHTS) is None


def test_masks_are_cut_off_and_sizes_among_observed_ones_are_replaced() -> None:
    site = Cut("y", ("x", "mask"), ("shape",), (0,), (0,), length=(150, 12))
    mask = np.triu(np.full((1, 150, 150), -np.inf, np.float32), 1)
    values = {"x": np.ones((2, 150, 8), np.float32) * 0.5, "mask": mask, "shape": np.array([2, 150, 2, 4])}
    fed = feed([site], values, seed=0)
    assert fed["0/x"].shape == (2, 12, 8)
    assert fed["0/shape"].tolist() == [2, 12, 2, 4]
    assert [site.resized(size) for size in (0, 75, 150, 450, 22500)] == [0, 75, 12, 36, 144]
    np.testing.assert_array_equal(fed["0/mask"], mask[:, :12, :12])
    rows = feed([site], values, seed=0, style="rows")["0/mask"]
    assert np.isneginf(rows).all(-1).any(), "a row that is hidden throughout is among those that are left"


PICTURE = """g (float[1, 64, 64, 64] x) => (float[1, 64, 64, 64] y)
    <int64[3] groups = {1, 8, -1}, int64[4] whole = {1, 64, 64, 64}, float[8] one = {1, 1, 1, 1, 1, 1, 1, 1},
    float[8] zero = {0, 0, 0, 0, 0, 0, 0, 0}> {
    r = Reshape(x, groups) n = InstanceNormalization<epsilon = 1e-5>(r, one, zero) v = Reshape(n, whole)
    m = Mul(v, scale) y = Add(m, shift) }"""
GROUPS = "g (float[1, 64, 64, 64] x) => (float[1, 64, 64, 64] y) { y = own.Groups(x, scale, shift) }"
NORM = """<domain: "own", opset_import: ["": 18]> Groups (x, scale, shift) => (y) {
    groups = Constant<value_ints = [0, 8, -1]>() last = Constant<value_ints = [-1]>()
    e = Constant<value_float = EPSILON>() r = Reshape(x, groups)
    mean = ReduceMean(r, last) d = Sub(r, mean) s = Mul(d, d) var = ReduceMean(s, last) b = Add(var, e) root = Sqrt(b)
    q = Div(d, root) shape = Shape(x) w = Reshape(q, shape) at = Constant<value_ints = AXES>()
    f = Reshape(scale, at) p = Mul(w, f) y = Add(p, shift) }"""


@pytest.mark.parametrize(
    ("epsilon", "axes", "wrong"), [("1e-5", "[-1, 1, 1]", 0), ("1.01e-5", "[-1, 1, 1]", 1), ("1e-5", "[1, -1, 1]", 1)]
)
def test_a_norm_of_groups_is_judged_on_a_few_places(
    epsilon: str, axes: str, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a picture that has as many channels as places a side, an axis is not taken for another."""
    before, after = parse(PICTURE), parse(GROUPS, NORM.replace("EPSILON", epsilon).replace("AXES", axes))
    for model in (before, after):
        for name, seed in (("scale", 0), ("shift", 1)):
            drawn = np.random.default_rng(seed).uniform(0.5, 2, (64, 1, 1)).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(drawn, name))
    found, sides = compare(before, after, monkeypatch, axis=2)
    assert (len(found.wrong), sides) == (wrong, [12, 64] if wrong else [12])
