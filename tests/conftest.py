"""Fixtures that several test files share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from onnxfuse.language import evaluate
from onnxfuse.lifting import node
from tests import fake_engine

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell lets what it runs in the background ignore interrupts, and so would the processes that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

MALFORMED, FAULTS = node.MALFORMED, evaluate.FAULTS


@pytest.fixture(autouse=True, scope="session")
def strict() -> Iterator[None]:
    """What fails while a node is lifted or a rule evaluated fails a test: with these it is a mistake of ours."""
    node.MALFORMED = evaluate.FAULTS = ()
    yield
    node.MALFORMED, evaluate.FAULTS = MALFORMED, FAULTS


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users have it: nothing is known of a node that cannot be lifted, and what cannot be evaluated is no match."""
    monkeypatch.setattr(node, "MALFORMED", MALFORMED)
    monkeypatch.setattr(evaluate, "FAULTS", FAULTS)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> fake_engine.Engine:
    """The command line with a stand-in for the engine."""
    return fake_engine.install(monkeypatch)
