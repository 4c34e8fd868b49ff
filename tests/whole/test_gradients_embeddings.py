"""Gradients of embeddings, of words and of positions that turn queries and keys: one node each, with their numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.model.graph import family_of
from onnxfuse.runtime.quiet import Session
from tests.whole.test_gradients import HEAD, outputs

# ------------------------------------------------------------------------------------------------ words

WORDS = (
    HEAD
    + """(float[2,5,3] g, int64[2,5] ids) => (float[7,3] dw)
<int64 low = {0}, int64 rows = {7}, int64 pad = {1}, int64 first = {-7}, int64 end = {6}, int64[1] last = {-1},
 float nil = {0.0}, int64[2] shape = {7, 3}>
{
 ge = GreaterOrEqual(ids, low) lt = Less(ids, rows) both = And(ge, lt) eq = Equal(ids, pad) ne = Not(eq)
 seen = And(both, ne) wide = Unsqueeze(seen, last) at = Clip(ids, first, end) kept = Where(wide, g, nil)
 place = Unsqueeze(at, last) zeros = ConstantOfShape(shape) dw = ScatterND<reduction = "add">(zeros, place, kept)
}"""
)
IDS = {
    "all there": [[0, 1, 2, 3, 4], [5, 6, 2, 2, 0]],
    "outside": [[-1, -7, 7, 100, 4], [-8, 1, 1, 1, 6]],
    "padding alone": [[1] * 5] * 2,
}


def both(
    text: str, ids: list[list[int]], worst: float = 0.0
) -> list[list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]]:
    """What the model gives and what is made of it, of gradients in which one element is this number."""
    model = onnx.parser.parse_model(text)
    made = onnxfuse.optimize(model, validate="off", level=1).model
    g = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    g[0, 1, 2] = worst or g[0, 1, 2]
    feeds = {"g": g, "ids": np.array(ids)}
    return [list(Session(m, None, optimize=False).run(feeds)) for m in (made, model)]


@pytest.mark.parametrize("worst", [0.0, np.inf, np.nan])
@pytest.mark.parametrize("ids", IDS)
def test_the_gradient_of_an_embedding_is_one_node(ids: str, worst: float) -> None:
    made = onnxfuse.optimize(onnx.parser.parse_model(WORDS), validate="off", level=1).model
    assert [family_of(node) for node in made.graph.node] == ["EmbeddingGrad"]
    for a, b in zip(*both(WORDS, IDS[ids], worst), strict=True):
        np.testing.assert_array_equal(a, b)


def test_it_is_one_launch_of_a_kernel() -> None:
    done = onnxfuse.optimize(onnx.parser.parse_model(WORDS), validate="kernels", level=1).report
    assert (done.validation.verdict, done.validation.kernels) == ("equal", ("EmbeddingGrad",))
    assert done.after.launches == 1


def test_an_embedding_of_no_words_has_a_gradient_of_zeros() -> None:
    text = WORDS.replace("2,5", "0,5")
    made = onnxfuse.optimize(onnx.parser.parse_model(text), validate="off", level=1).model
    feeds = {"g": np.zeros((0, 5, 3), np.float32), "ids": np.zeros((0, 5), np.int64)}
    np.testing.assert_array_equal(Session(made, None, optimize=False).run(feeds)[0], np.zeros((7, 3)))


WRONG_WORDS = {
    "a row more": ("int64 end = {6}", "int64 end = {5}"),
    "another first row": ("int64 first = {-7}", "int64 first = {3}"),
    "another padding is none": ("eq = Equal(ids, pad)", "i2 = Neg(ids) eq = Equal(i2, pad)"),
    "either": ("both = And(ge, lt)", "both = Or(ge, lt)"),
    "the largest": ('reduction = "add"', 'reduction = "max"'),
    "one more than zeros": ("zeros = ConstantOfShape(shape)", "none = ConstantOfShape(shape) zeros = Cos(none)"),
    "what is not seen": ("kept = Where(wide, g, nil)", "kept = Where(wide, nil, g)"),
    "padding is what is seen": ("ne = Not(eq)", "ne = Identity(eq)"),
}


@pytest.mark.parametrize("mistake", WRONG_WORDS)
def test_what_is_nearly_an_embedding_has_its_own_numbers(mistake: str) -> None:
    old, new = WRONG_WORDS[mistake]
    assert old in WORDS
    for a, b in zip(*both(WORDS.replace(old, new), IDS["all there"]), strict=True):
        np.testing.assert_array_equal(a, b)


# ------------------------------------------------------------------------------------------------ positions

HALVES = (  # x * cos + rotate_half(x) * sin, differentiated: each half is scattered into zeros, its axis in front
    HEAD
    + """(float[2,3,5,8] g) => (float[2,3,5,8] dx)
