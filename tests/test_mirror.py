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
    "cli/test_main.py": "__main__ cli.commands.options",
    "kernels/attention/test_attention_kernel.py": "kernels.attention.sizes",
    "kernels/attention/test_plan.py": "kernels.attention.source",
    "kernels/device/test_cuda.py": "kernels.device.device kernels.device.kernel",
    "kernels/device/test_cublaslt.py": "kernels.device.host_products",
    "kernels/gemm/test_gemm_kernel.py": "kernels.device.products kernels.gemm.plan kernels.gemm.source",
    "kernels/device/test_replay.py": "kernels.device.recorder",
    "kernels/emulator/test_device.py": "kernels.emulator.library kernels.emulator.memory kernels.device.access",
    "kernels/inspect/test_nvrtc.py": (
        "kernels.attention.samples kernels.gemm.samples kernels.pointwise.samples kernels.rows.samples"
    ),
    "kernels/gemm/test_gemm_splits.py": "kernels.gemm.tiles",
    "performance/test_estimate.py": "kernels.inspect.launches",
    "kernels/pointwise/test_pointwise.py": (
        "kernels.pointwise.device_function kernels.pointwise.loops"
        " kernels.pointwise.expressions.elementwise kernels.pointwise.expressions.source"
    ),
    "kernels/pointwise/test_pointwise_random.py": (
        "kernels.pointwise.expressions.index kernels.pointwise.expressions.moves"
        " kernels.pointwise.expressions.scalars kernels.pointwise.expressions.trace"
        " kernels.pointwise.expressions.values"
    ),
    "kernels/rows/test_row_kernels.py": (
        "kernels.rows.arrangement kernels.rows.group_norm kernels.rows.launch kernels.rows.norm"
        " kernels.rows.softmax kernels.rows.source"
    ),
    "language/test_parse.py": "language.rule",
    "language/test_strange_rules.py": "language.evaluate",
    "rewriting/test_plan.py": "rewriting.available",
    "rewriting/test_shape_sources.py": "rewriting.shape_vectors",
    "rewriting/test_writer.py": "rewriting.assemble rewriting.operators rewriting.view_nodes",
    "cli/commands/test_run.py": "performance.execution",
    "proof/test_oracle_kernels.py": "proof.stand_in",
    "proof/test_float64.py": "proof.reference_ops",
    "targets/test_cuda_target.py": "targets.contrib targets.target",
    "terms/test_infer.py": "terms.infer_table",
    "terms/normal/test_laws.py": "terms.normal.__main__",
    "language/test_builtins.py": "language.registry",
    "matching/test_match.py": "language.context matching.binding",
    "proof/test_prove.py": "proof.claim proof.comparison",
    "whole/test_api.py": "pipeline",
    "whole/test_fusion.py": (
        "fusing.build fusing.fuse fusing.fused matching.index matching.instantiate matching.search"
        " matching.select rewriting.realize"
    ),
    "whole/test_nothing_lost.py": "matching.prefilter reporting.tell",
    "whole/test_rules.py": "language.bodies language.functions proof.rule_test",
}
"""Where modules are tested that have no file of their own: the tests of what they were made for."""

DATA = {"kernels.device.types"}
"""Modules of data alone."""


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
    tree = ast.parse(MODULES[name].read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.If | ast.While | ast.Try | ast.ClassDef)]


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
