"""What every kernel costs on a card, held to the committed table: what gets worse fails with both figures."""

from __future__ import annotations

import pytest

from onnxfuse.kernels.inspect import nvrtc, traffic
from onnxfuse.kernels.inspect.cases import CASES, ROWS, WAVEFRONTS
from onnxfuse.kernels.inspect.traffic import Figures, misses

COMMITTED = traffic.committed()


def test_the_committed_table_has_every_case_and_architecture() -> None:
    assert list(COMMITTED) == list(CASES)
    assert all(tuple(code) == nvrtc.ARCHITECTURES for _, code in COMMITTED.values())


@pytest.mark.parametrize("name", CASES)
def test_no_kernel_moves_more_than_the_committed_table_says(name: str) -> None:
    found = traffic.figures(traffic.counted(CASES[name]))
    assert COMMITTED[name][0].worse(found) == []


def test_no_kernel_spills() -> None:
    assert [name for name, (_, code) in COMMITTED.items() if any(one.spilled for one in code.values())] == []


def test_the_page_is_that_of_the_table() -> None:
    text = traffic.PAGE.read_text()
    assert traffic.paged(text, traffic.page(COMMITTED)) == text


@pytest.mark.parametrize("name", CASES)
def test_what_misses_its_goal_says_why_and_nothing_else_does(name: str) -> None:
    assert misses(CASES[name], COMMITTED[name][0]) == bool(CASES[name].why)


def test_what_is_worse_is_told_with_both_figures() -> None:
    before = Figures(1.0, 1.0, 1.2)
    assert before.worse(Figures(1.0, 1.0, 1.2)) == []
    assert before.worse(Figures(1.5, 1.0, 1.1)) == ["sectors: 1.0, now 1.5"]
    assert before.worse(Figures(1.0, 1.82, 1.3)) == ["wavefronts: 1.0, now 1.82", "moved: 1.2, now 1.3"]


def test_a_goal_is_missed_by_either_figure() -> None:
    case = CASES["Softmax"]
    assert not misses(case, Figures(ROWS, WAVEFRONTS, 9.0))
    assert misses(case, Figures(ROWS + 0.01, 1.0, 1.0))
    assert misses(case, Figures(1.0, WAVEFRONTS + 0.01, 1.0))
