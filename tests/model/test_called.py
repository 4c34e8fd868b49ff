"""The nodes of a local function in place of a call of it."""

from __future__ import annotations

import onnx
from onnx import parser

from onnxfuse.model.called import callees, import_ops, in_place_of_call


def calling(call: str, function: str, opset: int = 17) -> onnx.ModelProto:
    """A model that calls a function, which may be of another opset."""
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17, "own": 1]> g (float[2] x) => (float[2] y) {{ y = {call} }}
        <domain: "own", opset_import: ["": {opset}, "further": 3]> {function}"""
    )


def written(model: onnx.ModelProto) -> list[str]:
    """The nodes that stand for the call, as text."""
    node = model.graph.node[0]
    function = callees(model)(node)
    assert function is not None
    made = in_place_of_call(node, function, lambda name: f"in/{name}", lambda name: f"of/{name}")
    given = [{a.name: onnx.helper.get_attribute_value(a) for a in n.attribute} for n in made]
    return [f"{n.output[0]} = {n.op_type}{list(n.input)}{own}" for n, own in zip(made, given, strict=True)]


def test_attributes_are_those_of_the_call_or_else_the_functions_or_omitted() -> None:
    body = "f <alpha, beta: float = 0.5> (p) => (r) { r = Selu <alpha: float = @alpha, gamma: float = @beta> (p) }"
    assert written(calling("own.f <alpha = 2.0> (x)", body)) == [
        "in/p = Identity['x']{}",
        "in/r = Selu['in/p']{'alpha': 2.0, 'gamma': 0.5}",
        "y = Identity['in/r']{}",
    ]
    assert "gamma" in written(calling("own.f (x)", body))[1]
    assert "alpha" not in written(calling("own.f (x)", body))[1]


def test_an_input_that_is_omitted_is_omitted_inside() -> None:
    body = "f (p, low, high) => (r) { r = Clip (p, low, high) }"
    assert written(calling("own.f (x)", body))[1] == "in/r = Clip['in/p', '', '']{}"


def test_only_a_function_of_the_same_opset_stands_for_its_call() -> None:
    other = calling("own.f (x)", "f (p) => (r) { r = Neg (p) }", opset=16)
    assert callees(other)(other.graph.node[0]) is None


def test_a_model_imports_what_the_function_does() -> None:
    model = calling("own.f (x)", "f (p) => (r) { r = Neg (p) }")
    import_ops(model, model.functions[0])
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 17, "own": 1, "further": 3}


def test_functions_of_a_model_without_opsets_of_its_own_stand_for_calls_if_they_agree() -> None:
    model = calling("own.f (x)", "f (p) => (r) { r = own.h (p) }")
    inner = parser.parse_function('<domain: "own", opset_import: ["": 18]> h (p) => (r) { r = Abs (p) }')
    model.functions.append(inner)
    del model.opset_import[0]
    assert callees(model)(model.graph.node[0]) is not None
    assert callees(model)(model.functions[0].node[0]) is None
