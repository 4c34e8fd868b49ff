"""The main rules, before and after: ONNX text in, the fused op out, and onnxruntime computes the same numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.fusing.build import Build
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from onnxfuse.pipeline import optimize
from onnxfuse.targets.target import Target
from tests.spellings.mutants import feeds, run

CATALOGUE = catalogue.load()
HEAD = '<ir_version: 10, opset_import: ["": 17{}]>\n'

LAYER_NORM = """
    mean = ReduceMean <axes = [-1]> (x)
    d = Sub (x, mean)
    square = Pow (d, two)
    var = ReduceMean <axes = [-1]> (square)
    shifted = Add (var, eps)
    std = Sqrt (shifted)
    unit = Div (d, std)
    scaled = Mul (unit, gamma)
    {} = Add (scaled, beta)
"""
NORM_CONSTANTS = "float two = {2}, float eps = {0.00001}, float[4] gamma = {1, 2, 3, 4}, float[4] beta = {4, 3, 2, 1}"

CASES: dict[str, tuple[str, list[str]]] = {
    "LayerNormalization": (
        "g (float[N, 3, 4] x) => (float[N, 3, 4] y) <" + NORM_CONSTANTS + "> {" + LAYER_NORM.format("y") + "}",
        ["onnxfuse.LayerNormalization"],
    ),
    "LayerNormalization and the residual before it, whose sum is used again": (
        "g (float[N, 3, 4] a, float[N, 3, 4] b) => (float[N, 3, 4] y, float[N, 3, 4] x) <"
        + NORM_CONSTANTS
        + "> { x = Add (a, b)\n"
        + LAYER_NORM.format("y")
        + "}",
        ["onnxfuse.SkipLayerNormalization"],
    ),
    "RMSNormalization": (
        """g (float[N, 4] x) => (float[N, 4] y) <float two = {2}, float eps = {0.000001}, float[4] w = {1, 2, 3, 4}> {
            square = Pow (x, two)
            mean = ReduceMean <axes = [-1]> (square)
            shifted = Add (mean, eps)
            root = Sqrt (shifted)
            unit = Div (x, root)
            y = Mul (w, unit)
        }""",
        ["onnxfuse.RMSNormalization"],
    ),
    "Gelu": (
        """g (float[N, 4] x) => (float[N, 4] y) <float r = {1.4142135}, float one = {1}, float half = {0.5}> {
            z = Div (x, r)
            e = Erf (z)
            s = Add (e, one)
            p = Mul (x, s)
            y = Mul (p, half)
        }""",
        ["onnxfuse.Gelu"],
    ),
    "Gelu by tanh": (
        """g (float[N, 4] x) => (float[N, 4] y)
        <float k = {0.044715}, float c = {0.7978845}, float one = {1}, float half = {0.5}, float three = {3}> {
            cube = Pow (x, three)
            small = Mul (cube, k)
            inner = Add (x, small)
            arg = Mul (inner, c)
            t = Tanh (arg)
            s = Add (t, one)
            h = Mul (x, half)
            y = Mul (h, s)
        }""",
        ["onnxfuse.Gelu"],
    ),
    "Swish": (
        "g (float[N, 4] x) => (float[N, 4] y) { s = Sigmoid (x)  y = Mul (x, s) }",
        ["onnxfuse.Swish"],
    ),
    "Softmax": (
        """g (float[N, 4] x) => (float[N, 4] y) <int64[1] axis = {1}> {
            m = ReduceMax <axes = [1]> (x)
            d = Sub (x, m)
            e = Exp (d)
            s = ReduceSum (e, axis)
            y = Div (e, s)
        }""",
        ["Softmax"],
    ),
    "BatchNormalization folded into Conv": (
        """g (float[N, 1, 4] x) => (float[N, 2, 4] y)
        <float[2, 1, 1] w = {2, 3}, float[2] s = {1, 2}, float[2] b = {3, 4}, float[2] m = {5, 6}, float[2] v = {7, 8}>
        {
            c = Conv (x, w)
            y = BatchNormalization (c, s, b, m, v)
        }""",
        ["Conv"],
    ),
    "Conv, bias and Relu": (
        """g (float[N, 1, 4] x) => (float[N, 2, 4] y) <float[2, 1, 1] w = {2, 3}, float[2, 1] b = {-1, 1}> {
            c = Conv (x, w)
            s = Add (c, b)
            y = Relu (s)
        }""",
        ["onnxfuse.FusedConv"],
    ),
    "Conv, and a number that no activation takes": (
        """g (float[N, 1, 4] x) => (float[N, 2, 4] y)
        <float[2, 1, 1] w = {2, 3}, float[1, 1, 1] k = {0.7}, float[1] b = {0.3}> {
            c = Conv (x, w)
            scaled = Mul (c, k)
            shifted = Add (scaled, b)
            y = Relu (shifted)
        }""",
        ["onnxfuse.FusedConv"],
    ),
    "HardSwish, its sixth merged with a factor behind it": (
        """g (float[N, 4] x) => (float[N, 4] y) 
        <float three = {3}, float none = {0}, float six = {6}, float k = {0.7}> {
            s = Add (x, three)
            c = Clip (s, none, six)
            p = Mul (x, c)
            h = Div (p, six)
            y = Mul (h, k)
        }""",
        ["onnxfuse.HardSwish", "Mul"],
    ),
    "MatMul, bias and Gelu": (
        """g (float[N, 2] x) => (float[N, 2] y)
        <float[2, 2] w = {1, 2, 3, 4}, float[2] b = {1, 2}, float r = {1.4142135}, float one = {1}, float half = {0.5}>
        {
            p = MatMul (x, w)
            l = Add (b, p)
            z = Div (l, r)
            e = Erf (z)
            s = Add (e, one)
            q = Mul (l, s)
            y = Mul (q, half)
        }""",
        ["onnxfuse.FusedMatMul"],
    ),
    "Attention": (
        """g (float[N, 2, 5, 4] q, float[N, 2, 7, 4] k, float[N, 2, 7, 4] v, float[N, 1, 5, 7] mask)
        => (float[N, 2, 5, 4] y) <float scale = {0.5}> {
            kt = Transpose <perm = [0, 1, 3, 2]> (k)
            scores = MatMul (q, kt)
            scaled = Mul (scores, scale)
            masked = Add (scaled, mask)
            p = Softmax <axis = -1> (masked)
            y = MatMul (p, v)
        }""",
        ["onnxfuse.Attention"],
    ),
    "what nothing uses, repeats or does": (
        """g (float[N, 4] x) => (float[N, 4] y) <int64[2] same = {0, 4}> {
            a = Tan (x)
            b = Tan (x)
            c = Reshape (b, same)
            unused = Cos (x)
            d = Identity (c)
            y = Mul (a, d)
        }""",
        ["Tan", "Mul"],
    ),
}


def model(text: str, functions: str = "", imports: str = "") -> onnx.ModelProto:
    parsed: onnx.ModelProto = parser.parse_model(HEAD.format(imports) + text + functions)
    onnx.checker.check_model(parsed, full_check=True)
    return parsed


def ops(nodes: onnx.GraphProto | onnx.FunctionProto) -> list[str]:
    return [f"{node.domain}.{family_of(node)}".lstrip(".") for node in nodes.node if family_of(node) != "Constant"]


def assert_same_numbers(before: onnx.ModelProto, after: onnx.ModelProto, **given: np.ndarray) -> None:
    onnx.checker.check_model(after, full_check=True)
    inputs = feeds(before) | given
    for got, want in zip(run(after, inputs), run(before, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_before_and_after(name: str) -> None:
    text, expected = CASES[name]
    before = model(text)
    after = fuse(before, CATALOGUE).model
    assert ops(after.graph) == expected
    assert_same_numbers(before, after)


@pytest.mark.parametrize("name", [name for name, (_, ops) in CASES.items() if "onnxfuse" in ops[0]])
def test_standard_ops_alone_where_the_target_asks_for_them(name: str) -> None:
    text, expected = CASES[name]
    before = model(text)
    result = optimize(before, Build(Target("onnx"), 24))
    standard = {"SkipLayerNormalization": "LayerNormalization"}
    wanted = expected[0].removeprefix("onnxfuse.")
    wanted = standard.get(wanted, wanted)
    assert not result.model.functions
    assert {node.domain for node in result.model.graph.node} == {""}
    assert result.report.validation.verdict == "equal"
    if not wanted.startswith("Fused"):
        assert wanted in ops(result.model.graph)


def test_a_value_that_is_needed_elsewhere_stays_and_costs_no_fusion_that_pays() -> None:
    text = CASES["LayerNormalization"][0].replace("(float[N, 3, 4] y)", "(float[N, 3, 4] y, float[N, 3, 4] d)")
    before = model(text)
    after = fuse(before, CATALOGUE).model
    assert Counter(ops(after.graph)) == {"Sub": 1, "onnxfuse.LayerNormalization": 1}, "the mean is an output"
    assert_same_numbers(before, after)


def test_the_larger_cover_wins() -> None:
    """A layer normalization holds an RMS normalization of the centred values."""
    fused = fuse(model(CASES["LayerNormalization"][0]), CATALOGUE)
    assert [site.matches[-1].rule.name for site in fused.sites] == ["LayerNormalization"]


def test_a_fused_node_says_what_it_replaced() -> None:
    (site,) = fuse(model(CASES["Swish"][0]), CATALOGUE).sites
    props = {entry.key: entry.value for entry in site.node.metadata_props}
    assert props["onnxfuse.rule"] == "Swish"
    assert props["onnxfuse.replaced"] == "s y"
    assert props["onnxfuse.version"] == CATALOGUE.named("Swish")[0].version


@pytest.mark.parametrize(
    ("keys", "values"),
    [("1, 1, 4, 7", "1, 3, 7, 4"), ("2, 1, 4, 7", "2, 3, 7, 4"), ("1, 3, 4, 7", "2, 3, 7, 4")],
)
def test_products_that_broadcast_keys_and_values_differently_are_no_attention(keys: str, values: str) -> None:
    batch = values[0]
    before = model(
        f"""g (float[{batch}, 3, 5, 4] q, float[{keys}] k, float[{values}] v) => (float[{batch}, 3, 5, 4] y)
        <float scale = {{0.5}}> {{
            scores = MatMul (q, k)
            scaled = Mul (scores, scale)
            p = Softmax <axis = -1> (scaled)
            y = MatMul (p, v)
        }}"""
    )
    after = fuse(before, CATALOGUE).model
    assert "onnxfuse.Attention" not in ops(after.graph)
    assert_same_numbers(before, after)


@pytest.mark.parametrize(("queries", "keys"), [("3", "H"), ("H", "3"), ("H", "H"), ("3", "1")])
def test_attention_with_numbers_of_heads_that_are_known_only_at_run_time(queries: str, keys: str) -> None:
    before = model(
        f"""g (float[2, {queries}, 5, 4] q, float[2, {keys}, 4, 7] k, float[2, {keys}, 7, 4] v) => (float[2, h, 5, 4] y)
        {{
            scores = MatMul (q, k)
            p = Softmax <axis = -1> (scores)
            y = MatMul (p, v)
        }}"""
    )
    after = fuse(before, CATALOGUE).model
    assert ("onnxfuse.Attention" in ops(after.graph)) == (queries == keys or keys == "1")
    given = {"q": int(queries) if queries != "H" else 3, "k": int(keys) if keys != "H" else 3}
    rng = np.random.default_rng(0)
    shapes = {"q": (2, given["q"], 5, 4), "k": (2, given["k"], 4, 7), "v": (2, given["k"], 7, 4)}
    assert_same_numbers(before, after, **{n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()})


@pytest.mark.parametrize(
    ("bias", "factor", "result"),
    [("1, 1, 2", "1", "1, N, 2"), ("1, 2", "1, 1, 1", "1, N, 2"), ("1, 1, 2", "1, 1, 1, 1", "1, 1, N, 2")],
)
def test_a_bias_or_a_factor_with_more_axes_than_the_product_widens_it(bias: str, factor: str, result: str) -> None:
    before = model(
        f"""g (float[N, 2] x) => (float[{result}] y)
        <float[2, 2] w = {{1, 2, 3, 4}}, float[{bias}] b = {{1, 2}}, float[{factor}] k = {{0.5}}> {{
            p = MatMul (x, w)
            l = Add (p, b)
            s = Mul (l, k)
            y = Relu (s)
        }}"""
    )
    assert_same_numbers(before, fuse(before, CATALOGUE).model)


def test_a_transposed_weight_stays_as_it_is_stored() -> None:
    before = parser.parse_model(
        HEAD.format("") + "g (float[N, 64] x) => (float[N, 48] y) { h = Gemm <transB = 1> (x, w, b)\n y = Relu (h) }"
    )
    draw = np.random.default_rng(0)
    weights = {"w": draw.normal(size=(48, 64)), "b": draw.normal(size=48)}
    before.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()
    )
    result = optimize(before)
    assert result.report.validation.verdict == "equal"
    assert [family_of(node) for node in result.model.graph.node] == ["FusedMatMul"]
    assert list(result.model.graph.initializer) == list(before.graph.initializer)


def normalization(scale: tuple[int, ...]) -> onnx.ModelProto:
    """(x - mean) / deviation over the last two of four axes, each as long as there are channels, times `scale`."""
    dims = ", ".join(map(str, scale))
    return model(
        f"""g (float[2, 6, 6, 6] x, float[{dims}] s) => (float[2, 6, 6, 6] y) <float e = {{0.00001}}> {{
            m = ReduceMean <axes = [-2, -1]> (x)
            d = Sub (x, m)
            dd = Mul (d, d)
            v = ReduceMean <axes = [-2, -1]> (dd)
            ve = Add (v, e)
            r = Sqrt (ve)
            n = Div (d, r)
            y = Mul (n, s)
        }}"""
    )


@pytest.mark.parametrize(
    ("scale", "op"),
    [
        ((6, 6), "LayerNormalization"),
        ((1, 1, 6, 6), "LayerNormalization"),
        ((6, 1, 1), "InstanceNormalization"),
        ((1, 6, 1, 1), "InstanceNormalization"),
        ((6, 6, 6), "LayerNormalization"),
    ],
)
def test_a_scale_is_taken_for_what_it_broadcasts_over(scale: tuple[int, ...], op: str) -> None:
    """As many channels as positions: only the place of its dims tells a scale per channel from one per position."""
    before = normalization(scale)
    after = fuse(before, CATALOGUE).model
    assert op in {name.removeprefix("onnxfuse.") for name in ops(after.graph)}
    assert ("Mul" in ops(after.graph)) == (scale == (6, 6, 6))
    assert_same_numbers(before, after)


@pytest.mark.parametrize("bound", ["low", "0.5"])
def test_a_bound_that_is_computed_may_be_nan_and_is_none_of_max(bound: str) -> None:
    """Where(x < low, low, x) is x where low is NaN; where it is a number, this is Max."""
    number = "" if bound == "low" else f"low = Constant <value = float {{{bound}}}> ()"
    given = ", float low" if bound == "low" else ""
    before = model(f"g (float[2, 3] x{given}) => (float[2, 3] y) {{ {number} c = Less(x, low) y = Where(c, low, x) }}")
    assert ("Max" in ops(fuse(before, CATALOGUE).model.graph)) == (bound != "low")


def test_an_op_that_a_view_behind_it_moves_into_is_still_the_one_that_was_fused() -> None:
    """Weights that are guarded in one shape and used in another; the negative scale makes them no attention."""
    before = model(
        """g (float[2, 2, 6, 8] q, float[2, 2, 8, 5] k, float[2, 1, 3, 5] m) => (float[2, 2, 6, 5] y)
        <float zero = {0}, int64[4] heads = {2, 4, 3, 5}, int64[4] rows = {2, 2, 6, 5}> {
            s = MatMul (q, k)
            r = Reshape (s, heads)
            t = Add (r, m)
            n = Neg (t)
            p = Softmax <axis = -1> (n)
            bad = IsNaN (p)
            w = Where (bad, zero, p)
            y = Reshape (w, rows)
        }"""
    )
    after = fuse(before, CATALOGUE).model
    assert [family_of(node) for node in after.graph.node if node.domain == "onnxfuse"] == ["FusedMatMul", "SafeSoftmax"]
    assert_same_numbers(before, after)


@pytest.mark.parametrize("target", [Target("ort"), Target("ort", "cuda")], ids=lambda t: t.provider)
def test_types_are_known_behind_ops_that_onnx_does_not_have(target: Target) -> None:
    """onnxruntime's quantizers ask for the type of each value, and onnx infers none behind these ops."""
    rms = "{0}q = Mul ({1}, {1}) {0}m = ReduceMean <axes = [-1]> ({0}q) {0}e = Add ({0}m, eps) {0}s = Sqrt ({0}e)"
    rms += " {0}u = Div ({1}, {0}s) {0} = Mul ({0}u, g)"
    before = model(
        f"""g (float[N, 3, 4] x, float[4, 4] w) => (float[N, 3, 4] y)
            <float eps = {{0.00001}}, float[4] g = {{1, 2, 3, 4}}> {{
            {rms.format("a", "x")} p = MatMul (a, w) s = Add (p, x) {rms.format("b", "s")}
            o = MatMul (b, w) y = Add (o, s) }}"""
    )
    after = fuse(before, CATALOGUE.serving(target)).model
    assert {"SimplifiedLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization"} & set(ops(after.graph))
    inferred = onnx.shape_inference.infer_shapes(after).graph
    typed = {info.name for info in [*inferred.value_info, *inferred.output] if info.type.tensor_type.elem_type}
    assert {name for node in after.graph.node for name in node.output if name} <= typed
