"""The module of one block is that of its counterpart elsewhere, by whichever node of a block it is told."""

from __future__ import annotations

import pytest

from onnxfuse.fusing.repeats.few import Few
from onnxfuse.fusing.repeats.modules import Modules
from onnxfuse.fusing.repeats.runs import HEAD, TAIL

from .blocks import Build, chain

COUNT = 12


def layer(build: Build, x: str, number: int) -> str:
    """Two modules of three nodes each."""
    for part, op in (("first", "Exp"), ("second", "Tanh")):
        scope = f"/layer.{number}/{part}"
        x = build.node("Add", x, build.node("Neg", build.node(op, x, scope=scope), scope=scope), scope=scope)
    return x


@pytest.fixture
def few() -> Few:
    found = Few.of(chain(COUNT, layer), frozenset())
    assert found is not None
    return found


def at(few: Few, number: int, part: str) -> int:
    """The first node of a module."""
    return next(n for n, node in enumerate(few.codes.nodes) if node.name.startswith(f"/layer.{number}/{part}/"))


def test_of_the_nodes_themselves(few: Few) -> None:
    modules, nodes = Modules(few), [at(few, 1, "second"), at(few, 2, "first")]
    after = [at(few, 6, "second"), at(few, 7, "first")]
    assert modules.of("/layer.1/second", nodes, after) == "/layer.6/second"
    assert modules.of("/layer.2", nodes, after) == "/layer.7"
    assert modules.of("", nodes, after) == ""
    assert modules.of("/layer.2/first", [], []) == "/layer.2/first"


def test_of_other_nodes_of_the_block(few: Few) -> None:
    """A block begins in the middle of a layer."""
    modules = Modules(few)
    assert modules.of("/layer.2/first", [at(few, 1, "second")], [at(few, 7, "second")]) == "/layer.8/first"
    assert modules.of("/elsewhere", [at(few, 1, "second")], [at(few, 7, "second")]) == "/elsewhere"


def test_of_the_block_before_and_behind(few: Few) -> None:
    modules, node, later = Modules(few), at(few, 2, "first"), at(few, 7, "first")
    assert modules.of("/layer.0/second", [node], [later]) == "/layer.5/second"
    assert modules.of("/layer.2/second", [node], [later]) == "/layer.7/second"
    assert modules.of("/layer.4/second", [node], [later]) == "/layer.4/second", "too far from it"


def test_behind_the_gap(few: Few) -> None:
    """The block before is then the last one before the gap, and means the last that was left out."""
    modules, behind = Modules(few), at(few, COUNT - TAIL, "first")
    assert few.run_of(behind) is not None
    assert modules.of(f"/layer.{HEAD - 1}/second", [behind], [behind]) == f"/layer.{COUNT - TAIL - 2}/second"
