"""What a command postpones is there when it is asked for, and other processes know nothing of it."""

from __future__ import annotations

import subprocess
import sys

from onnxfuse.cli.postponed import POSTPONED


def run(code: str) -> list[str]:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.split()


def test_nothing_is_executed_that_nobody_asks_for() -> None:
    code = (
        "import sys; from onnxfuse.cli.postponed import POSTPONED, postpone\n"
        "before = set(sys.modules); postpone(); import click, onnx, numpy\n"  # an editable install imports some itself
        "print(*(name for name in POSTPONED - before if type(sys.modules.get(name)).__name__ == 'module'))"
    )
    assert run(code) == []


def test_what_is_asked_for_is_there() -> None:
    """Also what it is that postponed modules import of each other."""
    code = (
        "from importlib import import_module; from onnxfuse.cli.postponed import POSTPONED, postpone; postpone()\n"
        "import onnx, numpy\n"
        "print(*(name for name in POSTPONED if len(dir(import_module(name))) > 5))\n"
        "graph = onnx.parser.parse_model('<ir_version: 9, opset_import: [\"\": 18]> g (float[n] x) => (float[n] y)'\n"
        "    ' { y = Abs(x) }')\n"
        "assert 'Abs' in onnx.printer.to_text(graph)\n"
        "assert onnx.compose.add_prefix(graph, 'a').graph.input[0].name == 'ax'\n"
        "text = onnx.serialization.registry.get('textproto').serialize_proto(graph)\n"
        "assert onnx.load_model_from_string(text, 'textproto') == graph"
    )
    assert set(run(code)) == POSTPONED


def test_other_processes_have_every_module_as_it_is() -> None:
    code = (
        "import sys, onnxfuse.cli.main, onnxfuse.pipeline; from onnxfuse.cli.postponed import POSTPONED\n"
        "print(*(name for name in POSTPONED if type(sys.modules.get(name)).__name__ == '_LazyModule'))"
    )
    assert run(code) == []
