"""Every rule of the catalogue, in every combination of its optional steps, blocks and spellings."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, defs, helper, numpy_helper

from benchmarks.standard_draws.judge import DRAWERS
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue as language
from onnxfuse.language.variants import variants
from onnxfuse.model.graph import family_of
from onnxfuse.proof import rule_test
from onnxfuse.targets.target import KINDS

CATALOGUE = language.load()
TESTED = [rule for rule in CATALOGUE if rule.test and rule.blocks]
LONGEST = 25
"""Lines of a rule without blank ones and comments."""


ELSEWHERE = {
    "fusions/2_ops/attention/softmax.rule": (2, "of booleans that are cast to a type of any kind and reduced"),
    "fusions/2_ops/gradient/linear.rule": (
        2,
        "of operands that are transposed in the graph, of indices that are clipped to as many rows as a constant has",
    ),
    "fusions/2_ops/gradient/softmax.rule": (2, "of rows in a shape that nothing but the graph says, or of a guard"),
    "fusions/3_compose/norm/batch_norm.rule": (1, "beside the inverse deviation that a gradient takes"),
    "fusions/3_compose/gradient/linear.rule": (
        5,
        "of operands that are transposed in the graph, beside a bias's gradient",
    ),
}
"""Files with so many rules that cannot be written out from their text alone, and why; tests/whole has the graphs."""


@pytest.mark.parametrize("rule", TESTED, ids=lambda rule: rule.path)
def test_every_spelling_is_matched_and_means_the_fused_op(rule: language.Rule) -> None:
    outcomes = list(rule_test.check(rule, CATALOGUE))
    assert len(outcomes) >= 2 * len(variants(rule)), "every variant is matched, and its body run"
    assert not [outcome.text for outcome in outcomes if not outcome.passed]


@pytest.mark.parametrize("rule", CATALOGUE.rules, ids=lambda rule: rule.path)
def test_every_rule_says_what_it_is(rule: language.Rule) -> None:
    assert len(rule.doc) > 20
    younger = {op for op in rule.matched_ops & CATALOGUE.definitions.keys() if not defs.has(op, rule_test.OPSET, "")}
    blocks = "block_size=" in rule.text  # of opset 21
    absorbs_what_a_rule_emitted = not rule.blocks or bool(younger) or blocks or bool(rule.target)
    drawn = rule.op.removeprefix("ai.onnx.") in DRAWERS  # the standard's own body is written out: test_standard_draws
    untested = [other for other in CATALOGUE.rules if other.path == rule.path and other.blocks and not other.test]
    elsewhere = len(untested) <= ELSEWHERE.get(rule.path, (0, ""))[0]
    assert absorbs_what_a_rule_emitted or drawn or elsewhere or rule.test, (
        "a rule that can be written out has a `test:` line"
    )
    assert absorbs_what_a_rule_emitted or rule.cost


@pytest.mark.parametrize(
    "name", sorted({rule.op for rule in CATALOGUE if not rule.primitive and rule.call and not rule.target})
)
def test_every_op_that_is_no_standard_op_has_a_meaning(name: str) -> None:
    assert name in CATALOGUE.definitions or name.removeprefix("ai.onnx.") in language.standard_ops()


def test_no_rule_is_long_but_what_attention_means() -> None:
    lines = {rule: [line for line in rule.text.splitlines() if line.strip() and line[0] != "#"] for rule in CATALOGUE}
    assert [rule.path for rule in CATALOGUE if len(lines[rule]) > LONGEST] == ["ops/attention.rule"]


@pytest.mark.parametrize("folder", sorted({rule.target for rule in CATALOGUE} - {""}))
def test_every_folder_of_a_target_is_one_that_a_target_takes(folder: str) -> None:
    assert any(folder in kind.folders for kind in KINDS.values())


# ------------------------------------------------------------------------------------------------ what must not match


def model(nodes: list[tuple[str, list[str], str, dict[str, object]]], **tensors: np.ndarray) -> ModelProto:
    """(op, inputs, output, attributes) in order; X is the input [2, 6, 8], the last output is the graph's."""
    made = [helper.make_node(op, inputs, [output], **attrs) for op, inputs, output, attrs in nodes]
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [2, 6, 8])],
        [helper.make_tensor_value_info(nodes[-1][2], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def ops(m: ModelProto) -> list[str]:
    return [family_of(node) for node in fuse(m, CATALOGUE).model.graph.node]


def f32(*values: float) -> np.ndarray:
    return np.array(values if len(values) > 1 else values[0], np.float32)


@pytest.mark.parametrize(("shape", "fused"), [((6, 8), True), ((2, 6, 8), True), ((3, 1, 6, 8), False)])
def test_a_skip_that_broadcasts_is_no_skip(shape: tuple[int, ...], fused: bool) -> None:
    """A full-sized skip is fused; one that broadcasts or widens the sum stays an Add."""
    rng = np.random.default_rng(0)
    found = ops(
        model(
            [
                ("Add", ["X", "S"], "sum", {}),
                ("LayerNormalization", ["sum", "g", "b"], "Y", {"axis": -1}),
            ],
            S=rng.standard_normal(shape).astype(np.float32),
            g=np.ones(8, np.float32),
            b=np.zeros(8, np.float32),
        )
    )
    assert ("SkipLayerNormalization" in found) == (shape == (2, 6, 8)), (fused, found)


def test_epsilon_0_is_no_layer_normalization() -> None:
    """0 / 0 is NaN where a row is constant; LayerNormalization's epsilon exists to prevent that."""
    nodes = [
        ("ReduceMean", ["X"], "m", {"axes": [-1]}),
        ("Sub", ["X", "m"], "d", {}),
        ("Mul", ["d", "d"], "dd", {}),
        ("ReduceMean", ["dd"], "v", {"axes": [-1]}),
        ("Sqrt", ["v"], "s", {}),
        ("Div", ["d", "s"], "Y", {}),
    ]
    assert "LayerNormalization" not in ops(model(nodes))


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_constant_1_percent_off_is_another_function(factor: float) -> None:
    nodes = [
        ("Mul", ["X", "c"], "u", {}),
        ("Erf", ["u"], "e", {}),
        ("Add", ["e", "one"], "f", {}),
        ("Mul", ["X", "f"], "g", {}),
        ("Mul", ["g", "half"], "Y", {}),
    ]
    found = ops(model(nodes, c=f32(0.70710678 * factor), one=f32(1), half=f32(0.5)))
    assert ("Gelu" in found) == (factor == 1.0)


def test_layer_normalization_wins_over_the_rms_normalization_inside_it() -> None:
    nodes = [
        ("ReduceMean", ["X"], "m", {"axes": [-1]}),
        ("Sub", ["X", "m"], "d", {}),
        ("Mul", ["d", "d"], "dd", {}),
        ("ReduceMean", ["dd"], "v", {"axes": [-1]}),
        ("Add", ["v", "eps"], "ve", {}),
        ("Sqrt", ["ve"], "s", {}),
        ("Div", ["d", "s"], "Y", {}),
    ]
    assert ops(model(nodes, eps=f32(1e-5))) == ["LayerNormalization"]


def test_a_product_needed_elsewhere_is_not_computed_twice() -> None:
    """Folding the factor would leave both the old MatMul and a new one."""
    rng = np.random.default_rng(0)
    nodes = [
        ("MatMul", ["X", "W"], "y", {}),
        ("Mul", ["y", "k"], "scaled", {}),
        ("Cos", ["y"], "other", {}),
        ("Add", ["scaled", "other"], "Y", {}),
    ]
    w, k = rng.standard_normal((8, 5)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    assert ops(model(nodes, W=w, k=k)).count("MatMul") == 1


def convolution(place: str, pads: int, mode: int = 0) -> ModelProto:
    rng = np.random.default_rng(0)

    def vector(n: int) -> np.ndarray:
        return (rng.random(n) + 0.5).astype(np.float32)

    conv = {"pads": [pads, pads]}
    norm = {"training_mode": mode}
    parameters = ["s", "b", "m", "v"]
    first, second = [("Conv", ["X", "W"], "h", conv), ("BatchNormalization", ["h", *parameters], "Y", norm)]
    if place == "before":
        first, second = (
            ("BatchNormalization", ["X", *parameters], "h", norm),
            ("Conv", ["h", "W"], "Y", conv),
        )
    return model(
        [first, second],
        W=rng.standard_normal((6, 6, 3)).astype(np.float32),
        **{name: vector(6) for name in parameters},
    )


@pytest.mark.parametrize(("place", "pads", "folded"), [("after", 1, True), ("before", 0, True), ("before", 1, False)])
def test_batch_normalization_before_a_padded_convolution_stays(place: str, pads: int, folded: bool) -> None:
    """Padding adds zeros behind the shift: folding it would pad with something else."""
    assert ops(convolution(place, pads)) == (["Conv"] if folded else ["BatchNormalization", "Conv"])
