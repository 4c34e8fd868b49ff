"""What onnxruntime runs on integers is not taken into fused ops; what it runs on floats is."""

from __future__ import annotations

import onnx
import pytest

from benchmarks.quantized_models import kernels
from onnxfuse.fusing.build import Build
from onnxfuse.language.catalogue import RULES
from onnxfuse.pipeline import optimize, report
from onnxfuse.targets.target import Target
from tests.quantized_models import counts, quantized

TARGETS = ["onnxfuse", "onnx", "ort"]
Q = "q = QuantizeLinear(x, s, z)   d = DequantizeLinear(q, s, z)"
W = "wf = DequantizeLinear(w, s2, z2)"
GELU = """half = Constant<value_float = 0.5>()  one = Constant<value_float = 1.0>()
    root = Constant<value_float = 1.4142135>()  e0 = Div(t, root)  e1 = Erf(e0)  e2 = Add(e1, one)  e3 = Mul(t, e2)
    y = Mul(e3, half)"""
SWISH = "sig = Sigmoid(t)  y = Mul(t, sig)"
NORM = "y = LayerNormalization<axis = -1, epsilon = 0.00001>(t, g, h)"
IMAGE = {"inputs": "float[b,2,8,8] x", "constants": "uint8 zero = {0}"}

DYNAMIC = """qx, a, c = DynamicQuantizeLinear(x)  i = MatMulInteger(qx, w, c, z2)  f = Cast<to = 1>(i)  u = Mul(a, s2)
    p = Mul(f, u)  t = Add(p, g)"""
NBITS = "p = com.microsoft.MatMulNBits<K = 8, N = 8, bits = 4, block_size = 16>(x, packed, scales)"
PACKED = f"uint8[8,1,8] packed = {{{str([*range(3, 195, 3)])[1:-1]}}}, float[8] scales = {{{str([0.1] * 8)[1:-1]}}}"


def fused(model: onnx.ModelProto, target: str | Target) -> onnx.ModelProto:
    done = optimize(model, Build(target if isinstance(target, Target) else Target(target)))
    assert done.report.validation.verdict == "equal"
    assert not done.report.left_out
    return done.model


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "nodes",
    [
        f"{Q} {W} p = MatMul(d, wf)  t = Add(p, g)  {GELU}",
        f"{Q} {W} p = MatMul(d, wf)  t = Add(p, g)  {SWISH}",
        f"{W} p = MatMul(x, wf)  t = Add(p, g)  {GELU}",
        f"{Q} {W} t = MatMul(d, wf)  y = Relu(t)",
        f"{Q} {W} p = MatMul(d, wf)  c = Add(p, g)  t = Add(c, x)  {NORM}",
        f"{Q} {W} p = MatMul(d, wf)  r = QuantizeLinear(p, s3, z)  t = DequantizeLinear(r, s3, z)  {GELU}",
        f"""{Q} r = QuantizeLinear(m, s2, z2)  e = DequantizeLinear(r, s2, z2)  c = Softmax<axis = -1>(d)
            qc = QuantizeLinear(c, s3, z)  t = DequantizeLinear(qc, s3, z)  y = MatMul(t, m)""",
        f"""qx, a, c = DynamicQuantizeLinear(x)  i = MatMulInteger(qx, w, c, z2)  f = Cast<to = 1>(i)  u = Mul(a, s2)
            p = Mul(f, u)  t = Add(p, g)  {GELU}""",
    ],
    ids=["gelu", "swish", "weights alone", "relu", "norm", "gelu of bytes", "softmax of bytes", "dynamic"],
)
def test_there_are_never_fewer_kernels_on_integers(nodes: str, target: str) -> None:
    model = quantized(nodes)
    before = kernels(model)
    assert before
    assert kernels(fused(model, target)).total() >= before.total()


@pytest.mark.parametrize("target", TARGETS)
def test_a_convolution_on_integers_keeps_its_activation_outside(target: str) -> None:
    rest = "c = Conv(d, kf)  r = Relu(c)  i = QuantizeLinear(r, s2, zero)  y = DequantizeLinear(i, s2, zero)"
    model = quantized(f"{Q} kf = DequantizeLinear(k, s2, z2) {rest}", **IMAGE)
    done = fused(model, target)
    assert counts(done)["Conv"] == 1
    assert kernels(done) == kernels(model) == {"QLinearConv": 1}


def test_an_epilogue_of_floats_is_fused() -> None:
    """Without the QuantizeLinear behind it onnxruntime runs the convolution on numbers, and so may we."""
    model = quantized(f"{Q} kf = DequantizeLinear(k, s2, z2)  c = Conv(d, kf)  y = Relu(c)", **IMAGE)
    assert not kernels(model)
    assert counts(fused(model, "onnxfuse"))["FusedConv"] == 1


