"""What a rule emits: constants that are folded stay within the range of their element type."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of

CATALOGUE = catalogue.load()
CONVOLUTION, NORMALIZED, PRODUCT = (
    ("Conv", "a = Conv<pads = [1, 1]>(x, w)  y = Mul(a, f)"),
    ("Conv", "a = Conv<pads = [1, 1]>(x, w)  y = BatchNormalization(a, k, k, k, v)"),
    ("FusedMatMul", "a = MatMul(x, w)  c = Add(a, k)  y = Mul(c, k)"),
)


def model(nodes: str, dtype: type, weight: float, factor: float) -> ModelProto:
    """Nodes with a weight w, a factor f of two channels, k of two columns, and a variance v."""
    kind = {np.float16: "float16", np.float32: "float"}[dtype]
    made = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 17]> g ({kind}[b, 2, n] x) => ({kind}[b, 2, m] y) {{ {nodes} }}'
    )
    shape = (2, 2, 3) if "Conv" in nodes else (6, 2)
    values = {
        "w": np.full(shape, weight),
        "f": np.full((1, 2, 1), factor),
        "k": np.full(2, factor),
        "v": np.full(2, 1.0),
    }
    made.graph.initializer.extend(numpy_helper.from_array(value.astype(dtype), n) for n, value in values.items())
    return made


@pytest.mark.parametrize("nodes", [CONVOLUTION, NORMALIZED, PRODUCT], ids=["factor", "norm", "linear"])
@pytest.mark.parametrize(
    ("dtype", "weight", "factor", "folds"),
    [
        (np.float16, 100, 10, True),
        (np.float16, 1000, 1000, False),  # infinite, and where a convolution pads NaN
        (np.float16, 1e-4, 1e-3, False),  # 1e-7 has a single binary digit left
        (np.float32, 1000, 1000, True),
        (np.float32, 1e35, 1e4, False),
        (np.float32, np.inf, 10, True),  # no worse than it was
    ],
)
def test_what_a_fold_makes_is_in_the_range_of_its_type(
    nodes: tuple[str, str], dtype: type, weight: float, factor: float, folds: bool
) -> None:
    op, text = nodes
    after = fuse(model(text, dtype, weight, factor), CATALOGUE).model
    assert ([family_of(node) for node in after.graph.node] == [op]) == folds
