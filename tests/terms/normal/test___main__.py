"""The command that prints the laws."""

from __future__ import annotations

import runpy

import pytest

from onnxfuse.terms.normal.table import LAWS


def test_each_law_is_a_line_with_its_module_its_equation_and_its_ops(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("onnxfuse.terms.normal", run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(LAWS) > 50
    for line, law in zip(lines, LAWS, strict=True):
        assert law.equation in line
        assert line.split()[0] == law.rewrite.__module__.rpartition(".")[2]
        assert line.endswith(" ".join(law.ops))
