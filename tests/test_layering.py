"""Rooms and modules import downward only, and what is heavy is imported only where it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
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

ORDER = """
    __main__ cli __init__ pipeline performance proof precision fusing regions training reporting rewriting matching
    lifting runtime kernels kernels.attention kernels.gemm kernels.rows kernels.pointwise
    kernels.inspect kernels.emulator kernels.device
    language derivatives terms.analysis terms.normal terms targets model system errors
""".split()
"""The rooms from the top, and the modules that are in none: each imports those that come after it alone."""

USERS = {
    "click": {"cli.main", "cli.commands.*"},
    "rich": {"cli.*"},
    "onnxruntime": {"runtime.*"},
    "cupy": {"kernels.*"},
    "cuda": {"kernels.*"},
    "ray": {"system.fleet"},
    "onnx_graphsurgeon": {"model.sources"},
}
"""The only modules that may import these packages, be it inside a function."""

LONGEST_MODULE, LONGEST_FUNCTION = 400, 60
"""In lines; those of a function are counted without its decorators and its docstring, which are what users read."""

CHEAP = {
    *("__init__", "__main__", "cli", "cli.main", "cli.paths", "cli.postponed", "errors"),
    *("reporting", "reporting.conversion", "reporting.held", "reporting.phrases", "reporting.records"),
    *("system", "system.processes"),
    *(name for name in MODULES if name.startswith("cli.commands")),
}
"""What `onnxfuse --help` loads: no onnx, no numpy at module level."""


def imports(name: str, tree: ast.AST, *, everywhere: bool, typed: bool = False) -> Iterator[str]:
    """Full names of what a module imports: `onnxfuse.x` for `.x`; with `everywhere` also inside functions.

    What is imported for type checkers alone is left out, unless it is wanted `typed`.
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
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) if not typed:
                for other in node.orelse:
                    yield from imports(name, other, everywhere=everywhere)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() if not everywhere:
                pass
            case _:
                yield from imports(name, node, everywhere=everywhere, typed=typed)


@cache
def roots(name: str) -> set[str]:
    """The packages that a module imports, be it inside a function."""
    return {module.split(".")[0] for module in imports(name, MODULES[name], everywhere=True)}


@cache
def own(name: str, *, everywhere: bool = False, typed: bool = False) -> set[str]:
    """The modules of the package that a module imports, without the packages around it."""
    found = {
        module.removeprefix("onnxfuse.")
        for module in imports(name, MODULES[name], everywhere=everywhere, typed=typed)
        if module.startswith("onnxfuse.")
    }
    around = {name[:at] for at, character in enumerate(name) if character == "."}
    return (found & MODULES.keys()) - around


def closure(name: str, *, everywhere: bool = False) -> set[str]:
    """All modules of the package that are loaded with this one; `everywhere`, or later."""
    seen: set[str] = set()
    pending = [name]
    while pending:
        for module in own(pending.pop(), everywhere=everywhere) - seen:
            seen.add(module)
            pending.append(module)
    return seen


def level(name: str) -> int:
    """Where the room of a module stands in the order."""
    while name and name not in ORDER:
        name = name.rpartition(".")[0]
    return ORDER.index(name)


def test_every_module_is_looked_at() -> None:
    assert {"cli.main", "pipeline", "matching.match", "kernels.device.device", "kernels"} <= MODULES.keys()
    assert own("matching.match") >= {"language.catalogue", "terms.term"}
    assert own("runtime.session") >= {"runtime.registration", "runtime.custom_op", "errors"}
    assert own("kernels.emulator.device") >= {"kernels.device.device", "kernels.emulator.library", "errors"}
    assert own("runtime.quiet", everywhere=True) >= {"runtime.session"}
    assert own("proof.prove", typed=True) >= {"fusing.fused"}
    assert own("cli.main") == own("cli.main") & CHEAP


def test_the_top_of_the_package_is_small() -> None:
    assert len([path for path in FILES.values() if path.parent == PACKAGE]) <= 6


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without its decorators and its docstring."""
    first = function.body[0]
    told = ast.get_docstring(function, clean=False) is not None
    return (function.end_lineno or 0) - function.lineno + 1 - told * ((first.end_lineno or 0) - first.lineno + 1)


def test_modules_are_short() -> None:
    longer = {name for name, path in FILES.items() if len(path.read_text().splitlines()) > LONGEST_MODULE}
    assert longer == set()


def test_functions_are_short() -> None:
    longer = {
        f"{name}.{node.name}"
        for name, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and lines(node) > LONGEST_FUNCTION
    }
    assert longer == set()


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert [name for name in MODULES if name in closure(name, everywhere=True)] == []


def test_imports_go_downward() -> None:
    pairs = [(name, other) for name in MODULES for other in own(name, everywhere=True, typed=True)]
    assert [(name, other) for name, other in pairs if level(other) < level(name)] == []


@pytest.mark.parametrize("package", USERS)
def test_a_package_is_used_where_it_belongs(package: str) -> None:
    users = {name for name in MODULES if package in roots(name)}
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
    code = "import sys, onnxfuse.cli.main; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "click" in loaded
    assert not loaded & {"onnx", "numpy", "onnxruntime", "google", "rich", "ml_dtypes"}


UNASKED = {
    *("onnxruntime", "cupy", "tomllib", "multiprocessing", "rich.progress"),
    *("onnxfuse.proof.prove", "onnxfuse.proof.timed", "onnxfuse.performance.estimate", "onnxfuse.kernels.emulator"),
    *("onnxfuse.precision.convert", "onnxfuse.reporting.html", "onnxfuse.cli.commands.check", "onnxfuse.cli.tables"),
}
"""What a report has no use for."""


def test_a_report_loads_what_it_needs(tmp_path: Path) -> None:
    code = (
        "import sys; from onnxfuse.cli.main import main\n"
        f"assert main(['report', {str(PACKAGE.parent / 'models' / 'llama.ts.onnx')!r}]) == 0\n"
        "print('loaded', *sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    loaded = set(result.stdout.rpartition("loaded ")[2].split())
    assert loaded >= {"onnx", "rich.console", "onnxfuse.cli.commands.report"}
    assert not loaded & UNASKED
