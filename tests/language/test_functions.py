"""Local functions of a model: each use of a fused op has one, under a name that tells it from every other use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx
import pytest
from onnx import FunctionProto, TensorProto, helper

from onnxfuse.language.bodies import Use
from onnxfuse.language.catalogue import load
from onnxfuse.language.functions import Functions, function
from onnxfuse.targets.target import Target

CATALOGUE = load()
OPSET = 17


def use(op: str, *given: bool, dtype: int = TensorProto.FLOAT, **attributes: Any) -> Use:
    return Use(op, given, tuple(sorted(attributes.items())), (True,), dtype)


GELU = use("Gelu", True, approximate="none")
CONV = use("FusedConv", True, True, True, False, activation="Swish")
"""The convolution is left to the runtime; what follows it is another fused op, with a function of its own."""


def empty() -> onnx.ModelProto:
    return helper.make_model(helper.make_graph([], "g", [], []), opset_imports=[helper.make_opsetid("", OPSET)])


def calls(made: FunctionProto) -> list[str]:
    return [node.op_type for node in made.node if node.domain == "onnxfuse"]


def test_a_use_has_one_function_and_the_same_name_in_every_model() -> None:
    functions = Functions(CATALOGUE)
    made = functions.of(GELU, OPSET)
    assert functions.of(GELU, OPSET) is made
    assert Functions(CATALOGUE).of(GELU, OPSET).name == made.name
    assert made.name.startswith("Gelu_none_")


def test_a_body_is_written_once_for_all_models_and_anew_where_it_may_differ() -> None:
    once = Functions(CATALOGUE).of(GELU, OPSET)
    assert Functions(CATALOGUE).of(GELU, OPSET) is once
    assert Functions(CATALOGUE.choose(["Gelu"])).of(GELU, OPSET) is once
    assert Functions(CATALOGUE.serving(Target("ort"))).of(GELU, OPSET) is not once
    assert Functions(CATALOGUE, generic=False).of(GELU, OPSET) is not once
    assert Functions(CATALOGUE).of(GELU, 20) is not once
    other = replace(CATALOGUE, definitions=CATALOGUE.definitions | {"Gelu": CATALOGUE.definitions["Swish"]})
    assert other.bodies is not CATALOGUE.bodies
    assert replace(CATALOGUE, rules=[]).bodies is CATALOGUE.bodies
    whole, real = (use("QuickGelu", True, alpha=alpha) for alpha in (0.0, -0.0))
    assert whole == real
    assert Functions(CATALOGUE).of(whole, OPSET) != Functions(CATALOGUE).of(real, OPSET)


def test_a_name_that_is_taken_is_not_that_of_the_function_that_is_kept() -> None:
    once = Functions(CATALOGUE).of(GELU, OPSET)
    other = Functions(CATALOGUE, {once.name: FunctionProto(name=once.name)}).of(GELU, OPSET)
    assert (once.name, other.name) == (Functions(CATALOGUE).of(GELU, OPSET).name, f"{once.name}_2")
    assert other.node == once.node


@pytest.mark.parametrize(
    "other",
    [
        use("Gelu", True, approximate="tanh"),
        use("QuickGelu", True, alpha=1.702),
        use("Gelu", True, dtype=TensorProto.FLOAT16, approximate="none"),
    ],
    ids=["attribute", "op", "type"],
)
def test_another_use_is_another_function(other: Use) -> None:
    functions = Functions(CATALOGUE)
    assert functions.of(other, OPSET).name != functions.of(GELU, OPSET).name


def test_optional_inputs_are_in_the_name_and_in_the_signature() -> None:
    bare, biased = (function(use("FusedMatMul", True, True, bias, False), CATALOGUE, OPSET) for bias in (False, True))
    assert (len(bare.input), len(biased.input)) == (2, 3)
    assert "_bias_" in Functions(CATALOGUE).of(use("FusedMatMul", True, True, True, False), OPSET).name


def test_a_name_that_has_another_body_is_left_to_it() -> None:
    name = Functions(CATALOGUE).of(GELU, OPSET).name
    changed = FunctionProto(domain="onnxfuse", name=name, node=[helper.make_node("Relu", ["X"], ["Y"])])
    assert Functions(CATALOGUE, {name: changed}).of(GELU, OPSET).name == f"{name}_2"
    same = Functions(CATALOGUE).of(GELU, OPSET)
    functions = Functions(CATALOGUE, {name: same})
    assert functions.of(GELU, OPSET).name == name
    model = empty()
    functions.attach(model, {name})
    assert list(model.functions) == [], "the model has it already"


def test_callees_are_attached_first_with_the_import_and_the_version_that_functions_need() -> None:
    functions, model = Functions(CATALOGUE), empty()
    model.ir_version = 7
    made = functions.of(CONV, OPSET)
    unused = functions.of(use("Mish", True), OPSET)
    functions.attach(model, {made.name})
    names = [one.name for one in model.functions]
    assert calls(made)
    assert unused.name not in names
    assert names[-1] == made.name
    for place, one in enumerate(model.functions):
        assert set(calls(one)) <= set(names[:place])
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": OPSET, "onnxfuse": 1}
    assert model.ir_version == 8


def test_a_model_that_needs_none_stays_as_it_is() -> None:
    functions, model, before = Functions(CATALOGUE), empty(), empty()
    functions.of(GELU, OPSET)
    functions.attach(model, set())
    assert model == before
