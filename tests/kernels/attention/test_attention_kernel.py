"""The attention kernels against NumPy in float64, their real source run by the emulator."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

import onnxfuse
from onnxfuse.fusing.fuse import fuse
from onnxfuse.kernels.attention import source
from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.language.bodies import Use
from onnxfuse.language.catalogue import load
from onnxfuse.language.functions import function
from onnxfuse.model.graph import family
from onnxfuse.runtime.served import examine
from tests.attention_cases import FAR, POSITIONS, TURNED, Case, expected
from tests.kernel_runs import reference
from tests.row_cases import DTYPES, Values, assert_close, misaligned, run, values

FAST, CHECKED = Emulated(checked=False), Emulated(checked=True)
FLOAT, HALF, BFLOAT = DTYPES
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def check(
    case: Case, dtype: np.dtype[Any], device: Emulated = FAST, place: Callable[[Values], Values] = lambda a: a
) -> None:
    """All outputs of a case."""
    inputs = case.inputs(dtype)
    for got, want in zip(
        run(device, Attention(case.node), inputs, place=place), expected(case.node, inputs), strict=True
    ):
        assert_close(got, want)


HEADS = ((1, 1), (4, 4), (8, 1), (6, 2))
MASKS = ("", "", "S T", "B 1 S T", "1 H S T", "B H S T", "1 1 1 T", "B 1 1 T", "S 1", "H S T")


def drawn(seed: int, head: int) -> Case:
    """A node of any kind."""
    rng = np.random.default_rng(seed)

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    queries, keys, batches = one(1, 2, 7, 17, 33, 70), one(1, 5, 64, 65, 131, 300), one(1, 2)
    (heads, kv_heads), past = one(*HEADS), one(0, 0, 0, 1, 63)
    sizes = {"B": batches, "H": heads, "S": queries, "T": keys + past}
    mask = one(*MASKS)
    lengths = tuple(rng.integers(0, keys + 1, batches).tolist()) if not past and rng.random() < 0.2 else None
    attributes: dict[str, Any] = {"scale": one(0.125, 0.3)}
    attributes |= one({}, {"is_causal": 1}, {"is_causal": 1, "left_window_size": 9}, {"right_window_size": 2})
    attributes |= {"softcap": 3.0} if rng.random() < 0.15 else {}
    attributes |= {"nan_to_zero": 1} if rng.random() < 0.5 else {}
    attributes |= {"mask_filter_value": -2.0} if rng.random() < 0.2 else {}
    return Case(
        queries, keys, head, batches, heads, kv_heads, one(head, head, 24),
        mask=tuple(sizes.get(name) or 1 for name in mask.split()) if mask else None,
        boolean=bool(rng.random() < 0.5), past=past, lengths=lengths, sink=bool(rng.random() < 0.2),
        flat=bool(rng.random() < 0.5), attributes=attributes, seed=seed,
    )  # fmt: skip


SIZES = [(dtype, head) for dtype in (FLOAT, HALF) for head in (1, 32, 40, 64, 80, 96, 128, 160, 256)]


@pytest.mark.parametrize(("dtype", "head"), [*SIZES, (BFLOAT, 40), (BFLOAT, 128)], ids=str)
def test_nodes_of_every_kind(dtype: np.dtype[Any], head: int) -> None:
    for seed in range(3):
        case = drawn(1000 * DTYPES.index(dtype) + 10 * head + seed, head)
        try:
            check(case, dtype)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from None


@pytest.mark.parametrize(("dtype", "head"), [(FLOAT, 64), (HALF, 36), (HALF, 96)], ids=str)
def test_turned_nodes_of_every_kind(dtype: np.dtype[Any], head: int) -> None:
    for seed in range(3):
        case = drawn(1000 * DTYPES.index(dtype) + 10 * head + seed, head)
        rng = np.random.default_rng(seed)
        rows = int(rng.choice((1, 7, 33, 70)))
        case = replace(
            case, queries=rows, keys=rows, mask=None, lengths=None, interleaved=bool(rng.random() < 0.4),
            angles=("chosen", "given")[seed % 2], turned=int(rng.choice((0, 8, 34))),
        )  # fmt: skip
        try:
            check(case, dtype)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from None


CASES = {
    "one key": Case(1, 1),
    "one query": Case(1, 300, heads=8, kv_heads=1),
    "more keys than queries": Case(7, 131),
    "more queries than keys": Case(131, 7),
    "causal": Case(131, 131, attributes={"is_causal": 1}),
    "causal with a past": Case(37, 37, past=29, attributes={"is_causal": 1}),
    "a past alone": Case(1, 1, past=700, heads=8, kv_heads=1),
    "window": Case(100, 150, attributes={"left_window_size": 20, "right_window_size": 3}),
    "window of one": Case(70, 200, attributes={"left_window_size": 0, "is_causal": 1}),
    "a window that is wider than all": Case(7, 9, attributes={"left_window_size": 2**40, "right_window_size": 2**40}),
    "softcap": Case(37, 70, attributes={"softcap": 2.0}),
    "grouped": Case(37, 70, heads=8, kv_heads=1, attributes={"is_causal": 1}),
    "flat": Case(37, 70, heads=8, kv_heads=2, flat=True, head_v=40),
    "sink": Case(37, 70, sink=True, mask=(37, 70), hidden=(5,)),
    "sink of one query": Case(1, 700, heads=8, kv_heads=1, sink=True),
    "hidden rows": Case(37, 70, mask=(37, 70), hidden=(0, 36)),
    "rows hidden by the lowest number": Case(37, 70, mask=(37, 70), hidden=(0, 36), lowest=True),
    "one query hidden by the lowest number": Case(1, 700, mask=(1, 700), hidden=(0,), lowest=True),
    "hidden rows that are 0": Case(37, 70, mask=(37, 70), boolean=True, hidden=(0, 36), attributes={"nan_to_zero": 1}),
    "hidden rows alone are 0": Case(37, 70, mask=(37, 70), hidden=(0, 36), attributes={"nan_to_zero": 2}),
    "one query that sees nothing": Case(1, 700, mask=(1, 700), boolean=True, hidden=(0,)),
    "queries before the first key": Case(
        70, 200, lengths=(3, 0), attributes={"is_causal": 1, "nan_to_zero": 1}
    ),
    "lengths": Case(5, 200, lengths=(200, 77), mask=(2, 1, 5, 200)),
    "lengths and a window": Case(70, 200, lengths=(200, 77), attributes={"is_causal": 1, "left_window_size": 30}),
    "boolean": Case(37, 131, mask=(2, 2, 37, 131), boolean=True),
    "boolean for batches": Case(37, 70, mask=(2, 1, 1, 70), boolean=True),
    "boolean with a filler": Case(
        70, 131, mask=(70, 131), boolean=True, hidden=(3,), attributes={"mask_filter_value": -3.0, "is_causal": 1}
    ),
    **FAR,
    **TURNED,
    "filler beyond lengths": Case(
        7, 131, mask=(7, 131), boolean=True, lengths=(10, 100), attributes={"mask_filter_value": -1.0}
    ),
    "short mask": Case(37, 131, mask=(37, 66)),
    "short boolean mask": Case(37, 131, mask=(1, 1, 37, 66), boolean=True),
    "short boolean mask with a filler": Case(
        37, 131, mask=(37, 66), boolean=True, attributes={"mask_filter_value": -1.0}
    ),
    "mask by eights": Case(37, 136, mask=(2, 1, 37, 136), hidden=(5,), attributes={"is_causal": 1}),
    "boolean by eights": Case(70, 72, 80, mask=(2, 2, 70, 72), boolean=True, head_v=48),
    "short mask by eights": Case(37, 131, mask=(37, 72), heads=8),
    "short boolean mask by eights, with a filler": Case(
        37, 131, 128, mask=(37, 64), boolean=True, attributes={"mask_filter_value": -1.0}
    ),
    "mask by eights for keys": Case(17, 264, 40, mask=(264,), flat=True, attributes={"left_window_size": 30}),
    "mask for rows": Case(37, 70, mask=(37, 1)),
    "mask for heads": Case(37, 70, mask=(2, 1, 1)),
    "mask for keys": Case(37, 70, mask=(70,)),
    "mask with a past": Case(7, 7, past=50, mask=(7, 57), attributes={"is_causal": 1}),
    "turned": Case(37, 37, angles="given", attributes={"is_causal": 1}),
    "turned by positions": Case(37, 37, 40, angles="chosen", heads=4, head_v=24, mask=(37, 37)),
    "turned neighbours": Case(37, 37, 40, angles="chosen", interleaved=True, flat=True, heads=4, head_v=24),
    "turned in part": Case(37, 37, 80, angles="chosen", turned=32, heads=4, kv_heads=4),
    "neighbours turned in part": Case(7, 7, 33, angles="given", turned=6, interleaved=True),
    "odd heads turned in part": Case(7, 7, 35, angles="chosen", turned=18, flat=True, heads=8),
    "turned behind a past": Case(1, 1, past=700, heads=8, kv_heads=2, angles="chosen", flat=True),
    "many turned behind a past": Case(70, 70, 80, past=63, angles="given", attributes={"is_causal": 1}),
    "turned, of lengths": Case(9, 9, 32, lengths=(9, 4), angles="chosen", attributes={"is_causal": 1}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_what_an_attention_may_have(name: str, dtype: np.dtype[Any]) -> None:
    if CASES[name].lowest and dtype == HALF:
        dtype = BFLOAT  # float16's lowest number leaves scores some of their digits, and float32 keeps only those
    check(CASES[name], dtype)


@pytest.mark.parametrize("name", ["causal with a past", "window", "lengths", "boolean", "boolean with a filler"])
def test_numpy_and_the_function_body_agree(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs(FLOAT)
    attributes = {"scale": 0.125, **case.node}
    (body,) = reference("Attention", attributes, _trimmed(inputs), load())
    np.testing.assert_allclose(body, expected(attributes, inputs)[0].value, rtol=1e-9, atol=1e-12)


def _trimmed(inputs: list[Values | None]) -> list[Values | None]:
    while inputs[-1] is None:
        inputs = inputs[:-1]
    return inputs


@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
def test_nothing_at_all(dtype: np.dtype[Any]) -> None:
    for case in (Case(0, 5), Case(5, 7, batches=0), Case(0, 0)):
        check(case, dtype)
    for sink in (False, True):
        case = Case(5, 0, sink=sink)
        y = run(FAST, Attention(case.node), case.inputs(dtype))[0]
        assert y is not None
        assert not y.any()


@pytest.mark.parametrize(("dtype", "head"), [(FLOAT, 40), (HALF, 64), (HALF, 36), (BFLOAT, 33)], ids=str)
def test_misaligned_arrays(dtype: np.dtype[Any], head: int) -> None:
    for case in (Case(7, 70, head, mask=(7, 70)), Case(1, 300, head, past=3, flat=True, heads=8, kv_heads=2)):
        check(case, dtype, CHECKED, misaligned)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
@pytest.mark.parametrize(
    "name", ["causal with a past", "lengths", "queries before the first key", "boolean with a filler", "a past alone"]
)
def test_no_race_and_no_access_out_of_bounds(name: str, dtype: np.dtype[Any], order: Any) -> None:
    check(CASES[name], dtype, Emulated(checked=True, order=order))


def test_half_precision_without_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = source.Source.file

    def older(name: str, **defines: object) -> source.Source:
        return whole(name, **{**defines, **({"TENSOR": 0} if "TENSOR" in defines else {})})

    monkeypatch.setattr(source.Source, "file", older)
    source.source.cache_clear()
    for dtype, name in itertools.product((HALF, BFLOAT), ("causal with a past", "window")):
        check(CASES[name], dtype, CHECKED)
    source.source.cache_clear()


@dtypes
def test_scores_far_from_zero(dtype: np.dtype[Any]) -> None:
    """Shares of which most are smaller than the type's least normal number, and add up all the same."""
    rng = np.random.default_rng(0)
    q, k = np.zeros((1, 1, 16, 32)), np.zeros((1, 1, 3000, 32))
    q[..., 0], k[..., 0] = 8, rng.normal(0, 0.5, 3000)
    k[0, 0, 1700, 0] = 14.0 / 8 + 1
    v = values(rng, (1, 1, 3000, 32), dtype)
    v[0, 0, 1700] = 0
    inputs = [q.astype(dtype), k.astype(dtype), v]
    attributes = {"scale": 1.0}
    assert_close(run(FAST, Attention(attributes), inputs)[0], expected(attributes, inputs)[0])
    huge = [inputs[0] * np.asarray(100, dtype), inputs[1], v]
    assert_close(run(FAST, Attention({"scale": 0.01}), huge)[0], expected({"scale": 0.01}, [*huge, *[None] * 5])[0])


