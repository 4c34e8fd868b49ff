"""The benchmark models are what their descriptions say, at sizes that a test can afford."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.synthetic import NODES_PER_BLOCK, blocks, decoder, huge, unlike


def test_a_block_has_49_nodes_and_keeps_its_shape_at_any_size(tmp_path: Path) -> None:
    path = tmp_path / "blocks.onnx"
    blocks(path, count=3)
    assert len(onnx.load(path).graph.node) == 3 * NODES_PER_BLOCK == 3 * 49
    onnx.checker.check_model(str(path), full_check=True)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch, seq in ((1, 3), (2, 7)):
        x = np.random.default_rng(0).standard_normal((batch, seq, 16)).astype(np.float32)
        (y,) = session.run(None, {"x": x})
        assert y.shape == x.shape
        assert np.abs(y.mean(axis=-1)).max() < 1e-5  # The last node is a normalisation's.


def test_more_blocks_share_their_weights(tmp_path: Path) -> None:
    few, many = tmp_path / "few.onnx", tmp_path / "many.onnx"
    blocks(few, count=1)
    blocks(many, count=5)
    assert onnx.load(few).graph.initializer == onnx.load(many).graph.initializer


def test_huge_is_long_but_empty(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    huge(path, layers=3, hidden=2048)
    data = tmp_path / "huge.onnx.data"
    assert data.stat().st_size == 3 * 2048 * 2048 * 4
    assert data.stat().st_blocks * 512 < data.stat().st_size / 100
    onnx.checker.check_model(str(path), full_check=True)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.ones((2, 2048), np.float32)})
    assert np.array_equal(y, np.zeros((2, 2048)))


def test_nothing_repeats(tmp_path: Path) -> None:
    path = tmp_path / "unlike.onnx"
    unlike(path, count=200, weights=3)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert (len(model.graph.node), len(model.graph.initializer)) == (200, 300)
    ops = [node.op_type for node in model.graph.node]
    stretches = {tuple(ops[start : start + 8]) for start in range(193)}
    assert len(stretches) == 193
    read = {name for node in model.graph.node for name in node.input}
    assert {node.output[0] for node in model.graph.node} - read == {"y"}, "all nodes are needed"


def test_the_decoder_has_its_weights_in_a_file_and_runs(tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    decoder(path, layers=2, hidden=128, vocabulary=50, length=8)
    onnx.checker.check_model(str(path), full_check=True)
    assert path.stat().st_size < 60_000 < (tmp_path / "decoder.onnx.data").stat().st_size
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    ids = np.arange(16).reshape(2, 8)
    other = ids.copy()
    other[:, -1] = 49
    (y,), (z,) = (session.run(None, {"input_ids": each}) for each in (ids, other))
    assert y.shape == (2, 8, 50)
    assert np.isfinite(y).all()
    np.testing.assert_allclose(y[:, :-1], z[:, :-1], atol=1e-6, err_msg="what comes later is not seen")
    assert np.abs(y[:, -1] - z[:, -1]).max() > 1e-3
