"""A few nodes lifted again, where all would have to be: the same terms, with the same ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto

from onnxfuse.lifting import lift as lifting
from onnxfuse.lifting.node import lift_node
from onnxfuse.lifting.rewind import Rewind
from onnxfuse.lifting.view import View
from onnxfuse.model.graph import roots
from onnxfuse.terms.term import Terms
from tests.whole.test_attention import Model
from tests.whole.test_attention_forms import draw

MODELS = Path(__file__).parents[2] / "models"


def described(model: onnx.ModelProto) -> list[Any]:
    """The terms of a model in their order, and those of its values."""
    view = lifting.lift(next(iter(roots(model))), None)
    made = [(t.id, t.op, [a.id for a in t.args], t.attrs, t.closed, t.shape, t.dtype) for t in view.terms]
    values = [(name, term.id, view.dtypes[name]) for name, term in view.terms_of.items()]
    return [*made, *values, *view.hidden.items(), view.counted, view.read, view.unread, view.endless]


def blocks(count: int, between: int, rest: int = 0) -> onnx.ModelProto:
    """Sums that are used twice in another shape, so many nodes later, each followed by the `rest` of a block."""
    g = Model({"x": draw(2, 4, 8)})
    y = "x"
    for _ in range(count):
        seen = g("Add", y, draw(8))
        for _ in range(between // 2):
            seen = g("Reshape", g("Transpose", seen, perm=[1, 0, 2]), np.array([2, 4, 8], np.int64))
        y = g("Tanh", g("Mul", g("Tanh", seen), seen))
        for _ in range(rest):
            y = g("Tanh", y)
    return g.proto(y)


def lifted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without going back."""
    monkeypatch.setattr(Rewind, "after", lambda self, index: index)


@pytest.mark.parametrize("between", [2, 6, 20, 60])
def test_what_is_lifted_again_is_what_would_be_lifted_if_all_were(
    monkeypatch: pytest.MonkeyPatch, between: int
) -> None:
    model = blocks(4, between)
    found = described(model)
    assert any(row[1] == "Add" and row[4] for row in found if len(row) == 7), "nothing was closed"
    lifted_twice(monkeypatch)
    assert described(model) == found


@pytest.mark.parametrize("name", ["vit.ts", "bert.ts", "whisper_encoder.ts", "gpt2.dynamo", "control_loop"])
def test_so_it_is_in_models(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model = onnx.load(MODELS / f"{name}.onnx")
    found = described(model)
    lifted_twice(monkeypatch)
    assert described(model) == found


@pytest.mark.parametrize("going_back", [True, False])
def test_few_nodes_are_lifted_again(monkeypatch: pytest.MonkeyPatch, going_back: bool) -> None:
    model, nodes = blocks(20, 4, 40), list[str]()

    def counted(view: View, index: int, node: NodeProto) -> Any:
        nodes.append(node.op_type)
        return lift_node(view, index, node)

    monkeypatch.setattr(lifting, "lift_node", counted)
    if not going_back:
        lifted_twice(monkeypatch)
    lifting.lift(next(iter(roots(model))), None)
    again = len(nodes) - len(model.graph.node)
    assert (again < len(model.graph.node) // 2) is going_back


def test_a_table_of_terms_goes_back_to_where_it_was() -> None:
    terms = Terms()
    x = terms.input("x", (2, 3), 1)
    mark, there = terms.mark(), list(terms)
    first = terms.raw("Tanh", [x], shape=(2, 3), dtype=1)
    terms.number(3, 1)
    shape = terms.fresh_shape(2)
    terms.rewind(mark)
    assert list(terms) == there
    assert terms.fresh_shape(2) == shape
    again = terms.raw("Tanh", [x], shape=(2, 3), dtype=1)
    assert again is not first
    assert (again.id, again.below) == (first.id, first.below)
