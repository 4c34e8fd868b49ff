"""Attention and products of benchmarks.gpu beside PyTorch, without either a GPU or PyTorch: both are made of NumPy."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import attentions, contest, expected, floors, goals, linear, report, sdpa, sizes, steps, timing
from benchmarks.gpu.attentions import attention
from benchmarks.gpu.contest import OURS
from benchmarks.gpu.floors import Bound, Floors
from benchmarks.gpu.plan import OK, Journal, Row, SkippedError
from onnxfuse.errors import KernelError
from onnxfuse.kernels.gemm.autotune import FORMS
from onnxfuse.performance.gpus import card
from tests.fake_torch import FakeTorch
from tests.host_machine import HostMachine, Wrong

RATES = Floors(1e9, {"float16": 1e12, "float32": 1e11})


@pytest.fixture(autouse=True)
def _few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "REPLAY", 1e-9)
    monkeypatch.setattr(timing, "LEAST_ROUNDS", 2)
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    monkeypatch.setattr(timing, "MOST_SETS", 2)


@pytest.fixture
def machine() -> HostMachine:
    return HostMachine()


@pytest.fixture
def torch(machine: HostMachine, monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch(machine)
    monkeypatch.setitem(sys.modules, "torch", fake)  # type: ignore[arg-type]
    return fake


def only(found: contest.Contest, machine: HostMachine, rates: Floors = RATES) -> Row:
    """The last row; one before it, if any, has ours alone."""
    *before, row = contest.run(found, lambda: rates, machine)
    assert all(set(each["sides"]) <= {OURS, *FORMS} and each["name"] == row["name"] for each in before)
    return row


# ------------------------------------------------------------------------------------------------------------ attention

NODES = [
    attention(2, 2, 20, 16),
    attention(1, 2, 20, 16, causal=True, dtype="float32"),
    attention(2, 2, 20, 16, mask="bias"),
    attention(2, 2, 20, 16, mask="shared bias", causal=True),
    attention(2, 4, 20, 16, kv_heads=2, mask="boolean"),
    attention(2, 4, 1, 16, kv_heads=2, keys=50),
    attention(2, 4, 1, 16, kv_heads=2, keys=1, past=49),
    attention(2, 4, 1, 16, kv_heads=2, keys=1, past=49, turned=True),
]


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.label)
def test_attention_is_right_and_agrees_with_every_backend_that_takes_it(
    node: sizes.Timed, machine: HostMachine, torch: FakeTorch
) -> None:
    row = only(sdpa.contest(node), machine)
    assert row.get("outcome", OK) == OK
    masked = node.operands[3] is not None
    assert set(row["sides"]) == ({OURS, "math"} if masked else {OURS, *sdpa.BACKENDS})
    assert set(row["failed"].values()) == ({"It does not support a mask."} if masked else set())
    assert row["how"] == {name: "graph" if name == OURS else "stream" for name in row["sides"]}
    assert row["kind"] == attentions.kind(node)
    assert row["of_floor"] > 0


def test_what_differs_is_not_timed(machine: HostMachine, torch: FakeTorch) -> None:
    torch.wrong = "FLASH"
    row = only(sdpa.contest(NODES[0]), machine)
    assert "flash" not in row["sides"]
    assert row["failed"]["flash"].startswith("differs from onnxfuse by ")


@pytest.mark.parametrize(
    ("number", "place", "reason"),
    [
        (0, (0, 0, 0, 3), "onnxfuse: output 0 at 0, 0, 0: 1 of 16"),
        (1, (0, 0, 7, 3), "output 1 at 0, 0: 1 of 800"),
        (2, (1, 1, 49, 0), "output 2 at 1, 1: 1 of 800"),
    ],
    ids=["Y", "present_key", "present_value"],
)
def test_wrong_attention_is_not_timed(
    number: int, place: tuple[int, ...], reason: str, machine: HostMachine, torch: FakeTorch
) -> None:
    node, real = NODES[-2], timing.ours

    def ours(node: sizes.Timed, machine: Any, every: Any) -> Any:
        launch = real(node, machine, every)

        def at(i: int) -> Any:
            def go() -> None:
                launch(i)()
                machine.view(every[i].outputs[number])[place] += 1

            return go

        return at

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(timing, "ours", ours)
        row = only(sdpa.contest(node), machine)
    assert reason in row["outcome"]
    assert "sides" not in row


def test_without_torch_ours_is_timed_alone(machine: HostMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    row = only(sdpa.contest(NODES[0]), machine, Floors())
    assert set(row["sides"]) == {OURS}
    assert row["failed"] == {"torch": "torch is not installed"}
    assert "of_floor" not in row


def test_no_backend_has_softcap_and_the_math_backend_a_limit() -> None:
    torch: Any = FakeTorch(HostMachine())
    torch.__name__ = "collections"  # whose parts are no flex_attention
    big = sdpa.ways(attention(1, 16, 32768, 64), torch)
    assert big["math"] == contest.Refused("left out: its scores alone take 69 GB")
    sys.modules["collections.nn.attention.flex_attention"] = torch
    try:
        capped = sdpa.ways(attention(1, 2, 8, 16, softcap=3.0), torch)
    finally:
        del sys.modules["collections.nn.attention.flex_attention"]
    assert {name for name, way in capped.items() if isinstance(way, contest.Refused)} == set(sdpa.BACKENDS)
    assert isinstance(capped[sdpa.EAGER], contest.Way)
    assert isinstance(capped[sdpa.FLEX], contest.Way)


def test_the_grid_goes_from_one_token_to_many_in_all_forms() -> None:
    nodes = list(attentions.timed())
    assert nodes[: len(attentions.telling())] == attentions.telling()
    assert len({node.name for node in nodes}) == len(nodes) < 100
    kinds = [attentions.kind(node) for node in nodes]
    assert {kind: kinds.count(kind) >= 2 for kind in kinds} == dict.fromkeys(kinds, True)
    assert {*kinds} == {"unmasked", "bias", "boolean", "softcap", "decode", "present"}
    assert {1, 16384} <= {node.first.shape[2] for node in nodes}
    for node in nodes:
        kernel = expected.kernel(node.op, node.attributes)
        assert kernel.work(node.types).flops > 0
        held = sum(np.prod(t.shape, dtype=np.int64) * t.dtype.itemsize for t in node.types if t is not None)
        assert held < 6e9, node.name


# ------------------------------------------------------------------------------------------------------------- products


def test_products_by_warpgroups_are_timed_where_they_are_not_refused(
    machine: HostMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another form would run in their place."""
    node, small = (linear.layer(linear.Layer("a model", 136, n), 136) for n in (136, 64))
    for architecture, form, holds, one, reason in (
        ("sm_90", "tma", True, node, ""),
        ("sm_90", "tma", False, node, "refused on this card"),
        ("sm_90", "tma", True, small, "no such product by warpgroups"),
        ("sm_90", "tcgen05", True, node, "no such product with sums in tensor memory"),
        ("sm_100", "tma", True, node, "no such product by warpgroups"),
        ("sm_100", "tcgen05", True, node, ""),
    ):
        verdicts = SimpleNamespace(holds=lambda *_, verdict=holds: verdict)
        monkeypatch.setattr(linear, "proofs", lambda found=verdicts: found)
        monkeypatch.setattr(machine.device, "architecture", architecture)
        with pytest.raises(KernelError, match=reason) if reason else nullcontext():
            linear._proved(one, machine, form)


