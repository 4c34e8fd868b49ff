"""The functions that rules may call: what README says of them is what is registered."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from onnxfuse.language.builtins import BUILTINS
from onnxfuse.language.catalogue import load
from onnxfuse.language.rule import op_name

README = (Path(__file__).parents[2] / "rules" / "README.md").read_text()
TABLE = README.split("Functions of `let`, `where`, `emit` and attributes:")[1].split("\n\n")[1]


def forms() -> dict[str, list[ast.Call]]:
    """Function → the calls that README shows in the first column of its table."""
    found: dict[str, list[ast.Call]] = {}
    for row in TABLE.splitlines()[2:]:
        for code in re.findall(r"`([^`]+)`", row.split("|")[1]):
            call = ast.parse(code, mode="eval").body
            assert isinstance(call, ast.Call), code
            found.setdefault(op_name(call), []).append(call)
    return found


def test_readme_lists_all_functions_with_their_arguments() -> None:
    shown = forms()
    assert sorted(shown) == sorted(BUILTINS)
    for name, calls in shown.items():
        builtin = BUILTINS[name]
        assert [ast.unparse(call) for call in calls][-1] == builtin.form
        for call in calls[:-1]:
            assert builtin.takes(len(call.args)), ast.unparse(call)
            assert [ast.unparse(a) for a in call.args] == list(builtin.parameters[: len(call.args)])


def test_readme_says_what_a_meaning_may_call() -> None:
    sentence = re.search(r"Of these, `meaning:` and `standard:` may call (.*?):", README, re.DOTALL)
    assert sentence is not None
    assert set(re.findall(r"`(\w+)`", sentence[1])) == {b.name for b in BUILTINS.values() if b.meaning}


def test_every_function_says_what_it_is_and_serves_a_rule() -> None:
    called = {
        op_name(node)
        for rule in load()
        for e in (*rule.where, *(s.value for b in (rule.let, rule.emit, rule.meaning, *rule.blocks) for s in b))
        for node in ast.walk(e)
        if isinstance(node, ast.Call)
    }
    assert [b.name for b in BUILTINS.values() if not b.doc] == []
    assert set(BUILTINS) - called <= {"min"}, "abs, min and max go together"
