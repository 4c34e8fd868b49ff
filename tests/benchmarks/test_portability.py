"""Fused files in an older onnxruntime, and through graphsurgeon: right wherever the original is."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import environments, portability
from benchmarks.environments import Environment, UnavailableError
from benchmarks.portability import OPENERS, ORIGINAL, TARGETS, Case, Opener, Verdict, work
from onnxfuse.targets.target import Target
from tests import broken
from tests.fused_models import FusedModel

MODELS = Path(__file__).parents[2] / "models"
TAKEN = ["bert.ts", "llama.dynamo", "gpt2.ts", "resnet.dynamo", "t5_decoder.ts", "control_if", "function_layernorm"]
"""Of each kind one: attention with a mask, rotary, caches, convolutions, cross attention, bodies, local functions."""
OLDER = "onnxruntime 1.23"


@contextmanager
def kept(fused_model: FusedModel) -> Iterator[None]:
    """Files are what all tests have of these models, without proof: what they compute is what is compared."""

    def optimize(path: Path, output: Path, *, target: str) -> None:
        onnx.save(fused_model(path.name, Target(target)), output)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portability.onnxfuse, "optimize", optimize)
        yield


@pytest.fixture(scope="module")
def cases(fused_model: FusedModel, tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    folder = tmp_path_factory.mktemp("fused")
    with kept(fused_model):
        return [portability.prepare(MODELS / f"{name}.onnx", folder / name) for name in TAKEN]


def assert_all_right(cases: list[Case], opener: str, environment: Environment | None, folder: Path) -> None:
    for case in cases:
        place = folder / case.name
        place.mkdir()
        portability.examine(case, opener, environment, place, 60)
        said = {column: (v.verdict, v.error, v.reason) for column, v in case.verdicts[opener].items()}
        assert {verdict for verdict, _, _ in said.values()} == {"right"}, (case.name, said)


def test_fused_files_are_right_in_onnxruntime_1_23(cases: list[Case], tmp_path: Path) -> None:
    try:
        environment = environments.build(OPENERS[OLDER].packages)
    except UnavailableError as reason:
        pytest.skip(f"{OLDER} cannot be installed: {reason}")
    assert environment.versions["onnxruntime"].startswith("1.23.")
    assert_all_right(cases, OLDER, environment, tmp_path)


def test_a_padded_sample_is_right_in_onnxruntime_1_23(tmp_path: Path, fused_model: FusedModel) -> None:
    """Its ai.onnx Attention has NaN for a row in which every key is masked, and shares keys wrongly in float16."""
    names = ["bert.ts", "gpt2.ts", "llama_half.ts"]
    with kept(fused_model):
        cases = [portability.prepare(MODELS / f"{name}.onnx", tmp_path / name, pad=True) for name in names]
    try:
        environment = environments.build(OPENERS[OLDER].packages)
    except UnavailableError as reason:
        pytest.skip(f"{OLDER} cannot be installed: {reason}")
    (tmp_path / "opened").mkdir()
    assert_all_right(cases, OLDER, environment, tmp_path / "opened")


def test_fused_files_are_right_after_graphsurgeon(cases: list[Case], tmp_path: Path) -> None:
    assert_all_right(cases, "graphsurgeon", None, tmp_path)  # it is here: we depend on it


def test_a_wrong_and_a_refused_file_are_found(cases: list[Case], tmp_path: Path) -> None:
    """A fused file whose numbers are slightly off, and one that onnxruntime does not load."""
    case = cases[0]
    tampered = onnx.load(case.sources["onnxfuse"])
    weight = next(t for t in tampered.graph.initializer if len(t.dims) == 2)
    array = onnx.numpy_helper.to_array(weight).copy()
    array[:, 0] *= 1.5
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(tampered, tmp_path / "tampered.onnx")
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    sources = case.sources | {"onnxfuse": tmp_path / "tampered.onnx", "onnx": tmp_path / "junk.onnx"}
    other = Case("tampered", sources, case.inputs, case.expected)
    portability.examine(other, portability.INSTALLED, None, tmp_path, 60)
    assert [v.verdict for v in other.verdicts[portability.INSTALLED].values()] == ["right", "wrong", "refused", "right"]
    lines = list(portability.table([other], {"openvino": "no such version"}))
    assert lines[1].split()[1:] == "1 / 0 / 0 0 / 1 / 0 0 / 0 / 1 1 / 0 / 0".split()
    assert lines[2] == f"{'openvino':32}  not built: no such version"
    assert [line.split(": ")[2] for line in lines[3:]] == ["wrong", "refused"]


def test_what_crashes_or_hangs_costs_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import os, sys, time\n"
        "for line in sys.stdin:\n"
        "    if 'crash' in line: os.abort()\n"
        "    if 'hang' in line: time.sleep(60)\n"
        "    print('ok', flush=True)\n"
    )
    monkeypatch.setattr(portability, "WORKER", worker)
    jobs = [(Path(name), Path("x")) for name in ("good", "crash", "good", "hang", "good")]
    said = work(Opener("any"), None, tmp_path / "inputs.npz", jobs, 0.5)
    assert said == ["", "the process exits with -6", "", "takes longer than 0.5 s", ""]


def test_a_module_of_an_environment_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is imported: pip compiles none."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment, script = Environment(tmp_path / "packages"), tmp_path / "script.py"
    environment.folder.mkdir()
    (environment.folder / "part.py").touch()
    script.write_text("import part\n")
    subprocess.run(environment.command(script), env=environment.variables(), check=True)
    assert {path.suffix for path in environment.folder.rglob("part.*")} == {".py", ".pyc"}


def test_a_record_says_what_was_found() -> None:
    case = Case("m", {}, Path("i"), [], {"openvino": {ORIGINAL: Verdict("right", 1e-7)}})
    case.verdicts["openvino"] |= {target: Verdict("refused", None, "no") for target in TARGETS}
    told = portability.record([case], {"versions": {}, "missing": {}})
    assert told["models"]["m"]["openvino"][ORIGINAL] == {"verdict": "right", "error": 1e-7}
    assert told["models"]["m"]["openvino"]["ort"] == {"verdict": "refused", "error": None, "reason": "no"}


def test_inputs_beside_a_model_are_fed(tmp_path: Path) -> None:
    onnx.save(broken.good(), tmp_path / "m.onnx")
    np.savez(tmp_path / "m.npz", **{"in:x": np.ones((2, 8), np.float32), "out:y": np.zeros(1)})
    case = portability.prepare(tmp_path / "m.onnx", tmp_path / "m")
    np.testing.assert_array_equal(case.expected[0], np.ones((2, 8), np.float32))


def test_onnxruntime_s_quantizer_finds_the_types_behind_its_own_ops(tmp_path: Path) -> None:
    """Below opset 20 Gelu is an op of com.microsoft, behind which onnx's shape inference sees nothing."""
    opener = "quantize_dynamic, MatMul and Gemm"
    try:
        environment = environments.build(OPENERS[opener].packages)
    except UnavailableError as reason:
        pytest.skip(f"{opener} cannot be installed: {reason}")
    case = portability.prepare(MODELS / "quick_gelu.onnx", tmp_path / "fused")
    assert any(node.domain == "com.microsoft" for node in onnx.load(case.sources["ort"]).graph.node)
    assert_all_right([case], opener, environment, tmp_path)
