"""The ONNX standard's own node tests: no output changes, and the function bodies of fusable ops fold back to the op."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_pool_common

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of

CATALOGUE = catalogue.load()

Engine: TypeAlias = Callable[[ModelProto, Sequence[Any]], list[Any]]

FOLDED: dict[str, tuple[str, int]] = {
    "LayerNormalization": (r"layer_normalization_", 38),
    "RMSNormalization": (r"rms_normalization_", 19),
    "GroupNormalization": (r"group_normalization_", 2),
    "Attention": (r"attention_", 93),
    "RotaryEmbedding": (r"rotary_embedding", 8),
    "Softmax": (r"softmax_", 14),
    "LogSoftmax": (r"logsoftmax_", 14),
    "Gelu": (r"gelu_", 4),
    "Swish": (r"swish", 1),
    "SwiGLU": (r"swiglu", 3),
    "Mish": (r"mish", 1),
    "Relu": (r"relu", 1),
    "PRelu": (r"prelu_", 2),
    "LeakyRelu": (r"leakyrelu", 3),
    "ThresholdedRelu": (r"thresholdedrelu", 3),
    "Elu": (r"elu(_|$)", 3),
    "Celu": (r"celu", 3),
    "Selu": (r"selu", 3),
    "HardSigmoid": (r"hardsigmoid", 3),
    "HardSwish": (r"hardswish", 1),
    "Softplus": (r"softplus", 2),
    "Softsign": (r"softsign", 2),
}
"""Op → (how the names of its cases begin, how many of them are expanded); each must fold back to that one node."""

CASES = 1884
"""Node tests in the onnx package."""


@cache
def cases() -> dict[str, Any]:
    """Name → test case, without `test_`."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), patch.object(op_pool_common, "pool", not_pooled):
        warnings.simplefilter("ignore")
        return {case.name.removeprefix("test_"): case for case in collect_testcases(None)}


def not_pooled(padded: Any, x_shape: Any, kernel: Any, strides: Any, out_shape: Any, *more: Any, **options: Any) -> Any:
    """NaN in place of what cases of pooling expect, which onnx computes in loops, for longer than all tests here take.
    Their models stay as they are, and nothing that was computed is near NaN."""
    return np.full([*x_shape[:2], *out_shape], np.nan, padded.dtype)


@cache
def fused(name: str) -> ModelProto:
    return fuse(cases()[name].model, CATALOGUE).model


def expanded(prefix: str) -> list[str]:
    return [name for name in cases() if re.match(prefix, name) and re.search(r"_expanded(_ver\d+)?$", name)]


@pytest.mark.parametrize("op", FOLDED)
def test_a_function_body_folds_back_to_its_op(op: str) -> None:
    prefix, count = FOLDED[op]
    names = expanded(prefix)
    assert len(names) == count
    left = {name: [family_of(node) for node in fused(name).graph.node] for name in names}
    # A mask that may hold the lowest number is floored before Attention (rules/fusions/6_masks/lowest.rule).
    apart = {"Constant", *(("IsInf", "Max", "Where", "Mul", "Add") if op == "Attention" else ())}
    # A mask that is one row is given two dimensions, which onnxruntime's Attention wants.
    row = {"Unsqueeze"} if op == "Attention" else set()
    left = {
        name: [n for n in nodes if n not in apart | (row if "rank1" in name else set())] for name, nodes in left.items()
    }
    assert {name: ops for name, ops in left.items() if ops != [op]} == {}


def test_no_output_changes() -> None:
    """Compared in onnxruntime, or by onnx's reference where that cannot run the model as it was given."""
    assert len(cases()) == CASES
    wrong, outcomes = {}, Counter[str]()
    for name, case in cases().items():
        if fused(name).SerializeToString() == case.model.SerializeToString():
            outcomes["the same bytes"] += 1
            continue
        for inputs, expected in case.data_sets:
            engine, before = first_run(case.model, inputs)
            after = engine(fused(name), inputs)
            outcomes[engine.__name__] += 1
            if len(after) != len(expected) or not all(map(near, after, expected, before, [case] * len(after))):
                wrong[name] = [family_of(node) for node in fused(name).graph.node]
    assert wrong == {}
    assert outcomes["in_onnxruntime"] > 300, outcomes


def first_run(model: ModelProto, inputs: Sequence[Any]) -> tuple[Engine, list[Any]]:
    try:
        return in_onnxruntime, in_onnxruntime(model, inputs)
    except Exception:  # types, opsets and ops that onnxruntime does not have
        return in_reference, in_reference(model, inputs)


def in_onnxruntime(model: ModelProto, inputs: Sequence[Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds(model, inputs)))


def in_reference(model: ModelProto, inputs: Sequence[Any]) -> list[Any]:
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, feeds(model, inputs)))


def feeds(model: ModelProto, inputs: Sequence[Any]) -> dict[str, Any]:
    return {entry.name: array(value) for entry, value in zip(model.graph.input, inputs, strict=False)}


def array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def near(got: Any, expected: Any, before: Any, case: Any) -> bool:
    """Within the case's tolerance of what it expects, or no further away than the model as it was."""
    if isinstance(expected, list):
        return len(got) == len(expected) and all(map(near, got, expected, before, [case] * len(got)))
    expected = array(expected)
    if got.dtype.kind in "OUS" or np.array_equal(got, before):
        return np.array_equal(got, before)
    if got.shape != expected.shape:
        return False
    got, expected, before = (value.astype(float) for value in (got, expected, before))
    within = np.allclose(got, expected, case.rtol, case.atol, equal_nan=True)
    return bool(within or np.abs(got - expected).max() <= np.abs(before - expected).max())
