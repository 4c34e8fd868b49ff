"""Spellings of one computation in onnxruntime's ops: what ort_ops.py times.

The texts are nodes in ONNX's textual syntax.  S is the length of a sequence, D the hidden size, H the heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Spellings of one computation.

    `inputs` and `weights` give shapes, `candidates` (opset, nodes in ONNX's textual syntax) by name; every shape and
    text may name S, D, H, F (= D / H) and D4 (= 4 D) in braces.  The first candidate is the plain one.
    """

    inputs: Mapping[str, str]
    weights: Mapping[str, str]
    candidates: Mapping[str, tuple[int, str]]
    output: str = "1,{S},{D}"


def split(x: str, to: str, perm: str = "0, 2, 1, 3") -> str:
    """Nodes that split heads: [1, S, D] → [1, H, S, F]."""
    return (
        f"{to}s = Constant <value_ints = [1, {{S}}, {{H}}, {{F}}]> ()\n"
        f"{to}r = Reshape ({x}, {to}s)\n{to} = Transpose <perm = [{perm}]> ({to}r)\n"
    )


MERGE = """ms = Constant <value_ints = [1, {S}, {D}]> ()
ot = Transpose <perm = [0, 2, 1, 3]> (o)
Y = Reshape (ot, ms)
"""
PLAIN = (
    split("Q", "q")
    + split("K", "k", "0, 2, 3, 1")
    + split("V", "v")
    + """half = Constant <value_float = 0.125> ()
qk = MatMul (q, k)
s = Mul (qk, half)
{mask}p = Softmax <axis = -1> ({masked})
o = MatMul (p, v)
"""
    + MERGE
)


def plain(mask: str = "", masked: str = "s") -> str:
    return PLAIN.replace("{mask}", mask).replace("{masked}", masked)


def projected(attention: str, bias: bool = True) -> str:
    """Three linear layers of one input before an attention over Q, K, V."""
    lines = []
    for name in "QKV":
        made = f"{name}m" if bias else name
        lines.append(f"{made} = MatMul (X, W{name})\n" + (f"{name} = Add ({made}, B{name})\n" if bias else ""))
    return "".join(lines) + attention


QKV = dict.fromkeys("QKV", "1,{S},{D}")
LINEAR = {f"W{n}": "{D},{D}" for n in "QKV"} | {f"B{n}": "{D}" for n in "QKV"}
AI3 = "Y = Attention <q_num_heads = {H}, kv_num_heads = {H}, scale = 0.125> (Q, K, V)\n"
MHA = "Y = com.microsoft.MultiHeadAttention <num_heads = {H}, scale = 0.125> (Q, K, V)\n"
X, SKIP = {"X": "1,{S},{D}"}, {"X": "1,{S},{D}", "R": "1,{S},{D}"}
SIDE_BY_SIDE = "W = Concat <axis = 1> (WQ, WK, WV)\nB = Concat <axis = 0> (BQ, BK, BV)\n"
PACKED = SIDE_BY_SIDE + "Y = com.microsoft.Attention <num_heads = {H}, scale = 0.125> (X, W, B)\n"
MASKED = PACKED.replace("X, W, B", "X, W, B, , , M")
ON_ROWS = (
    "rows = Constant <value_ints = [-1, {D}]> ()\nwhole = Constant <value_ints = [1, {S}, {D}]> ()\n"
    "x = Reshape (X, rows)\n" + "".join(f"{n}m = Gemm (x, W{n}, B{n})\n{n} = Reshape ({n}m, whole)\n" for n in "QKV")
)
ONE = SIDE_BY_SIDE + "m = MatMul (X, W)\na = Add (m, B)\nQ, K, V = Split <axis = 2, num_outputs = 3> (a)\n"
GUARD = """top = ReduceMax <axes = [-1], keepdims = 1> (M)
no = IsInf <detect_positive = 0> (top)
rs = Constant <value_ints = [1, {S}, 1]> ()
rows = Reshape (no, rs)
zero = Constant <value_float = 0.0> ()
Y = Where (rows, zero, y)
"""
NORM = "Y = LayerNormalization <axis = -1, epsilon = 0.00001> (s, g, b)\n"
RMS = """two = Constant <value_float = 2.0> ()
e = Constant <value_float = 0.000001> ()
x2 = Pow (s, two)
m = ReduceMean <axes = [-1], keepdims = 1> (x2)
me = Add (m, e)
r = Sqrt (me)
n = Div (s, r)
Y = Mul (n, g)
"""
ERF = """root = Constant <value_float = 1.4142135623730951> ()
half = Constant <value_float = 0.5> ()
one = Constant <value_float = 1.0> ()
d = Div (s, root)
e = Erf (d)
p = Add (e, one)
t = Mul (s, p)
Y = Mul (t, half)
"""
TANH = """c = Constant <value_float = 0.044715> ()
a = Constant <value_float = 0.7978845608> ()
half = Constant <value_float = 0.5> ()
one = Constant <value_float = 1.0> ()
three = Constant <value_float = 3.0> ()
x3 = Pow (s, three)
cx = Mul (x3, c)
in = Add (s, cx)
ain = Mul (in, a)
t = Tanh (ain)
t1 = Add (t, one)
h = Mul (s, half)
Y = Mul (h, t1)
"""
ROWS = """rows = Constant <value_ints = [-1, {D}]> ()
whole = Constant <value_ints = [1, {S}, {D}]> ()
"""

