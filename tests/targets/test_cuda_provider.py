"""What onnxruntime's CUDA provider has a kernel for, and what of a model falls back to the CPU."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks import cuda, cuda_kernels
from benchmarks.ort_versions import LATEST
from onnxfuse.errors import UsageError
from onnxfuse.reporting.placement import fallbacks
from onnxfuse.targets import cuda_provider
from onnxfuse.targets.target import Target
from tests.fused_models import FusedModel
from tests.targets.test_cuda_target import MODELS

# ------------------------------------------------------------------------------------------------ the table


def kernel(since: int, until: int | None, **types: list[str]) -> dict[str, Any]:
    return {"since": since, "until": until, "types": types}


def test_the_table_is_made_of_the_registry_of_kernels() -> None:
    kernels = [
        ("", "Identity", 1, 13, {"T": ["tensor(float)", "tensor(float16)"]}),
        ("", "Identity", 14, LATEST, {"V": ["seq(tensor(bool))", "tensor(float)"]}),
        ("", "IsNaN", 12, 12, {"T1": ["tensor(float)"], "T2": ["tensor(bool)"]}),
        ("com.microsoft", "BiasGelu", 1, LATEST, {"T": ["tensor(float)"]}),
        ("com.ms.internal.nhwc", "Conv", 1, LATEST, {"T": ["tensor(float)"]}),
    ]
    schemas = [
        ("", "Identity", 1, ["T"], ["T"]),
        ("", "Identity", 14, ["V"], ["V"]),
        ("", "IsNaN", 9, ["T1"], ["T2"]),
        ("com.microsoft", "BiasGelu", 1, ["T", "T"], ["T"]),
    ]
    assert cuda_kernels.table(kernels, schemas) == {
        "Identity": {
            "inputs": ["V"],
            "kernels": [kernel(14, None, V=["float"]), kernel(1, 13, T=["float", "float16"])],
        },
        "IsNaN": {"inputs": ["T1"], "kernels": [kernel(12, 12, T1=["float"], T2=["bool"])]},
        "com.microsoft.BiasGelu": {"inputs": ["T", "T"], "kernels": [kernel(1, None, T=["float"])]},
    }


def test_kernels_are_told_as_one_only_where_that_says_no_more_than_they_do() -> None:
    """A kernel for each type is one for all; of types that belong together, none is mixed with another's."""
    single = [kernel(7, None, T=[kind]) for kind in ("float", "double", "float16")]
    assert cuda_kernels.merged(single) == [kernel(7, None, T=["double", "float", "float16"])]
    square = [kernel(1, None, T=[a], U=[b]) for a in ("float", "half") for b in ("int32", "int64")]
    assert cuda_kernels.merged(square) == [kernel(1, None, T=["float", "half"], U=["int32", "int64"])]
    bound = [kernel(23, None, T=["float"], U=["float"]), kernel(23, None, T=["half"], U=["half"])]
    assert cuda_kernels.merged(bound) == bound
    apart = [kernel(1, 6, T=["float"]), kernel(7, None, T=["float"]), kernel(7, None, V=["float"])]
    assert cuda_kernels.merged(apart) == apart


@pytest.mark.skipif(not all(map(shutil.which, ("gcc", "nm", "readelf"))), reason="stand-ins are compiled by gcc")
def test_a_library_finds_stand_ins_for_what_it_is_linked_to(tmp_path: Path) -> None:
    """A library that takes functions from two of CUDA's, one by version, runs without either."""
    for name, function in (("libcudart.so.13", "cudaSetDevice"), ("libcuda.so.1", "cuInit")):
        cuda_kernels.stand_in(tmp_path, name, {function: name == "libcudart.so.13"})
    source = tmp_path / "user.c"
    source.write_text("int cudaSetDevice(int), cuInit(int); int both(void) { return cudaSetDevice(0) + cuInit(0); }")
    user = tmp_path / "libuser.so"
    linked = [f"-L{tmp_path}", "-l:libcudart.so.13", "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN"]
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", user, source, *linked], check=True)
    found = cuda_kernels.wanted([user])
    assert found == {"libcudart.so.13": {"cudaSetDevice": True}, "libcuda.so.1": {"cuInit": False}}
    assert ctypes.CDLL(str(user)).both() == 0


def test_the_table_says_where_it_is_from() -> None:
    found = json.loads(cuda_provider.TABLE.read_text(encoding="utf-8"))
    release = f"onnxruntime-gpu {found['onnxruntime']}"
    assert found["source"] == f"the registry of kernels of {release}, by benchmarks/cuda_kernels.py"
    assert cuda_kernels.written(found["ops"], found["onnxruntime"], found["source"]) == cuda_provider.TABLE.read_text(
        encoding="utf-8"
    )


# ------------------------------------------------------------------------------------------------ fallbacks


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_no_model_falls_back_more_than_before(path: Path, fused_model: FusedModel) -> None:
    before = onnx.load(path, load_external_data=False)
    after = fused_model(path.name, Target("ort", "cuda"))
    was, now = fallbacks(before)[0], fallbacks(after)[0]
    assert sum(now.values()) <= sum(was.values()), now
    assert not any(n.op_type == "Attention" and not n.domain for n in after.graph.node)
    assert not any(n.domain.startswith("onnxfuse") for n in after.graph.node)


@pytest.mark.parametrize(
    ("op", "opset", "kind", "reason"),
    [
        ("Elu", 21, "float", ""),
        ("Elu", 22, "float", "no kernel for the edition of opset 22"),
        ("Gelu", 20, "float", ""),
        ("ReduceMax", 20, "float", ""),
        ("Range", 17, "float16", "no kernel in float16"),
        ("Celu", 17, "float", "no kernel"),
        ("com.microsoft.FusedConv", 17, "float16", "no kernel in float16"),
        ("com.microsoft.GroupQueryAttention", 17, "float", "no kernel in float"),
    ],
)
def test_what_the_cuda_provider_has(op: str, opset: int, kind: str, reason: str) -> None:
    dtype = onnx.TensorProto.DataType.Value(kind.upper())
    assert cuda_provider.refusal(op, opset, cuda_provider.result_type(op, opset, dtype)) == reason


def test_only_onnxruntime_has_a_cuda_provider() -> None:
    with pytest.raises(UsageError, match="--provider cuda: --target onnx is for cpu"):
        Target("onnx", "cuda")


def test_the_benchmark_says_what_it_needs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxfuse.runtime.installed.has_cuda", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        cuda.main(["models/bert.ts.onnx"])
    assert stopped.value.code == 2
    assert "needs onnxruntime-gpu, a driver and a GPU" in capsys.readouterr().err


def test_the_benchmark_measures_every_side() -> None:
    """On a CPU, for want of a GPU: no time is asked for."""
    path = next(p for p in MODELS if p.name == "quick_gelu.onnx")
    row = cuda.measure(path, 0.01, {}, provider="cpu")
    assert not row.failures
    assert row.ratios.keys() == {"control", "ort cuda", "onnxfuse"}
    assert row.fallbacks == {"original": 0, "ort cuda": 0, "onnxfuse": 0}
