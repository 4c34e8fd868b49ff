"""What a rule says in short: `...`, inputs by name, functions that rules share, `or`, and ops with parameters."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfuse.errors import RuleError
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue as language
from onnxfuse.language.rule import Rule
from onnxfuse.language.variants import variants
from onnxfuse.model.graph import family_of
from onnxfuse.proof import rule_test

DEFINED = """\
# Three inputs, two outputs.
Mix(A, B=None, C=None, *, gain=1, mode=0)

meaning:
    S = A + B if given(B) else A
    T = S * gain
    Y, S = T, S

test:   A=[2,3]
"""


def load(tmp_path: Path, *texts: str) -> language.Catalogue:
    for i, text in enumerate(texts):
        (tmp_path / f"r{i}.rule").write_text(text)
    return language.load([tmp_path])


def own(tmp_path: Path, *texts: str) -> Rule:
    """The last rule, written out."""
    return load(tmp_path, *texts).rules[-1]


def said(rule: Rule) -> list[str]:
    return [ast.unparse(s) for s in (*(s for block in rule.blocks for s in block), *rule.emit)]


def mistake(tmp_path: Path, *texts: str) -> str:
    with pytest.raises(RuleError) as caught:
        load(tmp_path, *texts)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------ `...`


def test_what_is_not_named_goes_on(tmp_path: Path) -> None:
    text = "# Doubled.\nTwice(b)\n\nmatch:  Y = Mix(..., B=Cos(b))\nwhere:  mode == 0\nemit:   Y = Mix(..., B=b)\n"
    rule = own(tmp_path, DEFINED, text)
    assert said(rule) == ["Y, S = Mix(A, Cos(b), C, **...)", "Y, S = Mix(A, b, C, **...)"]
    assert {p.name: p.kind for p in rule.parameters} == {"b": None, "A": "any", "C": "any"}
    assert rule.passed == {"mode"}
    assert len(variants(rule)) == 1, "an input that may be absent is no further pattern"


def test_what_match_names_and_emit_does_not_is_gone(tmp_path: Path) -> None:
    text = "# Without.\nFewer(b)\n\nmatch:  Y, _ = Mix(..., B=b, mode=1)\nemit:   Y, _ = Mix(..., gain=2)\n"
    assert said(own(tmp_path, DEFINED, text))[-1] == "Y, _ = Mix(A, None, C, **..., gain=2)"


@pytest.mark.parametrize(
    ("match", "emit", "message"),
    [
        ("Mix(..., D=b)", "Mix(...)", "Mix has no input or attribute D"),
        ("Mix(..., B=b)", "Mix(..., A=b)", "A is given, and `...` stands for it as well"),
        ("Mix(b)", "Mix(...)", "where there is none"),
        ("Mix(..., B=Mix(..., A=b))", "Mix(...)", "a second `...`"),
        ("Sin(..., B=b)", "Sin(b)", "Sin is not one"),
        ("Mix(b, ...)", "Mix(b)", "`...` stands first in the call of an op"),
        ("Mix(..., B=Cos(b, axis=...))", "Mix(...)", "`...` stands first in the call of an op"),
    ],
)
def test_a_mistake_with_what_goes_on_says_what_instead(tmp_path: Path, match: str, emit: str, message: str) -> None:
    text = f"# Wrong.\nWrong(b)\n\nmatch:  Y = {match}\nemit:   Y = {emit}\n"
    found = mistake(tmp_path, DEFINED, text)
    assert message in found
    assert found.startswith("r1.rule:")


def test_a_name_that_goes_on_cannot_be_given_to_something_else(tmp_path: Path) -> None:
    text = "# Wrong.\nWrong(b)\n\nmatch:  Y = Mix(..., B=b)\nlet:    C = Cos(b)\nemit:   Y = Mix(..., B=C)\n"
    assert "C is what `...` calls an input or output of Mix" in mistake(tmp_path, DEFINED, text)


def test_inputs_by_name_stand_in_their_places(tmp_path: Path) -> None:
    text = "# Named.\nNamed(a, c)\n\nmatch:  Y = Mix(a, C=Cos(c), gain=2)\nemit:   Y = Mix(a, C=c)\n"
    assert said(own(tmp_path, DEFINED, text)) == ["Y = Mix(a, None, Cos(c), gain=2)", "Y = Mix(a, None, c)"]
    twice = "# Twice.\nTwice(a)\n\nmatch:  Y = Mix(a, A=a)\nemit:   Y = Mix(a)\n"
    assert "A of Mix is given twice" in mistake(tmp_path, DEFINED, twice)


# ------------------------------------------------------------------------------------------------ functions

SHARED = "# Half of the sum.\nmiddle(a, b)\n\nis:\n    s = a + b\n    s, s / 2\n"
WIDE = "# Wide.\nwide(x)\n\nis:     rank(x) > 1 and dim(x, -1) > 8\n"


def test_a_function_is_pasted_where_it_is_called(tmp_path: Path) -> None:
    text = "# M.\nM(x, y, s)\n\nmatch:\n    t, h = middle(Cos(x), y)\n    Y = h * s\n\nemit:   Y = M(x, y, s)\n"
    rule = own(tmp_path, SHARED, text)
    assert said(rule)[:3] == ["t = Cos(x) + y", "h = t / 2", "Y = h * s"]
    assert {s.lineno for s in rule.blocks[0][:2]} == {5}, "a mistake is told at the call"


def test_the_names_of_a_function_do_not_clash(tmp_path: Path) -> None:
    match = "    t, h = middle(Cos(s), y)\n    u, v = middle(h, h)\n    Y = v\n"
    text = f"# M.\nM(s, y)\n\nmatch:\n{match}\nemit:   Y = M(s, y)\n"
    assert said(own(tmp_path, SHARED, text))[:4] == ["t = Cos(s) + y", "h = t / 2", "u = h + h", "v = u / 2"]


def test_a_function_as_a_condition_is_as_many_as_it_says(tmp_path: Path) -> None:
    text = "# M.\nM(x)\n\nmatch:  Y = x * Cos(x)\nwhere:  wide(x)\nemit:   Y = M(x)\n"
    assert [ast.unparse(c) for c in own(tmp_path, WIDE, text).where] == ["rank(x) > 1", "dim(x, -1) > 8"]


@pytest.mark.parametrize(
    ("shared", "match", "message"),
    [
        (SHARED, "Cos(middle(x, x))", "middle has equations of its own"),
        (WIDE, "wide(x, x)", "it is wide(x)"),
        (SHARED, "middle(x, x)", "middle gives 2 results, and here are 1 names"),
        (WIDE.replace("dim(x, -1)", "dim(z, -1)"), "Cos(x)", "unknown name z"),
        (WIDE.replace("is:", "match:"), "Cos(x)", "unknown section match"),
        ("# F.\nrank(x)\n\nis:     x\n", "Cos(x)", "a function called rank already"),
        ("# F.\nwide(x)\n\nis:\n    y = x\n", "Cos(x)", "ends in what it is"),
        (WIDE + "---\n# G.\nwider(x)\n\nis:     wide(x)\n", "Cos(x)", "unknown function wide"),
    ],
)
def test_a_mistake_with_a_function(tmp_path: Path, shared: str, match: str, message: str) -> None:
    assert message in mistake(tmp_path, shared, f"# M.\nM(x)\n\nmatch:  Y = {match}\nemit:   Y = M(x)\n")


def test_functions_that_grow_without_end_are_refused(tmp_path: Path) -> None:
    twice = "# T.\ntwice(x)\n\nis:     Max(x, x, x, x)\n"
    call = "x"
    for _ in range(30):
        call = f"twice({call})"
    assert "steps with all functions written out" in mistake(
        tmp_path, twice, f"# M.\nM(x)\n\nmatch:  Y = {call}\nemit:   Y = M(x)\n"
    )


# ------------------------------------------------------------------------------------------------ forms


def test_or_parts_forms_and_a_name_of_one_is_left_out_in_the_other(tmp_path: Path) -> None:
    text = "# F.\nF(x, m)\n\nmatch:  Y = Cos(x) * 3  or  Cos(x) * m\nwhere:  not given(m)\nemit:   Y = F(x, m)\n"
    catalogue = load(tmp_path, text)
    rule = catalogue.rules[-1]
    assert len(rule.blocks) == 2
    assert [sorted(v.dropped) for v in variants(rule)] == [["m"], []]
    many = "".join(f"    y{i} = Cos(x) or Sin(x)\n" for i in range(7))
    many = f"# F.\nF(x)\n\nmatch:\n{many}    Y = y0\nemit:   Y = F(x)\n"
    assert "more than 64 ways" in mistake(
        tmp_path,
        "# F.\nF(x)\n\nmatch:\n"
        + "".join(f"    y{i} = Cos(x) or Sin(x)\n" for i in range(7))
        + "    Y = y0\nemit:   Y = F(x)\n",
    )


def test_an_activation_with_parameters(tmp_path: Path) -> None:
    text = (
        "# A product and what follows.\nAct(A, B, *, act: Relu | LeakyRelu(alpha=slope) | Clip(low, high))\n\n"
        "match:  Y = act(MatMul(A, B))\nemit:   Y = Act(A, B, kind=act, values=act_params)\n"
    )
    rule = own(tmp_path, text)
    found = {v.operators["act"]: v.values for v in variants(rule)}
    assert found == {
        "Relu": {"act_params": ()},
        "LeakyRelu": {"act_params": ("slope",)},
        "Clip": {"act_params": ("low", "high")},
    }
    emitted = text.replace("Act(A, B, kind=act, values=act_params)", "act(MatMul(A, B))")
    assert "stands in `match:` alone" in mistake(tmp_path, emitted)


def test_rules_in_one_file_are_parted_by_dashes(tmp_path: Path) -> None:
    one = "# {0}.\n{0}(x)\n\nmatch:  Y = x * {1}(x)\nemit:   Y = {0}(x)\ntest:   x=[2,3]\n"
    catalogue = load(tmp_path, one.format("First", "Cos") + "\n---\n" + one.format("Second", "Sin"))
    first, second = catalogue.rules[-2:]
    assert (first.name, second.name, second.doc) == ("First", "Second", "Second.")
    assert second.text == one.format("Second", "Sin")
    assert second.blocks[0][0].lineno == 12
    assert all(o.passed for rule in (first, second) for o in rule_test.check(rule, catalogue))


def where(*operands: str) -> ModelProto:
    """The cosine of Where, m, x and -7 its operands in some order."""
    nodes = [helper.make_node("Where", operands, ["w"]), helper.make_node("Cos", ["w"], ["y"])]
    values = [helper.make_tensor_value_info(n, t, [4]) for n, t in (("m", TensorProto.BOOL), ("x", TensorProto.FLOAT))]
    seven = numpy_helper.from_array(np.float32(-7), "seven")
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])], [seven])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize("operands", [("m", "x", "seven"), ("m", "seven", "x")])
def test_a_where_may_be_turned_around(tmp_path: Path, operands: tuple[str, ...]) -> None:
    """Where(Not(m), b, a) is Where(m, a, b): one `match:` finds both."""
    text = "# H.\nHidden(x, m: bool, *, low)\n\nmatch:  Y = Cos(Where(m, x, low))\nemit:   Y = Hidden(x, m, low=low)\n"
    text += "test:   x=[4]; m=[4]; low=-7\n"
    catalogue = load(tmp_path, text)
    ops = [family_of(node) for node in fuse(where(*operands), catalogue).model.graph.node]
    assert ops == (["Hidden"] if operands[1] == "x" else ["Not", "Hidden"])
    assert all(o.passed for o in rule_test.check(catalogue.rules[-1], catalogue))
