"""From which onnxruntime on a file runs, as the file itself tells."""

from __future__ import annotations

import onnx
import pytest

import onnxfuse
from onnxfuse.errors import UsageError
from onnxfuse.targets import runtimes
from onnxfuse.targets.compatibility import compatibility
from tests.targets.test_runtimes import model

NEG = '<domain: "d", opset_import: ["" : 17]> F (a) => (b) { b = Trilu (a) }'


@pytest.mark.parametrize(
    ("proto", "version", "reason"),
    [
        (model("g (float[2] x) => (float[2] y) { y = Neg (x) }", 17), "1.20", ""),
        (model("g (float[2] x) => (float[2] y) { y = Neg (x) }", 22), "1.21", "opset 22"),
        (model("g (float[2] x) => (float[2] y) { y = Neg (x) }", 23), "1.23", "opset 23"),
        (model("g (float[2] x) => (float[2] y) { y = Neg (x) }", 17, 11), "1.23", "IR version 11"),
        (model("g (float[2] x) => (float[2] y) { y = Neg (x) }", 28), "1.32", "opset 28"),
        (model("g (float[2] x) => (float[2] y) { y = Neg (x) }", 99), None, "opset 99"),
        (model("g (int64[2,2] x) => (int64[2,2] y) { y = Trilu (x) }", 17), "1.20", ""),
        (model("g (int32[2,2] x) => (int32[2,2] y) { y = Trilu (x) }", 17), "1.29", "Trilu of opset 17 in int32"),
        (model("g (float[2,2] x) => (int32[2,2] y) { c = Cast <to = 6> (x)  y = Trilu (c) }", 17), "1.29",
         "Trilu of opset 17 in int32"),
        (model("g (float[2] x) => (double[2] y) { c = Cast <to = 11> (x)  y = Mish (c) }", 22), None,
         "Mish of opset 22 in double"),
        (model("g (float[2] x, float[2] z) => (float[2] y) { y = com.microsoft.BiasGelu (x, z) }", 17, 8,
               ', "com.microsoft" : 1'), "1.20", ""),
        (model("g (double[2,2] x) => (double[2,2] y) { y = com.microsoft.FusedMatMul (x, x) }", 17, 8,
               ', "com.microsoft" : 1'), "1.26", "com.microsoft.FusedMatMul in double"),
        (model("g (float[1,2,3,8] q, float[3,3] m) => (y) { y = Attention <softcap = 2.0> (q, q, q, m) }", 23), "1.27",
         "Attention of opset 23 with mask, softcap"),
        (model("g (float[1,2,3,8] q) => (y) { y = Attention <softcap = 2.0> (q, q, q) }", 23), "1.23", "opset 23"),
        (model("g (float[1,2,3,8] q) => (y) { y = Attention <softcap = 2.0> (q, q, q) }", 25), "1.24", "opset 25"),
        (model("g (float[1,2,3,8] q) => (y) { y = Attention <left_window_size = 2> (q, q, q) }", 25), "1.32",
         "Attention of opset 25 with window"),
        (model("g (float[1,2,3,8] q) => (y) { y = Attention <left_window_size = -1> (q, q, q) }", 25), "1.32",
         "Attention of opset 25 with window"),
    ],
    ids=lambda value: "" if isinstance(value, onnx.ModelProto) else str(value),
)  # fmt: skip
def test_the_first_version_that_runs_a_file(proto: onnx.ModelProto, version: str | None, reason: str) -> None:
    found = compatibility(proto)
    assert (str(found.runtime) if found.runtime else None, found.reason) == (version, reason)
    assert not found.functions
    assert not found.domains


@pytest.mark.parametrize(("kind", "version"), [("int64", "1.20"), ("int32", "1.29")])
def test_types_are_followed_into_functions(kind: str, version: str) -> None:
    graph = f"g ({kind}[2,2] x) => (y) {{ z = d.F (x)  w = Abs (z)  y = d.F (w) }}"
    found = compatibility(model(graph, 17, 8, ', "d" : 1', NEG))
    assert str(found.runtime) == version
    assert found.functions


def test_types_are_followed_into_bodies_of_control_flow() -> None:
    graph = "g (bool c, int32[2,2] x) => (y) { y = If (c) <then_branch = t () => (a) { a = Trilu (x) }, "
    graph += "else_branch = e () => (b) { b = Identity (x) }> }"
    assert str(compatibility(model(graph, 17)).runtime) == "1.29"


