"""What tf2onnx writes: dimensions that each have a name of their own, and choices as sums of products with 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import onnxfuse
from onnxfuse.fusing.fuse import fuse, lower
from onnxfuse.language import catalogue
from onnxfuse.lifting.lift import lift
from onnxfuse.model.graph import roots
from onnxfuse.targets.target import Target
from tests.spellings.mutants import run
from tests.whole.test_attention import B, H, Model, S, T, assert_same, census, operands, scores
from tests.whole.test_attention_forms import LOWEST, draw, mixed, some

Array = np.ndarray[Any, Any]

# ------------------------------------------------------------------------------------------------ batches by name

BATCHES: dict[str, list[int | str]] = {
    "Q": ["bq", H, "q", 8],
    "K": ["bk", H, "k", 8],
    "V": ["bv", H, "v", 8],
    "mask": ["bm", 1, "m", "n"],
}


def named(**sizes: int) -> Model:
    """Queries, keys, values and a mask of these batches, of which every dimension has a name of its own."""
    rng = np.random.default_rng(0)
    shapes = {"Q": (H, S, 8), "K": (H, T, 8), "V": (H, T, 8), "mask": (1, 1, T)}
    feeds: dict[str, Array] = {
        name: rng.standard_normal((sizes.get(name, B), *shape)).astype(np.float32) for name, shape in shapes.items()
    }
    g = Model(feeds | {"mask": feeds["mask"] > -0.5})
    g.dims = BATCHES
    return g


def masked_by_choice(g: Model) -> onnx.ModelProto:
    return g.proto(mixed(g, g("Where", "mask", scores(g), LOWEST)))


@pytest.mark.parametrize("alone", [{}, {"mask": 1}, {"Q": 1}, {"K": 1, "V": 1}, {"Q": 1, "K": 1, "V": 1}])
def test_batches_of_names_of_their_own_are_broadcast_where_the_body_runs(alone: dict[str, int]) -> None:
    g = named(**alone)
    fused = assert_same(masked_by_choice(g), g.feeds)
    assert census(fused)["Attention"] == 1


def test_a_kernel_refuses_a_run_in_which_they_differ() -> None:
    g = named(Q=1, K=1, V=1)
    fused = lower(masked_by_choice(g), catalogue.load().serving(Target("ort")))[1].model
    assert census(fused)["Attention"] == 1
    with pytest.raises(Exception, match=r"inconsistent|broadcastable"):
        run(fused, g.feeds)
    same = named()
    for want, got in zip(run(masked_by_choice(same), same.feeds), run(fused, same.feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_one_sequence_is_not_widened_by_masks_of_several() -> None:
    g = named(Q=1, K=1, V=1, mask=3)
    g.dims = {"Q": [1, H, "q", 8], "K": [1, H, "k", 8], "V": [1, H, "v", 8], "mask": ["bm", 1, "m", "n"]}
    assert census(assert_same(masked_by_choice(g), g.feeds))["Attention"] == 0


def dims_of(text: str, name: str) -> list[str]:
    shape = lift(next(iter(roots(parser.parse_model(text)))), None).terms_of[name].shape
    assert shape is not None
    return [str(d) for d in shape]


MERGED = """<ir_version: 9, opset_import: ["" : 17]>
g (float[A, {n}, 7, 8] x, float[M, {n}, 8, 5] y) => (z)
<int64[3] left = {{-1, 7, 8}}, int64[3] right = {{-1, 8, 5}}> {{
    a = Reshape (x, left)
    b = Reshape (y, right)
    p = MatMul (a, b)
    s = Shape (y)
    z = Identity (s)
}}"""


def test_batches_that_are_multiplied_before_they_meet_are_equal() -> None:
    assert dims_of(MERGED.format(n=4), "y")[0] == "A"
    assert dims_of(MERGED.format(n=4), "p")[0] == "4*A"
    assert dims_of(MERGED.format(n=1), "y")[0] == "M", "one of them may be 1"
    assert dims_of(MERGED.format(n=1), "p")[0] == "bcast(A|M)"


FITTED = """<ir_version: 9, opset_import: ["" : 17]>
g (float[A, {n}, 7, 5] x, float[M, 1, 1, 5] m) => (z)
<int64[3] left = {{-1, 7, 5}}, int64[3] right = {{-1, 5, 7}}> {{
    s = Add (x, m)
    v = Transpose <perm = [0, 1, 3, 2]> (x)
    a = Reshape (s, left)
    b = Reshape (v, right)
    z = MatMul (a, b)
}}"""


def test_what_is_broadcast_to_a_batch_that_is_the_same_fits_it() -> None:
    assert dims_of(FITTED.format(n=4), "s")[0] == "A"
    assert dims_of(FITTED.format(n=4), "m")[0] == "M", "it may be 1"
    assert dims_of(FITTED.format(n=1), "s")[0] == "bcast(A|M)"


# ------------------------------------------------------------------------------------------------ choices as products


def choice(g: Model, condition: str, a: str, b: str) -> str:
    """a where the condition holds and b elsewhere, as tf2onnx writes SelectV2."""
    first = g("Mul", g("Cast", condition, to=1), a)
    return g("Add", first, g("Mul", b, g("Cast", g("Not", condition), to=1)))


def fused_choice(low: float, *, negated: bool = False, keep: Array | None = None) -> onnx.ModelProto:
    """Attention whose scores are a choice between themselves and a number, written as a sum of products."""
    g = Model(operands() | {"mask": some(B, 1, 1, T) if keep is None else keep})
    condition = g("Not", "mask") if negated else "mask"
    number = np.float32(low)
    products = scores(g)
    chosen = choice(g, condition, number, products) if negated else choice(g, condition, products, number)
    return assert_same(g.proto(mixed(g, chosen)), g.feeds)


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("low", [-1e9, -2.3726709583555947e38])
def test_a_choice_between_scores_and_a_number_is_a_mask(low: float, negated: bool) -> None:
    assert census(fused_choice(low, negated=negated))["Attention"] == 1


def test_a_row_that_is_hidden_throughout_has_equal_weights() -> None:
    keep = some(B, 1, 1, T)
    keep[0] = False
    assert census(fused_choice(-1e9, keep=keep))["Attention"] == 1


def test_what_both_sides_hold_is_no_choice() -> None:
    """keep * scores + keep * low hides nothing."""
    g = Model(operands() | {"mask": some(B, 1, 1, T)})
    keep = g("Cast", "mask", to=1)
    chosen = g("Add", g("Mul", keep, scores(g)), g("Mul", keep, np.float32(-1e9)))
    assert census(assert_same(g.proto(mixed(g, chosen)), g.feeds))["Where"] == 0


def test_conditions_of_two_masks_are_no_choice() -> None:
    g = Model(operands() | {"mask": some(B, 1, 1, T), "other": some(B, 1, 1, T)[::-1].copy()})
    first = g("Mul", g("Cast", "mask", to=1), scores(g))
    chosen = g("Add", first, g("Mul", np.float32(-5), g("Cast", g("Not", "other"), to=1)))
    assert census(assert_same(g.proto(mixed(g, chosen)), g.feeds))["Where"] == 0


@pytest.mark.parametrize("views", [0, 1, 2])
@pytest.mark.parametrize("shift", [1e9, 3.0])
def test_a_number_taken_from_hidden_scores_is_added_to_them(shift: float, views: int) -> None:
    """Keras' Attention, whose mask is negated before and behind a view."""
    g = Model(operands() | {"mask": some(B, T)})
    condition, axes = "mask", np.array([1, 2], np.int64)
    for _ in range(2 - views):
        condition = g("Not", condition)
    condition = g("Unsqueeze", condition, axes)
    for _ in range(1 + views):
        condition = g("Not", condition)
    products = scores(g)
    chosen = choice(g, condition, g("Sub", products, np.float32(shift)), products)
    fused = census(assert_same(g.proto(mixed(g, chosen)), g.feeds))
    assert (fused["Attention"], fused["Cast"]) == (1, 0)