@pytest.mark.parametrize(("activation", "bias"), [("", True), ("Gelu", True), ("FastGelu", False), ("Swish", False)])
def test_a_product_runs_in_every_form_beside_torch(
    activation: str, bias: bool, machine: HostMachine, torch: FakeTorch
) -> None:
    node = linear.layer(linear.Layer("a model", 24, 40, bias, activation), 20)
    row = only(linear.contest(node), machine)
    assert row.get("outcome", OK) == OK
    assert {OURS, "eager", "compile"} < set(row["sides"])
    assert set(FORMS) == set(row["sides"]) - {OURS, "eager", "compile"} | set(row["failed"])
    fused = activation in ("", "FastGelu")
    other = {"wgmma", "tma", "tcgen05"} | (set() if fused else {"cublaslt"})
    assert set(row["failed"]) == other, "another would run in its place"
    assert torch.compiled == [{"dynamic": False, "fullgraph": True}]


def test_a_wrong_product_is_not_timed(machine: HostMachine, torch: FakeTorch) -> None:
    machine.device = Wrong(machine, lambda array: machine.view(array).__setitem__(0, 9))  # type: ignore[assignment]
    row = only(linear.contest(linear.layer(linear.LAYERS[0]._replace(k=24, n=40), 20)), machine)
    assert row["outcome"].startswith("onnxfuse: ")


