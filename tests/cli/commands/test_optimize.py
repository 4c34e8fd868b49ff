"""`onnxfuse optimize`: options reach the engine, files are written or not, and the exit code says how it went."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse.cli.main import main
from onnxfuse.model import files
from onnxfuse.model.spool import Spool
from onnxfuse.precision.wanted import Precision
from onnxfuse.reporting.records import LeftOut, Validation
from onnxfuse.targets.target import Target
from tests import broken
from tests.cli.test_main import Capture
from tests.fake_engine import Engine, fusion
from tests.reporting.test_records import SCHEMA, violations


def test_optimize_writes_beside_the_model_and_says_what_it_did(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions = [fusion(), fusion(scope="/enc/layer.1"), fusion("Gelu", "/enc/layer.1", bytes_saved=None)]
    engine.edit = lambda proto: proto.metadata_props.add(key="fused", value="yes")
    assert main(["optimize", str(model)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line for line in out.splitlines() if not line.startswith("  written, ")] == [
        "model.onnx → model.fused.onnx",
        "  29 → 5 nodes (-83%)",
        "",
        "  fusion              sites  launches saved  traffic saved",
        "  LayerNormalization      2              16           2 kB",
        "  Gelu                    1               8              ?",
        "  ? and >: a size depends on the data",
        "",
        "  ✓ same numbers in onnxruntime: largest error 1.0e-07 in 2 runs (rtol 0.0001, atol 1e-05)",
        "  fast with onnxfuse.InferenceSession on an NVIDIA GPU; elsewhere ask for --target ort (in onnxruntime on a "
        "CPU), --target ort --provider cuda (in onnxruntime on an NVIDIA GPU), --target onnx (in any runtime of "
        "standard ONNX)",
        "",
    ]
    assert out.splitlines()[-3].startswith("  written, ")
    assert files.read(Path("model.fused.onnx")).metadata_props[0].key == "fused"


def test_verbose_names_every_site_and_quiet_prints_nothing(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions = [fusion(scope="/enc/layer.7")]
    assert main(["optimize", str(model), "-v"]) == 0
    assert "/enc/layer.7: LayerNormalization, 9 nodes" in capsys.readouterr().out
    assert main(["optimize", str(model), "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_every_option_reaches_the_engine(model: Path, engine: Engine) -> None:
    np.savez("inputs.npz", x=np.ones((2, 8), np.float32))
    options = (
        "--target onnx --opset 23 --select Gelu --select LayerNormalization --ignore Gelu --rules mine --rules ours "
    )
    options += "--inputs inputs.npz --shape x:2,8 --shape in:0:1x3 --shape scalar: --seed 7 --rtol 0.1 --atol 0.2 "
    options += "--on-mismatch fail --validate reference --timeout 9.5 --fold-limit 3kB -O2 --rename-dims"
    assert main(["optimize", str(model), *options.split()]) == 0
    (call,) = engine.calls
    assert (call.pop("inputs")["x"] == 1).all()
    assert call == {
        "target": Target("onnx"),
        "opset": 23,
        "select": ("Gelu", "LayerNormalization"),
        "ignore": ("Gelu",),
        "rules": (Path("mine"), Path("ours")),
        "shapes": {"x": (2, 8), "in:0": (1, 3), "scalar": ()},
        "seed": 7,
        "rtol": 0.1,
        "atol": 0.2,
        "on_mismatch": "fail",
        "timeout": 9.5,
        "optimizing": True,
        "rename_dims": True,
        "card": None,
        "precision": None,
        "spool": None,
        "validate": "reference",
        "base_dir": Path("."),
        "growth": 3000,
        "recompute": None,
        "level": 2,
        "nodes": False,
        "progress": None,
    }


@pytest.mark.parametrize(
    ("options", "keep"),
    [([], None), (["--keep-products"], "all"), (["--keep-weighted-products", "--target", "ort"], "weighted")],
)
def test_products_are_kept_for_quantizers(options: list[str], keep: str | None, model: Path, engine: Engine) -> None:
    assert main(["optimize", *options, str(model)]) == 0
    assert engine.calls[0]["target"].keep_products == keep


def test_products_are_kept_by_one_option(model: Path, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    both = ["--keep-weighted-products", "--keep-products"]
    for options in (both, both[::-1]):
        assert main(["optimize", *options, str(model)]) == 2
        assert "give one of them" in capsys.readouterr().err
    assert not engine.calls


def test_an_option_on_products_goes_before_settings(
    model: Path, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.onnxfuse]\nkeep_products = "all"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["optimize", str(model)]) == main(["optimize", "--keep-weighted-products", str(model)]) == 0
    assert [call["target"].keep_products for call in engine.calls] == ["all", "weighted"]


@pytest.mark.parametrize(("options", "seconds"), [("--validate kernels", 0), ("--validate kernels --timeout 5", 5)])
def test_kernels_on_the_cpu_take_as_long_as_they_take(
    options: str, seconds: float, model: Path, engine: Engine
) -> None:
    assert main(["optimize", str(model), *options.split()]) == 0
    assert engine.calls[0]["timeout"] == seconds


def test_the_defaults_are_the_engines(model: Path, engine: Engine) -> None:
    assert main(["optimize", str(model)]) == 0
    assert engine.calls == [
        {
            "target": Target(),
            "opset": None,
            "select": (),
            "ignore": (),
            "rules": (),
            "shapes": None,
            "inputs": None,
            "seed": 0,
            "rtol": None,
            "atol": None,
            "on_mismatch": "bisect",
            "timeout": 600,
            "optimizing": True,
            "rename_dims": False,
            "card": None,
            "precision": None,
            "spool": None,
            "validate": "onnxruntime",
            "base_dir": Path("."),
            "growth": 1_000_000,
            "recompute": None,
            "level": 2,
            "nodes": False,
            "progress": None,
        }
    ]


def test_no_validate(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.validation = Validation("not validated", note="--no-validate")
    assert main(["optimize", str(model), "--no-validate"]) == 0
    assert engine.calls[0]["validate"] == "off"
    assert "! not validated: --no-validate" in capsys.readouterr().out


def test_dry_run_writes_nothing(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions = [fusion()]
    assert main(["optimize", str(model), "-o", "out/", "--dry-run"]) == 0
    assert os.listdir() == ["model.onnx"]
    assert "nothing written" in capsys.readouterr().out


def test_a_mismatch_is_never_written(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.validation = Validation("mismatch", 0.5, 1e-4, 1e-5, 2, "y differs by 0.5")
    assert main(["optimize", str(model)]) == 3
    assert os.listdir() == ["model.onnx"]
    assert "nothing written, the fused model computes something else: y differs by 0.5" in capsys.readouterr().err


def test_what_was_left_out_is_named(
    model: Path, engine: Engine, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def guilty(proto: onnx.ModelProto, *values: Any, **options: Any) -> Any:
        optimized = engine.optimize(proto, *values, **options)
        optimized.report.left_out.append(LeftOut(fusion("Gelu", "/enc/layer.3"), 0.125, "differs by 0.12"))
        return optimized

    monkeypatch.setattr("onnxfuse.pipeline.optimize", guilty)
    assert main(["optimize", str(model)]) == 0
    assert "✗ left out: Gelu at /enc/layer.3: differs by 0.12" in capsys.readouterr().out


def test_a_former_output_is_not_fused_again(model: Path, engine: Engine, capsys: Capture) -> None:
    assert main(["optimize", "*.onnx", "-q"]) == 0
    assert main(["optimize", "*.onnx", "-q"]) == 0
    assert sorted(os.listdir()) == ["model.fused.onnx", "model.onnx"]
    assert (
        capsys.readouterr().err == "onnxfuse: model.fused.onnx is what becomes of model.onnx here: not itself fused\n"
    )


def test_the_report_file_is_one_object_for_one_model(model: Path, engine: Engine) -> None:
    engine.fusions = [fusion()]
    assert main(["optimize", str(model), "-q", "--report", "report.json"]) == 0
    data = json.loads(Path("report.json").read_text())
    assert violations(data, SCHEMA) == []
    assert (data["model"], data["output"], data["census"]) == (
        "model.onnx",
        "model.fused.onnx",
        {"LayerNormalization": 1},
    )


def test_a_page_of_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    source = Path(__file__).parents[3] / "models" / "quick_gelu.onnx"
    assert main(["optimize", str(source), "-o", "out.onnx", "--html", "page.html"]) == 0
    out = capsys.readouterr().out
    assert "same numbers" in out
    assert "\n  page in page.html\n" in out
    shown = json.loads(Path("page.html").read_text().split('id="data">')[1].split("</script>")[0])
    assert (shown["head"]["verdict"], shown["head"]["output"]) == ("equal", "out.onnx")
    assert shown["head"]["proof"].startswith("same numbers in onnxruntime")


@pytest.mark.parametrize("taken", ["model.fused.onnx", "report.json"])
def test_a_page_takes_no_other_place(taken: str, model: Path, engine: Engine, capsys: Capture) -> None:
    assert main(["optimize", str(model), "--report", "report.json", "--html", taken]) == 2
    assert capsys.readouterr().err == (
        f"onnxfuse: error: --html {taken} is where something else is written: name another file\n"
    )
    assert (engine.calls, os.listdir()) == ([], ["model.onnx"])


@pytest.mark.parametrize(
    ("asked", "precision"),
    [
        (["--precision", "fp16"], Precision("fp16")),
        (["--precision", "bf16", "--io-precision", "half"], Precision("bf16", io=True)),
        (["--precision", "mixed", "--io-precision", "keep"], Precision("mixed")),
    ],
)
def test_half_precision(model: Path, engine: Engine, asked: list[str], precision: Precision) -> None:
    assert main(["optimize", str(model), *asked]) == 0
    assert engine.calls[0]["precision"] == precision


def test_the_precision_of_inputs_is_for_half_precision(
    model: Path, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", str(model), "--io-precision", "half"]) == 2
    assert engine.calls == []
    assert "--io-precision is for --precision" in capsys.readouterr().err


def test_what_a_killed_worker_has_left_goes_with_the_command(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A process of --jobs that the system kills, as it does for want of memory, while it writes."""
    broken.write_weights(tmp_path / "weights.bin")
    for name in ("a", "b"):
        (tmp_path / f"{name}.onnx").write_bytes(broken.external().SerializeToString())
    really = Spool.store

    def killed(spool: Spool, *given: Any) -> Any:
        made = really(spool, *given)
        if spool.path.name.startswith("a."):
            assert spool.path.exists()
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    monkeypatch.setattr(Spool, "store", killed)
    (tmp_path / "out").mkdir()
    given = [str(tmp_path / f"{name}.onnx") for name in ("a", "b")]
    code = main(
        ["optimize", *given, "-o", f"{tmp_path / 'out'}/", "--jobs", "2", "--precision", "fp16", "--no-validate"]
    )
    assert code == 2
    assert "killed" in capsys.readouterr().err
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["b.onnx", "b.onnx.data"]
