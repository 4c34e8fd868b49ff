"""Fixtures that several test files share."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
from collections.abc import Iterator

import pytest
from _pytest.runner import runtestprotocol
from xdist import is_xdist_controller, is_xdist_worker

from benchmarks.random_graphs import alone
from onnxfuse.language import catalogue, evaluate
from onnxfuse.lifting import node
from onnxfuse.proof import oracle
from onnxfuse.runtime.quiet import onnxruntime
from tests import fake_engine
from tests.fused_models import FusedModel, kept_in
from tests.small_process import small_process

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell lets what it runs in the background ignore interrupts, and so would the processes that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A child may crash, which its parent says: a stack of each among the dots of the tests looks as if they had failed.
os.register_at_fork(after_in_child=faulthandler.disable)

MALFORMED, FAULTS = node.MALFORMED, evaluate.FAULTS
# What fails while a node is lifted or a rule evaluated fails a test: with these it is a mistake of ours.
node.MALFORMED = evaluate.FAULTS = ()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Before tests are collected, which makes a process large: the one that forks for it (`small_process`).

    What there is of objects afterwards, a million, stays, and Python's cycle collector need not look at it again.  What
    a test makes is mostly terms, which have no cycles: it looks at them seldom."""
    if not is_xdist_controller(session):
        onnxruntime()  # or each child would load it, and read the rules
        catalogue.load()
        small = small_process()
        oracle.isolated = alone.isolated = small.__enter__()
        session.config.add_cleanup(lambda: small.__exit__(None, None, None))
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(1_000_000)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A worker tells of a test once, where there is no more to tell, and not that each of its steps began and ended:
    what it tells takes three processes' time."""
    if not is_xdist_worker(item.session):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.fixture(autouse=True, scope="module")
def kept() -> Iterator[None]:
    """Nor need it look again at what a test file leaves, such as what tests keep for each other."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def fused_model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> FusedModel:
    """Models of models/ as they are fused, once for all workers."""
    own = tmp_path_factory.getbasetemp()
    return kept_in(own.parent if is_xdist_worker(request) else own)


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users have it: nothing is known of a node that cannot be lifted, and what cannot be evaluated is no match."""
    monkeypatch.setattr(node, "MALFORMED", MALFORMED)
    monkeypatch.setattr(evaluate, "FAULTS", FAULTS)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> fake_engine.Engine:
    """The command line with a stand-in for the engine."""
    return fake_engine.install(monkeypatch)
