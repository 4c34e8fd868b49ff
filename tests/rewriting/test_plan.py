"""A plan says what a value takes, and changes nothing before it is committed."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from onnxfuse.language import catalogue
from onnxfuse.language.functions import Functions
from onnxfuse.lifting.lift import lift
from onnxfuse.matching.search import Found
from onnxfuse.model.graph import Names, roots
from onnxfuse.rewriting.plan import Draft, UnrealisableError
from onnxfuse.rewriting.realize import realize

MODEL = """<ir_version: 10, opset_import: ["": 17]>
g (float[B, S, 12] x) => (float[B, S, 3, 4] y) <int64[4] target = {0, 0, 3, 4}, float two = {2.0}> {
    a = Sin (x)
    b = Mul (a, two)
    c = Neg (b)
    y = Reshape (c, target)
}"""


def draft() -> Draft:
    """A draft that has the inputs of the model alone."""
    model = onnx.shape_inference.infer_shapes(parser.parse_model(MODEL))
    graph = next(roots(model))
    view = lift(graph, None)
    found = Found(dict(view.terms_of))
    made = Draft(view, found, Names.of([graph]), Functions(catalogue.load()))
    for name, term in found.current.items():
        if name not in graph.producer:
            made.register(term, -1.0, name, view.dtypes[name])
    return made


def test_nothing_is_there_before_the_commit() -> None:
    scope = draft()
    taken = set(scope.names.taken)
    term = scope.found.current["y"]
    first, second = (realize(scope, term, 1, 4, "y") for _ in range(2))
    assert first.nodes == second.nodes
    assert first.constants.keys() == second.constants.keys()
    assert not scope.nodes
    assert not scope.constants
    assert scope.available.find(term, 1, 4) is None
    assert scope.names.taken == taken
    assert first.sources == {"x", "target"}


def test_what_is_committed_is_there() -> None:
    scope = draft()
    term = scope.found.current["y"]
    plan = realize(scope, term, 1, 4, "y")
    assert scope.commit(plan) == "y"
    assert [node.op_type for _, _, node in scope.nodes] == [node.op for node in plan.nodes]
    assert scope.constants.keys() == plan.constants.keys()
    assert scope.available.find(term, 1, 4) == ("y", 1)
    assert {node.name for node in plan.nodes} <= scope.names.taken
    assert not realize(scope, term, 1, 4).nodes


def test_what_is_not_to_be_built_is_not() -> None:
    scope = draft()
    with pytest.raises(UnrealisableError):
        realize(scope, scope.found.current["y"], 1, 4, "y", builds=lambda term: term.op != "Sin")
    assert not scope.nodes
