"""For whom a file is written: which ops it may have, and what raises its opset."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto

import onnxfuse
from onnxfuse.errors import UsageError
from onnxfuse.runtime.quiet import Session
from onnxfuse.targets import runtimes
from onnxfuse.targets.target import KINDS, NodeKind, Target

FLOAT, DOUBLE, INT32 = (int(t) for t in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32))
OURS, STANDARD, ORT = Target(), Target("onnx"), Target("ort")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tensorrt",), "--target tensorrt: it is one of onnxfuse, onnx, ort"),
        (("onnx", "cuda"), "--provider cuda: --target onnx is for cpu"),
        (("ort", "rocm"), "--provider rocm: --target ort is for cpu, cuda"),
        (("ort", "cuda", runtimes.of("1.23")), "--runtime holds what runs on a CPU: leave --provider cuda away"),
    ],
)
def test_what_is_no_target_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Target(*arguments)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_each_target_is_what_its_row_says() -> None:
    for name, provider in KINDS:
        target = Target(name, provider)
        assert target.functions == (name == "onnxfuse")
        assert target.standard == (name == "onnx")
    assert OURS.held is STANDARD.held is None
    assert ORT.held == runtimes.known()[-1]
    assert Target("ort", runtime=runtimes.of("1.23")).held == runtimes.of("1.23")


def test_an_op_stands_from_its_opset_on_in_the_types_of_its_kernel() -> None:
    assert not ORT.has("Gelu", {}, 19, FLOAT)
    assert ORT.has("Gelu", {}, 20, FLOAT)
    assert STANDARD.has("Trilu", {}, 17, INT32)
    old = Target("ort", runtime=runtimes.of("1.23"))
    assert not old.has("Trilu", {}, 17, INT32), "a kernel for int32 came with 1.29"
    assert old.has("Trilu", {}, 17, FLOAT)
    assert not ORT.has("GroupNormalization", {}, 21, FLOAT), "onnxruntime expands it"
    assert STANDARD.has("GroupNormalization", {}, 21, FLOAT)


def test_a_form_that_a_version_computes_wrongly_is_no_kernel_of_it() -> None:
    old, new = (Target("ort", runtime=runtimes.of(version)) for version in ("1.23", "1.27"))
    assert old.has_kernel("Attention", FLOAT, 23)
    assert not old.has_kernel("Attention", FLOAT, 23, {"mask", "softcap"})
    assert new.has_kernel("Attention", FLOAT, 23, {"mask", "softcap"})


@pytest.mark.parametrize("target", [OURS, STANDARD, ORT])
def test_where_no_version_is_named_each_that_loads_the_file_must_compute_a_form_rightly(target: Target) -> None:
    shared = {"grouped", "float16"}
    assert target.has_kernel("Attention", FLOAT, 23, {"grouped"})
    assert not target.has_kernel("Attention", FLOAT, 23, shared), "onnxruntime 1.23 and 1.24 load opset 23"
    assert not target.has_kernel("Attention", FLOAT, 25, shared), "1.24 loads opset 25"
    assert target.has_kernel("Attention", FLOAT, 26, shared), "the first that loads opset 26 is 1.25"
    assert not target.may_have("Attention", 17, FLOAT, shared, raising=True), "a model is raised to 23, no further"
    if target is ORT:
        assert not target.may_have("com.microsoft.Attention", 17, FLOAT, ("mask", "mask for all heads"), raising=True)
        assert target.may_have("com.microsoft.Attention", 22, FLOAT, ("mask", "mask for all heads"), raising=True)


@pytest.mark.parametrize("softcap", [2.0, 30.0, 50.0])
def test_no_softcap_is_too_wide_for_hidden_keys_to_be_seen(softcap: float) -> None:
    """Before 1.27 they are capped, too: beside keys whose capped scores are -28.9, one of -30 weighs a third."""
    shape = (1, 2, 6, 16)
    form = runtimes.features("Attention", {"softcap": softcap}, [shape, shape, shape, (1, 1, 6, 6)], "float32")
    assert not STANDARD.has_kernel("Attention", FLOAT, 23, form)
    assert Target("onnx", runtime=runtimes.of("1.27")).has_kernel("Attention", FLOAT, 23, form)


@pytest.mark.parametrize("mask", [(4, 5, 7), (1, 4, 5, 7), (2, 4, 5, 7)])
def test_a_mask_of_each_head_is_none_of_shared_keys_in_older_versions(mask: tuple[int, ...]) -> None:
    """onnxruntime 1.23 and 1.24 want one for each head of the keys, of whatever rank, and refuse to run another."""
    shapes = [(2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), mask]
    form = runtimes.features("Attention", {}, shapes, "float32")
    assert not STANDARD.has_kernel("Attention", FLOAT, 23, form)
    assert Target("onnx", runtime=runtimes.of("1.25")).has_kernel("Attention", FLOAT, 23, form)
    shared = runtimes.features("Attention", {}, [*shapes[:3], (*mask[:-3], 1, *mask[-2:])], "float32")
    assert STANDARD.has_kernel("Attention", FLOAT, 23, shared)


def test_ops_of_onnxruntime_itself() -> None:
    assert ORT.has_kernel("com.microsoft.BiasGelu", FLOAT, 17)
    assert not Target("ort", runtime=runtimes.of("1.25")).has_kernel("com.microsoft.FusedMatMul", DOUBLE, 17)
    assert ORT.has_kernel("com.acme.Mystery", FLOAT, 17), "nobody asked about it: the proof will tell"


def test_an_op_is_written_in_an_element_type_that_some_version_runs_it_in() -> None:
    for target in (OURS, STANDARD, ORT):
        assert target.has_kernel("Softsign", FLOAT, 20)
        assert not target.has_kernel("Softsign", DOUBLE, 20), "no onnxruntime has one"
        assert target.has_kernel("Elu", DOUBLE, 20), "its function is expanded, since opset 18"
        assert not target.has_kernel("Elu", DOUBLE, 13)
        assert target.has_kernel("Sigmoid", DOUBLE, 13)
    for target in (OURS, STANDARD):
        assert target.has_kernel("Softsign", int(TensorProto.BFLOAT16), 20), (
            "of a type that none computes in: who knows"
        )


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
@pytest.mark.parametrize(
    "body",
    ["a = Abs(x)\n b = Add(a, one)\n y = Div(x, b)", "e = Exp(x)\n f = Add(e, one)\n y = Log(f)"],
    ids=["Softsign", "Softplus"],
)
def test_what_is_written_in_float64_runs(target: Literal["onnxfuse", "onnx", "ort"], body: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 20]> g (double[3] x) => (double[3] y) <double one = {1}> {' + body + "}"
    )
    fused = onnxfuse.optimize(model, target=target, level=1, validate="off").model
    assert isinstance(fused, onnx.ModelProto)
    assert len(fused.graph.node) == (1 if target == "onnxfuse" else 3)
    feed = {"x": np.array([-1.5, 0.5, 2])}
    (own,), (expected,) = (Session(m, optimize=False).run(feed) for m in (fused, model))
    np.testing.assert_allclose(own, expected, rtol=1e-12)


def test_fused_ops_stand_where_functions_do_and_must_be_standard_elsewhere() -> None:
    assert OURS.can_say(NodeKind("SkipLayerNormalization", {}, 17, FLOAT, defined=True))
    assert not STANDARD.can_say(NodeKind("SkipLayerNormalization", {}, 17, FLOAT, defined=True))
    assert STANDARD.can_say(NodeKind("LayerNormalization", {}, 17, FLOAT, defined=True))
    assert not STANDARD.can_say(NodeKind("LayerNormalization", {}, 16, FLOAT, defined=True))


def test_the_opset_is_raised_for_what_is_worth_it() -> None:
    assert STANDARD.wanted_opset("Gelu", {}) == 20
    assert STANDARD.wanted_opset("RMSNormalization", {}) == 23
    assert STANDARD.wanted_opset("Swish", {}) == 0
    assert OURS.wanted_opset("Gelu", {}) == 0
    assert ORT.wanted_opset("LayerNormalization", {}) == 17
    assert STANDARD.may_have("Gelu", 17, FLOAT, raising=True)
    assert not STANDARD.may_have("Gelu", 17, FLOAT, raising=False)
    assert Target("ort", runtime=runtimes.of("1.20")).wanted_opset("Attention", {}) == 0


@pytest.mark.parametrize("keep", ["all", "weighted"])
def test_quantizers_take_ops_for_those_of_com_microsoft_by_their_name(keep: Any) -> None:
    plain, kept = (Target("ort", keep_products=each) for each in (None, keep))
    assert plain.has("Attention", {}, 23, FLOAT)
    assert not kept.has("Attention", {}, 23, FLOAT)
    assert plain.wanted_opset("Attention", {}) == 23
    assert kept.wanted_opset("Attention", {}) == 0
    cuda = Target("ort", "cuda", keep_products=keep)
    assert not cuda.can_say(NodeKind("com.microsoft.EmbedLayerNormalization", {}, 17, FLOAT, defined=False))
    assert cuda.can_say(NodeKind("com.microsoft.MultiHeadAttention", {}, 17, FLOAT, defined=False))
    assert Target(keep_products=keep).has("Attention", {}, 23, FLOAT), "in a function body, whose name is another"


def test_products_are_kept_or_those_with_a_weight() -> None:
    with pytest.raises(UsageError, match="keep_products='weights': it is 'all', 'weighted' or None"):
        Target(keep_products="weights")  # type: ignore[arg-type]


CAPPED = """<ir_version: 10, opset_import: ["": 23]>
    g (float[1,2,6,8] q, float[1,2,8,6] k, float[1,2,6,8] v, float[1,1,6,6] m) => (float[1,2,6,8] y)
    <float c = {30.0}, float s = {0.3}> {
    p = MatMul (q, k) e = Mul (p, s) d = Div (e, c) t = Tanh (d) u = Mul (t, c) a = Add (u, m)
    w = Softmax <axis = -1> (a)
    y = MatMul (w, v)}"""


@pytest.mark.parametrize("name", ["onnx", "ort"])
def test_what_an_older_version_computes_wrong_is_told_with_what_to_ask_for(name: Literal["onnx", "ort"]) -> None:
    model = onnx.parser.parse_model(CAPPED)
    (miss,) = onnxfuse.report(model, target=name).near_misses
    assert (miss.rule, miss.launches_saved) == ("Attention", 6)
    assert miss.reason == (
        "Attention with mask and softcap is wrong in onnxruntime before 1.27, which loads the file: --runtime "
        "onnxruntime==1.27 fuses it for that and later ones"
    )
    (held,) = onnxfuse.report(model, target=name, runtime="onnxruntime==1.25").near_misses
    assert held.reason.endswith("before 1.27, and --runtime holds it to 1.25")
    done = onnxfuse.report(model, target=name, runtime="onnxruntime==1.27")
    assert [fusion.rule for fusion in done.fusions] == ["Attention"]
    assert not done.near_misses
