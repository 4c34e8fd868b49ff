"""What an attention is predicted to take in the form that a card has for itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from onnx import ModelProto, parser

from onnxfuse.kernels.attention import proof as attention_proof
from onnxfuse.kernels.attention.tiles import TENSOR_MEMORY, WARPGROUPS, Tiles, shared_bytes
from onnxfuse.performance.gpus import card

from .test_estimate import only


def attention(queries: int) -> ModelProto:
    """Eight heads of 128 channels over 2,048 keys."""
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]>
        g (float16[1, 8, {queries}, 128] q, float16[1, 8, 2048, 128] k, float16[1, 8, 2048, 128] v)
        => (float16[1, 8, {queries}, 128] y) {{
          t = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, t)
          w = Softmax <axis = -1> (s)  y = MatMul (w, v) }}"""
    )


def test_attention_by_warpgroups_is_what_a_card_that_has_them_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In less time, as its products take; where it is refused the reason is told, and it is by warps."""
    kept = attention_proof.Proofs(tmp_path / "proofs.json")
    monkeypatch.setattr(attention_proof, "proofs", lambda: kept)
    by_warpgroups = only(attention(4096))
    shared = shared_bytes(Tiles(8, 64), 128, 128, 2, WARPGROUPS)
    assert (by_warpgroups.kernels[0].threads, by_warpgroups.kernels[0].shared) == (256, shared)
    assert only(attention(2048)).kernels[0].threads == 128, "or there were fewer blocks than multiprocessors"
    card, why = "NVIDIA H200 sm_90, driver 13000", "3 numbers are others"
    vendor: Any = SimpleNamespace(card=card)
    kept._keep(vendor, card, attention_proof.digest(WARPGROUPS, "float16"), why)
    kept._read = None
    by_warps = only(attention(4096))
    assert by_warpgroups.refused == only(attention(1)).refused == only(attention(2048), card="a100").refused == ()
    assert by_warps.refused == (f"attention kernels by warpgroups (float16) are refused on {card}: {why}",)
    assert (by_warps.kernels[0].threads, by_warps.kernels[0].shared) == (128, shared_bytes(Tiles(4, 64), 128, 128, 2))
    assert 0.5 < (by_warpgroups.seconds or 0.0) / (by_warps.seconds or 1.0) < 0.8


def test_attention_with_scores_in_tensor_memory_is_what_a_card_that_has_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the time of its exponentials, of which a multiprocessor has 16 a cycle, beside which products go on."""
    kept = attention_proof.Proofs(tmp_path / "proofs.json")
    monkeypatch.setattr(attention_proof, "proofs", lambda: kept)
    blackwell = card("b200")
    rows = 128 * blackwell.multiprocessors  # as many blocks of each head
    found = only(attention(rows), card="b200")
    shared = shared_bytes(Tiles(8, 128), 128, 128, 2, TENSOR_MEMORY)
    assert (found.kernels[0].threads, found.kernels[0].shared, found.kernels[0].blocks) == (
        256,
        shared,
        8 * rows // 128,
    )
    exponentials = 8 * rows * 2048 / (16 * blackwell.multiprocessors * blackwell.clock)
    assert exponentials < (found.seconds or 0.0) < 1.4 * exponentials
    assert only(attention(64), card="b200").kernels[0].threads == 128, "few rows stay with warps"
