"""Elementwise ops of ai.onnx as C++ expressions: `{0}`, `{1}` are operands, `{alpha}` attributes.

The functions they call are in pointwise.cuh.  NaN goes through as IEEE 754 and NumPy have it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Formula:
    """What one op computes from its operands.

    `flops` counts additions and multiplications, and a division, a root or a transcendental function as one each.
    `result` is the C++ type of the result, that of the first operand if empty; `attributes` are the defaults.
    """

    name: str
    text: str
    flops: int = 1
    result: str = ""
    attributes: dict[str, float] = field(default_factory=dict, hash=False)


def _formulas(*formulas: Formula) -> dict[str, Formula]:
    return {f.name: f for f in formulas}


F = Formula
FORMULAS: dict[str, Formula] = _formulas(
    F("Abs", "absolute({0})"),
    F("Acos", "acosf({0})"),
    F("Acosh", "acoshf({0})"),
    F("Add", "{0} + {1}"),
    F("And", "{0} && {1}"),
    F("Asin", "asinf({0})"),
    F("Asinh", "asinhf({0})"),
    F("Atan", "atanf({0})"),
    F("Atanh", "atanhf({0})"),
    F("BitwiseAnd", "{0} & {1}"),
    F("BitwiseNot", "~{0}"),
    F("BitwiseOr", "{0} | {1}"),
    F("BitwiseXor", "{0} ^ {1}"),
    F("Ceil", "ceilf({0})"),
    F("Celu", "celu({0}, {alpha})", 4, attributes={"alpha": 1.0}),
    F("Cos", "cosf({0})"),
    F("Cosh", "coshf({0})"),
    F("Div", "{0} / {1}"),
    F("Elu", "elu({0}, {alpha})", 2, attributes={"alpha": 1.0}),
    F("Equal", "{0} == {1}", result="bool"),
    F("Erf", "erff({0})"),
    F("Exp", "expf({0})"),
    F("Floor", "floorf({0})"),
    F("Greater", "{0} > {1}", result="bool"),
    F("GreaterOrEqual", "{0} >= {1}", result="bool"),
    F("HardSigmoid", "hard_sigmoid({0}, {alpha}, {beta})", 4, attributes={"alpha": 0.2, "beta": 0.5}),
    F("HardSwish", "{0} * hard_sigmoid({0}, 0.166666667f, 0.5f)", 5),
    F("Identity", "{0}", 0),
    F("IsNaN", "{0} != {0}", result="bool"),
    F("LeakyRelu", "leaky_relu({0}, {alpha})", attributes={"alpha": 0.01}),
    F("Less", "{0} < {1}", result="bool"),
    F("LessOrEqual", "{0} <= {1}", result="bool"),
    F("Log", "logf({0})"),
    F("Max", "maximum({0}, {1})"),
    F("Min", "minimum({0}, {1})"),
    F("Mish", "{0} * tanhf(softplus({0}))", 5),
    F("Mul", "{0} * {1}"),
    F("Neg", "-{0}"),
    F("Not", "!{0}"),
    F("Or", "{0} || {1}"),
    F("PRelu", "leaky_relu({0}, {1})"),
    F("Reciprocal", "1.f / {0}"),
    F("Relu", "relu({0})"),
    F("Round", "rintf({0})"),
    F(
        "Selu",
        "{gamma} * elu({0}, {alpha})",
        3,
        attributes={"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    ),
    F("Shrink", "shrink({0}, {lambd}, {bias})", attributes={"lambd": 0.5, "bias": 0.0}),
    F("Sigmoid", "sigmoid({0})", 3),
    F("Sign", "sign({0})"),
    F("Sin", "sinf({0})"),
    F("Sinh", "sinhf({0})"),
    F("Softplus", "softplus({0})", 4),
    F("Softsign", "softsign({0})", 3),
    F("Sqrt", "sqrtf({0})"),
    F("Sub", "{0} - {1}"),
    F("Swish", "{0} * sigmoid({alpha} * {0})", 5, attributes={"alpha": 1.0}),
    F("Tan", "tanf({0})"),
    F("Tanh", "tanhf({0})"),
    F("ThresholdedRelu", "thresholded_relu({0}, {alpha})", attributes={"alpha": 1.0}),
    F("Xor", "{0} != {1}"),
)

POW, POW_INTEGER = F("Pow", "powf({0}, {1})"), F("Pow", "power({0}, {1})")
"""Of real numbers, and of integers to an integer power."""

MOD, FMOD = F("Mod", "modulo({0}, {1})"), F("Mod", "fmodf({0}, {1})")
"""The remainder with the sign of the divisor, and of real numbers with that of the dividend."""

GELU = {"none": F("Gelu", "gelu({0})", 5), "tanh": F("Gelu", "gelu_tanh({0})", 8)}
IS_INF = F("IsInf", "is_infinite({0}, {detect_negative}, {detect_positive})", result="bool")

FOLDED = {"Max": "Max", "Min": "Min", "Sum": "Add", "Mean": "Add"}
"""Ops of any number of operands → the op on two of them."""

SMOOTH = frozenset(("Cos", "Erf", "Exp", "Sigmoid", "Sin", "Tanh"))
"""Ops whose operand, where it is a quotient by a number, may as well be a product."""

ONE_PLUS = "1 +"
BETTER: dict[str, tuple[tuple[tuple[float | str, ...], Formula], ...]] = {
    # Differences of nearly equal numbers, and the functions that compute them without cancelling.
    "Add": (
        (("+", 1.0, "Erf"), F("Erfc", "complementary_erf(-{0})", 2)),
        (("+", 1.0, "Tanh"), F("TwoSigmoid", "2.f * sigmoid(2.f * {0})", 5)),
    ),
    "Sub": (
        (("-", 1.0, "Erf"), F("Erfc", "complementary_erf({0})")),
        (("-", 1.0, "Tanh"), F("TwoSigmoid", "2.f * sigmoid(-2.f * {0})", 5)),
        (("-", 1.0, "Sigmoid"), F("Sigmoid", "sigmoid(-{0})", 4)),
        (("-", "Exp", 1.0), F("Expm1", "expm1f({0})")),
    ),
    "Log": ((("log", ONE_PLUS), F("Log1p", "log1pf({0})")),),
}
"""Op → (what its operands are, the formula of the operands inside): a number stands for itself, a name for that op,
`ONE_PLUS` for a sum with 1; "+" for operands in any order."""
