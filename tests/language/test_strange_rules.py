"""Rules from strangers: what is too large, does not end or makes no sense is one complaint with the file's name."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse.cli.main import main
from onnxfuse.errors import RuleError
from onnxfuse.language.catalogue import load
from onnxfuse.language.parse import LARGEST
from onnxfuse.language.variants import variants

Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("lenient")

FOUR = "(Sigmoid(X)|Tanh(X)|Relu(X)|Exp(X))"
NAMES = [f"a{i}" for i in range(20)]


def rule(match: str, emit: str = "Zig(X)", *, head: str = "Zig(X)", more: str = "") -> str:
    return f"# t\n{head}\n\nmatch:\n    Y = {match}\n{more}\nemit:   Y = {emit}\ntest:   X=[2,7,64]\n"


def doubled(name: str, step: str, count: int = 40) -> str:
    """Equations each of which has the one before twice."""
    lines = [f"{name}0 = {step.format('X')}"]
    lines += [f"{name}{i + 1} = {step.format(f'{name}{i}')}" for i in range(count)]
    return "\n    ".join(lines)


REFUSED: dict[str, tuple[str, str]] = {
    "spellings": (rule(" * ".join([FOUR] * 14)), "x.rule:5:5: more than 2,000 ways to write it"),
    "options": (
        rule(
            "X*Sigmoid(X)*" + "*".join(NAMES),
            f"Zig(X,{','.join(NAMES)})",
            head=f"Zig(X,{','.join(f'{n}=1' for n in NAMES)})",
        ),
        "x.rule:5:5: more than 2,000 ways to write it",
    ),
    "steps": (
        rule("X").replace("Y = X\n", doubled("v", "Max({0}, Relu({0}))") + "\n    Y = Cos(v40)\n"),
        "a pattern of more than 2,000 steps",
    ),
    "powers": (
        rule("X").replace("Y = X\n", doubled("v", "{0}**4") + "\n    Y = Cos(v40)\n"),
        "a pattern of more than 2,000 steps",
    ),
    "depth of a pattern": (
        rule("X").replace("Y = X\n", doubled("v", "Cos({0})", 300) + "\n    Y = Cos(v300)\n"),
        "or of 200 one below the other",
    ),
    "parentheses": (rule("X * " + "(" * 300 + "X" + ")" * 300), "too many nested parentheses"),
    "calls": (
        rule("Cos(" * 150 + "X" + ")" * 150),
        "x.rule:5:",
    ),
    "signs": (rule("-" * 20_000 + "X"), "x.rule:"),
    "sums": (rule("+".join(["X"] * 500)), "more than 100 expressions inside one another"),
    "head": (rule("Cos(X)", head="Zig(X, a=" + "[" * 150 + "]" * 150 + ")"), "x.rule:2:"),
    "digits": (rule("X + " + "9" * 6000), "x.rule:5:"),
    "size": (rule("Cos(X)") + "# \n" * LARGEST, f"and a rule {LARGEST:,} at most"),
    "arguments": (rule("X * Sigmoid(X)", more="where:\n    rank() == dim(X)\n"), "x.rule:7:5: it is rank(x)"),
    "again": (
        rule("Relu(X)", "Relu(Neg(Relu(Neg(X))))", more="cost: lowering"),
        "rewriting does not end: it applies to what comes of it",
    ),
}

HARMLESS: dict[str, str] = {
    "what it replaces": rule("Sigmoid(X)", "Sigmoid(Sigmoid(X))"),
    "power": rule("X * Sigmoid(X)", more="where:\n    9**9**9 > 1\n"),
    "product": rule("X * Sigmoid(X)", more="where:\n    " + "*".join(["9**1000"] * 30) + " > 1\n"),
    "list": rule("X * Sigmoid(X)", more="where:\n    len([1] * 9999999999) > 1\n"),
    "lists": rule("X * Sigmoid(X)", more=f"let:\n    {doubled('l', '[{0}]+[{0}]')}\nwhere:\n    len(l40) > 1\n"),
    "polynomials": rule(
        "X * Sigmoid(X)",
        more=f"let:\n    d = dim(X, 0) + dim(X, 1)\n    {doubled('p', '{0}*d', 9)}\nwhere:\n    p9 > 1\n",
    ),
    "no number": rule("X * Sigmoid(X)", more="where:\n    len(5) > 1\n"),
    "division": rule("X * Sigmoid(X)", more="where:\n    1.0 / 0.0 > 1\n"),
    "index": rule("X * Sigmoid(X)", more="where:\n    shape(X)[99] > 1\n"),
    "axis": rule("X * Sigmoid(X)", "Transpose(X, perm=[7, 8, 9])"),
    "attribute": rule("X * Sigmoid(X)", "Zig(X, axis=shape(X))"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    text = '<ir_version: 9, opset_import: ["": 18]> g (float[b, 8] x) => (float[b, 8] y) '
    text += "{ s = Sigmoid (x) w = Mul (x, s) r = Relu (w) t = Tanh (r) y = Add (t, x) }"
    onnx.save(onnx.parser.parse_model(text), "m.onnx")
    Path("rules").mkdir()
    return tmp_path


@pytest.mark.parametrize("command", [["optimize", "m.onnx"], ["report", "m.onnx"], ["rules", "test", "Zig"]])
@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_end_is_said_with_its_file(what: str, command: list[str], folder: Path, capsys: Capture) -> None:
    text, message = REFUSED[what]
    Path("rules/x.rule").write_text(text)
    assert main([*command, "--rules", "rules"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "x.rule" in err.splitlines()[0]
    assert "Traceback" not in err
    assert sorted(path.name for path in folder.iterdir()) == ["m.onnx", "rules"]


@pytest.mark.parametrize("shape", ["[99999, 99999]", "[-1]", "['a']", "{'a': 1}", "2.5"])
def test_a_shape_to_test_with_that_is_none(shape: str, folder: Path, capsys: Capture) -> None:
    Path("rules/x.rule").write_text(rule("X * Cos(X)").replace("[2,7,64]", shape))
    assert main(["rules", "test", "Zig", "--rules", "rules"]) == 2
    assert "x.rule:8:" in (err := capsys.readouterr().err)
    assert "X cannot have the shape" in err


def test_a_rule_that_makes_no_model_cannot_be_tested(folder: Path, capsys: Capture) -> None:
    Path("rules/x.rule").write_text(rule("Cos(X, X, X)"))
    assert main(["rules", "test", "Zig", "--rules", "rules"]) == 1
    assert "FAILED Zig (x.rule): can be tested: plain: " in capsys.readouterr().out


@pytest.mark.parametrize("what", HARMLESS)
def test_what_makes_no_sense_does_not_match(what: str, folder: Path, capsys: Capture) -> None:
    Path("rules/x.rule").write_text(HARMLESS[what])
    assert main(["optimize", "m.onnx", "--rules", "rules"]) == 0
    assert "same numbers" in capsys.readouterr().out
    assert main(["report", "m.onnx", "--rules", "rules", "--why", "Zig"]) == 0
    assert main(["rules", "test", "Zig", "--rules", "rules"]) == 1


@pytest.mark.parametrize("emit", ["X", "Squeeze(X, axes=[9])"])
def test_a_guilty_rule_that_leaves_no_node_is_left_out_and_named(emit: str, folder: Path, capsys: Capture) -> None:
    Path("rules/x.rule").write_text(rule("X + Tanh(X)", emit).replace("Zig", "Zag"))
    text = '<ir_version: 9, opset_import: ["": 18]> g (float[b, 8] x) => (float[b, 8] y) '
    text += "{ a = Relu (x) c = Tanh (a) d = Add (a, c) s = Sigmoid (d) y = Mul (d, s) }"
    onnx.save(onnx.parser.parse_model(text), "m.onnx")
    assert main(["optimize", "m.onnx", "--rules", "rules", "-O1"]) == 0
    out = capsys.readouterr().out
    assert "left out: Zag at d: output 'y' differs" in out
    assert "same numbers" in out
    left_out = onnxfuse.optimize(onnx.load("m.onnx"), rules=[Path("rules")]).report.left_out
    assert left_out[-1].fusion.rule == "Zag"
    nodes = [node.op_type for node in onnx.load("m.fused.onnx").graph.node]
    assert nodes[:3] == ["Relu", "Tanh", "Add"]


def test_shipped_rules_are_far_from_the_limits() -> None:
    rules = [rule for rule in load() if rule.blocks]
    assert max(len(variants(rule)) for rule in rules) < 500
    assert max(len(rule.text) for rule in rules) < LARGEST / 8


def test_a_complaint_about_a_rule_survives_a_process() -> None:
    error = RuleError("what", "x.rule", 3, 5, "    Y = X", "hint")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.file, again.line, again.column) == (str(error), "x.rule", 3, 5)


def test_a_folder_or_a_pipe_is_no_rule(folder: Path, capsys: Capture) -> None:
    Path("rules/x.rule").mkdir()
    assert main(["rules", "list", "--rules", "rules"]) == 2
    assert "x.rule is not a file: a rule is a text file" in capsys.readouterr().err


def test_alternatives_are_one_step_however_many() -> None:
    """A chain of `|` nests to the left in Python's grammar."""
    from onnxfuse.language.rule import alternatives

    chain = ast.parse(" | ".join(f"a{i}" for i in range(200)), mode="eval").body
    assert [ast.unparse(node) for node in alternatives(chain)] == [f"a{i}" for i in range(200)]