def test_a_number_taken_from_scores_that_are_seen_in_the_other_half_is_none() -> None:
    g = Model(operands() | {"mask": some(B, 1, 1, T)})
    products, keep = scores(g), g("Cast", "mask", to=1)
    both = g("Add", g("Mul", g("Sub", products, np.float32(3)), keep), g("Mul", products, keep))
    fused = census(assert_same(g.proto(mixed(g, both)), g.feeds))
    assert fused["Where"] == 0


# ------------------------------------------------------------------------------------------------ hidden twice


def hidden_twice(g: Model, low: float, behind: str, *, where: bool = False) -> str:
    """Keras' Softmax: scores that a mask hides, and weights that `behind` does."""
    weights = g("Softmax", g("Where", "mask", scores(g), np.float32(low)), axis=-1)
    zero = np.float32(0)
    return g("MatMul", g("Where", behind, weights, zero) if where else choice(g, behind, weights, zero), "V")


@pytest.mark.parametrize("where", [False, True])
def test_weights_hidden_behind_the_softmax_as_well_guard_it(where: bool) -> None:
    keep = some(B, 1, S, T)
    keep[0, 0, 1] = False
    g = Model(operands() | {"mask": keep})
    fused = assert_same(g.proto(hidden_twice(g, -1e9, "mask", where=where)), g.feeds)
    assert census(fused)["Attention"] == 1
    out = run(fused, g.feeds)[0]
    assert not out[0, :, 1].any()
    assert out[0, :, 0].any()


