"""Sites of one kind are judged once; what is not of one kind is judged by itself, and so is what a wrong one stands
for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from onnxfuse.proof.cut_proof import Compared, compare_sites
from onnxfuse.proof.oracle import Oracle

BLOCKS = 4
BODY = """<domain: "own", opset_import: ["": 18]> Act (x, w, b) => (y) {
    half = Constant<value_float = HALF>()
    p = MatMul(x, w) s = Add(p, b) r = Tanh(s) y = Mul(r, half) }"""


def model(blocks: list[str], body: str = "") -> onnx.ModelProto:
    """A chain of blocks, each with weights of its own; `{i}` is its number, `{x}` and `{y}` what it reads and gives."""
    chain = " ".join(text.format(i=i, x=f"y{i - 1}" if i else "x", y=f"y{i}") for i, text in enumerate(blocks))
    head = '<ir_version: 9, opset_import: ["": 18, "own": 1]>'
    graph = f"g (float[n, 8] x) => (float[n, 8] y{len(blocks) - 1}) <float half = {{0.5}}> {{ {chain} }}"
    made = onnx.parser.parse_model(f"{head}\n{graph}\n{body}")
    rng = np.random.default_rng(0)
    for i in range(len(blocks)):
        for name, shape in ((f"w{i}", (8, 8)), (f"b{i}", (8,))):
            made.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype("f4"), name))
    return made


PLAIN = "p{i} = MatMul({x}, w{i}) s{i} = Add(p{i}, b{i}) r{i} = Tanh(s{i}) {y} = Mul(r{i}, half)"
FUSED = "{y} = own.Act({x}, w{i}, b{i})"
SPELLED = "q{i} = MatMul({x}, w{i}) t{i} = Add(b{i}, q{i}) u{i} = Tanh(t{i}) {y} = Mul(half, u{i})"


def compare(original: onnx.ModelProto, fused: onnx.ModelProto) -> Compared:
    return compare_sites(original, fused, Oracle(original).cases)


def fused(blocks: list[str] | None = None, half: str = "0.5") -> onnx.ModelProto:
    return model(blocks or [FUSED] * BLOCKS, BODY.replace("HALF", half))


def test_blocks_with_other_weights_are_of_one_kind() -> None:
    found = compare(model([PLAIN] * BLOCKS), fused())
    assert (found.count, found.judged, found.wrong) == (BLOCKS, 1, {})
    assert found.right == {f"y{i}" for i in range(BLOCKS)}


def test_where_the_first_is_wrong_the_others_speak_for_themselves() -> None:
    found = compare(model([PLAIN] * BLOCKS), fused(half="0.500001"))
    assert (found.count, found.judged) == (BLOCKS, BLOCKS)
    assert {site.output for site in found.wrong} == {f"y{i}" for i in range(BLOCKS)}


@pytest.mark.parametrize(
    "odd",
    [
        "{y} = own.Act({x}, w{i}, b0)",  # another block's bias
        "{y} = own.Act({x}, w0, b{i})",
        "q{i} = own.Act({x}, w{i}, b{i}) {y} = Neg(q{i})",
        "q{i} = MatMul({x}, w{i}) t{i} = Add(q{i}, b{i}) u{i} = Erf(t{i}) {y} = Mul(u{i}, half)",
    ],
)
def test_a_mistake_in_one_block_is_another_kind(odd: str) -> None:
    wrong = fused([FUSED, FUSED, odd, FUSED])
    found = compare(model([PLAIN] * BLOCKS), wrong)
    assert {site.output for site in found.wrong} == {"y2"}


def test_another_attribute_is_another_kind() -> None:
    plain = "p{i} = MatMul({x}, w{i}) s{i} = Add(p{i}, b{i}) {y} = LeakyRelu<alpha = 0.1>(s{i})"
    spelled = "q{i} = MatMul({x}, w{i}) t{i} = Add(b{i}, q{i}) {y} = LeakyRelu<alpha = 0.1>(t{i})"
    blocks = [spelled, spelled, spelled.replace("0.1", "0.11"), spelled]
    found = compare(model([plain] * BLOCKS), model(blocks))
    assert {site.output for site in found.wrong} == {"y2"}


def test_a_weight_that_is_not_what_it_was_is_judged_by_itself() -> None:
    changed = fused()
    weight = next(tensor for tensor in changed.graph.initializer if tensor.name == "w2")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.001), "w2"))
    found = compare(model([PLAIN] * BLOCKS), changed)
    assert {site.output for site in found.wrong} == {"y2"}
    assert found.judged == 2


def test_what_was_folded_into_weights_is_judged_for_each() -> None:
    plain = "p{i} = MatMul({x}, w{i}) s{i} = Add(p{i}, b{i}) {y} = Mul(s{i}, half)"
    folded = model(["q{i} = MatMul({x}, v{i}) {y} = Add(q{i}, c{i})"] * BLOCKS)
    for tensor in model([plain] * BLOCKS).graph.initializer:
        if tensor.name != "half":
            name = {"w": "v", "b": "c"}[tensor.name[0]] + tensor.name[1:]
            folded.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(tensor) / 2, name))
    found = compare(model([plain] * BLOCKS), folded)
    assert (found.count, found.judged, found.wrong) == (BLOCKS, BLOCKS, {})


def test_other_numbers_and_masks_are_other_kinds() -> None:
    """A bias of zeros is fed as it is, and so is what hides something: no other stands for them."""
    plain, other = model([PLAIN] * BLOCKS), fused()
    for name, value in (("b1", np.zeros(8, "f4")), ("b2", np.full(8, -3e38, "f4"))):
        for each in (plain, other):
            tensor = next(t for t in each.graph.initializer if t.name == name)
            tensor.CopyFrom(numpy_helper.from_array(value, name))
    assert compare(plain, other).judged == 3


def test_indices_in_another_file_are_looked_into(tmp_path: Path) -> None:
    """Both models read them as they are, and one of them only up to the fifth."""
    plain = model(["s{i} = Gather<axis = 1>({x}, i{i}) {y} = Tanh(s{i})"] * BLOCKS)
    other = model(["c{i} = Min(i{i}, five) t{i} = Gather<axis = 1>({x}, c{i}) {y} = Tanh(t{i})"] * BLOCKS)
    other.graph.initializer.append(numpy_helper.from_array(np.array(5), "five"))
    for i in range(BLOCKS):
        indices = np.array([0, 1, 2, 3, 4, 5, 4, 7 if i == 2 else 5 - i])
        plain.graph.initializer.append(numpy_helper.from_array(indices, f"i{i}"))
    convert_model_to_external_data(plain, location="weights", size_threshold=indices.nbytes)
    onnx.save(plain, tmp_path / "m.onnx")
    plain = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    other.graph.initializer.extend(t for t in plain.graph.initializer if t.name.startswith("i"))
    found = compare_sites(plain, other, Oracle(plain, base_dir=tmp_path).cases, base_dir=tmp_path)
    assert (found.count, {site.output for site in found.wrong}) == (BLOCKS, {"y2"})


def test_values_that_are_spelled_otherwise_in_both_models_stand_for_each_other() -> None:
    found = compare(model([PLAIN] * BLOCKS), model([SPELLED] * BLOCKS))
    assert (found.count, found.judged, found.wrong) == (BLOCKS, 1, {})
