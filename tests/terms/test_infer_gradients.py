"""Shapes of gradients: those of what they are the gradients of."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import TensorProto

from onnxfuse.model.dims import symbol
from onnxfuse.terms.infer import infer
from onnxfuse.terms.term import Terms

N = symbol("n")
CASES: list[tuple[str, list[Any], dict[str, int], list[Any]]] = [
    ("LinearWeightGrad", [(2, N, 6), (2, N, 4)], {}, [(6, 4), (6,)]),
    ("LinearWeightGrad", [(2, N, 6), (2, N, 4)], {"transB": 0}, [(4, 6), (6,)]),
    ("LinearWeightGrad", [None, (2, 4)], {}, [None, None]),
    ("AttentionGrad", [(N, 4, 7, 5), (N, 4, 7, 8), (N, 2, 9, 8), (N, 2, 9, 5)], {},
     [(N, 4, 7, 8), (N, 2, 9, 8), (N, 2, 9, 5)]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shapes", "attributes", "wanted"), CASES)
def test_a_gradient_has_the_shape_of_its_tensor(
    op: str, shapes: list[Any], attributes: dict[str, int], wanted: list[Any]
) -> None:
    terms, kind = Terms(), int(TensorProto.FLOAT)
    inputs = [terms.raw("Input", [], (("name", str(i)),), shape=s, dtype=kind) for i, s in enumerate(shapes)]
    found = infer(terms, op, inputs, attributes, len(wanted))
    assert found == [(shape, kind) for shape in wanted]