GROUPS: dict[str, Group] = {
    "Attention": Group(
        QKV,
        {},
        {
            "primitives": (17, plain()),
            "Attention-23 4-D": (
                23,
                split("Q", "q")
                + split("K", "k")
                + split("V", "v")
                + "o = Attention <scale = 0.125> (q, k, v)\n"
                + MERGE,
            ),
            "Attention-23 3-D": (23, AI3),
            "MultiHeadAttention": (17, MHA),
        },
    ),
    "Attention with mask": Group(
        {**QKV, "M": "1,1,{S},{S}"},
        {},
        {
            "primitives": (17, plain("s2 = Add (s, M)\n", "s2")),
            "Attention-23 3-D": (23, AI3.replace("Q, K, V", "Q, K, V, M")),
            "MultiHeadAttention": (17, MHA.replace("Q, K, V", "Q, K, V, , , M")),
        },
    ),
    "Attention of linear layers": Group(
        X,
        LINEAR,
        {
            "primitives": (17, projected(plain())),
            "Attention-23 3-D": (23, projected(AI3)),
            "MultiHeadAttention": (17, projected(MHA)),
            "MultiHeadAttention with bias": (
                17,
                projected("BB = Concat <axis = 0> (BQ, BK, BV)\n" + MHA.replace("Q, K, V", "Q, K, V, BB"), bias=False),
            ),
            "com.microsoft.Attention": (
                17,
                PACKED,
            ),
            "Gemm on rows, Attention-23 3-D": (23, ON_ROWS + AI3),
            "one linear layer, Attention-23 3-D": (23, ONE + AI3),
        },
    ),
    "Attention of linear layers with mask": Group(
        {**X, "M": "1,1,{S},{S}"},
        LINEAR,
        {
            "primitives": (17, projected(plain("s2 = Add (s, M)\n", "s2"))),
            "Attention-23 3-D": (23, projected(AI3.replace("Q, K, V", "Q, K, V, M"))),
            "com.microsoft.Attention": (17, MASKED),
            "com.microsoft.Attention, guarded": (
                17,
                PACKED.replace("X, W, B", "X, W, B, , , M").replace("Y =", "y =") + GUARD,
            ),
            "Gemm on rows, Attention-23 3-D": (23, ON_ROWS + AI3.replace("Q, K, V", "Q, K, V, M")),
            "one linear layer, Attention-23 3-D": (23, ONE + AI3.replace("Q, K, V", "Q, K, V, M")),
        },
    ),
    "LayerNormalization of a sum": Group(
        SKIP,
        {"g": "{D}", "b": "{D}"},
        {
            "Add, LayerNormalization": (17, "s = Add (X, R)\n" + NORM),
            "Sum, LayerNormalization": (17, "s = Sum (X, R)\n" + NORM),
            "SkipLayerNormalization": (
                17,
                "Y = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (X, R, g, b)\n",
            ),
        },
    ),
    "LayerNormalization of a sum with bias": Group(
        SKIP,
        {"g": "{D}", "b": "{D}", "c": "{D}"},
        {
            "Add, Add, LayerNormalization": (17, "x = Add (X, c)\ns = Add (x, R)\n" + NORM),
            "Add, Sum, LayerNormalization": (17, "x = Add (X, c)\ns = Sum (x, R)\n" + NORM),
            "Sum of three, LayerNormalization": (17, "s = Sum (X, c, R)\n" + NORM),
            "SkipLayerNormalization": (
                17,
                "Y = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (X, R, g, b, c)\n",
            ),
        },
    ),
    "LayerNormalization of a sum that is kept": Group(
        SKIP,
        {"g": "{D}", "b": "{D}"},
        {
            "Add, LayerNormalization": (17, "s = Add (X, R)\n" + NORM.replace("Y", "y") + "Y = Add (y, s)\n"),
            "SkipLayerNormalization": (
                17,
                "y, , , s = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (X, R, g, b)\nY = Add (y, s)\n",
            ),
        },
    ),
    "Linear layer with residual and LayerNormalization": Group(
        SKIP,
        {"W": "{D},{D}", "c": "{D}", "g": "{D}", "b": "{D}"},
        {
            "MatMul, Add, Add, LayerNormalization": (17, "m = MatMul (X, W)\nx = Add (m, c)\ns = Add (x, R)\n" + NORM),
            "MatMul, SkipLayerNormalization": (
                17,
                "m = MatMul (X, W)\nY = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (m, R, g, b, c)\n",
            ),
            "MatMul, Sum, LayerNormalization": (17, "m = MatMul (X, W)\ns = Sum (m, c, R)\n" + NORM),
            "Gemm on rows, Sum, LayerNormalization": (
                17,
                ROWS + "x = Reshape (X, rows)\nr = Reshape (R, rows)\nm = Gemm (x, W, c)\ns = Sum (m, r)\n"
                "y = LayerNormalization <axis = -1, epsilon = 0.00001> (s, g, b)\nY = Reshape (y, whole)\n",
            ),
        },
    ),
    "RMSNormalization": Group(
        X,
        {"g": "{D}"},
        {
            "primitives": (17, RMS.replace("(s", "(X")),
            "RMSNormalization-23": (23, "Y = RMSNormalization <axis = -1, epsilon = 0.000001> (X, g)\n"),
            "SimplifiedLayerNormalization": (
                17,
                "Y = SimplifiedLayerNormalization <axis = -1, epsilon = 0.000001> (X, g)\n",
            ),
        },
    ),
    "RMSNormalization of a sum": Group(
        SKIP,
        {"g": "{D}"},
        {
            "primitives": (17, "s = Add (X, R)\n" + RMS),
            "Add, RMSNormalization-23": (
                23,
                "s = Add (X, R)\nY = RMSNormalization <axis = -1, epsilon = 0.000001> (s, g)\n",
            ),
            "Add, SimplifiedLayerNormalization": (
                17,
                "s = Add (X, R)\nY = SimplifiedLayerNormalization <axis = -1, epsilon = 0.000001> (s, g)\n",
            ),
            "SkipSimplifiedLayerNormalization": (
                17,
                "Y = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.000001> (X, R, g)\n",
            ),
        },
    ),
    "Gelu": Group(
        X,
        {},
        {
            "primitives": (17, ERF.replace("(s", "(X")),
            "Gelu-20": (20, "Y = Gelu (X)\n"),
            "com.microsoft.Gelu": (17, "Y = com.microsoft.Gelu (X)\n"),
        },
    ),
    "Gelu of a linear layer": Group(
        X,
        {"W": "{D},{D4}", "b": "{D4}"},
        {
            "primitives": (17, "m = MatMul (X, W)\ns = Add (m, b)\n" + ERF),
            "MatMul, Add, Gelu-20": (20, "m = MatMul (X, W)\ns = Add (m, b)\nY = Gelu (s)\n"),
            "MatMul, BiasGelu": (17, "m = MatMul (X, W)\nY = com.microsoft.BiasGelu (m, b)\n"),
        },
        "1,{S},{D4}",
    ),
    "Gelu in its tanh approximation": Group(
        X,
        {},
        {
            "primitives": (17, TANH.replace("(s", "(X")),
            "Gelu-20": (20, 'Y = Gelu <approximate = "tanh"> (X)\n'),
            "FastGelu": (17, "Y = com.microsoft.FastGelu (X)\n"),
        },
    ),
    "Gelu (tanh) of a linear layer": Group(
        X,
        {"W": "{D},{D4}", "b": "{D4}"},
        {
            "primitives": (17, "m = MatMul (X, W)\ns = Add (m, b)\n" + TANH),
            "MatMul, Add, Gelu-20": (20, 'm = MatMul (X, W)\ns = Add (m, b)\nY = Gelu <approximate = "tanh"> (s)\n'),
            "MatMul, FastGelu with bias": (17, "m = MatMul (X, W)\nY = com.microsoft.FastGelu (m, b)\n"),
        },
        "1,{S},{D4}",
    ),
    "Swish": Group(
        X,
        {},
        {
            "primitives": (17, "s = Sigmoid (X)\nY = Mul (X, s)\n"),
            "QuickGelu": (17, "Y = com.microsoft.QuickGelu <alpha = 1.0> (X)\n"),
            "Swish-24": (24, "Y = Swish (X)\n"),
        },
    ),
    "HardSwish": Group(
        X,
        {},
        {
            "primitives": (
                17,
                "s = HardSigmoid <alpha = 0.16666667, beta = 0.5> (X)\nY = Mul (X, s)\n",
            ),
            "HardSwish-14": (17, "Y = HardSwish (X)\n"),
        },
    ),
    "Linear layer": Group(
        X,
        {"W": "{D},{D}", "b": "{D}"},
        {
            "MatMul, Add": (17, "m = MatMul (X, W)\nY = Add (m, b)\n"),
            "Reshape, Gemm, Reshape": (
                17,
                "s2 = Constant <value_ints = [-1, {D}]> ()\ns3 = Constant <value_ints = [1, {S}, {D}]> ()\n"
                "x = Reshape (X, s2)\nm = Gemm (x, W, b)\nY = Reshape (m, s3)\n",
            ),
        },
    ),
    "Linear layer of two dimensions": Group(
        {"X": "{S},{D}"},
        {"W": "{D},{D}", "b": "{D}"},
        {
            "MatMul, Add": (17, "m = MatMul (X, W)\nY = Add (m, b)\n"),
            "Gemm": (17, "Y = Gemm (X, W, b)\n"),
        },
        "{S},{D}",
    ),
    "Linear layer of two dimensions with Relu": Group(
        {"X": "{S},{D}"},
        {"W": "{D},{D}", "b": "{D}"},
        {
            "MatMul, Add, Relu": (17, "m = MatMul (X, W)\na = Add (m, b)\nY = Relu (a)\n"),
            "Gemm, Relu": (17, "a = Gemm (X, W, b)\nY = Relu (a)\n"),
            "FusedGemm": (17, 'Y = com.microsoft.FusedGemm <activation = "Relu"> (X, W, b)\n'),
        },
        "{S},{D}",
    ),
    "Product with a transposed weight": Group(
        X,
        {"W": "{D},{D}"},
        {
            "Transpose, MatMul": (17, "t = Transpose <perm = [1, 0]> (W)\nY = MatMul (X, t)\n"),
            "FusedMatMul": (17, "Y = com.microsoft.FusedMatMul <transB = 1> (X, W)\n"),
        },
    ),
    "Scaled product with a transposed value": Group(
        {"X": "1,{S},{D}", "R": "1,{S},{D}"},
        {},
        {
            "Transpose, MatMul, Mul": (
                17,
                "c = Constant <value_float = 0.125> ()\nt = Transpose <perm = [0, 2, 1]> (R)\n"
                "m = MatMul (X, t)\nY = Mul (m, c)\n",
            ),
            "FusedMatMul": (17, "Y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.125> (X, R)\n"),
        },
        "1,{S},{S}",
    ),
    "Conv with Relu": Group(
        {"X": "1,{H},{S},{S}"},
        {"W": "{H},{H},3,3", "b": "{H}"},
        {
            "Conv, Relu": (17, "a = Conv <pads = [1, 1, 1, 1]> (X, W, b)\nY = Relu (a)\n"),
            "FusedConv": (
                17,
                'Y = com.microsoft.FusedConv <pads = [1, 1, 1, 1], activation = "Relu"> (X, W, b)\n',
            ),
        },
        "1,{H},{S},{S}",
    ),
    "Conv with a residual": Group(
        {"X": "1,{H},{S},{S}", "R": "1,{H},{S},{S}"},
        {"W": "{H},{H},3,3", "b": "{H}"},
        {
            "Conv, Add": (17, "a = Conv <pads = [1, 1, 1, 1]> (X, W, b)\nY = Add (a, R)\n"),
            "FusedConv": (17, "Y = com.microsoft.FusedConv <pads = [1, 1, 1, 1]> (X, W, b, R)\n"),
        },
        "1,{H},{S},{S}",
    ),
}