@pytest.mark.parametrize(("low", "behind"), [(-1e9, "other"), (-10.0, "mask")])
def test_weights_hidden_otherwise_are_not_guarded(low: float, behind: str) -> None:
    g = Model(operands() | {"mask": some(B, 1, S, T), "other": draw(B, 1, S, T) > 0})
    fused = assert_same(g.proto(hidden_twice(g, low, behind)), g.feeds)
    assert census(fused)["Attention"] == 0


# ------------------------------------------------------------------------------------------------ of what is no product


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("form", ["bias", "softcap"])
def test_scores_with_a_bias_or_a_softcap_are_chosen_as_products_are(form: str, twice: bool) -> None:
    """BLOOM and Falcon, and Gemma 2, whose weights are hidden behind the softmax as well."""
    keep = some(B, 1, S, T)
    keep[0, 0, 1] = False
    g = Model(operands() | {"mask": keep, "bias": draw(1, H, 1, T)})
    products = g("Mul", scores(g), np.float32(0.25))
    capped = g("Mul", g("Tanh", g("Mul", products, np.float32(0.02))), np.float32(50))
    chosen = choice(g, "mask", g("Add", products, "bias") if form == "bias" else capped, np.float32(-1e9))
    weights = g("Softmax", chosen, axis=-1)
    hidden = choice(g, "mask", weights, np.float32(0)) if twice else weights
    fused = assert_same(g.proto(g("MatMul", hidden, "V")), g.feeds)
    assert (census(fused)["Attention"], census(fused)["Softmax"]) == (1, 0)


@pytest.mark.parametrize("window", [False, True])
def test_a_sink_takes_what_hidden_keys_would_have(window: bool) -> None:
    """gpt-oss, whose scores are chosen twice where a window hides keys as well."""
    keep = some(B, 1, S, T)
    keep[0, 0, 1] = False
    g = Model(operands() | {"mask": keep, "near": some(S, T), "sink": draw(1, H, 1, 1)})
    low = np.float32(-1e9)
    products = g("Mul", scores(g), np.float32(0.25))
    near = choice(g, "near", products, low) if window else products
    sink = g("Expand", "sink", np.array([B, H, S, 1], np.int64))
    weights = g("Softmax", g("Concat", choice(g, "mask", near, low), sink, axis=-1), axis=-1)
    seen = g("Slice", weights, *(np.array([n], np.int64) for n in (0, -1, 3)))
    fused = assert_same(g.proto(g("MatMul", seen, "V")), g.feeds)
    assert (census(fused)["Attention"], census(fused)["Concat"]) == (1, 0)