def test_a_product_with_a_scale_for_each_row_of_its_weights_is_fused() -> None:
    model = quantized(f"wf = DequantizeLinear<axis = 0>(w, ss)  p = MatMul(x, wf)  t = Add(p, g)  {GELU}")
    assert not kernels(model)
    assert counts(fused(model, "onnxfuse"))["FusedMatMul"] == 1


def test_activations_and_norms_are_fused_behind_products_on_integers() -> None:
    gelu = counts(fused(quantized(f"{Q} {W} p = MatMul(d, wf)  t = Add(p, g)  {GELU}"), "onnxfuse"))
    assert gelu["MatMul"] == 1
    assert gelu["Region"] == 1
    norm = counts(fused(quantized(f"{Q} {W} p = MatMul(d, wf)  c = Add(p, g)  t = Add(c, x)  {NORM}"), "onnxfuse"))
    assert norm["SkipLayerNormalization"] == 1


def test_a_transpose_that_onnxruntime_moves_past_a_product_on_integers_stays() -> None:
    """It would be one region with what else reads the tensor, and the product behind it on floats."""
    turned = "e = DequantizeLinear(r, s2, z2) k = Transpose<perm = [1, 0]>(e) n = Neg(e)"
    model = quantized(f"{Q} r = QuantizeLinear(m, s2, z2) {turned} a = MatMul(d, k) y = Add(a, n)")
    assert kernels(model)
    assert kernels(fused(model, "onnxfuse")) == kernels(model)


def test_the_report_says_why() -> None:
    told = report(quantized(f"{Q} {W} t = MatMul(d, wf)  y = Relu(t)"))
    (near,) = [near for near in told.near_misses if near.rule == "FusedMatMul"]
    assert near.reason == "t runs on integers, in onnxruntime's MatMulIntegerToFloat"


def test_what_the_cuda_provider_runs_on_floats_is_fused_for_it() -> None:
    """Between a QuantizeLinear and a DequantizeLinear it has no kernels on integers."""
    rest = "c = Conv(d, kf)  r = Relu(c)  i = QuantizeLinear(r, s2, zero)  y = DequantizeLinear(i, s2, zero)"
    model = quantized(f"{Q} kf = DequantizeLinear(k, s2, z2) {rest}", **IMAGE)
    assert counts(fused(model, Target("ort", "cuda")))["FusedConv"] == 1
    assert counts(fused(model, Target("ort")))["Conv"] == 1


def test_a_product_of_bytes_takes_what_is_done_to_its_sums() -> None:
    """The kernel on integers is found in the function body, and written for onnxruntime alone."""
    model = quantized(f"{DYNAMIC} {GELU}")
    own = fused(model, "onnxfuse")
    assert counts(own) == {"DynamicQuantizeLinear": 1, "MatMulIntegerToFloat": 1}
    contrib = fused(model, "ort")
    assert counts(contrib)["MatMulIntegerToFloat"] == 1
    assert counts(fused(model, "onnx"))["MatMulInteger"] == 1
    assert kernels(own) == kernels(contrib) == kernels(model) == {"DynamicQuantizeMatMul": 1}


SWISH_OF_IMAGES = """qx, a, c = DynamicQuantizeLinear(x)  i = ConvInteger<pads = [1, 1, 1, 1]>(qx, k, c, z2)
    f = Cast<to = 1>(i)  u = Mul(a, SCALES)  p = Mul(f, u)  t = Add(p, bias)  sig = Sigmoid(t)  y = Mul(t, sig)"""


@pytest.mark.parametrize("scales", ["s2", "each"])
def test_a_convolution_of_bytes_takes_what_is_done_to_its_sums(scales: str) -> None:
    bias = "float[1,4,1,1] bias = {0.3, -0.2, 0.1, 2}, float[1,4,1,1] each = {0.01, 0.02, 0.03, 0.04}"
    model = quantized(SWISH_OF_IMAGES.replace("SCALES", scales), inputs="float[b,2,8,8] x", constants=bias)
    own = fused(model, "onnxfuse")
    assert counts(own) == {"DynamicQuantizeLinear": 1, "ConvIntegerToFloat": 1}
    assert kernels(own) == kernels(model) == {"ConvInteger": 1}
    for target in ("onnx", "ort"):
        assert counts(fused(model, target))["ConvInteger"] == 1


def test_a_convolution_of_bytes_takes_a_residual() -> None:
    residual = "r = Add(t, z3)  y = Relu(r)"
    nodes = SWISH_OF_IMAGES.replace("SCALES", "s2").partition("sig =")[0] + residual
    constants = "float[1,4,1,1] bias = {0.3, -0.2, 0.1, 2}"
    model = quantized(nodes, inputs="float[b,2,8,8] x, float[b,4,8,8] z3", constants=constants)
    assert counts(fused(model, "onnxfuse")) == {"DynamicQuantizeLinear": 1, "ConvIntegerToFloat": 1}


