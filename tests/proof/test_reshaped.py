"""A stream that the fused model carries in another shape makes cuts no longer than a block."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from onnxfuse.proof import cuts, reshaped
from onnxfuse.proof.cut_proof import Compared, compare_sites
from onnxfuse.proof.inside import Inside
from onnxfuse.proof.observed import observe, telling
from onnxfuse.proof.oracle import Oracle
from onnxfuse.proof.reshaped import with_fused_values

BLOCKS = 6
ORIGINAL = """m{i} = MatMul(x{i}, w{i}) a{i} = Add(m{i}, b{i}) t{i} = Tanh(a{i})
    c{i} = Mul(t{i}, half) x{j} = Add(x{i}, c{i})"""
FLAT = """g{i} = Gemm(f{i}, w{i}, b{i}) u{i} = Tanh(g{i}) t{i} = Reshape(u{i}, whole) d{i} = Mul(NUMBER, u{i})
    f{j} = Add(d{i}, f{i})"""


def parse(inputs: str, text: str) -> onnx.ModelProto:
    constants = "<float half = {0.5}, float other = {0.50001}, int64[2] rows = {-1, 8}, int64[3] whole = {-1, 4, 8}>"
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]>\ng ({inputs}) => (float[n, 4, 8] y) {constants} {{ {text} }}'
    )
    rng = np.random.default_rng(0)
    for i in range(BLOCKS):
        for name, shape in ((f"w{i}", (8, 8)), (f"b{i}", (8,))):
            made.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype("f4"), name))
    return made


def original() -> onnx.ModelProto:
    chain = " ".join(ORIGINAL.format(i=i, j=i + 1) for i in range(BLOCKS))
    return parse("float[n, 4, 8] x0", f"{chain} y = Relu(x{BLOCKS})")


def flat(wrong: int = -1) -> onnx.ModelProto:
    """The same on rows, with a constant that is a little off in one block."""
    text = [FLAT.format(i=i, j=i + 1).replace("NUMBER", "other" if i == wrong else "half") for i in range(BLOCKS)]
    chain = " ".join(text)
    return parse("float[n, 4, 8] x0", f"f0 = Reshape(x0, rows) {chain} z = Relu(f{BLOCKS}) y = Reshape(z, whole)")


def compare(before: onnx.ModelProto, after: onnx.ModelProto) -> Compared:
    return compare_sites(before, after, Oracle(before).cases)


def test_cuts_stop_at_values_that_have_another_shape() -> None:
    before, after = original(), flat()
    longest = max(len(cut.original) for cut in cuts.find(before, after))
    views = with_fused_values(before, after, cuts.find(before, after), Oracle(before).cases, Inside(before))
    assert views is not None
    assert {f"f{i}" for i in range(1, BLOCKS)} <= views.names
    assert longest >= 5 * (BLOCKS - 1)
    assert max(len(cut.original) for cut in cuts.find(views.model, after)) <= 8


def test_equal_values_are_told_apart_by_what_comes_before_them() -> None:
    """A stream whose branches end in zeros, as they do before training."""
    before, after = original(), flat()
    for model in (before, after):
        half = next(tensor for tensor in model.graph.initializer if tensor.name == "half")
        half.CopyFrom(numpy_helper.from_array(np.zeros((), np.float32), "half"))
    views = with_fused_values(before, after, cuts.find(before, after), Oracle(before).cases, Inside(before))
    assert views is not None
    assert max(len(cut.original) for cut in cuts.find(views.model, after)) <= 8
    assert compare(before, after).right >= {"y", *(f"t{i}" for i in range(BLOCKS))}


def test_what_is_moved_from_a_common_value_needs_no_name() -> None:
    before, after = original(), flat()
    views = with_fused_values(before, after, cuts.find(before, after), Oracle(before).cases, Inside(before))
    assert views is not None
    assert "f0" not in views.names


def test_the_original_computes_what_it_did() -> None:
    before = original()
    cases = Oracle(before).cases
    views = with_fused_values(before, flat(), cuts.find(before, flat()), cases, Inside(before))
    assert views is not None
    for old, new in zip(*(observe(model, ["y"], telling(cases)) for model in (before, views.model)), strict=True):
        np.testing.assert_array_equal(old["y"], new["y"])
    assert before == original()


def test_blocks_of_such_a_stream_are_of_one_kind() -> None:
    found = compare(original(), flat())
    assert found.wrong == {}
    assert {f"t{i}" for i in range(BLOCKS)} <= found.right
    assert (found.count, found.judged) == (1 + BLOCKS + 3 * BLOCKS - 2, 7)


@pytest.mark.parametrize("wrong", [0, 3])
def test_a_mistake_in_one_block_is_seen_in_what_rests_on_it(wrong: int) -> None:
    found = compare(original(), flat(wrong))
    assert sorted(cut.output for cut in found.wrong) == [*(f"t{i}" for i in range(wrong + 1, BLOCKS)), "y"]


def test_a_pair_that_is_none_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run takes for one value, cuts do not; then the original is compared as it is."""
    pairs = reshaped._pairs

    def crossed(*args: object) -> list[tuple[str, object]]:
        found = list(pairs(*args))  # type: ignore[arg-type]
        return [(old, view) for (old, _), (_, view) in zip(found, found[::-1], strict=True)]

    monkeypatch.setattr(reshaped, "_pairs", crossed)
    found = compare(original(), flat())
    assert found.wrong == {}
    assert found.right == {"y", *(f"t{i}" for i in range(BLOCKS))}
    assert found.judged == found.count


