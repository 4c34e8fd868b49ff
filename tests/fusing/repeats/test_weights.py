"""Constants that are computed of each block's own weights are computed when the block is written; what is decided by
their elements is decided alike in all blocks, or these are worked on one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.external_data_helper import set_external_data

from onnxfuse.fusing.fuse import fuse
from onnxfuse.fusing.repeats.few import Few
from onnxfuse.fusing.repeats.weights import Weights
from onnxfuse.fusing.source import Source
from onnxfuse.terms.blockwise import UnevenError

from .blocks import WIDTH, Block, Build, chain, mlp
from .test_once import CATALOGUE, attending, both, runs

COUNT = 9


def packed(build: Build, x: str, number: int) -> str:
    """A bias of which parts are added to what a part of a product's columns are."""
    scope = f"/layer.{number}/packed"
    bias, inner = build.weight(scope, 2 * WIDTH), build.node("MatMul", x, build.weight(scope, WIDTH, WIDTH))
    sizes = build.constant("halves", np.array([WIDTH, WIDTH]))
    build.node("Split", bias, sizes, axis=0, scope=scope, outputs=2)
    first, second = build.nodes[-1].output
    gate = build.node("Tanh", build.node("Add", inner, first, scope=scope), scope=scope)
    return build.node("Add", build.node("Mul", gate, build.node("Add", inner, second, scope=scope), scope=scope), x)


def scaled(build: Build, x: str, number: int) -> str:
    """LayerScale: what a product gives is multiplied by a vector, which its weights take in."""
    scope = f"/layer.{number}/scaled"
    inner = build.linear(build.norm(x, scope), scope)
    return build.node("Add", build.node("Mul", inner, build.weight(scope, WIDTH), scope=scope), x, scope=scope)


def offset(build: Build, x: str, number: int) -> str:
    """A norm of which 1 + w is the scale."""
    scope = f"/layer.{number}/norm"
    square = build.node("ReduceMean", build.node("Pow", x, build.number(2), scope=scope), axes=[-1], scope=scope)
    root = build.node("Sqrt", build.node("Add", square, build.number(1e-5), scope=scope), scope=scope)
    scale = build.node("Add", build.weight(scope, WIDTH), build.number(1), scope=scope)
    normal = build.node("Mul", build.node("Div", x, root, scope=scope), scale, scope=scope)
    return build.node("Add", build.linear(normal, scope), x, scope=scope)


def stored(build: Build, x: str, number: int) -> str:
    """A large constant, computed of another, that a norm adds as it is."""
    scope = f"/layer.{number}/table"
    table = build.node("MatMul", build.weight(scope, 200, WIDTH), build.weight(scope, WIDTH, WIDTH), scope=scope)
    turned = build.node("Transpose", table, perm=[1, 0], scope=scope)
    scores = build.node("MatMul", build.norm(x, scope), turned, scope=scope)
    return build.node("Add", build.linear(build.node("Tanh", scores, scope=scope), scope, rows=200), x, scope=scope)


BLOCKS = [packed, scaled, offset, stored]


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
@pytest.mark.parametrize("block", BLOCKS)
def test_what_is_computed_of_weights_is_computed_for_each_block(block: Block, target: str) -> None:
    fused = both(chain(COUNT, block), target, level=2)
    # Where all rows are merged for Gemms, no node that is written gives a value of the original in each block.
    assert runs(fused) or (target == "ort" and block in (scaled, stored))
    assert not [tensor.name for tensor in fused.model.graph.initializer if tensor.doc_string]


def test_something_is_computed() -> None:
    """Otherwise the test before would say nothing."""
    for block in BLOCKS:
        model = chain(COUNT, block)
        before = {tensor.name for tensor in model.graph.initializer}
        made = [t for t in both(model).model.graph.initializer if t.name not in before and np.prod(t.dims) > 1]
        assert len(made) >= COUNT, block
        assert len({numpy_helper.to_array(tensor).tobytes() for tensor in made}) >= COUNT


def test_biases_that_are_packed() -> None:
    """onnxruntime's Attention has one bias for queries, keys and values."""
    fused = both(chain(COUNT, attending), "ort")
    assert runs(fused)


def test_in_half_precision() -> None:
    """What one pass writes the next one reads as it was rounded."""
    model = chain(COUNT, scaled)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    assert runs(both(model))


def weights(model: ModelProto, dims: list[int], scope: str) -> list[TensorProto]:
    return [t for t in model.graph.initializer if list(t.dims) == dims and t.name.startswith(scope)]


def put(tensor: TensorProto, array: np.ndarray) -> None:  # type: ignore[type-arg]
    tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), tensor.name))


def test_a_block_by_which_a_question_is_answered_otherwise_ends_a_run() -> None:
    """A scale that is no moderate number does not leave a product."""
    model = chain(20, scaled)
    even = runs(both(model))
    put(weights(model, [WIDTH], "/layer.10/")[-1], np.array([1e-30, 1, 2, 3, 4, 5, 6, 7]))
    assert 0 < runs(both(model)) < even


