"""Whole models of benchmarks.gpu without a GPU or PyTorch: onnxruntime on a CPU, and NumPy in PyTorch's place."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import exported, peers, sessions, stack
from benchmarks.gpu.exported import Case
from benchmarks.gpu.plan import OK, Row, SkippedError
from benchmarks.gpu.sessions import Place
from models import split_stack
from onnxfuse.runtime.installed import CPU
from tests.host_machine import HostMachine

MODEL = split_stack.build(3, 4, 16)
HERE = Place(CPU, "cpu", captures=False)
CASE = Case("split_stack", 4, 16, "float32")


class Tensor:
    """A tensor on either side."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def is_floating_point(self) -> bool:
        return self.values.dtype.kind == "f"

    def half(self) -> Tensor:
        return Tensor(self.values.astype(np.float16))

    def float(self) -> Tensor:
        return Tensor(self.values.astype(np.float32))

    def to(self, device: str) -> Tensor:
        assert device == "cpu"
        return self

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self.values


class Network:
    """split_stack as a module; `off` is added to its output."""

    def __init__(self, off: float = 0.0) -> None:
        self.off = off

    def to(self, device: str) -> Network:
        return self

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        return (Tensor(stack.reference(MODEL, x.values) + self.off), Tensor(0))


class Torch:
    """The module; it compiles by adding `off`."""

    def __init__(self, off: float = 0.0) -> None:
        self.off = off
        self.modes: list[Any] = []

    def no_grad(self) -> Any:
        return contextlib.nullcontext()

    def compile(self, network: Network, *, dynamic: bool, **options: Any) -> Network:
        self.modes.append(options.get("mode"))
        if "mode" in options:
            raise RuntimeError("no graphs here")
        return Network(self.off)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    module, x = Torch(), np.random.default_rng(0).standard_normal(3 * 4 * 16).astype(np.float32)
    found = SimpleNamespace(build=Network, inputs=lambda batch, length: {"x": Tensor(x)}, output_axes={"y": {}})
    monkeypatch.setattr(peers, "torch", lambda: module)
    monkeypatch.setattr(exported, "architecture", lambda name: found)
    monkeypatch.setattr(exported, "export", lambda case, architecture: MODEL)
    monkeypatch.setattr(sessions, "available", lambda: None)
    return module


def only() -> Row:
    """The last row; one before it has onnxruntime's sides alone."""
    *before, row = exported.compare(CASE, HostMachine(), HERE, 0.05)
    assert all(set(each["sides"]) == {"original", "onnxfuse"} for each in before)
    assert len(before) == ("original" in row["sides"])
    return row


def test_a_model_runs_as_exported_fused_and_in_torch(torch: Torch) -> None:
    row = only()
    assert row.get("outcome", OK) == OK
    assert set(row["sides"]) == {"original", "onnxfuse", "torch", "torch.compile"}
    assert row["failed"] == {"torch.compile, graph": "RuntimeError: no graphs here"}
    assert torch.modes == [None, "reduce-overhead"]
    before, after = row["nodes"]
    assert after < before
    assert row["name"] == "split_stack float32 4x16"


def test_a_side_that_computes_something_else_is_said(torch: Torch) -> None:
    torch.off = 1.0
    assert only()["outcome"].startswith("torch.compile: an output differs from the first side's by ")


def test_without_a_provider_torch_runs_alone(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise SkippedError("the CUDA provider is not there")

    monkeypatch.setattr(sessions, "available", missing)
    monkeypatch.setattr(exported, "export", None)
    row = only()
    assert set(row["sides"]) == {"torch", "torch.compile"}
    assert row["failed"]["onnxruntime"] == "the CUDA provider is not there"


def test_a_missing_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "models.base_architectures", None)
    with pytest.raises(SkippedError, match=r"models\.base_architectures is not installed"):
        exported.architecture("bert_base")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SkippedError, match="torch is not installed"):
        list(exported.compare(CASE, HostMachine(), HERE))


def test_float16_is_far_later_than_float32() -> None:
    y = np.linspace(1, 2, 50)
    assert exported.far("float32", y, y * (1 + 2e-4)) == ""
    assert exported.far("float32", y, y * 1.01) == "differs from the first side's by 1.0e-02"
    assert exported.far("float16", y, y * 1.01) == ""
    assert exported.far("float16", y, y * np.nan) == "differs from the first side's by nan"


def test_every_case_is_an_export() -> None:
    from models.base import NAMES

    assert {case.architecture for case in exported.CASES} <= set(NAMES)
    assert len({step.key for step in exported.steps()}) == len(exported.CASES)
    for name in ("bert", "gpt2", "vit", "t5", "llama"):
        assert any(case.architecture.startswith(name) for case in exported.CASES)
