"""The memory of a run is that of all its processes; it asserts no absolute times."""

from __future__ import annotations

import sys

import pytest

from benchmarks.memory import held_by_tree, watched

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, which Linux has")

HOLD = "import time; block = b'x' * 100_000_000; time.sleep(1)"
BOTH = f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {HOLD!r}]); {HOLD}; child.wait()"


def test_what_children_hold_counts() -> None:
    one, two = watched([sys.executable, "-c", HOLD]), watched([sys.executable, "-c", BOTH])
    assert one.code == two.code == 0
    assert 100_000_000 < one.most.all < 200_000_000 < two.most.all
    assert one.most.anonymous > 100_000_000
    assert one.most.anonymous < one.most.all


def test_a_failure_is_told() -> None:
    run = watched([sys.executable, "-c", "raise SystemExit('no such op')"])
    assert (run.code, run.said) == (1, "no such op\n")


def test_a_process_that_is_gone_holds_nothing() -> None:
    assert held_by_tree(2**22 + 1).all == 0
