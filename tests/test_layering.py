"""The modules import downward only, and what is heavy is imported only where it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import onnxfuse

PACKAGE = Path(onnxfuse.__file__).parent
MODULES = {path.stem: ast.parse(path.read_text()) for path in sorted(PACKAGE.glob("*.py"))}

BELOW = {
    "cli": {"pipeline", "demands", "display", "rule_test", "files", "paths", "validate"},
    "pipeline": {"prove", "validate", "records", "rewrite", "search", "lift"},
    "prove": {"validate", "records", "rewrite"},
    "rewrite": {"spell", "provenance", "search", "match", "lift", "bodies"},
    "plan": {"match", "cost"},
    "search": {"plan", "match", "lift"},
    "match": {"language", "equations", "normal", "pattern"},
    "lift": {"normal", "terms", "graph"},
    "normal": {"terms", "infer", "symbolic"},
}
"""Layers from the top: a module may import those below it, which must never import it back."""

USERS = {
    "click": {"cli"},
    "rich": {"cli", "display"},
    "onnxruntime": {"validate"},
    "onnx_graphsurgeon": {"sources"},
}
"""The only modules that may import these packages, be it inside a function."""

CHEAP = {"__init__", "cli", "errors", "records", "paths"}
"""What `onnxfuse --help` loads: no onnx, no numpy at module level."""


def imports(tree: ast.AST, *, everywhere: bool) -> Iterator[str]:
    """Full names of imported modules: `onnxfuse.x` for `.x`; with `everywhere` also inside functions.

    What is imported for type checkers alone is left out.
    """
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=None | "onnxfuse"):
                yield from (f"onnxfuse.{alias.name}" for alias in node.names)
            case ast.ImportFrom(module=str(module), level=level):
                yield f"onnxfuse.{module}" if level else module
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for other in node.orelse:
                    yield from imports(other, everywhere=everywhere)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() if not everywhere:
                pass
            case _:
                yield from imports(node, everywhere=everywhere)


def own(name: str) -> set[str]:
    """The modules of the package that a module imports when it is loaded."""
    found = {module.removeprefix("onnxfuse.").split(".")[0] for module in imports(MODULES[name], everywhere=False)}
    return found & MODULES.keys()


def closure(name: str) -> set[str]:
    """All modules of the package that are loaded with this one."""
    seen: set[str] = set()
    pending = [name]
    while pending:
        for module in own(pending.pop()) - seen:
            seen.add(module)
            pending.append(module)
    return seen


def test_every_module_is_looked_at() -> None:
    assert {"cli", "pipeline", "match", "rewrite", "validate", "terms"} <= MODULES.keys()
    assert own("match") >= {"language", "terms"}
    assert own("cli") == own("cli") & CHEAP


@pytest.mark.parametrize("name", MODULES)
def test_no_module_imports_itself_by_way_of_others(name: str) -> None:
    assert name not in closure(name)


@pytest.mark.parametrize("name", BELOW)
def test_imports_go_downward(name: str) -> None:
    assert BELOW[name] <= MODULES.keys()
    assert [below for below in sorted(BELOW[name]) if name in closure(below)] == []


@pytest.mark.parametrize("package", USERS)
def test_a_package_is_used_where_it_belongs(package: str) -> None:
    users = {
        name
        for name, tree in MODULES.items()
        if any(module.split(".")[0] == package for module in imports(tree, everywhere=True))
    }
    assert users <= USERS[package]


@pytest.mark.parametrize("name", sorted(CHEAP))
def test_a_cheap_module_imports_nothing_heavy(name: str) -> None:
    loaded = {module.split(".")[0] for module in imports(MODULES[name], everywhere=False)}
    assert not loaded & {"onnx", "numpy", "onnxruntime", "rich", "ml_dtypes"}
    assert closure(name) <= CHEAP


def test_the_command_line_is_loaded_without_onnx_and_numpy() -> None:
    code = "import sys, onnxfuse.cli; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "click" in loaded
    assert not loaded & {"onnx", "numpy", "onnxruntime", "google", "rich", "ml_dtypes"}
