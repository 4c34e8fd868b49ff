"""Groups of launches: what they read and write, and that what is undone is as it was."""

from __future__ import annotations

import gc
import weakref

from onnxfuse.regions.groups import Groups, needed

from .written import scope

TEXT = """g (float[4,8] x, float[8,8] w) => (float[4,8] y, float[4,8] z) {
    a = Neg(x) b = Abs(a) m = MatMul(b, w) y = Add(a, m) z = Sub(b, m) }"""

LOOSE = """g (float[4,8] x, float[4,8] t, float[8,8] w) => (float[4,8] b, float[4,8] y) {
    e = Neg(x) b = MatMul(e, w) a = Abs(t) c = MatMul(a, w) y = Relu(c) }"""


def state(groups: Groups) -> list[tuple[int, list[int], dict[str, int], list[str], int]]:
    return [
        (g.number, [launch.index for launch in g.launches], dict(g.reads), groups.written(g), groups.traffic(g))
        for g in groups
    ]


def test_each_launch_is_a_group_at_first() -> None:
    groups = Groups(scope(TEXT))
    assert [groups.written(group) for group in groups] == [["a"], ["b"], ["m"], ["y"], ["z"]]
    assert groups.traffic(groups.of[0]) == 2 * 4 * 8 * 4
    assert groups.sources(groups.of[3]) == {0, 2}
    assert groups.targets(groups.of[1]) == {2, 4}


def test_joined_groups_write_what_is_asked_outside() -> None:
    groups = Groups(scope(TEXT))
    whole = groups.join(groups.of[0], groups.of[1])
    assert groups.written(whole) == ["a", "b"]
    assert groups.sources(groups.of[3]) == {0, 2}


def test_ways() -> None:
    groups = Groups(scope(TEXT))
    assert groups.reaches(groups.of[0], groups.of[3])
    assert groups.reaches(groups.of[0], groups.of[3], direct=False)
    assert not groups.reaches(groups.of[3], groups.of[0])
    assert not groups.reaches(groups.of[1], groups.of[2], direct=False)


def test_ways_that_come_back_from_launches_further_on() -> None:
    """A group may have launches before and behind another's: what waits for one of them waits for all."""
    groups = Groups(scope(LOOSE))
    groups.join(groups.of[0], groups.of[4])
    assert groups.reaches(groups.of[2], groups.of[1])
    assert not groups.reaches(groups.of[1], groups.of[2])


def test_a_result_that_its_users_compute_again_is_not_written() -> None:
    groups = Groups(scope(TEXT))
    whole = groups.join(groups.of[0], groups.of[1])
    before = state(groups)
    done = groups.spread(whole, ["a"])
    assert groups.written(groups.of[0]) == ["b"]
    assert [launch.node.op_type for launch in groups.of[3].launches] == ["Neg", "Add"]
    groups.gather(done)
    assert state(groups) == before


def test_a_group_whose_results_all_users_compute_is_gone() -> None:
    groups = Groups(scope(TEXT))
    before = state(groups)
    done = groups.spread(groups.of[0], ["a"])
    assert 0 not in groups.of
    assert [launch.node.op_type for launch in groups.of[1].launches] == ["Neg", "Abs"]
    groups.gather(done)
    assert state(groups) == before


def test_what_is_needed_for_a_result() -> None:
    launches = scope(TEXT).launches
    assert [launch.index for launch in needed(launches, ["y"])] == [0, 1, 2, 3]
    assert [launch.index for launch in needed(launches, ["b"])] == [0, 1]


LATE = """g (float[6,8] x, float[6,8] w) => (float loss, float[6,8] dw)
{ a = Mul(x, w) loss = ReduceSum<keepdims = 0>(a) b = MRIGHT d = OTHER dw = Mul(b, d) }"""
"""A step: the loss waits for a; b and d are backward."""


def longer(right: str, other: str) -> int:
    """What lives longer if b is computed with a."""
    groups = Groups(scope(LATE.replace("MRIGHT", right).replace("OTHER", other)))
    early, late = (groups.of[groups.writer[name]] for name in ("a", "b"))
    assert (early.early, late.early) == (True, False)
    return groups.longer(early, late)


def test_what_backward_gives_lives_longer_as_one_with_forward() -> None:
    """b instead of nothing, instead of a, and beside a, which d reads as well."""
    assert longer("Neg(x)", "Sin(x)") == 192
    assert longer("Neg(a)", "Sin(x)") == 0
    assert longer("Neg(a)", "Sin(a)") == 192


def test_what_waits_for_backward_is_not_drawn_before_the_loss() -> None:
    groups = Groups(scope(LATE.replace("MRIGHT", "Neg(x)").replace("OTHER", "Sin(b)")))
    early, late, last = (groups.of[groups.writer[name]] for name in ("a", "b", "d"))
    assert groups.longer(early, last) > 0
    assert groups.longer(late, last) == 0


def test_groups_go_with_who_asked_for_them() -> None:
    """They hold all terms of a model, and Python's collector of circles is off where they are made."""
    found = scope(TEXT)
    collecting = gc.isenabled()
    gc.disable()
    try:
        groups = Groups(found)
        assert groups.reaches(groups.join(groups.of[0], groups.of[1]), groups.of[3])
        left = weakref.ref(groups)
        del groups
        assert left() is None
    finally:
        if collecting:
            gc.enable()