@pytest.mark.parametrize("guard", [0, 2])
def test_nan_and_infinity_stay_in_their_rows(guard: int) -> None:
    case = Case(37, 70, mask=(37, 70), attributes={"scale": 0.2, "nan_to_zero": guard})
    inputs = case.inputs(HALF)
    assert inputs[0] is not None
    assert inputs[3] is not None
    inputs[0][0, 0, 3, 5], inputs[3][7, 9] = np.nan, np.inf
    want = expected(case.node, inputs)[0]
    assert np.isnan(want.value[:, :, 7]).sum() == 4 * 64 == np.isnan(want.value).sum() - 64
    assert_close(run(FAST, Attention(case.node), inputs)[0], want)


def test_keys_behind_a_length_are_not_looked_at() -> None:
    case = Case(2, 200, lengths=(150, 70), attributes={"is_causal": 1})
    inputs = case.inputs(HALF)
    want = expected(case.node, inputs)[0]
    for array in inputs[1:3]:
        assert array is not None
        array[0, :, 150:] = array[1, :, 70:] = np.nan
    assert_close(run(FAST, Attention(case.node), inputs, wanted=(True,))[0], want)


def test_outputs_that_nobody_asks_for() -> None:
    case = CASES["causal with a past"]
    inputs = case.inputs(HALF)
    y, present_key, present_value = expected(case.node, inputs)
    got = run(FAST, Attention(case.node), inputs, wanted=(True, False, True))
    assert got[1] is None
    assert_close(got[0], y)
    assert_close(got[2], present_value)
    assert_close(run(FAST, Attention(case.node), inputs, wanted=(False, True, False))[1], present_key)


