"""Whole models under test: inputs and weights that hide nothing, every value that two of them share, and the census."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.utils
from onnx import numpy_helper

from onnxfuse.proof import inputs, numerics
from onnxfuse.proof.float64 import evaluate, to_float64
from tests.spellings.mutants import opened
from tests.whole.test_whole_models import OPS, census

MODELS = Path(__file__).parents[1] / "models"

LINEAR = {"matmul": {"FusedMatMul", "MatMul", "Gemm"}, "conv": {"FusedConv", "Conv"}}
"""Linear layers, which are to be no more than they were."""

_LOSS = 8.0
"""A fused value may be so many times farther from float64 than the original's."""


def load(path: Path) -> onnx.ModelProto:
    """The model with its external data, and with weights that do not hide what is computed with them."""
    model = onnx.load(path)
    _enliven(model)
    return model


def until(model: onnx.ModelProto, value: str) -> onnx.ModelProto:
    """The part of a model that computes a value, its one output: a few blocks are faster than all."""
    given = [info.name for info in model.graph.input]
    return onnx.utils.Extractor(onnx.shape_inference.infer_shapes(model)).extract_model(given, [value])


def _enliven(model: onnx.ModelProto) -> None:
    """Give scales that are all 1 and shifts that are all 0 some variance, and weights so much that softmax is steep.

    Freshly initialized models have both; a fusion that forgot a scale or a softmax over all but equal scores would
    show nothing."""
    rng = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.dtype.kind != "f" or value.size < 8:
            continue
        if value.ndim == 1 and np.ptp(value) == 0 and value[0] in (0, 1):
            drawn = value + 0.2 * rng.standard_normal(value.shape)
        elif value.ndim == 2 and 0 < value.std() < 0.1 and abs(value.mean()) < 0.1 * value.std():
            drawn = value * (1.5 / (value.std() * value.shape[0] ** 0.5))
        else:
            continue
        tensor.CopyFrom(numpy_helper.from_array(drawn.astype(value.dtype), tensor.name))


def feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, Any]:
    """Inputs on which the model runs, floats unit normal."""
    running = opened(model.SerializeToString())

    def runs(case: inputs.Case) -> str:
        try:
            running.run(None, case.inputs)
        except Exception as error:  # what onnxruntime raises has no common base
            return str(error)
        return ""

    cases, reason = inputs.generate(model, runs, seed=seed)
    assert cases, reason
    return cases[0].inputs


def shared_values(original: onnx.ModelProto, fused: onnx.ModelProto) -> list[str]:
    """The float values that nodes of both compute under one name, and both models' outputs."""
    names = [{name for node in model.graph.node for name in node.output if name} for model in (original, fused)]
    return sorted(names[0] & names[1])


def observed(model: onnx.ModelProto, values: Collection[str]) -> onnx.ModelProto:
    """A copy with further outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = {output.name for output in copy.graph.output}
    for name in sorted(set(values) - known):
        copy.graph.output.add(name=name)
    return copy


def run(model: onnx.ModelProto, given: Mapping[str, Any], values: Sequence[str] = ()) -> dict[str, Any]:
    """The outputs by name, and `values` with them."""
    running = opened((observed(model, values) if values else model).SerializeToString())
    names = [output.name for output in running.get_outputs()]
    with np.errstate(all="ignore"):
        return dict(zip(names, running.run(names, dict(given)), strict=True))


def differing(
    original: onnx.ModelProto, fused: onnx.ModelProto, given: Mapping[str, Any], rtol: float = 2e-4
) -> dict[str, str]:
    """Value → how it differs, of all values that both models compute.

    A value that amplifies rounding, such as a quotient of all but zero, is allowed what it makes of a last bit changed
    in weights and inputs; one that *is* rounding, such as the difference of two equal sums, is judged by float64."""
    values = shared_values(original, fused)
    want, got = run(original, given, values), run(fused, given, values)

    def wrong(name: str, bound: float) -> str:
        if not isinstance(want[name], np.ndarray):
            return ""
        return numerics.compare(
            got[name], want[name], bound * (40 if want[name].dtype == np.float16 else 1), 1e-30
        ).reason

    found = {name: why for name in want if (why := wrong(name, rtol))}
    if not found:
        return {}
    shaken = run(_shaken(original), {name: _shake(x) for name, x in given.items()}, values)
    loose = {name: _LOSS * numerics.relative_error(shaken[name], want[name]) for name in found if name in shaken}
    found = {name: why for name, why in found.items() if wrong(name, max(rtol, loose.get(name, 0)))}
    if not found:
        return {}
    exact = _exactly(original, given, list(found))
    return {name: why for name, why in found.items() if not _noise(got[name], want[name], exact.get(name))}


def _shaken(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.dtype.kind == "f" and value.size > 1:
            tensor.CopyFrom(numpy_helper.from_array(_shake(value), tensor.name))
    return copy


def _shake(value: Any) -> Any:
    """About a last bit of every float changed."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    noise = np.random.default_rng(0).standard_normal(value.shape) * np.finfo(value.dtype).eps
    return np.where(value == 0, 0, value * (1 + noise)).astype(value.dtype)


def _exactly(model: onnx.ModelProto, given: Mapping[str, Any], values: list[str]) -> dict[str, Any]:
    wide = {name: x.astype(np.float64) if numerics.is_float(x.dtype) else x for name, x in given.items()}
    reference = observed(to_float64(model), values)
    try:
        return run(reference, wide)
    except Exception:  # onnxruntime lacks float64 kernels of many ops
        names = [output.name for output in reference.graph.output]
        return dict(zip(names, evaluate(reference, [wide])[0], strict=True))


def _noise(got: Any, want: Any, exact: Any) -> bool:
    if exact is None or got.shape != exact.shape or got.dtype != want.dtype or not numerics.is_float(want.dtype):
        return False
    finite = np.isfinite(exact)
    if not np.isfinite(want[finite]).all():
        return True  # it overflows only because it is rounded
    if not np.isfinite(got[finite]).all():
        return False
    if not finite.all() and (np.isfinite(want) == np.isfinite(got)).all() and not finite.any():
        return True
    own, other = numerics.relative_error(want, exact), numerics.relative_error(got, exact)
    return other <= max(_LOSS * own, 1e-5) and bool((np.isfinite(got) == finite).all())


def fused_ops(model: onnx.ModelProto) -> Counter[str]:
    """How many of each kind of op (`OPS`) the model has."""
    found = census(model)
    counts = Counter({kind: sum(found[op] for op in ops) for kind, ops in (OPS | LINEAR).items()})
    return +counts


def changed_outputs(before: onnx.ModelProto, after: onnx.ModelProto, given: Mapping[str, Any]) -> dict[str, str]:
    """Output → how it differs between two models that should compute the same."""
    want, got = run(before, given), run(after, given)
    reasons = {name: numerics.compare(got[name], want[name], None, 1e-6).reason for name in want}
    return {name: reason for name, reason in reasons.items() if reason}
