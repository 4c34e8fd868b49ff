"""What onnxruntime's CUDA provider has a kernel for, and what of a model falls back to the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks import cuda, cuda_kernels
from onnxfuse.errors import UsageError
from onnxfuse.fusing.fuse import lower
from onnxfuse.reporting.placement import fallbacks
from onnxfuse.targets import cuda_provider
from onnxfuse.targets.target import Target
from tests.targets.test_cuda_target import CATALOGUE, MODELS

# ------------------------------------------------------------------------------------------------ the table

DOCUMENT = """# Supported
## Operators implemented by CPUExecutionProvider
|**Operator Domain:** *ai.onnx*||||
|Abs|*in* X:**T**<br> *out* Y:**T**|13+|**T** = tensor(double)|
## Operators implemented by CUDAExecutionProvider
| Op Name | Parameters | OpSet Version | Types Supported |
|---------|------------|---------------|-----------------|
|**Operator Domain:** *ai.onnx*||||
|Identity|*in* x:**V**<br> *out* y:**V**<br><br>or<br><br>*in* x:**T**|14+|**V** = seq(tensor(bool)), tensor(float)|
|||[1, 13]|**T** = tensor(float), tensor(float16)|
|IsNaN|*in* X:**T1**<br> *out* Y:**T2**|12|**T1** = tensor(float)<br/> **T2** = tensor(bool)|
|**Operator Domain:** *com.microsoft*||||
|BiasGelu|*in* A:**T**<br> *in* B:**T**<br> *out* C:**T**|1+|**T** = tensor(float)|
|**Operator Domain:** *com.ms.internal.nhwc*||||
|Conv|*in* X:**T**|1+|**T** = tensor(float)|
## Operators implemented by DmlExecutionProvider
|**Operator Domain:** *ai.onnx*||||
|Exp|*in* X:**T**|1+|**T** = tensor(float)|
"""


def test_the_table_is_read_from_the_document_of_onnxruntime() -> None:
    def kernel(since: int, until: int | None, **types: list[str]) -> dict[str, Any]:
        return {"since": since, "until": until, "types": types}

    assert cuda_kernels.table(DOCUMENT) == {
        "Identity": {
            "inputs": ["V"],
            "kernels": [kernel(14, None, V=["float"]), kernel(1, 13, T=["float", "float16"])],
        },
        "IsNaN": {"inputs": ["T1"], "kernels": [kernel(12, 12, T1=["float"], T2=["bool"])]},
        "com.microsoft.BiasGelu": {"inputs": ["T", "T"], "kernels": [kernel(1, None, T=["float"])]},
    }


def test_another_document_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no table of CUDAExecutionProvider: is this docs/OperatorKernels\.md"):
        cuda_kernels.table("# Roadmap")


def test_the_table_says_where_it_is_from() -> None:
    found = json.loads(cuda_provider.TABLE.read_text(encoding="utf-8"))
    assert found["source"].endswith("/docs/OperatorKernels.md")
    assert cuda_kernels.written(found["ops"], found["onnxruntime"], found["source"]) == cuda_provider.TABLE.read_text(
        encoding="utf-8"
    )


# ------------------------------------------------------------------------------------------------ fallbacks


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_no_model_falls_back_more_than_before(path: Path) -> None:
    before = onnx.load(path, load_external_data=False)
    after = lower(before, CATALOGUE, base_dir=path.parent)[1].model
    was, now = fallbacks(before)[0], fallbacks(after)[0]
    assert sum(now.values()) <= sum(was.values()), now
    assert not any(n.op_type == "Attention" and not n.domain for n in after.graph.node)
    assert not any(n.domain.startswith("onnxfuse") for n in after.graph.node)


@pytest.mark.parametrize(
    ("op", "opset", "kind", "reason"),
    [
        ("Cos", 21, "float", ""),
        ("Cos", 22, "float", "no kernel for the edition of opset 22"),
        ("ReduceMax", 18, "float", ""),
        ("ReduceMax", 20, "float", "no kernel for the edition of opset 20"),
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
