"""Shapes and types of what quantizers write: as onnxruntime computes them, and as they are known of symbols."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.lifting.lift import lift
from onnxfuse.model.graph import roots
from onnxfuse.model.symbols import evaluate
from onnxfuse.runtime.quiet import Session
from onnxfuse.terms.infer import infer
from onnxfuse.terms.term import Terms

FLOAT, UINT8 = int(TensorProto.FLOAT), int(TensorProto.UINT8)
PREAMBLE = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
SCALES = "float s = {0.02}, uint8 z = {7}, int8 zi = {0}"


def model(nodes: str, *, inputs: str = "float[b,t,8] x", initializers: str = "") -> onnx.ModelProto:
    """Nodes that compute a value for each of their outputs, each an output of the graph; w is a matrix, k a kernel."""
    text = f"{PREAMBLE} g ({inputs}) => () <{SCALES}{', ' + initializers if initializers else ''}> {{ {nodes} }}"
    made = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    named = {"w": (8, 6), "row": (8,), "k": (4, 2, 3, 3)}
    for name, shape in named.items():
        made.graph.initializer.append(numpy_helper.from_array(rng.integers(0, 255, shape, np.uint8), name))
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for node in made.graph.node for name in node.output)
    return made


OPS = {
    "dynamic": """q, qs, qz = DynamicQuantizeLinear(x)   y = MatMulInteger(q, w, qz, z)""",
    "linear": """q = QuantizeLinear(x, s, z)   d = DequantizeLinear(q, s, z)   i = QuantizeLinear(x, s, zi)
                 y = QLinearMatMul(q, s, z, w, s, z, s, z)""",
    "sums": """q = QuantizeLinear(x, s, z)   a = com.microsoft.QLinearAdd(q, s, z, row, s, z, s, z)
               b = com.microsoft.QLinearMul(a, s, z, q, s, z, s, z)""",
    "unary": """q = QuantizeLinear(x, s, z)   a = com.microsoft.QLinearSigmoid(q, s, z, s, z)
                b = com.microsoft.QLinearLeakyRelu(a, s, z, s, z)
                c = com.microsoft.QLinearSoftmax<axis = -1, opset = 13>(a, s, z, s, z)""",
    "concat": """q = QuantizeLinear(x, s, z)   y = com.microsoft.QLinearConcat<axis = 1>(s, z, q, s, z, q, s, z)""",
    "floats": """y = com.microsoft.DynamicQuantizeMatMul(x, w, s, z)   q, qs, qz = DynamicQuantizeLinear(x)
                 t = com.microsoft.MatMulIntegerToFloat(q, w, qs, s, qz, z)""",
}
IMAGES = {
    "images": """q = QuantizeLinear(x, s, z)
                 a = ConvInteger<pads = [1, 1, 1, 1], strides = [2, 2], group = 1>(q, k, z, z)
                 b = QLinearConv<pads = [0, 1, 0, 1]>(q, s, z, k, s, z, s, z)
                 c = com.microsoft.QLinearGlobalAveragePool(q, s, z, s, z)
                 d = com.microsoft.QLinearAveragePool<kernel_shape = [3, 3], strides = [2, 2]>(q, s, z, s, z)""",
}
CASES = [
    *((name, nodes, "float[b,t,8] x", {"b": 2, "t": 3}) for name, nodes in OPS.items()),
    *((name, nodes, "float[b,2,h,9] x", {"b": 2, "h": 7}) for name, nodes in IMAGES.items()),
    ("rows", "q = QuantizeLinear(x, s, z)   y = com.microsoft.QGemm(q, s, z, w, s, z)", "float[b,8] x", {"b": 5}),
    ("rows of bytes", "q = QuantizeLinear(x, s, z)   y = com.microsoft.QGemm(q, s, z, w, s, z, , s, z)",
     "float[b,8] x", {"b": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "inputs", "sizes"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_shapes_and_types_are_those_of_a_run(nodes: str, inputs: str, sizes: dict[str, int]) -> None:
    made = model(nodes, inputs=inputs)
    dims = [d.dim_value or sizes[d.dim_param] for d in made.graph.input[0].type.tensor_type.shape.dim]
    given = np.random.default_rng(1).standard_normal(dims).astype(np.float32)
    names = [output.name for output in made.graph.output]
    values = dict(zip(names, Session(made, optimize=False).run({"x": given}), strict=True))
    del made.graph.output[:], made.graph.value_info[:]  # nothing is declared: what is known is inferred
    made.graph.output.append(onnx.ValueInfoProto(name=names[-1]))
    view = lift(next(roots(made)), None)
    for name, value in values.items():
        shape = view.terms_of[name].shape
        assert shape is not None, name
        assert [evaluate(dim, sizes) if not isinstance(dim, int) else dim for dim in shape] == list(value.shape), name
        assert view.dtypes[name] == helper.np_dtype_to_tensor_dtype(value.dtype), name


def test_quantized_values_have_the_type_that_says_so() -> None:
    terms = Terms()
    x, scale = terms.input("x", (2, 3), FLOAT), terms.input("scale", (), FLOAT)
    zero = terms.input("zero", (), TensorProto.INT8)
    assert infer(terms, "QuantizeLinear", [x, scale, zero], {}) == [((2, 3), TensorProto.INT8)]
    assert infer(terms, "QuantizeLinear", [x, scale], {}) == [((2, 3), TensorProto.UINT8)]
    assert infer(terms, "QuantizeLinear", [x, scale, terms.absent], {}) == [((2, 3), TensorProto.UINT8)]
    assert infer(terms, "QuantizeLinear", [x, scale], {"output_dtype": TensorProto.INT16})[0][1] == TensorProto.INT16
    half = terms.input("half", (), TensorProto.FLOAT16)
    q = terms.input("q", (2, 3), TensorProto.INT8)
    assert infer(terms, "DequantizeLinear", [q, half, zero], {}) == [((2, 3), TensorProto.FLOAT16)]


def test_packed_tables_and_weights_tell_what_they_hold() -> None:
    terms = Terms()
    ids, x = terms.input("ids", (2, 5), TensorProto.INT64), terms.input("x", (2, 5, 8), FLOAT)
    scales, bytes_ = terms.input("scales", (30, 2), FLOAT), terms.input("table", (30, 16), UINT8)
    nibbles = terms.input("nibbles", (30, 32), TensorProto.INT4)
    for table in (bytes_, nibbles):
        found = infer(terms, "com.microsoft.GatherBlockQuantized", [table, ids, scales], {})
        assert found == [((2, 5, 32), FLOAT)]
    assert infer(terms, "com.microsoft.MatMulNBits", [x, bytes_, scales], {"N": 7}) == [((2, 5, 7), FLOAT)]
    weights = terms.input("weights", (8, 24), UINT8)
    assert infer(terms, "com.microsoft.QAttention", [x, weights, scales, scales], {}) == [((2, 5, 8), FLOAT)]
    words = terms.input("words", (30, 12), UINT8)
    found = infer(terms, "com.microsoft.QEmbedLayerNormalization", [ids, terms.absent, words], {}, 1)
    assert found == [((2, 5, 12), FLOAT)]
    condition = terms.input("c", (5, 1), TensorProto.BOOL)
    a, b = terms.input("a", (2, 1, 3), UINT8), terms.input("b", (5, 3), UINT8)
    chosen = [condition, a, scales, scales, b, scales, scales, scales, scales]
    assert infer(terms, "com.microsoft.QLinearWhere", chosen, {}) == [((2, 5, 3), UINT8)]
