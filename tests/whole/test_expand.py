"""What an op broadcasts anyway is not expanded before it, what two operands have is done once, and BatchNormalization
goes through views."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue

CATALOGUE = catalogue.load()


def ops(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in fuse(proto, CATALOGUE).model.graph.node]


def expanded(steps: str, batch: str = "2") -> onnx.ModelProto:
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[{batch},5,4] x, float[2,5,4] z, float[1,5,4] b, bool[1,5,1] c, float[5,1] d) => (float[2,5,4] y)
    <int64[3] dims = {{2, 5, 4}}, int64[3] times = {{2, 1, 1}}, float half = {{0.5}}> {{ {steps} }}""")


@pytest.mark.parametrize(
    "steps",
    [
        "e = Expand (b, dims) y = Add (x, e)",
        "e = Expand (b, dims) y = Sub (x, e)",
        "e = Expand (b, dims) f = Mul (e, half) y = Add (f, x)",
        "e = Expand (d, dims) y = Mul (x, e)",
        "e = Tile (b, times) y = Mul (e, x)",
        "s = Shape (x) e = Expand (b, s) y = Add (x, e)",
        "e = Expand (c, dims) y = Where (e, x, z)",
    ],
)
def test_an_expand_before_what_broadcasts_is_superfluous(steps: str) -> None:
    before = expanded(steps)
    assert not {"Expand", "Tile"} & set(ops(before))
    assert onnxfuse.optimize(before).report.validation.verdict == "equal"


def turned(steps: str) -> onnx.ModelProto:
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,5,4] a, float[2,5,4] b, float[2,4,5] c) => (float[2,4,5] y) {{
        s = Transpose <perm = [0, 2, 1]> (a)  t = Transpose <perm = [0, 2, 1]> (b)  {steps} }}""")


@pytest.mark.parametrize("steps", ["y = Add (s, t)", "u = Sub (s, t)  y = Relu (u)", "u = Mul (s, t)  y = Add (u, c)"])
def test_what_is_transposed_alike_is_transposed_behind(steps: str) -> None:
    before = turned(steps)
    assert ops(before).count("Transpose") == 1
    assert onnxfuse.optimize(before).report.validation.verdict == "equal"


@pytest.mark.parametrize("steps", ["u = Add (s, t)  y = Mul (u, s)", "u = Add (s, t)  v = Exp (t)  y = Add (u, v)"])
def test_what_is_read_elsewhere_is_transposed_before(steps: str) -> None:
    assert ops(turned(steps)).count("Transpose") == 2


@pytest.mark.parametrize(
    "steps", ["e = Expand (b, dims) y = Add (e, b)", "e = Expand (c, dims) y = Where (e, b, d)", "y = Expand (b, dims)"]
)
def test_one_that_gives_the_result_its_shape_stays(steps: str) -> None:
    assert "Expand" in ops(expanded(steps))


def test_one_that_may_widen_stays() -> None:
    assert "Expand" in ops(expanded("e = Expand (b, dims) y = Add (x, e)", "N"))


def normed(steps: str, size: str, out: str) -> onnx.ModelProto:
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[{size}] x) => (float[{out}] y) {{ {steps} }}""")
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 6), "bias": (6,), "k": (6, 4, 3, 1), "s": (6,), "t": (6,), "m": (6,), "v": (6,)}
    for name, shape in shapes.items():
        if name in {value for node in model.graph.node for value in node.input}:
            model.graph.initializer.append(numpy_helper.from_array(rng.uniform(0.5, 2, shape).astype(np.float32), name))
    shapes_of = {"rows": [-1, 6], "flat": [0, 6, -1], "back": [-1, 5, 6], "one": [0, 6, 1]}
    for name, dims in shapes_of.items():
        if name in {value for node in model.graph.node for value in node.input}:
            model.graph.initializer.append(numpy_helper.from_array(np.array(dims), name))
    return model


NORM = "y = BatchNormalization (z, s, t, m, v)"


@pytest.mark.parametrize(
    ("steps", "size", "out"),
    [
        (f"p = MatMul (x, w) q = Add (p, bias) z = Transpose <perm = [0, 2, 1]> (q) {NORM}", "N, 5, 4", "N, 6, 5"),
        (f"p = MatMul (x, w) z = Transpose <perm = [0, 2, 1]> (p) {NORM}", "N, 5, 4", "N, 6, 5"),
        (f"p = MatMul (x, w) z = Reshape (p, rows) {NORM}", "N, 5, 4", "R, 6"),
        (f"p = Gemm (x, w, bias) z = Reshape (p, one) {NORM}", "N, 4", "N, 6, 1"),
        (f"c = Conv (x, k) z = Reshape (c, flat) {NORM}", "N, 4, 9, 1", "N, 6, 7"),
        (f"c = Conv (x, k, bias) z = Reshape (c, flat) {NORM}", "N, 4, 9, 5", "N, 6, 35"),
    ],
)
def test_batch_normalization_goes_through_a_view(steps: str, size: str, out: str) -> None:
    before = normed(steps, size, out)
    assert "BatchNormalization" not in ops(before)
    assert onnxfuse.optimize(before).report.validation.verdict == "equal"


def test_batch_normalization_of_other_axes_than_the_columns_stays() -> None:
    before = normed(f"p = MatMul (x, w) z = Transpose <perm = [0, 1, 2]> (p) {NORM}", "N, 6, 4", "N, 6, 6")
    assert "BatchNormalization" in ops(before)