def test_a_scale_of_one_number_throughout_ends_a_run() -> None:
    model = chain(20, scaled)
    even = runs(both(model))
    put(weights(model, [WIDTH], "/layer.10/")[-1], np.ones(WIDTH))
    assert runs(both(model)) < even


def test_a_constant_that_one_block_computes_equal_to_another() -> None:
    """1 + w of one block is what lies in the file besides; it is one constant with it."""
    model = chain(20, offset)
    even = runs(both(model))
    scale = weights(model, [WIDTH], "/layer.10/")[0]
    put(scale, np.arange(WIDTH) + 1.0)
    put(weights(model, [WIDTH], "/layer.0/")[-1], np.arange(WIDTH) + 2.0)
    assert runs(both(model)) < even


def test_a_constant_that_vanishes_in_one_block() -> None:
    """1 + w is 0 throughout."""
    model = chain(20, offset)
    put(weights(model, [WIDTH], "/layer.10/")[0], np.linspace(-1, -1 - 1e-7, WIDTH))
    both(model)


@pytest.mark.parametrize("growth", [0, 5 * 200 * 4, 100 * 200 * 4, 1 << 20])
def test_the_room_for_constants_is_that_of_all_blocks(growth: int) -> None:
    """Of the products of two weights, both of which others need as well, some are stored, or all."""

    def block(build: Build, x: str, number: int) -> str:
        scope = f"/layer.{number}/table"
        wide, narrow = build.weight(scope, WIDTH, 200), build.weight(scope, 200, 200)
        table = build.node("MatMul", wide, narrow, scope=scope)
        first, second = (build.node("MatMul", x, each, scope=scope) for each in (table, wide))
        third = build.node("MatMul", second, narrow, scope=scope)
        both_ = build.node("Tanh", build.node("Add", first, third, scope=scope), scope=scope)
        return build.node("Add", build.linear(both_, scope, rows=200), x, scope=scope)

    model = chain(COUNT, block)
    catalogue = CATALOGUE.serving(CATALOGUE.target, growth, 1)
    few, all_ = (fuse(Source(model, None, catalogue, repeats), catalogue) for repeats in (True, False))
    assert few.model.SerializeToString(deterministic=True) == all_.model.SerializeToString(deterministic=True)


def test_slices_that_are_one_split_keep_the_name_of_the_first() -> None:
    """A node that takes the place of another is called as that was, in each block as its own."""

    def block(build: Build, x: str, number: int) -> str:
        scope = f"/layer.{number}/rotary"
        cut = [build.constant(name, np.array([n])) for name, n in (("zero", 0), ("half", 4), ("all", 8), ("two", 2))]
        zero, half, whole, two = cut
        inner = build.linear(build.norm(x, scope), scope)
        low = build.node("Slice", inner, zero, half, two, scope=scope)
        high = build.node("Slice", inner, half, whole, two, scope=scope)
        gated = build.node("Mul", build.node("Tanh", low, scope=scope), high, scope=scope)
        return build.node("Add", build.linear(gated, scope, rows=4), x, scope=scope)

    fused = both(chain(COUNT, block), "onnx")
    assert runs(fused)
    splits = [node for node in fused.model.graph.node if node.op_type == "Split"]
    assert len(splits) == COUNT
    assert all(node.name.split("/")[-1].startswith("Slice") for node in splits)


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    """A report does without them, and says so."""
    model = chain(COUNT, scaled)
    for tensor in model.graph.initializer:
        if len(tensor.dims):
            tensor.raw_data = numpy_helper.to_array(tensor).tobytes()
            set_external_data(tensor, "gone.bin", 0, len(tensor.raw_data))
            tensor.ClearField("raw_data")
    few, all_ = (fuse(Source(model, tmp_path, CATALOGUE, repeats), CATALOGUE) for repeats in (True, False))
    assert few.unread == all_.unread
    assert few.unread
    assert few.model.SerializeToString(deterministic=True) == all_.model.SerializeToString(deterministic=True)


def test_which_weights_are_of_blocks() -> None:
    model = chain(COUNT, mlp)
    few = Few.of(model, frozenset())
    assert few is not None
    families = Weights(few, None).families
    (run,) = few.runs
    own = {t.name: found for t in few.model.graph.initializer if (found := families.of(t.name, ""))}
    assert not own.keys() & {t.name for t in model.graph.initializer if not t.dims}
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert {found.block for found in own.values()} == set(range(5))
    for name, found in own.items():
        assert np.array_equal(found.here, arrays[name])
        assert np.array_equal(found.family.at(run.of_whole(found.block)), arrays[name])
    with pytest.raises(UnevenError):
        next(iter(own.values())).looked_at()


def test_a_note_of_a_stranger_says_nothing() -> None:
    model = chain(COUNT, scaled)
    for place, tensor in enumerate(model.graph.initializer):
        tensor.doc_string = f"onnxfuse: constant {place % 7} of block {place % 3}"
    fused = both(model)
    assert runs(fused)
    onnx.checker.check_model(fused.model)
