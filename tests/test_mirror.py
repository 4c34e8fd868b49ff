"""The tests stand where the modules stand: rooms of tests/ are those of the package, and each module has its file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import onnxfuse

PACKAGE, TESTS = Path(onnxfuse.__file__).parent, Path(__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py"
}
BESIDE = {"benchmarks", "spellings", "transforms", "whole"}
"""Folders of tests/ that are no rooms: what is measured, what models are made with, and models from end to end."""
MOST_LINES = 400

WITH_OTHERS = {
    # Steps on one way, from a model to a few blocks of it and back, each of which takes what the one before has found.
    "fusing/repeats/test_once.py": (
        "fusing.repeats.alike fusing.repeats.few fusing.repeats.moves fusing.repeats.notes fusing.repeats.told "
        "fusing.repeats.whole fusing.source"
    ),
    # Three lines that call the command line.
    "cli/test_main.py": "__main__",
    # Text of kernels, which says little unless it is compiled and run on arrays.
    "kernels/attention/test_attention_kernel.py": "kernels.attention.source",
    "kernels/gemm/test_gemm_kernel.py": "kernels.gemm.source",
    "kernels/rows/test_row_kernels.py": "kernels.rows.launch",
    # Lists of what NVRTC is asked about: that it compiles is all that they are for.
    "kernels/inspect/test_nvrtc.py": (
        "kernels.attention.samples kernels.gemm.samples kernels.pointwise.samples kernels.rows.samples"
    ),
    # Launches that are counted, and nothing else.
    "kernels/inspect/test_traffic.py": "kernels.inspect.cases",
    # Casts are what a conversion writes.
    "precision/test_convert.py": "precision.casts",
    # What the remedies of the proof share: models that are tried, and what is known of them.
    "proof/test_namesakes.py": "rewriting.dims_apart",
    "proof/test_prove.py": "proof.comparison",
    # What `optimize` is made of, seen from where users call it.
    "whole/test_api.py": "pipeline",
    # A rule that finds its place, and what is written there: neither is anything without the other.
    "whole/test_fusion.py": "fusing.fuse matching.search rewriting.realize",
}
"""Where modules are tested that have no file of their own, and why there."""

DATA = set(
    """derivatives.operators fusing.fused kernels.device.kernel kernels.device.types language.context proof.claim
    reporting.conversion reporting.held targets.contrib""".split()
)
"""Modules without logic: constants, plain dataclasses, a Protocol."""


def own(name: str) -> list[Path]:
    """The test files of a module."""
    *rooms, module = name.split(".")
    folder = TESTS.joinpath(*rooms)
    return [*folder.glob(f"test_{module}.py"), *folder.glob(f"test_{module}_*.py")]


def test_every_module_has_its_test_file() -> None:
    elsewhere = {name for names in WITH_OTHERS.values() for name in names.split()}
    assert {name for name in MODULES if not own(name)} == elsewhere | DATA


def test_no_module_stands_twice() -> None:
    names = [name for names in WITH_OTHERS.values() for name in names.split()]
    assert sorted(names) == sorted(set(names) - DATA)


@pytest.mark.parametrize("path", WITH_OTHERS)
def test_what_tests_others_has_tests(path: str) -> None:
    functions = [node for node in ast.parse((TESTS / path).read_text()).body if isinstance(node, ast.FunctionDef)]
    assert any(function.name.startswith("test_") for function in functions)


@pytest.mark.parametrize("name", sorted(DATA))
def test_data_has_no_logic(name: str) -> None:
    """Functions in it are of a Protocol, or properties of one expression."""
    tree = ast.parse(MODULES[name].read_text())
    typed = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    logic = ast.If | ast.IfExp | ast.For | ast.While | ast.Try | ast.Match
    assert not [node for node in ast.walk(tree) if isinstance(node, logic) and node not in typed]
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        assert not [s for s in function.body if not isinstance(s, ast.Expr | ast.Return)]


def test_rooms_of_tests_are_rooms_of_the_package() -> None:
    rooms = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    assert {str(room) for room in rooms if room.parts and room.parts[0] not in BESIDE} <= {
        str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")
    }


def test_no_file_of_tests_is_long() -> None:
    long = {
        str(path.relative_to(TESTS)) for path in TESTS.rglob("*.py") if len(path.read_text().splitlines()) > MOST_LINES
    }
    assert long == set()
