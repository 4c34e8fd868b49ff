"""The Python API: every kind of model goes in, and comes back as what it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest

import onnxfuse
from onnxfuse import pipeline
from onnxfuse.errors import ModelError, OutputError, UsageError
from onnxfuse.model import files
from onnxfuse.model.graph import family_of

MODELS = Path(__file__).parents[2] / "models"
GELU = MODELS / "quick_gelu.onnx"


def ops(model: onnx.ModelProto) -> list[str]:
    return [family_of(node) for node in model.graph.node]


def test_importing_is_cheap() -> None:
    script = "import sys, onnxfuse; assert not {'onnx', 'numpy', 'rich', 'click', 'onnxruntime'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_functions_stay_functions_when_modules_are_imported() -> None:
    onnxfuse.report(GELU)
    assert all(callable(getattr(onnxfuse, name)) for name in ("optimize", "report", "check"))


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_is_read_and_written(kind: type, tmp_path: Path) -> None:
    output = tmp_path / "fused.onnx"
    fused = onnxfuse.optimize(kind(GELU), kind(output))
    assert fused.report.validation.verdict == "equal"
    assert (fused.report.model, fused.report.output) == (str(GELU), str(output))
    assert ops(onnx.load(output)) == ops(fused.model)
    assert "SkipLayerNormalization" in ops(fused.model)


def test_external_data_lies_beside_the_file(tmp_path: Path) -> None:
    onnxfuse.optimize(MODELS / "external_data.onnx", tmp_path / "fused.onnx")
    assert (tmp_path / "external_data.onnx.data").exists()


def test_a_proto_is_not_changed() -> None:
    proto = onnx.load(GELU)
    before = proto.SerializeToString(deterministic=True)
    fused = onnxfuse.optimize(proto)
    assert proto.SerializeToString(deterministic=True) == before
    assert isinstance(fused.model, onnx.ModelProto)
    assert len(fused.model.graph.node) < len(proto.graph.node)
    assert (fused.report.model, fused.report.output) == (proto.graph.name, None)


def test_a_graph_comes_back_as_a_graph() -> None:
    graph = gs.import_onnx(onnx.load(GELU))
    fused = onnxfuse.optimize(graph)
    assert isinstance(fused.model, gs.Graph)
    feeds = {v.name: np.ones([d if isinstance(d, int) else 2 for d in v.shape], v.dtype) for v in graph.inputs}
    results = [
        onnxruntime.InferenceSession(gs.export_onnx(g).SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, feeds
        )
        for g in (graph, fused.model)
    ]
    np.testing.assert_allclose(*(np.concatenate([r.ravel() for r in result]) for result in results), atol=1e-5)


def test_report_runs_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = onnxfuse.report(GELU, ignore=["QuickGelu"])
    assert found.validation.verdict == "not validated"
    assert found.census["SkipLayerNormalization"] == 1
    assert "QuickGelu" not in found.census
    assert list(tmp_path.iterdir()) == []


BERT = MODELS / "bert.ts.onnx"


def test_shapes_measure_and_do_not_specialise() -> None:
    plain, measured = onnxfuse.optimize(BERT), onnxfuse.optimize(BERT, shapes={"input_ids": (2, 16)})
    assert plain.model.SerializeToString(deterministic=True) == measured.model.SerializeToString(deterministic=True)
    assert (plain.report.assumed, measured.report.assumed) == ("batch=3 sequence=7", "")
    assert plain.report.before.bytes < measured.report.before.bytes
    wider = onnxfuse.report(BERT, shapes={"input_ids": (2, 32)})
    for small, large in zip(measured.report.fusions, wider.fusions, strict=True):
        assert small.bytes_saved is not None
        assert large.bytes_saved is not None
        assert small.bytes_saved > 0
        assert "pooler" in small.scope or small.bytes_saved < large.bytes_saved


def test_inputs_are_what_is_measured_with() -> None:
    names = [value.name for value in onnx.load(BERT).graph.input]
    fed = onnxfuse.optimize(BERT, inputs={name: np.ones((2, 16), np.int64) for name in names}).report
    assert (fed.shapes, fed.assumed) == (dict.fromkeys(names, (2, 16)), "")
    assert fed.before == onnxfuse.report(BERT, shapes={"input_ids": (2, 16)}).before


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"ids": (1, 8)}, "no such input; the model has input_ids, attention_mask"),
        ({"input_ids": (1, 8, 1)}, "does not fit the declared"),
    ],
)
def test_shapes_that_cannot_be(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        onnxfuse.report(BERT, shapes=shapes)


def test_check() -> None:
    assert onnxfuse.check(GELU, expect=["QuickGelu==2", "LayerNormalization>=1"]) == []
    (finding,) = onnxfuse.check(GELU, expect=["QuickGelu==2"], ignore=["QuickGelu"])
    assert finding.message == "expected QuickGelu == 2, found 0"


def test_check_against_a_baseline(tmp_path: Path) -> None:
    from onnxfuse.reporting import baseline as remembered

    baseline = tmp_path / "baseline.jsonl"
    baseline.write_text(remembered.text({GELU.name: remembered.sites(onnxfuse.report(GELU))}, "0.1", remembered.Way(2)))
    assert onnxfuse.check(GELU, baseline=baseline) == []
    lost = onnxfuse.check(GELU, baseline=str(baseline), ignore=["SkipLayerNormalization"])
    assert {finding.rule for finding in lost} == {"SkipLayerNormalization"}
    with pytest.raises(UsageError, match="give the model as a file"):
        onnxfuse.check(onnx.load(GELU), baseline=baseline)


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a model is a path, an onnx\.ModelProto or .*, not bytes"):
        onnxfuse.optimize(GELU.read_bytes())  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="no such file"):
        onnxfuse.report(tmp_path / "absent.onnx")
    with pytest.raises(OutputError):
        onnxfuse.optimize(GELU, GELU)
    with pytest.raises(UsageError, match="did you mean Gelu"):
        onnxfuse.report(GELU, select=["Gelo"])
    with pytest.raises(UsageError, match="did you mean Gelu"):
        onnxfuse.check(GELU, expect=["Gelo>=1"])


def test_a_report_that_is_not_measured_has_the_same_fusions_and_near_misses() -> None:
    model = files.read(MODELS / "bert.ts.onnx", weights=False)
    whole, brief = pipeline.report(model), pipeline.report(model, measured=False)
    assert brief.census == whole.census != {}
    assert [(f.rule, f.scope, f.node, f.absorbed) for f in brief.fusions] == [
        (f.rule, f.scope, f.node, f.absorbed) for f in whole.fusions
    ]
    assert brief.near_misses == whole.near_misses
    assert whole.kernels
    assert not brief.kernels
