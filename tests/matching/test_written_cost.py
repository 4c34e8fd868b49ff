"""A fusion that a target can only write as more than what it replaces is not made; one whose steps layers share is."""

from __future__ import annotations

import pytest
from onnx import ModelProto, parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from onnxfuse.targets.target import Target

CATALOGUE = catalogue.load()
CUDA, STANDARD = Target("ort", "cuda"), Target("onnx")


def attention(sizes: str, layers: int = 1, *, mask: bool = False) -> ModelProto:
    """Attention of heads that come apart already, with keys in columns: MultiHeadAttention wants them together, and
    ai.onnx Attention the keys in rows and a mask that cannot hide a whole row by infinity."""
    heads, keys = sizes.rsplit(", ", 1)
    inputs = "".join(
        f"float[{sizes}, 8] q{i}, float[{heads}, 8, {keys}] k{i}, float[{sizes}, 8] v{i}, " for i in range(layers)
    )
    nodes = "".join(
        f"s{i} = MatMul (q{i}, k{i}) m{i} = {f'Add (s{i}, mask)' if mask else f'Mul (s{i}, c)'} "
        f"p{i} = Softmax <axis = -1> (m{i}) y{i} = MatMul (p{i}, v{i}) "
        for i in range(layers)
    )
    outputs = ", ".join(f"float[{sizes}, 8] y{i}" for i in range(layers))
    text = f'<ir_version: 8, opset_import: ["" : 23]> g ({inputs}float[{keys}, {keys}] mask) => ({outputs})'
    return parser.parse_model(f"{text} <float c = {{0.5}}> {{ {nodes} }}")


def ops(target: Target, model: ModelProto) -> list[str]:
    return [family_of(node) for node in fuse(model, CATALOGUE.serving(target), raising=False).model.graph.node]


@pytest.mark.parametrize(("target", "mask"), [(CUDA, False), (STANDARD, True)], ids=["Transposes", "a mask"])
def test_more_nodes_that_launch_and_move_no_less_are_not_written(target: Target, mask: bool) -> None:
    small = attention("1, 2, 4", mask=mask)
    found = ops(target, small)
    assert len(found) <= 4
    assert found[-2:] == ["Softmax", "MatMul"]


@pytest.mark.parametrize(("target", "mask"), [(CUDA, False), (STANDARD, True)], ids=["Transposes", "a mask"])
@pytest.mark.parametrize(("sizes", "layers"), [("1, 2, 400", 1), ("b, 2, s", 1)], ids=["scores", "unknown"])
def test_what_stores_no_scores_any_more_is(sizes: str, layers: int, target: Target, mask: bool) -> None:
    model = attention(sizes, layers, mask=mask)
    assert {"Attention", "MultiHeadAttention"} & set(ops(target, model))


def test_a_mask_that_layers_share_is_no_cost_of_one() -> None:
    model = attention("1, 2, 4", 3, mask=True)
    assert ops(STANDARD, model).count("Attention") == 3
