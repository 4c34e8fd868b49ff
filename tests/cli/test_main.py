"""Options reach the engine, results reach the right stream, and the exit code says how it went."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse import __version__
from onnxfuse.cli.main import INTERRUPTED, main
from onnxfuse.errors import NumericsError
from onnxfuse.model import files
from onnxfuse.reporting.records import LeftOut, Validation
from onnxfuse.targets.target import Target
from tests import broken
from tests.fake_engine import Engine, fusion, near_miss
from tests.reporting.test_records import SCHEMA, violations

COMMANDS = [
    [],
    ["optimize"],
    ["report"],
    ["check"],
    ["rules"],
    *(["rules", name] for name in ("list", "show", "test", "new")),
]

Capture = pytest.CaptureFixture[str]


# The command itself


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str], capsys: Capture) -> None:
    assert main([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Example:\n    onnxfuse " in out
    assert max(map(len, out.splitlines())) <= 100


def test_help_imports_nothing_heavy() -> None:
    """What makes it quick; benchmarks/scale.py measures how quick."""
    heavy = "{'onnx', 'numpy', 'rich', 'onnxruntime', 'onnx_graphsurgeon'}"
    script = "import sys; from onnxfuse.cli.main import main; main(['--help'])"
    script += f"; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"onnxfuse {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimise"], "No such command 'optimise'"),
        (["optimize"], "Missing argument 'MODEL...' (see onnxfuse optimize --help)"),
        (["report", "m.onnx", "--format", "xml"], "'xml' is not one of 'text', 'json' (see onnxfuse report --help)"),
        (["optimize", "m.onnx", "--shape", "x=1"], "'x=1': write NAME:DIMS, such as input_ids:1,128"),
        (["optimize", "m.onnx", "--shape", "x:1,-2"], "'x:1,-2': write NAME:DIMS"),
        (["optimize", "m.onnx", "--rtol", "-1"], "-1.0 is not in the range x>=0"),
        (["optimize", "m.onnx", "--validate", "reference", "--no-validate"], "exclude each other: give one"),
        (["optimize", "m.onnx", "--report", "no/r.json"], "no/r.json: there is no folder no: make it first"),
        (["optimize", "*.nothing"], "no file matches *.nothing"),
        (["optimize", "m.onnx", "--select", "Zzz"], "Zzz: no such rule: see onnxfuse rules list"),
        (["optimize", "m.onnx", "--ignore", "Gelo"], "Gelo: no such rule: did you mean Gelu?"),
        (["report", "m.onnx", "--why", "LayerNormalisation"], "did you mean LayerNormalization?"),
        (["check", "m.onnx", "--expect", "Gelo>=1"], "Gelo: no such rule: did you mean Gelu?"),
        (["check", "m.onnx", "--expect", "Gelu"], "--expect 'Gelu': write RULE, one of"),
        (["check", "m.onnx", "--update-baseline"], "--update-baseline needs --baseline FILE"),
        (["check", "m.onnx", "--baseline", "b.json"], "b.json: no such baseline: make it with --update-baseline"),
        (["rules", "show", "Gelo"], "Gelo: no such rule: did you mean Gelu?"),
        (["rules", "new", "my-norm"], "'my-norm' names no op: begin with a capital"),
    ],
)
@pytest.mark.usefixtures("engine", "model")
def test_bad_usage_is_one_line_and_exit_code_2(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("onnxfuse: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_an_interrupt_is_exit_code_130_and_leaves_nothing(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.error = KeyboardInterrupt()
    assert main(["optimize", str(model)]) == INTERRUPTED
    assert capsys.readouterr().err.strip() == "onnxfuse: interrupted"
    assert os.listdir() == ["model.onnx"]


# optimize


def test_optimize_writes_beside_the_model_and_says_what_it_did(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions = [fusion(), fusion(scope="/enc/layer.1"), fusion("Gelu", "/enc/layer.1", bytes_saved=None)]
    engine.edit = lambda proto: proto.metadata_props.add(key="fused", value="yes")
    assert main(["optimize", str(model)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[:-1] == [
        "model.onnx → model.fused.onnx",
        "  29 → 5 nodes (-83%)",
        "",
        "  fusion              sites  launches saved  traffic saved",
        "  LayerNormalization      2              16           2 kB",
        "  Gelu                    1               8              ?",
        "  ? and >: a size depends on the data",
        "",
        "  ✓ same numbers in onnxruntime: largest error 1.0e-07 in 2 runs (rtol 0.0001, atol 1e-05)",
        "  fast with onnxfuse.InferenceSession on an NVIDIA GPU; elsewhere: --target ort (in onnxruntime on a CPU), "
        "--target ort --provider cuda (in onnxruntime on an NVIDIA GPU), --target onnx (in any runtime of standard "
        "ONNX)",
        out.splitlines()[-2],
    ]
    assert out.splitlines()[-2].startswith("  written, ")
    assert files.read(Path("model.fused.onnx")).metadata_props[0].key == "fused"


def test_output_in_a_pipe_has_no_colours_and_no_blanks_at_line_ends(
    model: Path, engine: Engine, capsys: Capture
) -> None:
    engine.fusions, engine.near_misses = [fusion(scope="/" + "long/" * 60)], [near_miss(scope="/" + "long/" * 60)]
    for command in ("optimize", "report"):
        assert main([command, str(model)]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert not [line for line in out.splitlines() if line != line.rstrip()]
    assert near_miss(scope="/" + "long/" * 60).node in out, "no line is wrapped"


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
    options += "--inputs inputs.npz --shape x:2,8 --shape in:0:1x3 --shape scalar: --seed 7 --rtol 0.1 --atol 0.2 --fold-limit 3kB "
    options += "--on-mismatch fail --validate reference --timeout 9.5"
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
        "card": None,
        "validate": "reference",
        "base_dir": Path("."),
        "growth": 3000,
        "progress": None,
    }


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
            "card": None,
            "validate": "onnxruntime",
            "base_dir": Path("."),
            "growth": 1_000_000,
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


def test_one_bad_model_does_not_stop_the_others(models: list[str], engine: Engine, capsys: Capture) -> None:
    assert main(["optimize", *models, "-o", "out", "-q", "--report", "report.json"]) == 2
    assert sorted(os.listdir("out")) == ["model.onnx", "third.onnx"]
    assert "second.onnx is empty" in capsys.readouterr().err
    assert [found["model"] for found in json.loads(Path("report.json").read_text())] == ["model.onnx", "third.onnx"]


def test_the_exit_code_is_the_worst(models: list[str], engine: Engine, capsys: Capture) -> None:
    engine.error = NumericsError("Gelu changes the result")
    assert main(["optimize", *models]) == 3
    assert capsys.readouterr().err.splitlines() == [
        "onnxfuse: error: model.onnx: Gelu changes the result",
        "onnxfuse: error: second.onnx is empty: export it again",
        "onnxfuse: error: third.onnx: Gelu changes the result",
    ]


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


# report


def test_report_says_what_where_and_why_not(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions = [fusion(scope=f"/enc/layer.{layer}/norm") for layer in range(12)]
    engine.near_misses = [near_miss(scope=f"/enc/{layer}") for layer in range(3, 9)]
    assert main(["report", str(model)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        "model.onnx",
        "  110 → 14 nodes (-87%)",
        "",
        "  fusion                  sites  launches saved  traffic saved",
        "  LayerNormalization         12              96          12 kB",
        "    /enc/layer.0-11/norm     12",
        "",
        "  nearly fused",
        "  6 × LayerNormalization at /enc/3-8/Div: Pow exponent wants 2, saw 3",
        "",
    ]
    assert os.listdir() == ["model.onnx"]


def test_report_as_json(models: list[str], engine: Engine, capsys: Capture) -> None:
    engine.fusions, engine.near_misses = [fusion()], [near_miss()]
    assert main(["report", models[0], "--format", "json", "--shape", "x:2,8"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert violations(data, SCHEMA) == []
    assert (data["model"], data["output"]) == ("model.onnx", None)
    assert engine.calls[0]["shapes"] == {"x": (2, 8)}

    assert main(["report", *models, "--format", "json"]) == 2
    out, err = capsys.readouterr()
    assert [found["model"] for found in json.loads(out)] == ["model.onnx", "third.onnx"]
    assert err.count("\n") == 1


def test_why(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions, engine.near_misses = [fusion("Gelu")], [near_miss(), near_miss(scope="/enc/layer.4")]
    assert main(["report", str(model), "--why", "LayerNormalization"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "model.onnx",
        "  nearly fused",
        "  2 × LayerNormalization at /enc/layer.3-4/Div: Pow exponent wants 2, saw 3",
        "      /enc/layer.3/Div",
        "      /enc/layer.4/Div",
        "      2_norm/layer_normalization.rule:6",
        "",
    ]
    assert main(["report", str(model), "--why", "LayerNormalization", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["fusions"], len(data["near_misses"])) == ([], 2)
    engine.near_misses = []
    assert main(["report", str(model), "--why", "LayerNormalization"]) == 0
    assert "nothing in this model comes near LayerNormalization" in capsys.readouterr().out


def test_explain(model: Path, engine: Engine, capsys: Capture) -> None:
    def explained(node: str) -> str:
        assert main(["report", str(model), "--explain", node]) == 0
        return capsys.readouterr().out

    engine.fusions = [fusion(scope="/enc", replaced=("relu", "other"))]
    out = explained("relu")
    assert out.startswith("relu (Relu) in model.onnx\n  is one of 2 nodes that become LayerNormalization at /enc\n")
    assert "saves 8 launches and 1 kB of traffic" in out
    assert "nodes: relu, other" in out
    assert "is one of 2 nodes" in explained("r"), "a value stands for the node that makes it"

    engine.fusions, engine.near_misses = [], [near_miss(scope="", node="x")]
    assert "no rule has MatMul: onnxfuse leaves it as it is" in explained("matmul")
    proto = broken.model(broken.layer_norm("x", "y", ""), initializers=broken.norm_constants())
    onnx.save(proto, model)
    assert "no rule came near it; LayerNormalization has ReduceMean" in explained("ReduceMean")
    assert "no rule came near it\n" in explained("Div")
    engine.near_misses = [near_miss(scope="", node="x")]
    engine.near_misses = [type(near_miss())("Gelu", "gelu.rule:3", "", "Div", "divisor wants sqrt(2), saw a tensor")]
    assert "stopped Gelu: divisor wants sqrt(2), saw a tensor\n    gelu.rule:3" in explained("Div")
    assert main(["report", str(model), "--explain", "Dvi"]) == 2
    assert "Dvi: no such node in this model: did you mean Div?" in capsys.readouterr().err