@pytest.mark.parametrize("low", [-2.3726709583555947e38, -3e4])
def test_scores_of_half_precision_that_are_masked_in_single(low: float) -> None:
    """Keras' mixed precision: the fill is out of half's range, and a row that it hides throughout has equal weights."""
    keep = some(B, 1, S, T)
    keep[0, 0, 1] = False
    g = Model(operands() | {"mask": keep})
    q, k, v = (g("Relu", g("Cast", name, to=10)) for name in "QKV")
    products = g("Cast", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), to=1)
    weights = g("Softmax", choice(g, "mask", products, np.float32(low)), axis=-1)
    model = g.proto(g("Cast", g("Relu", g("MatMul", g("Cast", weights, to=10), v)), to=1))
    fused = fuse(model, catalogue.load()).model
    assert census(fused)["Attention"] == 1
    got, want = (ReferenceEvaluator(proto).run(None, g.feeds)[0] for proto in (fused, model))
    np.testing.assert_allclose(got, want, rtol=5e-3, atol=5e-3)


# ------------------------------------------------------------------------------------------------ masks made larger


def test_a_mask_that_is_made_as_large_as_the_scores_is_the_mask() -> None:
    """ALBERT and Whisper: `ones_like(scores) & mask`, by a shape that asks for no element of the scores."""
    g = named()
    g.dims = BATCHES | {"mask": ["bm", 1, 1, "n"]}
    products = g("Mul", scores(g), np.float32(0.25))
    keep = g("And", g("Expand", np.array(True), g("Shape", products)), "mask")
    fused = assert_same(g.proto(mixed(g, choice(g, keep, products, LOWEST))), g.feeds)
    assert (census(fused)["Attention"], census(fused)["Expand"]) == (1, 0)


BETWEEN = """<ir_version: 9, opset_import: ["" : 17]>
g (float[A, {n}, 7, 8] x, float[M, {n}, 7, 8] y, float[B, 1, 7, 8] m) => (z)
<int64[3] left = {{-1, 7, 8}}, int64[3] right = {{-1, 8, 7}}> {{
    s = Add (x, y)
    h = Add (s, m)
    v = Transpose <perm = [0, 1, 3, 2]> (s)
    a = Reshape (h, left)
    b = Reshape (v, right)
    z = MatMul (a, b)
}}"""


def test_a_batch_that_is_broadcast_itself_is_what_another_fits() -> None:
    """A mask's batch is that of the sum of two embeddings, or 1, where weights and values have joined it to heads."""
    assert dims_of(BETWEEN.format(n=4), "h")[0] == "bcast(A|M)"
    assert dims_of(BETWEEN.format(n=1), "h")[0] == "bcast(A|B|M)"


CHAIN = """<ir_version: 9, opset_import: ["" : 17]>
g (float[A, 4, 7, 8] x, float[M, 4, 7, 8] y, float[B, 1, 7, 8] m) => (z)
<int64[3] left = {-1, 7, 8}, int64[3] right = {-1, 8, 7}> {
    s = Add (y, m)
    v = Transpose <perm = [0, 1, 3, 2]> (y)
    b = Reshape (v, right)
    a = Reshape (s, left)
    p = MatMul (a, b)
    c = Reshape (x, left)
    q = MatMul (c, b)
    z = Add (p, q)
}"""


def test_a_batch_that_another_fits_may_turn_out_to_be_an_earlier_one() -> None:
    assert dims_of(CHAIN, "s")[0] == "A"


# ------------------------------------------------------------------------------------------------ sizes as real numbers

POSITIONS = """<ir_version: 9, opset_import: ["" : 17]>
g (float[B, S, 8] x) => (float[B, S, 8] z)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, float first = {0.0}, float step = {1.0},
 float[1] least = {-1000000000.0}> {
    shape = Shape (x)
    size = Slice (shape, one, two, zero)
    length = Squeeze (size, zero)
    limit = Cast <to = 1> (length)
    positions = Range (first, limit, step)
    number = Cast <to = 1> (size)
    larger = Max (number, least)
    stop = Cast <to = 7> (larger)
    part = Slice (positions, zero, stop, zero)
    column = Unsqueeze (part, one)
    z = Add (x, column)
}"""


