"""The time of a model's matrix products and convolutions alone, which no fusion around them takes away."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnxruntime

PRODUCTS = frozenset(
    "Attention Conv ConvInteger ConvTranspose DynamicQuantizeMatMul Einsum FusedConv FusedGemm FusedMatMul Gemm "
    "GroupQueryAttention MatMul MatMulInteger MatMulIntegerToFloat MatMulNBits MultiHeadAttention QLinearConv "
    "QLinearMatMul".split()
)
"""Ops that onnxruntime computes by matrix products; an attention kernel counts whole, its Softmax too."""
_LEAST_RUNS, _MOST_RUNS = 5, 50


def share(model: Path, options: onnxruntime.SessionOptions, feeds: Mapping[str, Any], seconds: float = 5.0) -> float:
    """The share of the model's run time that its products take, 0 to 1, by onnxruntime's own profile.

    Profiling makes a run slower, but hardly a kernel: the kernels' time is set against that of a session without it,
    run in turns with the profiled one.  `options` are those of both; the profile is written to a temporary folder.
    """
    with tempfile.TemporaryDirectory() as folder:
        plain = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        options.enable_profiling, options.profile_file_prefix = True, f"{folder}/profile"
        try:
            profiled = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        finally:
            options.enable_profiling = False
        totals: list[float] = []
        plain.run(None, feeds)
        profiled.run(None, feeds)
        end = time.perf_counter() + seconds
        while len(totals) < _LEAST_RUNS or (len(totals) < _MOST_RUNS and time.perf_counter() < end):
            start = time.perf_counter()
            plain.run(None, feeds)
            totals.append(time.perf_counter() - start)
            profiled.run(None, feeds)
        events = json.loads(Path(profiled.end_profiling()).read_text())
    # The first profiled run warmed up.
    products = product_seconds(events)[1:]
    return min(statistics.median(a / b for a, b in zip(products, totals, strict=True)), 1.0)


def product_seconds(events: Iterable[Mapping[str, Any]]) -> list[float]:
    """The seconds that kernels of PRODUCTS took in each run of a profile, in the order of the runs."""
    events = [event for event in events if "dur" in event]
    runs = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == "model_run")
    kernels = [
        (event["ts"], event["dur"])
        for event in events
        if event["name"].endswith("_kernel_time") and event.get("args", {}).get("op_name") in PRODUCTS
    ]
    return [sum(took for at, took in kernels if start <= at <= end) / 1e6 for start, end in runs]