@pytest.mark.parametrize("bias", ["float[1,1,8,8] bias", "float[8] bias", "float[2,1,8,8] bias"])
def test_a_sum_behind_a_convolution_of_bytes_that_is_no_bias_stays_outside(bias: str) -> None:
    model = quantized(SWISH_OF_IMAGES.replace("SCALES", "s2"), inputs=f"float[2,2,8,8] x, {bias}")
    found = counts(optimize(model, Build(level=RULES)).model)
    assert found["Add"] == 1 or "ConvIntegerToFloat" not in found


def test_a_product_of_bytes_whose_sums_are_read_stays_apart() -> None:
    model = quantized(f"{DYNAMIC} v = Cast<to = 1>(i)  y = Sub(t, v)")
    assert counts(fused(model, "ort"))["MatMulInteger"] == 1


def test_rows_of_a_product_of_bytes_are_merged_behind_it() -> None:
    """As a Gemm is quantized: its activation sees the rows apart again."""
    product = DYNAMIC.replace("(x)", "(r)").replace("t = ", "n = ")
    model = quantized(
        f"r = Reshape(x, rows)  {product}  t = Reshape(n, apart)  {GELU}",
        inputs="float[b,5,8] x",
        constants="int64[2] rows = {-1, 8}, int64[3] apart = {-1, 5, 8}",
    )
    done = fused(model, "onnxfuse")
    assert counts(done) == {"DynamicQuantizeLinear": 1, "MatMulIntegerToFloat": 1}
    assert kernels(done) == kernels(model)


@pytest.mark.parametrize("target", ["onnxfuse", "ort"])
@pytest.mark.parametrize("inputs", ["float[1,5,8] x", "float[40] x", "float[10,8] x"])
def test_a_view_that_merges_no_rows_parts_no_product_of_bytes_from_its_quantizer(inputs: str, target: str) -> None:
    rows = "int64[3] rows = {5, -1, 8}" if inputs == "float[10,8] x" else "int64[2] rows = {5, 8}"
    model = quantized(f"r = Reshape(x, rows)  {DYNAMIC.replace('(x)', '(r)')} {GELU}", inputs=inputs, constants=rows)
    done = fused(model, target)
    assert counts(done)["MatMulIntegerToFloat"] == 1
    assert kernels(done) == kernels(model) == {"DynamicQuantizeMatMul": 1}


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_of_few_bits_takes_its_bias_where_that_is_known_to_run(target: str) -> None:
    model = packed("y = Add(p, g)")
    done = fused(model, target)
    assert counts(done)["Add"] == (target != "ort")
    assert kernels(done) == kernels(model) == {"MatMulNBits": 1}


def test_a_product_of_few_bits_takes_its_bias_with_an_activation() -> None:
    model = packed(f"t = Add(p, g)  {GELU}")
    done = fused(model, "onnxfuse")
    assert counts(done) == {"MatMulNBits": 1}
    assert done.graph.node[0].domain == "onnxfuse"
    assert kernels(done) == kernels(model) == {"MatMulNBits": 1}
    assert counts(fused(packed(f"t = Identity(p)  {GELU}"), "onnxfuse"))["Gelu"] == 1, "no bias"


def packed(nodes: str) -> onnx.ModelProto:
    """A product `p` of the input with weights of 4 bits, and what follows it."""
    model = quantized(f"{NBITS}  {nodes}", constants=PACKED)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["b", "t", 8]))
    return model


FUNCTION = """<ir_version: 9, opset_import: ["" : 20, "own" : 1]>
    g (float[b,t,8] x) => (float[b,t,8] y) <float s2 = {{0.05}}, uint8 z2 = {{128}}, float[8] g = {{0,1,2,3,4,5,6,7}}>
    {{ w = Constant<value = uint8[8,8] {{{bytes}}}>()  y = own.Linear(x, w, s2, z2, g) }}
    <domain: "own", opset_import: ["" : 20]>
    Linear (x, w, s, z, g) => (y) {{ d = DequantizeLinear(w, s, z)  p = MatMul(x, d)  t = Add(p, g)  y = Relu(t) }}"""


def test_weights_that_a_function_is_given_stay_on_integers() -> None:
    model = onnx.parser.parse_model(FUNCTION.format(bytes=", ".join(map(str, range(100, 164)))))
    done = fused(model, "onnxfuse")
    assert kernels(done) == kernels(model) == {"MatMulNBits": 1}
    (linear,) = [function for function in done.functions if function.name == "Linear"]
    assert "MatMul" in [node.op_type for node in linear.node], "no kernel of ours takes it in"
