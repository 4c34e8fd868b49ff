"""Shapes of layers: as onnx infers them where all sizes are known, and no less true of symbols."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.model.broadcast import broadcast_dim
from onnxfuse.model.dims import symbol
from onnxfuse.model.symbols import evaluate
from onnxfuse.terms.infer import infer
from onnxfuse.terms.term import Terms
from tests.terms.test_infer import FLOAT, INT64, Case, case, check_against_onnx, check_symbols

CASES = [
    case("LayerNormalization", (2, 3, 4), (4,), outputs=3, opset=17),
    case("LayerNormalization", (2, 3, 4), (3, 4), outputs=2, opset=17, axis=1),
    case("MatMul", (5, 1, 2, 3), (4, 3, 6)),
    case("MatMul", (2, 3), (3,)),
    case("MatMul", (3,), (4, 3, 5)),
    case("Einsum", (2, 3, 4), (2, 4, 5), equation="bij,bjk->bki"),
    case("Gemm", (3, 2), (4, 3), transA=1, transB=1),
    case("Gemm", (2, 3), (3, 4), (4,)),
    case("Conv", (1, 4, 9, 8), (6, 2, 3, 2), group=2, strides=[2, 1], pads=[1, 0, 2, 1], dilations=[1, 2]),
    case("Conv", (1, 3, 9), (6, 3, 3), auto_pad="SAME_UPPER", strides=[2]),
    case("Conv", (1, 3, 9), (6, 3, 3), auto_pad="VALID", strides=[2]),
    case("MaxPool", (1, 3, 9, 9), kernel_shape=[3, 2], strides=[2, 2], outputs=2),
    case("AveragePool", (1, 3, 9, 9), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("ConvTranspose", (1, 4, 5, 6), (4, 3, 3, 2), group=2, strides=[2, 3], output_padding=[1, 0],
         pads=[1, 0, 0, 1]),
    case("GlobalAveragePool", (2, 3, 5, 5)),
    case("GlobalMaxPool", (2, 3, 5)),
    case("LSTM", (5, 2, 3), (2, 16, 3), (2, 16, 4), outputs=3, hidden_size=4, direction="bidirectional"),
    case("GRU", (5, 2, 3), (1, 12, 3), (1, 12, 4), outputs=2, hidden_size=4),
    case("RNN", (5, 2, 3), (1, 4, 3), (1, 4, 4), outputs=2, hidden_size=4, layout=1, opset=14),
    case("Resize", (1, 3, 4, 4), None, None, [1, 3, 8, 6], opset=13),
    case("Attention", (2, 8, 5, 16), (2, 4, 7, 16), (2, 4, 7, 32), opset=23, outputs=3),
    case("Attention", (2, 5, 128), (2, 7, 64), (2, 7, 128), opset=23, outputs=3, q_num_heads=8, kv_num_heads=4),
    case("Attention", (2, 4, 5, 16), (2, 4, 1, 16), (2, 4, 1, 16), None, (2, 4, 6, 16), (2, 4, 6, 16), opset=23,
         outputs=3),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shapes_and_types_are_those_of_onnx(case: Case) -> None:
    check_against_onnx(case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_said_of_symbols_holds_for_their_sizes(case: Case) -> None:
    check_symbols(case)


def test_keys_and_values_grow_by_those_of_the_past() -> None:
    terms, past, new = Terms(), symbol("past"), symbol("new")
    q = terms.input("q", (2, new, 128), FLOAT)
    k, v = (terms.input(name, (2, new, size), FLOAT) for name, size in (("k", 64), ("v", 128)))
    before = [terms.input(name, (2, 4, past, size), FLOAT) for name, size in (("pk", 16), ("pv", 32))]
    heads = {"q_num_heads": 8, "kv_num_heads": 4}
    found = infer(terms, "Attention", [q, k, v, terms.absent, *before], heads, 3)
    assert [shape for shape, _ in found] == [(2, new, 256), (2, 4, past + new, 16), (2, 4, past + new, 32)]
    scores = infer(terms, "Attention", [q, k, v, terms.absent, *before], heads, 4)[3]
    assert scores == ((2, 8, new, past + new), FLOAT)
    found = infer(terms, "Attention", [q, k, v, terms.absent, terms.input("any", None, FLOAT), before[1]], heads, 4)
    assert found[1] == found[3] == (None, FLOAT)


def test_a_resize_by_unknown_scales_or_along_some_axes_is_unknown() -> None:
    terms = Terms()
    x, scales = terms.input("x", (1, 3, 4, 4), FLOAT), terms.input("scales", (4,), FLOAT)
    assert infer(terms, "Resize", [x, terms.absent, scales], {}) == [(None, 0)]
    sizes = terms.integers(np.array([8, 6], object))
    assert infer(terms, "Resize", [x, terms.absent, terms.absent, sizes], {"axes": (2, 3)}) == [(None, 0)]


def test_ops_of_onnxruntime_are_inferred_as_those_of_the_same_signature() -> None:
    terms = Terms()
    x, w = terms.input("x", (2, 3, 4), FLOAT), terms.input("w", (4, 12), FLOAT)
    assert infer(terms, "com.microsoft.BiasGelu", [x, w], {}) == [((2, 3, 4), FLOAT)]
    assert infer(terms, "com.microsoft.FusedMatMul", [x, w], {}) == [((2, 3, 12), FLOAT)]
    assert infer(terms, "com.microsoft.FusedMatMul", [x, w], {"transA": 1}) == [(None, FLOAT)]
    assert infer(terms, "com.microsoft.Attention", [x, w], {}) == [((2, 3, 4), FLOAT)]
    assert infer(terms, "com.microsoft.MatMulNBits", [x, w], {"N": 7}) == [((2, 3, 7), FLOAT)]
    ids = terms.input("ids", (2, 5), INT64)
    assert infer(terms, "com.microsoft.EmbedLayerNormalization", [ids, terms.absent, w], {}, 3)[0] == (
        (2, 5, 12),
        FLOAT,
    )
    assert infer(terms, "com.acme.Mystery", [x], {}, 2) == [(None, 0)] * 2


def test_a_resize_by_known_scales_rounds_down() -> None:
    """As onnxruntime computes it: in single precision."""
    terms, batch, rows = Terms(), symbol("batch"), symbol("rows")
    x = terms.input("x", (batch, 3, rows, 7), FLOAT)

    def resized(*scales: float) -> object:
        given = terms.constant(np.array(scales, np.float32), FLOAT)
        return infer(terms, "Resize", [x, terms.absent, given], {})[0][0]

    assert resized(1, 1, 2, 2) == (batch, 3, 2 * rows, 14)
    assert resized(1, 1, 1, 0.5) == (batch, 3, rows, 3)
    assert resized(1, 1, 3, 4 / 7) == (batch, 3, 3 * rows, 4)
    halved = resized(1, 1, 0.5, 1)
    assert isinstance(halved, tuple)
    assert halved[:2] + halved[3:] == (batch, 3, 7)
    assert halved[2] not in (rows, 2 * rows), "half of an unknown number is unknown"


def test_windows_that_are_rounded_up() -> None:
    terms, rows = Terms(), symbol("rows")
    x = terms.input("x", (2, 3, rows, 9), FLOAT)
    attrs = {"kernel_shape": (2, 2), "strides": (2, 2), "ceil_mode": 1}
    ((shape, _),) = infer(terms, "AveragePool", [x], attrs)
    assert shape is not None
    assert [evaluate(shape[2], {"rows": size}) for size in (2, 7, 8)] == [1, 4, 4]
    assert shape[3] == 5
    ((padded, _),) = infer(terms, "AveragePool", [x], attrs | {"pads": (1, 1, 1, 1)})
    assert padded is not None
    assert evaluate(padded[3], {}) is None, "versions of the standard differ there"


def test_attention_broadcasts_batches_and_queries_of_names_of_their_own() -> None:
    terms = Terms()
    b, q, k = symbol("b"), symbol("q"), symbol("k")
    x, y = terms.input("x", (b, 4, q, 8), FLOAT), terms.input("y", (b, 4, k, 8), FLOAT)
    assert infer(terms, "Attention", [x, y, y], {})[0] == ((b, 4, q, 8), FLOAT)
    mask = terms.input("mask", (symbol("m"), 1, symbol("r"), k), FLOAT)
    ((shape, _), *_) = infer(terms, "Attention", [x, y, y, mask], {})
    assert shape == (broadcast_dim(b, symbol("m")), 4, broadcast_dim(q, symbol("r")), 8)
    row = terms.input("row", (1, 1, 1, k), FLOAT)
    assert infer(terms, "Attention", [x, y, y, row], {})[0][0] == (b, 4, q, 8)
    heads = terms.input("heads", (4, q, k), FLOAT)
    assert infer(terms, "Attention", [x, y, y, heads], {})[0][0] == (b, 4, q, 8)
    whole, other = terms.input("whole", (b, q, 32), FLOAT), terms.input("other", (symbol("c"), k, 32), FLOAT)
    attrs = {"q_num_heads": 4, "kv_num_heads": 4}
    ((shape, _), *_) = infer(terms, "Attention", [whole, other, other], attrs)
    assert shape == (broadcast_dim(b, symbol("c")), q, 32)
