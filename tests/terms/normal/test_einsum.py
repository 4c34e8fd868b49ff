"""Einsum in the normal form: products and sums that compute the same, and attention written with it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.lifting.lift import lift
from onnxfuse.lifting.view import View
from onnxfuse.model.graph import family_of, roots
from onnxfuse.terms.fold import evaluate
from onnxfuse.terms.term import Term
from tests.spellings.build import Array
from tests.spellings.mutants import run
from tests.terms.normal.space import Space

SIZES = {"b": 2, "h": 3, "q": 4, "k": 5, "d": 6, "e": 7, "s": 4}
EQUATIONS = [
    *("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bhqd,bhkd->bhqk", "bqhd,bkhd->bqhk", "bsd,dhe->bshe", "bshe,hed->bsd"),
    *("bqd,kd->bqk", "...qd,...kd->...qk", "...qd,kd->...qk", "bqd,bke->qk", "bd,bd->b", "d,d->", "bqh,bqh->h"),
    *("bhqd,bkd->bhqk", "bkd,bhqd->bhqk", "bhqk,bkd->bhqd", "bkd,bhqk->bqhd", "de,bqd->bqe", "bshd,bd->bhs"),
    *("qd,hde->hqe", "hde,qd->hqe", "qd,bhde->bhqe", "bhed,qd->bhqe", "qd,hde->qhe", "bqd,hde->hbqe"),
    *("b,d->bd", "bd,e->bde", "bqk->bkq", "bqk->bq", "hb", "bh,hk"),
]
LEFT_ALONE = ["bb->b", "bqd,bqd,bqd->bq"]


def view_of(equation: str) -> tuple[View, dict[str, Array]]:
    rng = np.random.default_rng(0)
    operands = equation.split("->")[0].split(",")
    shapes = [[SIZES[c] for c in letters.replace("...", "bh")] for letters in operands]
    feeds = {f"x{i}": rng.standard_normal(shape) for i, shape in enumerate(shapes)}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in feeds.items()]
    node = helper.make_node("Einsum", list(feeds), ["y"], equation=equation)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "einsum", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return lift(next(roots(model)), None), feeds


@pytest.mark.parametrize("equation", EQUATIONS)
def test_an_einsum_is_sums_and_a_product(equation: str) -> None:
    view, feeds = view_of(equation)
    leaves = {view.terms_of[name].id: x for name, x in feeds.items()}

    def value(term: Term) -> Array:
        if term.id in leaves:
            return leaves[term.id]
        assert term.op != "Einsum"
        return evaluate(term.op, [value(a) for a in term.args], dict(term.attrs), term)

    want = np.einsum(equation, *feeds.values())
    term = view.terms_of["y"]
    assert term.shape == want.shape
    np.testing.assert_allclose(value(term), want)


@pytest.mark.parametrize("equation", LEFT_ALONE)
def test_a_diagonal_or_a_third_operand_is_left_alone(equation: str) -> None:
    view, _ = view_of(equation)
    assert view.terms_of["y"].op == "Einsum"


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd"])
@pytest.mark.parametrize("shared", [False, True])
def test_attention_by_einsum(layout: str, shared: bool) -> None:
    """Heads first, heads within positions, or positions first, with keys and values for each or for all of them: one
    Attention in 3-D form where heads were split."""
    rng = np.random.default_rng(0)
    sizes = dict(zip("bhsd", (2, 3, 4, 8), strict=True))
    keys, out = layout.replace("s", "t").replace("h", "" if shared else "h"), layout
    axes = {"Q": layout, "K": keys.replace("t", "s"), "V": keys.replace("t", "s")}
    feeds = {n: rng.standard_normal([sizes[c] for c in letters]).astype(np.float32) for n, letters in axes.items()}
    nodes = [
        helper.make_node("Einsum", ["Q", "K"], ["products"], equation=f"{layout},{keys}->bhst"),
        helper.make_node("Constant", [], ["scale"], value_float=0.25),
        helper.make_node("Mul", ["products", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("Einsum", ["weights", "V"], ["Y"], equation=f"bhst,{keys}->{out}"),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in feeds.items()]
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, feeds["Q"].shape)
    graph = helper.make_graph(nodes, "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    fused = fuse(model, catalogue.load()).model
    onnx.checker.check_model(fused)
    assert sum(family_of(node) == "Attention" for node in fused.graph.node) == 1
    assert not any(family_of(node) in ("Einsum", "Softmax") for node in fused.graph.node)
    np.testing.assert_allclose(run(fused, feeds)[0], run(model, feeds)[0], rtol=1e-5, atol=1e-6)


def test_a_letter_whose_length_two_operands_spell_differently() -> None:
    """Weights have the mask's length, values that of their cache: neither is viewed in the other's."""
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["scores", "mask"], ["masked"]),
            helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
            helper.make_node("Einsum", ["weights", "values"], ["y"], equation="bgrst,bgtd->bgrsd"),
        ],
        "g",
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["b", 2, 3, "s", "t"]),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["m"]),
            helper.make_tensor_value_info("values", TensorProto.FLOAT, ["b", 2, "u", 4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    y = lift(next(iter(roots(model))), None).term("y")
    assert [x.op for x in y.args] == ["Softmax", "Reshape"]
    assert y.op == "MatMul"


def test_places_of_a_picture_are_no_heads(t: Space) -> None:
    """Queries of masks (Mask2Former) meet the features of a picture as other queries read them."""
    picture, queries = t.input("picture", 1, 16, 6, 8), t.input("queries", 1, 5, 16)
    features = t.transpose(picture, 0, 2, 3, 1)
    masks = t.op("MatMul", features, t.reshape(t.transpose(queries, 0, 2, 1), 1, 1, 16, 5))
    assert masks.op == "MatMul"
    assert masks.args[0] is features
