"""The modules import downward only, and what is heavy is imported only where it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

import onnxfuse

PACKAGE = Path(onnxfuse.__file__).parent


def module_name(path: Path) -> str:
    """`runtime.session` for onnxfuse/runtime/session.py, `runtime` for its __init__.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
MODULES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}

BELOW = {
    "cli": {"commands.optimize", "commands.run", "commands.options", "errors"},
    "commands.optimize": {"commands.options", "pipeline", "display", "files"},
    "commands.bench": {"commands.options", "bench", "tables"},
    "tables": {"bench", "numerics"},
    "bench": {"execution", "interleaved", "runtime.quiet"},
    "execution": {"inputs", "runtime.quiet"},
    "pipeline": {"pays", "limited", "prove", "validate", "records", "rewrite", "search", "lift"},
    "limited": {"prove", "isolation"},
    "isolation": {"processes"},
    "prove": {"validate", "site_proof", "records", "rewrite"},
    "site_proof": {"sites", "float64", "numerics", "input_values", "runtime.quiet"},
    "inputs": {"input_values", "input_sizes", "usage"},
    "input_values": {"input_sizes"},
    "input_sizes": {"usage"},
    "pays": {"estimate", "records", "provenance"},
    "validate": {"runtime.quiet", "inputs", "float64", "numerics"},
    "runtime.quiet": {"runtime.session", "runtime.served", "runtime.installed"},
    "runtime.session": {"runtime.registration", "runtime.served", "kernels.emulated"},
    "runtime.registration": {"runtime.custom_op", "runtime.library", "runtime.abi"},
    "runtime.custom_op": {"runtime.attributes", "runtime.abi", "kernels.kernel", "kernels.device"},
    "runtime.served": {"kernels", "graph"},
    "kernels.emulated": {"kernels.device", "errors"},
    "rewrite": {"spell", "provenance", "search", "match", "lift", "bodies"},
    "plan": {"match", "cost"},
    "search": {"plan", "match", "lift"},
    "match": {"language", "equations", "normal", "pattern"},
    "lift": {"normal", "terms", "graph"},
    "normal": {"terms", "infer", "symbolic"},
}
"""Layers from the top: a module may import those below it, which must never import it back."""

USERS = {
    "click": {"cli", "commands.*"},
    "rich": {"cli", "display", "tables"},
    "onnxruntime": {"runtime.*"},
    "cupy": {"kernels.*"},
    "cuda": {"kernels.*"},
    "onnx_graphsurgeon": {"sources"},
}
"""The only modules that may import these packages, be it inside a function."""

CHEAP = {"__init__", "__main__", "cli", "processes", "errors", "records", "paths", "commands"} | {
    name for name in MODULES if name.startswith("commands.")
}
"""What `onnxfuse --help` loads: no onnx, no numpy at module level."""


def imports(name: str, tree: ast.AST, *, everywhere: bool) -> Iterator[str]:
    """Full names of what a module imports: `onnxfuse.x` for `.x`; with `everywhere` also inside functions.

    What is imported for type checkers alone is left out.
    """
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=module, level=level):
                package = ["onnxfuse", *name.split(".")]
                if FILES[name].name != "__init__.py" or name == "__init__":
                    package.pop()
                base = [*package[: len(package) - level + 1], *filter(None, [module])] if level else [str(module)]
                yield ".".join(base)
                # What a package is asked for may be a module of it.
                yield from (".".join([*base, alias.name]) for alias in node.names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for other in node.orelse:
                    yield from imports(name, other, everywhere=everywhere)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() if not everywhere:
                pass
            case _:
                yield from imports(name, node, everywhere=everywhere)


def own(name: str, *, everywhere: bool = False) -> set[str]:
    """The modules of the package that a module imports when it is loaded, without the packages around it."""
    found = {
        module.removeprefix("onnxfuse.")
        for module in imports(name, MODULES[name], everywhere=everywhere)
        if module.startswith("onnxfuse.")
    }
    around = {name[:at] for at, character in enumerate(name) if character == "."}
    return (found & MODULES.keys()) - around


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
    assert {"cli", "pipeline", "match", "runtime.session", "kernels.device", "kernels.emulator.build"} <= MODULES.keys()
    assert own("match") >= {"language", "terms"}
    assert own("runtime.session") >= {"runtime.registration", "runtime.custom_op", "errors"}
    assert own("kernels.emulated") >= {"kernels.device", "kernels.emulator.build", "errors"}
    assert own("runtime.quiet", everywhere=True) >= {"runtime.session"}
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
        if any(module.split(".")[0] == package for module in imports(name, tree, everywhere=True))
    }
    assert {name for name in users if not any(fnmatch(name, allowed) for allowed in USERS[package])} == set()


def test_cupy_is_imported_only_where_it_is_needed() -> None:
    for name, tree in MODULES.items():
        assert "cupy" not in {module.split(".")[0] for module in imports(name, tree, everywhere=False)}, name


@pytest.mark.parametrize("name", sorted(CHEAP))
def test_a_cheap_module_imports_nothing_heavy(name: str) -> None:
    loaded = {module.split(".")[0] for module in imports(name, MODULES[name], everywhere=False)}
    assert not loaded & {"onnx", "numpy", "onnxruntime", "rich", "ml_dtypes"}
    assert closure(name) <= CHEAP


def test_the_command_line_is_loaded_without_onnx_and_numpy() -> None:
    code = "import sys, onnxfuse.cli; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "click" in loaded
    assert not loaded & {"onnx", "numpy", "onnxruntime", "google", "rich", "ml_dtypes"}