@pytest.mark.parametrize("wanted", [(True,), (True, True, False), (False, True, True)])
@pytest.mark.parametrize("name", ["turned by positions", "turned behind a past", "neighbours turned in part"])
def test_keys_are_turned_whichever_outputs_are_asked_for(name: str, wanted: tuple[bool, ...]) -> None:
    case = CASES[name]
    inputs = case.inputs(HALF)
    got = run(CHECKED, Attention(case.node), inputs, wanted=(*wanted, False, False)[:3])
    for one, want in zip(got, expected(case.node, inputs), strict=True):
        if one is not None:
            assert_close(one, want)


def test_positions_from_the_end_and_beyond_it() -> None:
    """A row of angles of which there is none turns channels to 0, as zeros of cosine and sine do."""
    inputs = CASES["turned by positions"].inputs(HALF)
    positions = inputs[10]
    assert positions is not None
    positions[0, :3] = (-1, POSITIONS, -POSITIONS - 1)
    tables = [None if table is None else np.concatenate([table, 0 * table[:1]]) for table in inputs[8:10]]
    there = np.where((positions >= -POSITIONS) & (positions < POSITIONS), positions % POSITIONS, POSITIONS)
    want = expected({}, [*inputs[:8], *tables, there])
    for got, one in zip(run(CHECKED, Attention({}), inputs), want, strict=True):
        assert_close(got, one)


