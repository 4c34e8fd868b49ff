"""With products kept, a quantizer finds every MatMul, Gemm and Conv of a model in the fused one, too."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfuse.fusing.fuse import lower
from onnxfuse.fusing.fused import Fused
from onnxfuse.language import catalogue
from onnxfuse.language.context import Context
from onnxfuse.matching.kept_products import hidden
from onnxfuse.model.graph import family_of
from onnxfuse.model.op_traits import QUANTIZABLE
from onnxfuse.targets.target import KINDS, Target
from onnxfuse.terms.normal.normal import make
from onnxfuse.terms.term import Terms
from tests.spellings.mutants import feeds, run

CATALOGUE = catalogue.load()
N = helper.make_node
FLOAT = TensorProto.FLOAT
KEEPS = ("all", "weighted")
WIDTH, SEQUENCE = 8, 5


def model(nodes: list[Any], constants: dict[str, Any], x: tuple[Any, ...] = ("n", SEQUENCE, WIDTH)) -> ModelProto:
    """A model from x to y; constants are shapes of random numbers, or arrays."""
    rng = np.random.default_rng(3)
    stored = {k: v if isinstance(v, np.ndarray) else rng.normal(size=v).astype("f4") for k, v in constants.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, x)],
        [helper.make_tensor_value_info("y", FLOAT, [None] * len(x))],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def linear(x: str, name: str) -> list[Any]:
    return [N("MatMul", [x, f"{name}.w"], [f"{name}.p"]), N("Add", [f"{name}.p", f"{name}.b"], [name])]


def block() -> ModelProto:
    """Attention of two heads, a linear layer, a residual sum with a norm, and a linear layer with Relu."""
    heads = np.array([0, 0, 2, WIDTH // 2], np.int64)
    nodes = [node for name in "qkv" for node in linear("x", name)]
    for name, perm in {"q": (0, 2, 1, 3), "k": (0, 2, 3, 1), "v": (0, 2, 1, 3)}.items():
        nodes += [N("Reshape", [name, "heads"], [f"{name}4"]), N("Transpose", [f"{name}4"], [f"{name}t"], perm=perm)]
    nodes += [
        N("MatMul", ["qt", "kt"], ["s"]),
        N("Mul", ["s", "scale"], ["scaled"]),
        N("Softmax", ["scaled"], ["weights"], axis=-1),
        N("MatMul", ["weights", "vt"], ["h"]),
        N("Transpose", ["h"], ["ht"], perm=(0, 2, 1, 3)),
        N("Reshape", ["ht", "merged"], ["a"]),
        *linear("a", "o"),
        N("Add", ["o", "x"], ["r"]),
        N("LayerNormalization", ["r", "g", "b"], ["m"]),
        *linear("m", "up"),
        N("Relu", ["up"], ["act"]),
        *linear("act", "y"),
    ]
    names = ("q", "k", "v", "o", "up", "y")
    constants: dict[str, Any] = {f"{n}.w": (WIDTH, WIDTH) for n in names} | {f"{n}.b": (WIDTH,) for n in names}
    constants |= {"g": (WIDTH,), "b": (WIDTH,), "scale": np.array(0.5, np.float32)}
    return model(nodes, constants | {"heads": heads, "merged": np.array([0, 0, WIDTH], np.int64)})


def rows() -> ModelProto:
    """Two linear layers as exporters write them that work on rows: a Gemm between Reshapes, and a residual sum."""
    nodes = [
        N("Reshape", ["x", "flat"], ["x2"]),
        N("Gemm", ["x2", "w", "b"], ["h2"]),
        N("Reshape", ["h2", "cube"], ["h"]),
        N("Relu", ["h"], ["a"]),
        N("Reshape", ["a", "flat"], ["a2"]),
        N("Gemm", ["a2", "v", "c"], ["o2"], transB=1),
        N("Reshape", ["o2", "cube"], ["o"]),
        N("Add", ["o", "x"], ["r"]),
        N("LayerNormalization", ["r", "g", "d"], ["y"]),
    ]
    constants: dict[str, Any] = dict.fromkeys("wv", (WIDTH, WIDTH)) | dict.fromkeys("bcgd", (WIDTH,))
    shapes = {"flat": np.array([-1, WIDTH], np.int64), "cube": np.array([-1, SEQUENCE, WIDTH], np.int64)}
    return model(nodes, constants | shapes)


def convolutions() -> ModelProto:
    """Convolutions with BatchNormalization, Relu and a residual sum, one of two in parallel."""
    nodes = [
        N("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        N("BatchNormalization", ["c", "g", "b", "m", "s"], ["n"]),
        N("Relu", ["n"], ["a"]),
        N("Conv", ["a", "v"], ["d"], pads=[1, 1, 1, 1]),
        N("Conv", ["a", "u"], ["e"]),
        N("Add", ["d", "e"], ["z"]),
        N("Add", ["z", "x"], ["r"]),
        N("Relu", ["r"], ["y"]),
    ]
    constants = {"w": (4, 4, 3, 3), "v": (4, 4, 3, 3), "u": (4, 4, 1, 1), "g": (4,), "b": (4,), "m": (4,)}
    return model(nodes, constants | {"s": np.ones(4, np.float32)}, ("n", 4, 6, 6))


def adapted() -> ModelProto:
    """A linear layer with a branch of low rank, which is otherwise folded into its weight."""
    nodes = [
        N("MatMul", ["x", "w"], ["p"]),
        N("MatMul", ["x", "down"], ["d"]),
        N("MatMul", ["d", "up"], ["u"]),
        N("Add", ["p", "u"], ["y"]),
    ]
    return model(nodes, {"w": (WIDTH, WIDTH), "down": (WIDTH, 2), "up": (2, WIDTH)})


MODELS = {made.__name__: made() for made in (block, rows, convolutions, adapted)}


def products(model: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node if node.op_type in QUANTIZABLE)


def fused(before: ModelProto, keep: Any, kind: tuple[str, str] = ("onnxfuse", "cpu")) -> Fused:
    return lower(before, CATALOGUE.serving(Target(*kind, keep_products=keep)))[1]


def families(made: Fused) -> Counter[str]:
    return Counter(map(family_of, made.model.graph.node))


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("name", MODELS)
def test_all_products_stay_and_the_numbers_too(name: str, kind: tuple[str, str]) -> None:
    before = MODELS[name]
    made = fused(before, "all", kind)
    assert products(made.model) == products(before)
    assert len(made.model.graph.node) <= len(before.graph.node)
    given = feeds(before)
    for expected, actual in zip(run(before, given), run(made.model, given), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_without_it_they_are_fused(name: str) -> None:
    """Else the test before could not fail."""
    assert products(fused(MODELS[name], None).model) != products(MODELS[name])


def test_around_the_products_is_fused() -> None:
    found = families(fused(MODELS["block"], "all"))
    assert found["SkipLayerNormalization"] == 1
    assert not {"Attention", "FusedMatMul"} & found.keys()
    assert "BatchNormalization" not in families(fused(MODELS["convolutions"], "all"))


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_attention_has_no_weights(kind: tuple[str, str]) -> None:
    made = fused(MODELS["block"], "weighted", kind)
    found = families(made)
    if kind == ("onnx", "cpu"):  # a quantizer would take its op for another one, and it has no second
        assert found["MatMul"] == 8
    else:
        assert found["MatMul"] == 6
        assert found["Attention"] + found["MultiHeadAttention"] == 1
    assert not {node.op_type for node in made.model.graph.node} & {"Attention", "EmbedLayerNormalization"}


def test_what_is_left_is_told() -> None:
    misses = fused(MODELS["block"], "all").near_misses
    told = Counter((miss.rule, miss.reason.partition(" to find ")[2]) for miss in misses)
    assert told["Attention", "the MatMul, as --keep-products wants it"] == 1
    assert told["FusedMatMul", "the MatMul, as --keep-products wants it"] == 6, "six linear layers"
    told = Counter(miss.rule for miss in fused(MODELS["convolutions"], "all").near_misses)
    assert told["FusedConv"] == 1
    assert told["ConvSum"] == 1


def test_a_declaration_that_a_quantizer_would_belie_goes() -> None:
    """quantize_dynamic transposes the weight of a Gemm in place."""
    before = ModelProto()
    before.CopyFrom(MODELS["rows"])
    before.graph.value_info.append(helper.make_tensor_value_info("v", FLOAT, [WIDTH, WIDTH]))
    before.graph.value_info.append(helper.make_tensor_value_info("g", FLOAT, [WIDTH]))
    assert {"v", "g"} <= {info.name for info in fused(before, None, ("onnx", "cpu")).model.graph.value_info}
    kept = {info.name for info in fused(before, "all").model.graph.value_info}
    assert "v" not in kept
    assert "g" in kept


def test_a_product_is_one_with_a_weight_where_it_had_one() -> None:
    terms = Terms()
    x, w = terms.input("x", (3, 4), FLOAT), terms.constant(np.ones((4, 4), np.float32), FLOAT)
    product = make(terms, "MatMul", [x, w], {})
    context = Context(17, alive={x.id, w.id, product.id})
    turned = terms.raw("MatMul", [w, x], (), shape=(4, 4), dtype=FLOAT)
    assert hidden([product], [product], context, weighted=True) == ""
    assert hidden([product], [make(terms, "Relu", [product], {})], context, weighted=True) == ""
    assert hidden([product], [x], context, weighted=True) == "MatMul"
    assert hidden([product], [turned], context, weighted=False) == "MatMul", "its second operand is no constant"
    other = make(terms, "MatMul", [x, x], {})
    assert hidden([other], [x], context, weighted=False) == "MatMul"
    assert hidden([other], [x], context, weighted=True) == ""
    inside = Context(17, alive={x.id, w.id, product.id}, inside_gemms={product.id})
    assert hidden([product], [turned], inside, weighted=False) == "Gemm"
    assert hidden([product], [make(terms, "MatMul", [x, make(terms, "Exp", [w], {})], {})], inside, weighted=True) == ""
    assert hidden([], [make(terms, "Relu", [product], {})], inside, weighted=True) == "Gemm", "it would be written anew"
