"""Columns that are taken apart behind a product, as products with some of the columns."""

from __future__ import annotations

import pytest
from onnx import NodeProto, parser

from onnxfuse.errors import KernelError
from onnxfuse.kernels.gemm.parts import Part, span, taken_apart


def nodes(text: str) -> list[NodeProto]:
    return list(parser.parse_function(f'<opset_import: ["": 20], domain: "onnxfuse"> R {text}').node)


def test_each_part_has_a_product_and_what_is_done_to_it() -> None:
    made, parts = taken_apart(
        nodes("(x, w, d) => (y, z) { p = MatMul(x, w) s = Add(p, d) y, z = Split<axis = -1, num_outputs = 2>(s) }")
    )
    assert [node.op_type for node in made] == ["MatMul", "Add"] * 3
    assert [node.output[0] for node in made] == ["p", "s", "p@y", "y", "p@z", "z"]
    assert [(name, part.number, part.count) for name, part in parts.items()] == [("p@y", 0, 2), ("p@z", 1, 2)]
    assert parts["p@z"].made == {"p@z", "z"}


def test_a_product_by_itself_is_named_after_its_part() -> None:
    made, parts = taken_apart(nodes("(x, w) => (y, z) { p = MatMul(x, w) y, z = Split<axis = 1>(p) }"))
    assert [node.output[0] for node in made] == ["p", "y", "z"]
    assert parts["y"].made == frozenset()


@pytest.mark.parametrize(
    ("sizes", "count", "spans"),
    [((4, 3, 1), 3, [(0, 4), (4, 3), (7, 1)]), ((), 2, [(0, 4), (4, 4)]), ((), 3, [(0, 3), (3, 3), (6, 2)])],
)
def test_where_parts_lie(sizes: tuple[int, ...], count: int, spans: list[tuple[int, int]]) -> None:
    assert [Part(-1, number, sizes, count, frozenset()).span(8, 3) for number in range(count)] == spans


def test_all_columns() -> None:
    assert span(None, 8, 2) == (0, 8)


def test_parts_that_are_none() -> None:
    with pytest.raises(KernelError, match="not columns"):
        Part(0, 0, (4, 4), 2, frozenset()).span(8, 2)
    with pytest.raises(KernelError, match="are not 8"):
        Part(1, 0, (4, 3), 2, frozenset()).span(8, 2)
    with pytest.raises(KernelError, match="not one product"):
        taken_apart(nodes("(x) => (y, z) { p = Neg(x) y, z = Split<axis = -1>(p) }"))
    with pytest.raises(KernelError, match="once more"):
        taken_apart(
            nodes("(x, w) => (y, z) { p = MatMul(x, w) q, r = Split<axis = -1>(p) y, z = Split<axis = -1>(r) }")
        )
    with pytest.raises(KernelError, match="sizes of parts are computed"):
        taken_apart(nodes("(x, w, s) => (y, z) { p = MatMul(x, w) y, z = Split<axis = -1>(p, s) }"))