def test_a_layer_without_a_kernel_says_so(machine: HostMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(op: str, attributes: Any) -> Any:
        raise KernelError(f"{op} has no kernel")

    monkeypatch.setattr(expected, "kernel", none)
    with pytest.raises(SkippedError, match="FusedMatMul has no kernel"):
        only(linear.contest(linear.layer(linear.LAYERS[0], 4)), machine)


def test_layers_are_those_of_the_models() -> None:
    nodes = list(linear.timed())
    assert len({node.name for node in nodes}) == len(nodes)
    assert {node.first.shape[0] for node in nodes} == set(linear.ROWS)
    for name in ("BERT-base", "BERT-large", "GPT-2", "ViT-L", "Llama-7B"):
        assert any(name in node.name for node in nodes)


# ---------------------------------------------------------------------------------------------------------- the plan


def test_sections_run_from_end_to_end(
    machine: HostMachine, torch: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nodes that a CPU can afford, and one wrong answer of PyTorch's."""
    torch.wrong = "CUDNN"
    small = [linear.layer(found._replace(k=24, n=40), 20) for found in linear.LAYERS[:2]]
    monkeypatch.setattr(attentions, "telling", lambda: NODES[:1])
    monkeypatch.setattr(attentions, "timed", lambda: iter(NODES[:3]))
    monkeypatch.setattr(linear, "telling", lambda: small[:1])
    monkeypatch.setattr(linear, "timed", lambda: iter(small))
    monkeypatch.setattr(floors, "RATED", ("float16", "float32"))
    monkeypatch.setattr(floors.products, "__defaults__", (64,))
    monkeypatch.setattr(command, "MAKE_MACHINE", lambda: machine)
    journal = Journal(tmp_path / "journal.jsonl")
    assert command.work(journal, 1e6, ["attention", "products"]) == 0
    record = report.record(journal, command.about(480.0, 12.0))
    assert record["left_out"] == {}
    assert report.failures(record["rows"]) == []
    sections = [row["section"] for row in record["rows"]]
    assert {section: sections.count(section) for section in sections} == {
        "floor": 4,
        "peers": 6,
        "attention": 8,
        "products": 10,
    }
    text = "\n".join(report.markdown(record))
    assert "| attention without a mask, of the rate of flash | 0.70 |" in text
    assert " | 2 | " in next(line for line in text.splitlines() if "of the vendor's and separate ops" in line)
    whole = "\n".join(report.markdown(record, most=None))
    assert "attention: no cudnn for 1: differs from onnxfuse by" in whole
    assert "sources compiled" in whole


def test_one_call_has_time_for_what_tells_most(tmp_path: Path) -> None:
    planned = steps.plan(Journal(tmp_path / "journal.jsonl"))
    first = planned[: next(i for i, step in enumerate(planned) if step.section == "split_stack")]
    assert {step.section for step in first} == {"compile", "check", "floor", "peers", "attention", "products"}
    assert sum(step.seconds for step in first) < 480
    assert len({step.key for step in planned}) == len(planned)


# ------------------------------------------------------------------------------------------------------ floors, goals


def test_floors_are_what_was_measured(machine: HostMachine) -> None:
    rows = [{"section": "floor", "outcome": OK, **row} for row in floors.copy(machine)]
    (nothing,) = floors.launch(machine)
    assert nothing == {"launch_seconds": 0.0, "how": "graph"}, "where time passes by bytes"
    rows.append({"section": "floor", "outcome": OK, "launch_seconds": 2e-6})

    class Vendor:
        def product(self, product: Any, a: Any, b: Any, y: Any) -> None:
            assert (product.m, product.n, product.k) == (64, 64, 64)
            assert machine.view(a).any()
            machine.now += 1e-6

    class Found:
        vendor = Vendor()

    machine.device = Found()  # type: ignore[assignment]
    rows += [{"section": "floor", "outcome": OK, **row} for row in floors.products("float16", machine, 64)]
    found = Floors.of([*rows, {"section": "floor", "outcome": "hung", "bytes_per_second": 7}])
    assert found == Floors(pytest.approx(1e9), {"float16": pytest.approx(2 * 64**3 / 1e-6)}, 2e-6)
    assert found.bound(10**9, 1, "float16") == Bound(pytest.approx(1.0), "bytes")
    assert found.bound(1, 2 * 64**3, "float16") == Bound(pytest.approx(1e-6), "flops")
    assert found.bound(1, 1, "float32") is None
    Found.vendor = None  # type: ignore[assignment]
    with pytest.raises(SkippedError, match="no library of matrix products"):
        list(floors.products("float16", machine, 64))


def row(section: str, name: str, kind: str, more: Row | None = None, **us: float) -> Row:
    sides = {side: {"us": value} for side, value in us.items()}
    return {
        "section": section,
        "name": name,
        "kind": kind,
        "outcome": OK,
        "sides": sides,
        "cached": False,
        **(more or {}),
    }


ROWS = [
    row("attention", "a", "unmasked", onnxfuse=10.0, flash=8.0, math=99.0),
    row("attention", "b", "unmasked", onnxfuse=10.0, flash=6.9),
    row(
        "attention",
        "c",
        "bias",
        {"failed": {"flash": "no masks"}, "of_floor": 0.5},
        onnxfuse=5.0,
        efficient=6.0,
        math=9.0,
    ),
    row("attention", "d", "decode", {"of_copy": 0.81}, onnxfuse=5.0),
    row("attention", "e", "decode", {"cached": True}, onnxfuse=1.0),
    row("products", "f", "product", onnxfuse=5.0, tiled=5.0, vendor=6.0, eager=4.0),
    row("products", "f", "product", onnxfuse=5.0, tiled=5.0, vendor=6.0, eager=6.0, compile=5.5),
    row("attention", "g", "bias", {"outcome": "wrong"}, onnxfuse=5.0, efficient=1.0),
    {"section": "attention", "name": "h", "outcome": "skipped: torch is not installed"},
]


def test_a_goal_is_missed_by_the_node_that_is_farthest_from_it() -> None:
    unmasked, bias, decode, present, products = goals.judged(ROWS)
    assert (unmasked["measured"], unmasked["worst"], unmasked["outcome"]) == (0.69, "b", "missed")
    assert (unmasked["median"], unmasked["nodes"]) == (0.745, 2)
    assert (bias["measured"], bias["worst"], bias["outcome"]) == (1.2, "c", "reached")
    assert (decode["measured"], decode["nodes"], decode["outcome"]) == (0.81, 1, "reached")
    assert (present["nodes"], present["outcome"]) == (0, "not measured")
    assert (products["measured"], products["nodes"]) == (1.2, 1), "the last row of a node counts"


def test_the_tables_say_what_was_reached_and_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("facts", {"card": "a card", "compute_capability": "9.0", "multiprocessors": 132})
    for found in [
        *ROWS,
        {"section": "floor", "name": "copy", "outcome": OK, "bytes_per_second": 4.3e12},
        {"section": "floor", "name": "launch", "outcome": OK, "launch_seconds": 2e-6},
        {"section": "floor", "name": "products", "outcome": OK, "dtype": "float16", "flops_per_second": 7.9e14},
        row("models", "bert", "", {"failed": {"onnxruntime": "no CUDA provider"}}, torch=900.0),
    ]:
        journal.write("row", found)
    record = report.record(journal, command.about(480.0, 12.0))
    text = "\n".join(report.markdown(record, most=None))
    assert "| attention without a mask, of the rate of flash | 0.70 | 0.69 | 0.74 | 2 | missed, by b |" in text
    assert "| decode with past and present, of a copy's bandwidth | 0.80 | | | 0 | not measured |" in text
    assert "| c | 50% | 5.0 |  | no | 6.0 |  | 9.0 |  |  | 1.20 |" in text
    assert "| f |  | 5.0 | 5.0 |  |  |  | 6.0 |" in text
    assert "attention: no flash for 1: no masks" in text
    assert "models: no onnxruntime for 1: no CUDA provider" in text
    assert "the vendor's products, TFLOP/s: float16 790" in text
    assert "| bert | 900.0 |" in text
    (tmp_path / "card.json").write_text(json.dumps(report.card(record)))
    found = card(str(tmp_path / "card.json"))
    assert (found.bandwidth, found.tensor, found.launch) == (4.3e12, 7.9e14, 2e-6)


def test_the_longest_tables_are_cut_first() -> None:
    tables = [[f"{name}{i}" for i in range(count)] for name, count in (("a", 50), ("b", 5), ("c", 30), ("d", 0))]
    lines = report.fitted(tables, 45)
    assert len(lines) == 45
    assert [sum(line[0] == name for line in lines) for name in "abc"] == [20, 5, 20]
    assert report.fitted(tables, 8) == []
    assert len(report.fitted(tables, 500)) == 85