def test_short_cuts_are_left_as_they_are() -> None:
    before = original()
    assert with_fused_values(before, before, cuts.find(before, before), Oracle(before).cases, Inside(before)) is None


def test_a_shape_that_reshape_cannot_name_is_no_pair() -> None:
    """Two sizes that change from run to run, neither of which is at its place."""

    def seen(*shapes: tuple[int, ...]) -> tuple[reshaped._Seen, ...]:
        return tuple(reshaped._Seen(shape, np.ones(24), 1e-4) for shape in shapes)

    assert reshaped._shape(seen((6, 4), (12, 2)), seen((2, 3, 4), (3, 4, 2))) is None
    assert reshaped._shape(seen((2, 12), (3, 8)), seen((2, 3, 4), (3, 4, 2))) is None
    assert reshaped._shape(seen((2, 12), (3, 8)), seen((2, 4, 3), (3, 4, 2))) == [0, 4, -1]
    assert reshaped._shape(seen((6, 4), (8, 4)), seen((3, 2, 4), (4, 2, 4))) == [-1, 2, 4]


def test_the_nearest_is_the_pair_and_none_where_all_are_far() -> None:
    drawn = np.random.default_rng(0).standard_normal((3, 24))

    def seen(numbers: np.ndarray, *shape: int) -> tuple[reshaped._Seen, ...]:
        return (reshaped._Seen(shape, numbers, 1e-4),)

    old = {"a": seen(drawn[0], 2, 12), "b": seen(drawn[0] + 1e-6, 2, 12), "c": seen(2 * drawn[1], 2, 12)}
    new = {
        "far": seen(drawn[2], 24),
        "twice": seen(drawn[1], 24),
        "other size": seen(drawn[0], 12),
        "near b": seen(drawn[0] + 9e-7, 24),
        "near a": seen(drawn[0], 24),
        "again": seen(drawn[0], 4, 6),
    }
    pairs = reshaped._pairs(old, new, {}, {})
    assert [(name, view.name) for name, view in pairs] == [("b", "near b"), ("a", "near a")]


def test_of_equal_ones_that_of_the_same_place_is_the_pair() -> None:
    numbers = np.random.default_rng(0).standard_normal(24)
    old = {name: (reshaped._Seen((2, 12), numbers, 1e-4),) for name in ("a", "b", "c")}
    new = {name: (reshaped._Seen((24,), numbers, 1e-4),) for name in ("second", "elsewhere")}
    pairs = reshaped._pairs(old, new, {"a": "", "b": "mask", "c": "mask"}, {"second": "mask", "elsewhere": "other"})
    assert [(name, view.name) for name, view in pairs] == [("b", "second"), ("a", "elsewhere")]
