"""The tolerance of an output follows the coarsest type on its path; a mistake is seen at its site all the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse import pipeline
from onnxfuse.proof.cut_proof import compare_sites
from onnxfuse.proof.oracle import Oracle
from onnxfuse.proof.precision import dtype_of, precisions


def parse(graph: str, opset: int = 20, dtype: int = TensorProto.FLOAT16) -> onnx.ModelProto:
    """A model whose constants are of this type, which onnx's parser does not read."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]>\n{graph}')
    for tensor in model.graph.initializer:
        narrow = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(dtype))
        tensor.CopyFrom(numpy_helper.from_array(narrow, tensor.name))
    return model


GELU = """g (float[n, 8] x) => (float[n, 8] y, float[n, 8] z) <float half = {0.5}, float one = {1},
    float r = {1.4142135}> {
    h = Cast<to = 10>(x) a = Div(h, r) b = Erf(a) c = Add(b, one) d = Mul(h, c) e = Mul(d, half) y = Cast<to = 1>(e)
    z = Neg(x) }"""
FUSED = """g (float[n, 8] x) => (float[n, 8] y, float[n, 8] z) <float k = {FACTOR}> {
    h = Cast<to = 10>(x) f = Gelu(h) e = Mul(f, k) y = Cast<to = 1>(e) z = Neg(x) }"""


def test_outputs_are_worth_what_was_computed_on_the_way_to_them() -> None:
    half, single = precisions(parse(GELU), ["y", "z"])
    assert (dtype_of(half), dtype_of(single)) == (np.float16, np.float32)
    wide = parse(GELU.replace("to = 10", "to = 1"), dtype=TensorProto.FLOAT)
    assert precisions(wide, ["y", "z", "unheard of"]) == [0, 0, 0]
    assert dtype_of(0) is None


def test_float16_inside_may_round_as_float16_does_and_no_other_output_may() -> None:
    oracle = Oracle(parse(GELU))
    right = oracle.compare(parse(FUSED.replace("FACTOR", "1.001")))
    assert (right.verdict, right.rtol) == ("equal", 1e-2)
    assert right.max_error is not None
    assert right.max_error > 1e-4, "float32's tolerance would do"
    wrong = oracle.compare(
        parse(
            FUSED.replace("FACTOR", "1")
            .replace("Neg(x)", "Neg(w)")
            .replace("f = Gelu", "v = Cast<to = 1>(h) w = Identity(v) f = Gelu")
        )
    )
    assert wrong.verdict == "mismatch"
    assert "'z' differs" in wrong.note


@pytest.mark.parametrize(("factor", "wrong"), [("1", 0), ("1.004", 1)])
def test_four_units_in_the_last_place_of_float16_are_seen_at_their_site(factor: str, wrong: int) -> None:
    """The outputs may differ by twice as much."""
    original, fused = parse(GELU), parse(FUSED.replace("FACTOR", factor))
    oracle = Oracle(original)
    assert oracle.compare(fused).verdict == "equal"
    compared = compare_sites(original, fused, oracle.cases)
    assert len(compared.wrong) == wrong
    assert len(compared.exactly) == compared.count > 0


NORM = """g (float[b, 16] x) => (float[b, 16] y) <float eps = {1e-3}, float[16] scale = {SCALE}> {
    h = Cast<to = NUMBER>(x) s = Mul(h, h) m = ReduceMean<axes = [-1]>(s) e = Add(m, eps) r = Sqrt(e) d = Div(h, r)
    t = Mul(d, scale) y = Cast<to = 1>(t) }"""


@pytest.mark.parametrize(("dtype", "rtol"), [(TensorProto.FLOAT16, 1e-2), (TensorProto.BFLOAT16, 5e-2)])
def test_a_norm_in_half_precision_between_float32(dtype: int, rtol: float) -> None:
    """It is fused, proved and kept; the CPU has no kernel for one of the two."""
    graph = NORM.replace("SCALE", ", ".join(["1.5"] * 16)).replace("NUMBER", str(int(dtype)))
    done = pipeline.optimize(parse(graph, opset=17, dtype=dtype)).report
    assert [fusion.op for fusion in done.fusions] == ["onnxfuse.RMSNormalization"]
    assert (done.validation.verdict, done.validation.rtol, done.left_out) == ("equal", rtol, [])