<int64[4] wide = {8, 3, 5, 2}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] four = {4},
 int64[1] eight = {8}, int64[1] axis = {3},
 int64[4,1] front = {0, 1, 2, 3}, int64[4,1] back = {4, 5, 6, 7}>
{
 gc = Mul(g, cos) h = Mul(g, sin) h1 = Slice(h, zero, four, axis) h2 = Slice(h, four, eight, axis) n1 = Neg(h1)
 t1 = Transpose<perm = [3, 1, 2, 0]>(n1) t2 = Transpose<perm = [3, 1, 2, 0]>(h2)
 zeros = ConstantOfShape(wide) s1 = ScatterND(zeros, back, t1) s2 = ScatterND(zeros, front, t2)
 u1 = Transpose<perm = [3, 1, 2, 0]>(s1) u2 = Transpose<perm = [3, 1, 2, 0]>(s2) a = Add(gc, u1) dx = Add(a, u2)
}"""
)


def rotation(text: str) -> onnx.ModelProto:
    """A model with tables of angles, each of which is written twice."""
    angles = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    model = onnx.parser.parse_model(text)
    for name, function in (("cos", np.cos), ("sin", np.sin)):
        table = np.tile(function(angles), 2)[None, None]
        model.graph.initializer.append(onnx.numpy_helper.from_array(table, name))
    return model


def test_the_gradient_of_a_rotation_is_a_rotation() -> None:
    model = rotation(HALVES)
    made = onnxfuse.optimize(model, validate="off", level=1).model
    assert [family_of(node) for node in made.graph.node] == ["RotaryEmbedding"]
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


WRONG_ROTATION = {
    "another sign": ("n1 = Neg(h1)", "n1 = Identity(h1)"),
    "the halves exchanged": ("s1 = ScatterND(zeros, back, t1)", "s1 = ScatterND(zeros, back, t2)"),
    "one place for both": ("s1 = ScatterND(zeros, back, t1)", "s1 = ScatterND(zeros, front, t1)"),
    "an index twice": ("back = {4, 5, 6, 7}", "back = {4, 5, 6, 6}"),
    "a run backwards": ("back = {4, 5, 6, 7}", "back = {7, 6, 5, 4}"),
    "a run that overlaps": ("back = {4, 5, 6, 7}", "back = {3, 4, 5, 6}"),
    "another half": ("h2 = Slice(h, four, eight, axis)", "h2 = Slice(g, four, eight, axis)"),
    "other angles": ("gc = Mul(g, cos)", "c2 = Sin(cos) gc = Mul(g, c2)"),
    "more than zeros": ("zeros = ConstantOfShape(wide)", "none = ConstantOfShape(wide) zeros = Cos(none)"),
}


@pytest.mark.parametrize("mistake", WRONG_ROTATION)
def test_what_is_nearly_a_rotation_has_its_own_numbers(mistake: str) -> None:
    old, new = WRONG_ROTATION[mistake]
    assert old in HALVES
    model = rotation(HALVES.replace(old, new))
    made = onnxfuse.optimize(model, validate="off").model
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