@pytest.mark.parametrize("masked", [True, False])
def test_one_node_serves_a_cache_that_grows(masked: bool) -> None:
    """What is worked out for one length holds for the next, whatever follows from it: parts, the steps of a mask."""
    kernel = Attention({})
    for past in (1, 2, 63, 64, 300, 301, 3, 0):
        mask = (2, 4, 1, past + 1) if masked else None
        case = Case(1, 1, 32, past=past, heads=4, mask=mask, angles="chosen" if past % 2 else "", seed=past)
        inputs = case.inputs(HALF)
        for got, want in zip(run(CHECKED, kernel, inputs), expected({}, inputs), strict=True):
            assert_close(got, want)
    assert len(kernel._plans) <= 6


# ---------------------------------------------------------------------------------------- in a session


def test_both_kinds_of_masks_in_a_session() -> None:
    """The same op with an added mask and with a boolean one."""
    kinds = {"q": onnx.TensorProto.FLOAT, "added": onnx.TensorProto.FLOAT, "shown": onnx.TensorProto.BOOL}
    shapes = {"q": (2, 4, 7, 16), "added": (7, 7), "shown": (2, 1, 7, 7)}
    uses = {"added": {"is_causal": 1, "scale": 0.3}, "shown": {"scale": 0.3, "nan_to_zero": 1}}
    nodes, functions = [], []
    for mask, attributes in uses.items():
        given = tuple(shapes[name] for name in ("q", "q", "q", mask))
        use = Use(
            "Attention", (True,) * 4, tuple(attributes.items()), (True,), onnx.TensorProto.FLOAT, given,
            (False, False, False, mask == "shown"),
        )  # fmt: skip
        body = function(use, load(), 17)
        body.name = f"Attention_{mask}"
        functions.append(body)
        nodes.append(helper.make_node(body.name, ["q", "q", "q", mask], [mask[0]], domain="onnxfuse", **attributes))
    nodes.append(helper.make_node("Concat", ["a", "s"], ["y"], axis=3))
    graph = helper.make_graph(
        nodes,
        "masks",
        [helper.make_tensor_value_info(name, kind, shapes[name]) for name, kind in kinds.items()],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 4, 7, 32))],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("onnxfuse", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    assert examine(model).sources == {"Attention": "attention"}
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shapes[name]).astype(np.float32) for name in ("q", "added")}
    feeds["shown"] = rng.random(shapes["shown"]) < 0.7
    feeds["shown"][:, :, 3] = False
    session = onnxfuse.InferenceSession(model.SerializeToString(), emulate=True)
    plain = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], plain.run(None, feeds)[0], rtol=2e-5, atol=2e-6)


