"""Softmax and LogSoftmax from exponentials and sums, shifted by the maximum or not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.spellings.build import STYLE_CHOICES, Array, Case, Choices, Graph, Spelling, covering, distinct

CHOICES: Choices = {
    "shift": ("max", "none", "max, added negative"),
    "form": (
        *("exp/sum", "exp*reciprocal", "exp(x-logsumexp)", "exp(d-log sum)"),
        *("log(exp/sum)", "d-log sum", "x-logsumexp", "x-(m+log sum)", "log softmax"),
    ),
    "axis": ("last", "positive", "middle"),
    "keep": ("keepdims", "unsqueeze"),
    "precision": ("float32", "float16"),
    "dims": ("static", "dynamic"),
    **STYLE_CHOICES,
}
"""The forms that end in a logarithm of a sum, or take one away, are LogSoftmax."""

LOG_FORMS = ("log(exp/sum)", "d-log sum", "x-logsumexp", "x-(m+log sum)", "log softmax")


def softmax(x: Array, axis: int) -> Array:
    """exp(x) over its sum along `axis` (ai.onnx Softmax-13)."""
    x = x.astype(np.float64)
    exponential: Array = np.exp(x - x.max(axis=axis, keepdims=True))
    total: Array = exponential.sum(axis=axis, keepdims=True)
    return exponential / total


def spellings(opset: int = 17, count: int = 72) -> Iterator[Spelling]:
    """Spellings of Softmax and LogSoftmax: `count`, less those whose style makes no difference."""
    yield from distinct(_spelling(name, case, opset) for name, case in covering(CHOICES, count, _valid))


def _valid(case: Case) -> bool:
    unshifted = ("exp(x-logsumexp)", "x-logsumexp", "log softmax")
    refused = (
        case.form in unshifted and case.shift != "none",
        case.form == "x-(m+log sum)" and case.shift == "none",
        case.form == "log softmax" and case.keep != "keepdims",
    )
    return not any(refused)


def _spelling(name: str, case: Case, opset: int) -> Spelling:
    g = Graph(opset, case.style())
    axis = {"last": -1, "positive": 2, "middle": 1}[case.axis]
    dtype = np.float16 if case.precision == "float16" else np.float32
    value = (np.random.default_rng(0).standard_normal((2, 5, 16)) * 2).astype(dtype)
    dims: list[int | str] = [2, 5, 16] if case.dims == "static" else ["batch", "seq", 16]
    x = g.input("x", value, dims)
    if case.precision == "float16":
        y = g.cast(_softmax(g, case, g.cast(x, np.float32), axis), np.float16)
    else:
        y = _softmax(g, case, x, axis)
    truth = softmax(value, axis)
    log = case.form in LOG_FORMS
    g.output(y, np.log(truth) if log else truth, dims)
    return g.spelling(name, {"LogSoftmax" if log else "Softmax": 1})


def _softmax(g: Graph, case: Case, x: str, axis: int) -> str:
    match case.form:
        case "log softmax":
            return g.Log(g.Softmax(x, axis=axis))
        case "x-logsumexp":
            return g.Sub(x, g.reduce("ReduceLogSumExp", x, [axis], keep=case.keep))
        case "exp(x-logsumexp)":
            return g.Exp(g.Sub(x, g.reduce("ReduceLogSumExp", x, [axis], keep=case.keep)))
    d, m = x, ""
    if case.shift != "none":
        m = g.reduce("ReduceMax", x, [axis], keep=case.keep)
        d = g.Sub(x, m) if case.shift == "max" else g.Add(x, g.Neg(m))
    exponential = g.Exp(d)
    total = g.reduce("ReduceSum", exponential, [axis], keep=case.keep)
    match case.form:
        case "exp/sum":
            return g.Div(exponential, total)
        case "exp*reciprocal":
            return g.Mul(exponential, g.Reciprocal(total))
        case "exp(d-log sum)":
            return g.Exp(g.Sub(d, g.Log(total)))
        case "log(exp/sum)":
            return g.Log(g.Div(exponential, total))
        case "d-log sum":
            return g.Sub(d, g.Log(total))
        case "x-(m+log sum)":
            return g.Sub(x, g.Add(m, g.Log(total)))
        case _:
            raise ValueError(case.form)
