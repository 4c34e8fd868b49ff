"""`check` fails where a model no longer has the fusions that it had, or that are asked of it."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from onnxfuse import __version__
from onnxfuse.cli.main import main
from tests.fake_engine import Engine, fusion, near_miss

Capture = pytest.CaptureFixture[str]


def test_check_without_demands_passes_and_says_so(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions = [fusion(), fusion("Gelu"), fusion("Gelu")]
    assert main(["check", str(model)]) == 0
    out, err = capsys.readouterr()
    assert out == "model.onnx: 2 Gelu, 1 LayerNormalization\n"
    assert err == "onnxfuse: nothing is demanded: give --expect or --baseline\n"


def test_check_expectations(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions, engine.near_misses = [fusion()], [near_miss()]
    assert main(["check", str(model), "--expect", "LayerNormalization>=1", "--expect", "Gelu==0"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["check", str(model), "--expect", "LayerNormalization>=2", "-q"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "model.onnx: expectation: expected LayerNormalization >= 2, found 1",
        "  nearly fused",
        "  1 × LayerNormalization at /enc/layer.3/Div: Pow exponent wants 2, saw 3",
    ]


def test_check_against_a_baseline(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions = [fusion(), fusion(scope="/enc/layer.3")]
    baseline = ["check", str(model), "--baseline", "baseline.json"]
    assert main([*baseline, "--update-baseline"]) == 0
    first = Path("baseline.json").read_bytes()
    assert main(baseline) == 0
    capsys.readouterr()

    engine.fusions, engine.near_misses = [fusion()], [near_miss()]
    assert main([*baseline, "-q"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "model.onnx: lost: LayerNormalization at /enc/layer.3: 1 before, 0 now",
        "  nearly fused",
        "  1 × LayerNormalization at /enc/layer.3/Div: Pow exponent wants 2, saw 3",
    ]
    assert Path("baseline.json").read_bytes() == first

    engine.fusions = [fusion(), fusion(scope="/enc/layer.3"), fusion("Gelu")]
    assert main(baseline) == 0
    assert capsys.readouterr().err == "onnxfuse: 1 new since the baseline: keep with --update-baseline\n"


def test_update_keeps_what_the_baseline_says_of_other_models(
    models: list[str], engine: Engine, capsys: Capture
) -> None:
    engine.fusions = [fusion()]
    assert main(["check", models[0], "--baseline", "baseline.json", "--update-baseline"]) == 0
    assert main(["check", models[2], "--baseline", "baseline.json"]) == 1
    assert "no baseline: the baseline does not have third.onnx" in capsys.readouterr().out
    assert main(["check", models[2], "--baseline", "baseline.json", "--update-baseline"]) == 0
    assert main(["check", models[0], models[2], "--baseline", "baseline.json"]) == 0


def test_check_as_json(models: list[str], engine: Engine, capsys: Capture) -> None:
    engine.near_misses = [near_miss()]
    assert main(["check", *models, "--expect", "LayerNormalization>=1", "--format", "json"]) == 2, "unreadable is worse"
    data = json.loads(capsys.readouterr().out)
    assert [found["model"] for found in data["models"]] == ["model.onnx", "third.onnx"]
    (finding,) = data["models"][0]["findings"]
    assert (finding["kind"], finding["near_misses"][0]["node"]) == ("expectation", "/enc/layer.3/Div")


def test_a_model_of_the_baseline_that_is_not_given(models: list[str], engine: Engine, capsys: Capture) -> None:
    first, _, third = models
    engine.fusions = [fusion()]
    keep = ["--baseline", "b.jsonl"]
    assert main(["check", first, third, *keep, "--update-baseline"]) == 0
    capsys.readouterr()
    assert main(["check", first, *keep, "-q"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "third.onnx: not given: is in b.jsonl, and was not checked: check all models of the baseline, or say --partial "
        "if that is meant; --update-baseline --prune drops what is gone"
    ]
    assert main(["check", first, *keep, "--partial"]) == 0
    assert main(["check", first, *keep, "--update-baseline"]) == 0
    assert "third.onnx" in Path("b.jsonl").read_text()
    assert main(["check", first, *keep, "--update-baseline", "--prune"]) == 0
    assert "third.onnx" not in Path("b.jsonl").read_text()
    assert main(["check", first, *keep]) == 0


def test_prune_keeps_what_could_not_be_read(models: list[str], engine: Engine) -> None:
    keep = ["--baseline", "b.jsonl", "--update-baseline"]
    assert main(["check", models[0], models[2], *keep]) == 0
    Path("third.onnx").write_bytes(b"")
    assert main(["check", *models, *keep, "--prune"]) == 2
    assert "third.onnx" in Path("b.jsonl").read_text()


def test_an_old_baseline_is_compared_and_written_anew(model: Path, engine: Engine, capsys: Capture) -> None:
    old = {"onnxfuse-baseline": 1, "models": {"model.onnx": {"LayerNormalization": {"/enc/layer.0": 2}}}}
    Path("b.json").write_text(json.dumps(old))
    engine.fusions = [fusion()]
    assert main(["check", str(model), "--baseline", "b.json", "-q", "-O1"]) == 1
    assert "lost: LayerNormalization at /enc/layer.0: 2 before, 1 now\n" in capsys.readouterr().out
    assert main(["check", str(model), "--baseline", "b.json"]) == 2
    assert capsys.readouterr().err.startswith("onnxfuse: error: b.json was written at -O1, and this is -O2 ")
    assert main(["check", str(model), "--baseline", "b.json", "--update-baseline"]) == 0
    head, line = Path("b.json").read_text().splitlines()
    assert json.loads(head) == {"onnxfuse-baseline": 2, "onnxfuse": __version__, "level": 2, "target": "onnxfuse"}
    assert json.loads(line)["count"] == 1


def test_another_onnxfuse_wrote_the_baseline(model: Path, engine: Engine, capsys: Capture) -> None:
    line = {"model": "model.onnx", "scope": "/enc", "rule": "Gelu", "count": 1}
    Path("b.jsonl").write_text(f'{{"onnxfuse-baseline": 2, "onnxfuse": "0.0.1"}}\n{json.dumps(line)}\n')
    assert main(["check", str(model), "--baseline", "b.jsonl", "-O1"]) == 1
    assert f"(before by onnxfuse 0.0.1, now by {__version__})" in capsys.readouterr().out


def test_a_baseline_of_one_level_is_that_of_a_target_without_others(model: Path, engine: Engine) -> None:
    engine.fusions = [fusion()]
    asked = ["check", str(model), "--baseline", "b.jsonl", "--target", "ort"]
    assert main([*asked, "-O1", "--update-baseline"]) == 0
    assert main(asked) == 0


def test_what_one_level_fused_does_not_stand_beside_what_another_did(
    models: list[str], engine: Engine, capsys: Capture
) -> None:
    engine.fusions = [fusion()]
    update = ["check", "--baseline", "b.jsonl", "--update-baseline", "-q"]
    written = [models[0], "other.onnx"]
    Path("other.onnx").write_bytes(Path(models[0]).read_bytes())
    assert main([*update, "-O1", *written]) == 0
    assert main([*update, written[0]]) == 2
    assert "and all of its models" in capsys.readouterr().err
    assert main([*update, *written]) == 0
    assert main([*update, "-O1", "--prune", written[0]]) == 0


@pytest.mark.parametrize("style", ["github", "sarif", "junit", "json"])
def test_formats_on_stdout_and_in_a_file(style: str, models: list[str], engine: Engine, capsys: Capture) -> None:
    engine.fusions, engine.near_misses = [], [near_miss()]
    asked = ["check", *models, "--expect", "LayerNormalization>=1", "--format", style]
    assert main(asked) == 2
    text = capsys.readouterr().out
    assert "expected LayerNormalization >= 1, found 0" in html.unescape(text)
    assert "second.onnx" in text
    assert main([*asked, "-o", "-"]) == 2
    assert capsys.readouterr().out == text
    assert main([*asked, "--output", f"found.{style}"]) == 2
    assert Path(f"found.{style}").read_text() == text
    assert "model.onnx: no fusions\n" in capsys.readouterr().out


def test_several_formats_in_one_run(models: list[str], engine: Engine, capsys: Capture) -> None:
    asked = ["check", *models, "--expect", "LayerNormalization>=1"]
    assert main([*asked, "--format", "text"]) == 2
    text = capsys.readouterr().out
    assert main([*asked, "--format", "github"]) == 2
    annotations = capsys.readouterr().out
    several = ["--format", "text", "--format", "sarif=a.sarif", "--format", "junit=a.xml", "--format", "github"]
    assert main([*asked, *several]) == 2
    assert capsys.readouterr().out == text + annotations
    assert json.loads(Path("a.sarif").read_text())["version"] == "2.1.0"
    assert Path("a.xml").read_text().startswith("<?xml")
    assert len(engine.calls) == 6, "each model once a run"


def test_an_output_that_cannot_be_written_is_said_at_once(model: Path, engine: Engine, capsys: Capture) -> None:
    for place in ("gone/found.sarif", "model.onnx"):
        assert main(["check", str(model), "--format", "sarif", "-o", place]) == 2
        assert place.split("/")[0] in capsys.readouterr().err
    assert engine.calls == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no MODEL is given, and no pyproject.toml names models in [tool.onnxfuse]: give one"),
        (["model.onnx", "--prune"], "--prune is for --update-baseline"),
        (
            ["model.onnx", "-o", "x.txt"],
            "--output is for one --format other than text: name it as in --format sarif=x.txt",
        ),
    ],
)
def test_what_makes_no_sense(arguments: list[str], message: str, model: Path, capsys: Capture) -> None:
    assert main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_line_of_the_users_program(model: Path, engine: Engine, capsys: Capture) -> None:
    proto = onnx.load(str(model))
    node = proto.graph.node[0]
    entry = node.metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.stack_trace", 'File "/app/src/net.py", line 12, in forward'
    onnx.save(proto, str(model))
    Path("src").mkdir()
    Path("src/net.py").write_text("")
    engine.near_misses = [replace(near_miss(), node=node.name or node.output[0])]
    assert main(["check", str(model), "--expect", "LayerNormalization>=1", "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith("::error file=src/net.py,line=12,title=")