def test_only_the_node_that_shows_its_scores_runs_its_body() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,4,7,16] q, float[2,4,7,16] k) => (float[2,4,7,16] y, float[2,4,7,7] weights) {
        columns = Transpose <perm = [0, 1, 3, 2]> (k)
        scores = MatMul (q, columns)
        weights = Softmax (scores)
        x = MatMul (weights, k)
        again = MatMul (x, columns)
        shares = Softmax (again)
        y = MatMul (shares, k)
    }"""
    model = parser.parse_model(text)
    fused = fuse(model, load()).model
    onnx.checker.check_model(fused, full_check=True)
    first, second = fused.graph.node
    assert family(first.op_type) == family(second.op_type) == "Attention"
    served = examine(fused)
    assert served.names == [second.op_type]
    assert list(served.reasons) == [first.op_type]
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2, 4, 7, 16)).astype(np.float32) for name in ("q", "k")}
    sessions = [
        onnxfuse.InferenceSession(fused.SerializeToString(), emulate=True),
        onnxruntime.InferenceSession(fused.SerializeToString(), providers=["CPUExecutionProvider"]),
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]),
    ]
    ours, bodies, original = (session.run(None, feeds) for session in sessions)
    for one, other, want in zip(ours, bodies, original, strict=True):
        np.testing.assert_allclose(one, want, rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(other, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
@pytest.mark.parametrize("queries", [1, 33])
def test_a_mask_in_float32_beside_half_precision(dtype: np.dtype[Any], queries: int) -> None:
    """It says what half precision cannot: a row of the lowest number alone weighs all keys alike."""
    case = Case(queries, 40, mask=(2, 1, queries, 40))
    inputs = case.inputs(dtype)
    rng = np.random.default_rng(0)
    mask = np.where(rng.random((2, 1, queries, 40)) < 0.5, rng.standard_normal(), np.finfo(np.float32).min)
    mask[0, 0, 0] = np.finfo(np.float32).min
    inputs[3] = mask.astype(np.float32)
    got, want = run(CHECKED, Attention(case.node), inputs), expected(case.node, inputs)
    assert_close(got[0], want[0])
    alike = np.asarray(inputs[2])[0].astype(np.float64).mean(-2)
    np.testing.assert_allclose(np.asarray(got[0])[0, :, 0].astype(np.float64), alike, atol=2e-2)