def test_positions_and_bounds_that_are_counted_in_real_numbers_have_the_sequence_s_length() -> None:
    """`arange(length, dtype="float32")`, and a slice whose bounds tf2onnx compares as real numbers."""
    assert dims_of(POSITIONS, "positions") == ["S"]
    assert dims_of(POSITIONS, "part") == ["S"]
    model = parser.parse_model(POSITIONS)
    fused = assert_same(model, {"x": draw(2, 5, 8)})
    assert census(fused)["Slice"] == census(fused)["Max"] == 0


ONE_HEAD_OF_KEYS = """<ir_version: 9, opset_import: ["" : 17]>
g (float[2,5,32] x, float[2,5,8] k, float[2,5,8] v, bool[2,1,1,5,5] keep) => (float[2,5,32] y)
<int64[4] apart = {0, 0, 4, 8}, int64[3] rows = {0, -1, 8}, int64[3] back = {0, 0, 32}, int64[5] all = {1, 1, 4, 1, 1},
 float scale = {0.25}, float zero = {0}, float low = {-1000000000.0}> {
    t = Tanh (x)  heads = Reshape (t, apart)  turned = Transpose <perm = [0, 2, 1, 3]> (heads)
    q = Reshape (turned, rows)
    kt = Transpose <perm = [0, 2, 1]> (k)  products = MatMul (q, kt)  scores = Mul (products, scale)
    wide = Expand (keep, all)  shape = Shape (scores)  seen = Reshape (wide, shape)
    hidden = Where (seen, zero, low)  masked = Add (scores, hidden)
    weights = Softmax (masked)  mixed = MatMul (weights, v)
    shape4 = Shape (turned)  z = Reshape (mixed, shape4)
    z4 = Transpose <perm = [0, 2, 1, 3]> (z)  y = Reshape (z4, back)
}"""


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_queries_along_the_rows_of_one_head_of_keys_whose_mask_is_repeated_for_each(target: str) -> None:
    """Gemma 2B: what hides is made as large as the scores, in their shape, before it is a number."""
    made = onnxfuse.optimize(parser.parse_model(ONE_HEAD_OF_KEYS), target=target)  # type: ignore[arg-type]
    assert made.report.validation.verdict == "equal"
    *_, node = made.model.graph.node
    heads = {a.name: a.i for a in node.attribute}
    assert (heads["q_num_heads"], heads["kv_num_heads"], len(made.model.graph.node)) == (4, 1, 4)


TWO_AXES = """<ir_version: 9, opset_import: ["" : 17]>
g (float[B,2,12,8] q, float[B,2,8,12] k, float[B,2,12,8] v) => (float[B,2,12,8] y)
<int64[6] places = {0, 0, 3, 4, 3, 4}, int64[4] rows = {0, 0, 12, 12}, int64[2] axes = {4, 5}, float scale = {0.25}> {
    products = MatMul (q, k)  scores = Mul (products, scale)  x = Reshape (scores, places)
    m = ReduceMax <axes = [4, 5]> (x)  nan = IsNaN (m)  infinite = IsInf (m)  odd = Or (infinite, nan)
    usual = Not (odd)  keep = Cast <to = 1> (usual)  shift = Mul (keep, m)
    d = Sub (x, shift)  e = Exp (d)  sum = ReduceSum (e, axes)  log = Log (sum)  total = Add (log, shift)
    less = Sub (x, total)  p = Exp (less)  weights = Reshape (p, rows)  y = MatMul (weights, v)
}"""


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_attention_over_the_places_of_a_picture(target: str) -> None:
    """MultiHeadAttention(attention_axes=(1, 2)): the softmax of several axes, by the logarithm of a sum."""
    made = onnxfuse.optimize(parser.parse_model(TWO_AXES), target=target)  # type: ignore[arg-type]
    assert made.report.validation.verdict == "equal"
    assert (made.report.census["Attention"], len(made.model.graph.node)) == (1, 2)


def test_a_gelu_by_the_complementary_error_function() -> None:
    g = Model({"x": draw(2, 3, 8)})
    complement = g("Sub", np.float32(1), g("Erf", g("Mul", "x", np.float32(-(0.5**0.5)))))
    fused = assert_same(g.proto(g("Mul", g("Mul", np.float32(0.5), "x"), complement)), g.feeds)
    assert census(fused) == {"Gelu": 1}
