"""Constants of which each of several blocks has its own: computed for each, asked of all."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.terms.blockwise import DEEPEST, HELD, Blockwise, Families, Family, UnevenError, elements
from onnxfuse.terms.fold import decided, folded, value_of
from onnxfuse.terms.normal.normal import make
from onnxfuse.terms.term import Array, Term, Terms

FLOAT = int(TensorProto.FLOAT)
COUNT = 7
RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal((COUNT, 3, 4))


@dataclass(frozen=True)
class Blocks:
    """Seven blocks, of which the first three and the last two are worked on."""

    count: int = COUNT

    def of_whole(self, block: int) -> int:
        return block if block < 3 else block + COUNT - 5


ROW = Blocks()


def families() -> Families:
    return Families((), lambda name: None)


def leaf(of: Families, arrays: Sequence[Array] = WEIGHTS) -> Family:  # type: ignore[assignment]
    return of.leaf(ROW, lambda block: arrays[block])


def total(arrays: Sequence[Array | None]) -> Array:
    return np.asarray(reduce(np.add, [array for array in arrays if array is not None]))


def test_what_is_computed_is_computed_of_what_each_block_has() -> None:
    of = families()
    w, c = leaf(of), np.full(4, 2.0)
    one, two = Blockwise(w, 1), Blockwise(w, 2)
    made = of.derived("sum", [two, one, c, None], total)
    assert made is not None
    assert made.block == 1
    assert made.family.blocks == range(COUNT - 1)
    for block in made.family.blocks:
        assert np.allclose(made.family.at(block), WEIGHTS[block] + WEIGHTS[block + 1] + 2)
    twice = of.derived("sum", [made, one], total)
    assert twice is not None
    assert np.allclose(twice.family.at(3), 2 * WEIGHTS[3] + WEIGHTS[4] + 2)


def test_the_same_of_another_block_is_of_one_family() -> None:
    of = families()
    w = leaf(of)
    one, two, other = (of.derived(said, [Blockwise(w, block)], total) for said, block in (("a", 0), ("a", 3), ("b", 0)))
    assert one is not None
    assert two == Blockwise(one.family, 3)
    assert other is not None
    assert other.family is not one.family


def test_what_no_block_has() -> None:
    of = families()
    w, elsewhere = leaf(of), of.leaf(Blocks(COUNT + 1), lambda block: WEIGHTS[0])
    assert of.derived("sum", [Blockwise(w, 0), Blockwise(elsewhere, 0)], total) is None
    assert of.derived("sum", [Blockwise(w, 0), Blockwise(w, COUNT)], total) is None


def test_its_own_elements_are_those_of_its_block() -> None:
    w = leaf(families())
    assert [Blockwise(w, block).here[0, 0] for block in range(5)] == [WEIGHTS[b][0, 0] for b in (0, 1, 2, 5, 6)]


def test_shared_operands_are_computed_once() -> None:
    """Each doubles the one before it; a recipe of thirty is no tree of a thousand millions."""
    of, computed = families(), []
    made: Blockwise | None = Blockwise(leaf(of), 0)
    for step in range(30):
        made = of.derived(step, [made, made], lambda arrays: computed.append(1) or total(arrays))
    assert made is not None
    computed.clear()
    assert np.allclose(made.family.at(2), WEIGHTS[2] * 2.0**30)
    assert len(computed) == 30


def test_of_a_chain_some_are_kept_and_it_ends() -> None:
    of, computed = families(), []

    def more(arrays: Sequence[Array | None]) -> Array:
        computed.append(1)
        return total(arrays) + 1

    made: Blockwise | None = Blockwise(leaf(of), 1)
    for step in range(DEEPEST):
        made = of.derived(step, [made], more)
        assert made is not None
        assert of.small(made) == made
    computed.clear()
    assert np.allclose(made.family.at(4), WEIGHTS[4] + DEEPEST)
    assert np.allclose(made.here, WEIGHTS[1] + DEEPEST)
    assert len(computed) < 2 * HELD
    assert of.derived("more", [made], more) is None


def positive(array: Array) -> bool:
    return bool((array > 0).all())


def above(array: Array, least: float) -> bool:
    return bool((array > least).all())


def test_a_question_is_asked_of_every_block() -> None:
    of = families()
    arrays = [np.full(4, block + 1.0) + np.arange(4) for block in range(COUNT)]
    even = leaf(of, arrays)
    assert even.answer(positive) is True
    assert even.answer(above, 20.0) is False
    with pytest.raises(UnevenError, match="above") as raised:
        even.answer(above, 1.0)
    assert raised.value.odd == [0]
    assert raised.value.row is ROW
    with pytest.raises(UnevenError) as raised:
        even.answer(elements)
    assert not raised.value.odd


def test_elements_may_be_looked_at_if_all_blocks_have_the_same() -> None:
    of = families()
    assert Blockwise(leaf(of, [np.arange(4)] * COUNT), 1).looked_at().tolist() == [0, 1, 2, 3]
    with pytest.raises(UnevenError):
        Blockwise(leaf(of), 1).looked_at()


def test_small_ones_that_hold_the_same_are_the_same() -> None:
    of = families()
    w = leaf(of)
    assert of.small(Blockwise(w, 2)) == Blockwise(w, 2)
    back = of.derived("back", [Blockwise(w, 0)], lambda arrays: total(arrays).astype(np.float64))
    assert back is not None
    assert of.small(back) == Blockwise(w, 0)
    after = of.derived("second", [Blockwise(w, 1), Blockwise(w, 2)], lambda arrays: total(arrays[1:]))
    assert after is not None
    assert of.small(after) == Blockwise(w, 2)
    turned = of.derived("turned", [back], lambda arrays: total(arrays).T)
    assert turned is not None
    assert of.small(turned).family is turned.family


@pytest.mark.parametrize(
    "arrays",
    [
        [*WEIGHTS[:3], WEIGHTS[0] + 1, *WEIGHTS[4:]],
        [WEIGHTS[0] + 1] * COUNT,
        [*(WEIGHTS[:6] + 1), np.ones((3, 4))],
        [*(WEIGHTS[:6] + 1), WEIGHTS[6]],
        WEIGHTS[::-1],
    ],
    ids=["some of another's", "all the same", "one number throughout", "one of another's", "another's, backwards"],
)
def test_small_ones_that_hold_the_same_in_some_blocks_make_these_unlike(arrays: Sequence[Array]) -> None:
    of = families()
    of.small(Blockwise(leaf(of), 0))
    with pytest.raises(UnevenError):
        of.small(Blockwise(leaf(of, arrays), 0))


def test_small_ones_are_none_that_all_have_in_common() -> None:
    of = families()
    of.common(np.arange(4.0))
    of.small(Blockwise(leaf(of), 0))
    with pytest.raises(UnevenError):
        of.common(WEIGHTS[3])
    other = families()
    other.common(WEIGHTS[3].astype(np.float64))
    with pytest.raises(UnevenError):
        other.small(Blockwise(leaf(other), 0))


def test_notes() -> None:
    of = families()
    own = Blockwise(leaf(of), 3)
    assert of.of("made", own.tag) == own
    assert of.of("made", "") is None
    assert of.of("made", own.tag.replace("constant 0", "constant 7")) is None
    assert of.of("made", f"{own.tag} ") is None
    assert Families(("w",), lambda name: own).of("w", "") == own
    assert Families(("w",), lambda name: None).of("w", own.tag) is None


def test_what_was_written_is_read_as_it_was_rounded() -> None:
    of = families()
    own = Blockwise(leaf(of), 1)
    half = own.written("half", lambda array: array.astype(np.float16))
    assert half == own.written("half", lambda array: array.astype(np.float16))
    assert np.array_equal(half.family.at(4), WEIGHTS[4].astype(np.float16))
    assert half.block == own.block


def terms_of(of: Families) -> tuple[Terms, Term, Term]:
    terms = Terms(of)
    w, v = (terms.blockwise(Blockwise(leaf(of, WEIGHTS * scale), 1), (3, 4), FLOAT) for scale in (1, 3))
    return terms, w, v


def test_what_flows_is_not_read_and_what_decides_is_asked() -> None:
    terms, w, v = terms_of(families())
    made = make(terms, "Add", [make(terms, "Mul", [w, v], {}), terms.number(1.0, FLOAT)], {})
    assert made.op == "Constant"
    assert not made.by_content
    found = folded(made)
    assert isinstance(found, Blockwise)
    assert np.allclose(found.family.at(5), WEIGHTS[5] * WEIGHTS[5] * 3 + 1)
    assert decided(made, positive) is True
    with pytest.raises(UnevenError):
        value_of(made)


def test_views_there_and_back_are_the_constant_itself() -> None:
    terms, w, _ = terms_of(families())
    turned = make(terms, "Transpose", [w], {"perm": (1, 0)})
    assert turned is not w
    assert make(terms, "Transpose", [turned], {"perm": (1, 0)}) is w


def test_what_is_no_real_number_or_one_alone_is_looked_at() -> None:
    """Whether something can be computed, and what is known of it, would depend on the block."""
    terms, w, v = terms_of(families())
    with pytest.raises(UnevenError):
        make(terms, "Greater", [w, v], {})
    with pytest.raises(UnevenError):
        make(terms, "ReduceMax", [w], {"axes": (0, 1), "keepdims": 0})


def test_tables_that_are_forked_share_them() -> None:
    of = families()
    terms, w, v = terms_of(of)
    assert copy(of) is of
    assert make(terms.fork(), "Mul", [w, v], {}).key == make(terms, "Mul", [w, v], {}).key
