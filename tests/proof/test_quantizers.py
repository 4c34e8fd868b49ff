"""Values between two steps of a quantizer: what rounding does to them is allowed for, and nothing else is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxfuse.pipeline import optimize
from onnxfuse.proof.claim import Experiment
from onnxfuse.proof.oracle import Oracle
from onnxfuse.proof.quantizers import Boundaries, shaken
from onnxfuse.runtime.quiet import Session, SessionError
from tests.quantized_models import counts, quantized

NODES = """t = Mul(x, two)  q = QuantizeLinear(t, half, z2)  d = DequantizeLinear(q, half, z2)  y = MatMul(d, m)"""
CONSTANTS = "float two = {2.0}, float half = {0.5}, float close = {1.0000002}, float other = {0.4}, uint8 next = {129}"


def original(*, opset: int = 20) -> onnx.ModelProto:
    return quantized(NODES, constants=CONSTANTS, opset=opset)


def between(share: float) -> np.ndarray:
    """Numbers of which this share lies between two steps."""
    rng = np.random.default_rng(3)
    steps = rng.integers(-20, 20, (4, 40, 8)) * 0.25
    return (steps + np.where(rng.random(steps.shape) < share, 0.125, 0.03)).astype(np.float32)


def changed(*renamed: tuple[str, str, str]) -> onnx.ModelProto:
    """The original with other constants: (node's output, constant, another)."""
    model = original()
    for output, old, new in renamed:
        (node,) = [node for node in model.graph.node if node.output[0] == output]
        node.input[list(node.input).index(old)] = new
    return model


def rounded() -> onnx.ModelProto:
    """The original with last digits of its own before the quantizer."""
    text = NODES.replace("t = Mul(x, two)", "u = Mul(x, two)  t = Mul(u, close)")
    return quantized(text, constants=CONSTANTS)


def test_a_value_between_two_steps_may_fall_to_either_side() -> None:
    oracle = Oracle(original(), given={"x": between(0.02)})
    verdict = oracle.compare(rounded(), optimize=False)
    assert verdict.max_error is not None
    assert verdict.max_error > 1e-3
    assert verdict.verdict == "equal"
    assert "fall to either side" in verdict.note


def test_where_no_value_lies_there_nothing_is_allowed() -> None:
    given = {"x": between(0)}
    oracle = Oracle(original(), given=given)
    boundaries = Boundaries(original(), None)
    case = next(case for case in oracle.cases if not case.unusual and not case.empty)
    expected = Session(original(), optimize=False).run(case.inputs)
    assert boundaries.allow(case, expected, 0) == 0
    assert oracle.compare(rounded(), optimize=False).note == ""


def test_a_model_without_quantizers_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized("y = MatMul(x, m)")
    boundaries = Boundaries(model, None)
    monkeypatch.setattr("onnxfuse.proof.draws.Session", None)
    case = Oracle(model).cases[0]
    assert boundaries.allow(case, [case.inputs["x"]], 0) == 0


@pytest.mark.parametrize(
    "mutant",
    [
        changed(("q", "half", "other"), ("d", "half", "other")),
        changed(("q", "half", "other")),
        changed(("d", "half", "other")),
        changed(("q", "z2", "next")),
        changed(("d", "z2", "next")),
        changed(("t", "two", "close")),
    ],
    ids=["scale", "scale before", "scale behind", "zero point before", "zero point behind", "factor"],
)
@pytest.mark.parametrize("share", [0, 0.02])
def test_what_is_wrong_is_wrong_all_the_same(mutant: onnx.ModelProto, share: float) -> None:
    oracle = Oracle(original(), given={"x": between(share)})
    assert oracle.compare(mutant, optimize=False).verdict == "mismatch"


def test_only_what_quantizers_read_is_moved() -> None:
    model = original(opset=17)
    x = between(0.5)
    moved = shaken(model)
    onnx.checker.check_model(moved)
    moved.graph.output.append(onnx.ValueInfoProto(name="onnxfuse/quantizers/q/moved"))
    feeds = {"x": x, "onnxfuse/quantizers/seed": np.array(2, np.float32)}
    _, read = Session(moved, optimize=False).run(feeds)
    assert 0 < np.abs(read - 2 * x).max() <= 1e-6 * np.abs(2 * x).max()
    assert len(shaken(quantized("y = MatMul(x, m)")).graph.node) == 1


@pytest.mark.parametrize("fill", [-1e38, -np.inf])
def test_what_is_beyond_all_steps_moves_no_other_number(fill: float) -> None:
    x = between(0)
    x[0, 0, 0] = fill
    moved = shaken(original())
    moved.graph.output.append(onnx.ValueInfoProto(name="onnxfuse/quantizers/q/moved"))
    _, read = Session(moved, optimize=False).run({"x": x, "onnxfuse/quantizers/seed": np.array(2, np.float32)})
    with np.errstate(all="ignore"):
        off = np.abs(read - 2 * x).reshape(-1)
        assert read[0, 0, 0] == 2 * x[0, 0, 0]
    assert 0 < off[1:].max() < 0.5 / 8


def test_bodies_are_moved_as_well() -> None:
    model = quantized(
        f"""y = If(c) <
            then_branch = a () => (float[b,t,8] r) {{ {NODES.replace("y =", "r =")} }},
            else_branch = b () => (float[b,t,8] e) {{ e = Identity(x) }}>""",
        inputs="float[b,t,8] x, bool c, float[8,8] m, uint8 z2",
        constants=CONSTANTS,
    )
    inside = shaken(model).graph.node[0].attribute[0].g
    assert "Sin" in {node.op_type for node in inside.node}
    feeds = {"m": np.eye(8, dtype=np.float32), "z2": np.array(128, np.uint8)}
    feeds |= {"x": between(0.5), "c": np.array(True), "onnxfuse/quantizers/seed": np.array(1, np.float32)}
    (y,) = Session(shaken(model), optimize=False).run(feeds)
    assert y.shape == (4, 40, 8)


def test_a_quantized_model_keeps_its_fusions_though_steps_are_taken() -> None:
    """Norms and activations between dynamically quantized products, wide enough for values between two steps."""
    model = deep(layers=8, width=128)
    done = optimize(model, experiment=Experiment(shapes={"x": (4, 200, 128)}))
    assert done.report.validation.verdict == "equal"
    assert not done.report.left_out
    assert counts(done.model)["SkipLayerNormalization"] == 7


def deep(layers: int, width: int) -> onnx.ModelProto:
    """Residual blocks of a norm in ten nodes and a dynamically quantized product."""
    rng = np.random.default_rng(0)
    nodes, constants, x = [], [], "x"
    for i in range(layers):
        nodes.append(
            f"""m{i} = ReduceMean<keepdims = 1>({x}, last)  c{i} = Sub({x}, m{i})  p{i} = Mul(c{i}, c{i})
            v{i} = ReduceMean<keepdims = 1>(p{i}, last)  e{i} = Add(v{i}, eps)  r{i} = Sqrt(e{i})
            n{i} = Div(c{i}, r{i})
            q{i}, a{i}, o{i} = DynamicQuantizeLinear(n{i})  i{i} = MatMulInteger(q{i}, w{i}, o{i}, zero)
            f{i} = Cast<to = 1>(i{i})  k{i} = Mul(a{i}, ws)  y{i} = Mul(f{i}, k{i})  x{i} = Add({x}, y{i})"""
        )
        weights = rng.integers(0, 256, (width, width), np.uint8)
        constants.append(onnx.numpy_helper.from_array(weights, f"w{i}"))
        x = f"x{i}"
    model = quantized(
        " ".join(nodes),
        inputs=f"float[b,t,{width}] x",
        output=x,
        constants="int64[1] last = {-1}, float eps = {0.00001}, uint8 zero = {128}, float ws = {0.002}",
    )
    model.graph.initializer.extend(constants)
    return model


def test_where_the_quantizers_cannot_be_tried_the_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SessionError("no kernel for Sin")

    oracle = Oracle(original(), given={"x": between(0.02)})
    monkeypatch.setattr("onnxfuse.proof.draws.Session", refuse)
    verdict = oracle.compare(rounded(), optimize=False)
    assert verdict.verdict == "mismatch", "nothing is allowed then"
    assert verdict.note.endswith("what rounding does before its quantizers is not known: no kernel for Sin")


FUNCTION = """<ir_version: 9, opset_import: ["" : 20, "own" : 1]>
    g (float[b,t,8] x) => (float[b,t,8] y) <float half = {0.5}, uint8 z2 = {128}, float two = {2.0}>
    { t = Mul(x, two)  d = own.Rounded(t, half, z2)  y = Neg(d) }
    <domain: "own", opset_import: ["" : 20]>
    Rounded (t, s, z) => (d) { q = QuantizeLinear(t, s, z)  d = DequantizeLinear(q, s, z) }"""


def test_quantizers_in_functions_are_moved() -> None:
    given = {"x": between(0.02)}
    model = onnx.parser.parse_model(FUNCTION)
    expected = Session(model, optimize=False).run(given)
    case = next(case for case in Oracle(model, given=given).cases if not case.unusual and not case.empty)
    assert Boundaries(model, None).allow(case, expected, 0) > 0
    steps = {"x": between(0)}
    case = next(case for case in Oracle(model, given=steps).cases if not case.unusual and not case.empty)
    assert Boundaries(model, None).allow(case, Session(model, optimize=False).run(steps), 0) == 0


# Numbers in half precision are written as their bits: 0.5 and 2.
HALVES = """<ir_version: 9, opset_import: ["" : 20]>
    g (float16[b,t,8] x) => (float16[b,t,8] y) <float16 half = {14336}, uint8 z2 = {128}, float16 two = {16384}>
    { t = Mul(x, two)  q = QuantizeLinear(t, half, z2)  y = DequantizeLinear(q, half, z2) }"""


@pytest.mark.parametrize("share", [0, 0.02])
def test_numbers_in_half_precision_are_moved(share: float) -> None:
    model, given = onnx.parser.parse_model(HALVES), {"x": between(share).astype(np.float16)}
    case = next(case for case in Oracle(model, given=given).cases if not case.unusual and not case.empty)
    allowed = Boundaries(model, None).allow(case, Session(model, optimize=False).run(given), 0)
    assert (allowed > 0) == (share > 0)


def test_what_half_precision_rounds_moves_by_as_much() -> None:
    """Rounding to 11 bits moves a number that lies as near to a boundary as its own last place, and no other."""
    model = onnx.parser.parse_model(HALVES)
    near, far = np.full((1, 1, 8), 5.125 - 2**-8, np.float16), np.full((1, 1, 8), 5.125 - 2**-5, np.float16)
    for x, moves in ((near, True), (far, False)):
        case = next(c for c in Oracle(model, given={"x": x}).cases if not c.unusual and not c.empty)
        allowed = Boundaries(model, None).allow(case, Session(model, optimize=False).run({"x": x}), 0)
        assert (allowed > 0) == moves
