"""Shapes of gradients: those of what they are the gradients of."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import TensorProto

from onnxfuse.model.dims import symbol
from onnxfuse.terms.infer import infer
from onnxfuse.terms.term import Terms

N = symbol("n")
CASES: list[tuple[str, list[Any], dict[str, Any], list[Any]]] = [
    ("LinearWeightGrad", [(2, N, 6), (2, N, 4)], {}, [(6, 4), (6,)]),
    ("LinearWeightGrad", [(2, N, 6), (2, N, 4)], {"transB": 0}, [(4, 6), (6,)]),
    ("LinearWeightGrad", [None, (2, 4)], {}, [None, None]),
    ("AttentionGrad", [(N, 4, 7, 5), (N, 4, 7, 8), (N, 2, 9, 8), (N, 2, 9, 5)], {},
     [(N, 4, 7, 8), (N, 2, 9, 8), (N, 2, 9, 5), (N, 4, 7, 9)]),
    ("AttentionGrad", [(N, 7, 20), (N, 7, 32), (N, 9, 32), (N, 9, 20)], {"q_num_heads": 4, "bias_axes": (-4,)},
     [(N, 7, 32), (N, 9, 32), (N, 9, 20), (1, 4, 7, 9)]),
    ("BatchNormalizationGrad", [(N, 4, 7, 5), (N, 4, 7, 5), (4,), (4,), (4,)], {}, [(N, 4, 7, 5), (4,), (4,)]),
    ("BatchNormInternal", [(N, 4, 7, 5), (4,), (4,)], {}, [(N, 4, 7, 5), (4,), (4,)]),
    ("GroupNormalizationGrad", [(N, 6, 7, 5), (N, 6, 7, 5), (6,)], {"num_groups": 3}, [(N, 6, 7, 5), (6,), (6,)]),
    ("ConvWeightGrad", [(N, 6, 7), (N, 4, 9)], {"group": 2, "kernel_shape": (3,)}, [(6, 2, 3), (6,)]),
    ("ConvWeightGrad", [(N, 6, 7, 5), (N, 4, 9, 7)], {"group": 2, "kernel_shape": (3, 3)}, [(6, 2, 3, 3), (6,)]),
    ("ConvWeightGrad", [None, (N, 4, 9, 7)], {"kernel_shape": (3, 3)}, [None, None]),
    ("EmbeddingGrad", [(2, N, 8), (2, N)], {"num_embeddings": 60}, [(60, 8)]),
    ("EmbeddingGrad", [None, (2, N)], {"num_embeddings": 60}, [None]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shapes", "attributes", "wanted"), CASES)
def test_a_gradient_has_the_shape_of_its_tensor(
    op: str, shapes: list[Any], attributes: dict[str, Any], wanted: list[Any]
) -> None:
    terms, kind = Terms(), int(TensorProto.FLOAT)
    inputs = [terms.raw("Input", [], (("name", str(i)),), shape=s, dtype=kind) for i, s in enumerate(shapes)]
    found = infer(terms, op, inputs, attributes, len(wanted))
    assert found == [(shape, kind) for shape in wanted]
