"""What is raised on purpose is told apart by exit codes, and passes from one process to another as it is."""

from __future__ import annotations

import pickle

import pytest

from onnxfuse import errors

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.OnnxfuseError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_the_exit_code_says_what_happened(kind: type[errors.OnnxfuseError]) -> None:
    assert kind.exit_code == {"NumericsError": 3, "InternalError": 4}.get(kind.__name__, 2)
    assert errors.__doc__ is not None
    assert kind.__name__ in errors.__doc__


def test_a_mistake_in_a_rule_reads_like_a_compilers() -> None:
    error = errors.RuleError("no such op", "a.rule", 3, 5, "Y = Foo(X)\n", "did you mean Floor?")
    assert str(error) == "a.rule:3:5: no such op\n    Y = Foo(X)\n        ^\n    did you mean Floor?"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.file, again.line, again.column) == (str(error), "a.rule", 3, 5)
    assert str(errors.RuleError("empty", "a.rule", 1, 1, "\n")) == "a.rule:1:1: empty"