def test_overloads_need_the_version_that_heeds_them() -> None:
    proto = model("g (float[2,2] x) => (y) { y = d.F (x) }", 17, 10, ', "d" : 1', NEG)
    assert str(compatibility(proto).runtime) == "1.20"
    proto.functions[0].overload = "1"
    assert (str(compatibility(proto).runtime), compatibility(proto).reason) == ("1.27", "overloads of functions")


def test_ops_of_an_unknown_domain_must_be_registered() -> None:
    found = compatibility(model("g (float[2] x) => (y) { y = com.acme.F (x) }", 17, 8, ', "com.acme" : 1'))
    assert (found.domains, str(found.runtime)) == (("com.acme",), "1.20")


def test_what_a_named_version_does_not_run_is_refused_with_the_one_that_does() -> None:
    trilu = model("g (int32[2,2] x) => (int32[2,2] y) { y = Trilu (x) }", 17)
    assert compatibility(trilu, runtimes.of("1.29")).runtime == runtimes.of("1.29")
    with pytest.raises(
        UsageError, match=r"1\.28 does not run Trilu of opset 17 in int32.*: onnxruntime 1\.29 and later"
    ):
        compatibility(trilu, runtimes.of("1.28"))
    mish = model("g (double[2] x) => (double[2] y) { y = Mish (x) }", 22)
    with pytest.raises(UsageError, match="in double, and no fusion takes it away: no version that is known has it"):
        compatibility(mish, runtimes.of("1.29"))


def test_an_attribute_that_the_opset_lacks_is_run_by_none() -> None:
    found = compatibility(model("g (float[2] x) => (float[2] y) { y = Neg <slope = 1.0> (x) }", 17))
    assert (found.runtime, found.reason) == (None, "Neg of opset 17 with slope")


def test_what_a_loop_carries_is_not_all_of_one_type() -> None:
    """Of an int32 and a float in a Loop, the float goes on into Trilu, which 1.20 has."""
    body = "b (int64 i, bool c, int32[2] p, float[2,2] q) => (c, p, q) {}"
    graph = f"g (int64 n, bool c, int32[2] p, float[2,2] q) => (y) {{ r, s = Loop <body = {body}> (n, c, p, q)  "
    graph += "y = Trilu (s) }"
    assert str(compatibility(model(graph, 17)).runtime) == "1.20"


def test_constants_say_their_types() -> None:
    for constant in ("Constant <value_ints = [1, 2]> ()", "Cast <to = 7> (x)", "ConstantOfShape (s)"):
        graph = f"g (double[2] x, int64[1] s) => (y) {{ c = {constant}  y = Mish (c) }}"
        found = compatibility(model(graph, 22))
        assert found.reason == ("opset 22" if "Of" in constant else "Mish of opset 22 in int64")


@pytest.mark.parametrize(
    ("text", "opset", "precise"),
    [
        ("y = LayerNormalization (x, w)", 17, "1.27"),
        ("y = com.microsoft.SkipLayerNormalization (x, x, w)", 17, "1.30"),
        ("y = d.F (x, w)", 17, "1.27"),
        ("y = Mul (x, w)", 17, None),
        ("z = LayerNormalization (x, w)  y = Neg (z)", 28, None),
    ],
)
def test_the_first_version_whose_normalizations_are_precise(text: str, opset: int, precise: str | None) -> None:
    """Of a file that older ones do not run there is nothing to say."""
    norm = '<domain: "d", opset_import: ["" : 17]> F (a, b) => (c) { c = LayerNormalization (a, b) }'
    domains = ', "d" : 1, "com.microsoft" : 1'
    functions = norm if "d.F" in text else ""
    made = model(f"g (float[1,2,8] x, float[8] w) => (float[1,2,8] y) {{ {text} }}", opset, 8, domains, functions)
    found = compatibility(made).precise
    assert (str(found) if found else None) == precise


def test_it_is_told_where_the_original_has_none_of_them() -> None:
    written = """g (float[2,8] x) => (float[2,8] y) <float f = {0.00001}> {
        m = ReduceMean <axes = [-1]> (x)  d = Sub (x, m)  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)
        e = Add (v, f)  r = Sqrt (e)  y = Div (d, r) }"""
    told = onnxfuse.report(model(written, 17), target="ort").runs
    assert told is not None
    assert told.precise == "1.27"
    norm = "g (float[2,8] x, float[8] w) => (float[2,8] y) { z = LayerNormalization (x, w) y = Neg (z) }"
    told = onnxfuse.report(model(norm, 17), target="ort").runs
    assert told is not None
    assert told.precise is None
