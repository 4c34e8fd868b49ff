"""What is fused by a few blocks of each run is what fusing all of them gives: the file, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from onnxfuse.fusing.build import Build as Wanted
from onnxfuse.fusing.fuse import fuse
from onnxfuse.fusing.fused import Banned, Fused
from onnxfuse.fusing.repeats.alike import DifferentError
from onnxfuse.fusing.settle import settle
from onnxfuse.fusing.source import Source
from onnxfuse.language.catalogue import RULES, load
from onnxfuse.pipeline import report
from onnxfuse.reporting.tell import fusion
from onnxfuse.rewriting.provenance import keys
from onnxfuse.targets.target import Target
from tests import exports
from tests.exports import MODELS

from .blocks import WIDTH, Block, Build, chain, mlp
from .stretched import stretched

CATALOGUE = load()


def told(fused: Fused) -> tuple[object, ...]:
    """All that is said of a fused model."""
    misses = [replace(miss) for miss in fused.near_misses]
    bans = [sorted(key for key in keys(site, site.matches)) for site in fused.sites]
    gone = sorted(sorted(one.keys) for one in fused.vanished)
    return list(map(fusion, fused.sites)), [site.value for site in fused.sites], bans, misses, gone, fused.simplified


def both(model: ModelProto, target: str = "onnxfuse", banned: Banned = frozenset(), level: int = RULES) -> Fused:
    """The model fused by few blocks, if it can be; what it gives must not depend on that."""
    catalogue = CATALOGUE.serving(Target(target), level=level)
    few, all_ = (fuse(Source(model, MODELS, catalogue, repeats), catalogue, banned=banned) for repeats in (True, False))
    assert all_.blocks is None
    assert told(few) == told(all_)
    assert few.model.SerializeToString(deterministic=True) == all_.model.SerializeToString(deterministic=True)
    return few


def runs(fused: Fused) -> int:
    """How many nodes were not worked on."""
    blocks = fused.blocks
    return 0 if blocks is None else sum(len(copies) - 1 for copies in blocks.before)


def attending(build: Build, x: str, number: int) -> str:
    scope = f"/layer.{number}/attention"
    return build.node("Add", build.attention(build.norm(x, scope), scope), x, scope=scope)


def cached(build: Build, x: str, number: int) -> str:
    scope = f"/layer.{number}/attention"
    return build.node("Add", build.attention(build.norm(x, scope), scope, cache=str(number)), x, scope=scope)


def alternating(build: Build, x: str, number: int) -> str:
    return mlp(build, x, number) if number % 2 else attending(build, x, number)


def mixture(build: Build, x: str, number: int) -> str:
    scope = f"/layer.{number}/experts"
    return build.node("Add", build.experts(build.norm(x, scope), scope), x, scope=scope)


def six(build: Build, x: str, number: int) -> str:
    return mlp(build, x, number) if number % 6 == 5 else attending(build, x, number)


BLOCKS = [(mlp, 9), (attending, 9), (cached, 9), (alternating, 18), (mixture, 9), (six, 54)]


@pytest.mark.parametrize(("block", "count"), BLOCKS)
def test_blocks(block: Block, count: int) -> None:
    assert runs(both(chain(count, block)))


@pytest.mark.parametrize(("block", "count"), [BLOCKS[1], BLOCKS[3]])
def test_blocks_with_regions(block: Block, count: int) -> None:
    fused = both(chain(count, block), level=2)
    assert runs(fused)
    assert [site for site in fused.sites if "Region" in site.node.op_type]


@pytest.mark.parametrize("target", ["onnxfuse", "onnx"])
def test_weights_that_are_equal_and_kept_once(target: str) -> None:
    """torch.onnx keeps one of them, and calls the others what Identities of it give, before all else."""
    model = chain(9)
    graph = model.graph
    biases = [tensor.name for tensor in graph.initializer if list(tensor.dims) == [WIDTH]]
    named = {name: biases[place % 4] for place, name in enumerate(biases) if place >= 4}
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend(onnx.helper.make_node("Identity", [one], [name]) for name, one in named.items())
    graph.node.extend(nodes)
    kept = [tensor for tensor in graph.initializer if tensor.name not in named]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    fused = both(model, target, level=2)
    assert runs(fused)
    assert not [node for node in fused.model.graph.node if node.op_type == "Identity"]


def softened(build: Build, x: str, number: int) -> str:
    """A normalization of other rows than those that a softmax reduces, which are no region together."""
    scope = f"/layer.{number}/soft"
    shares = build.node("Softmax", x, axis=1, scope=scope)
    return build.node("Add", build.linear(build.norm(shares, scope), scope), x, scope=scope)


def test_near_misses_at_what_was_written() -> None:
    """A node that a rule has made of several is what a region nearly was: each block has its own."""
    fused = both(chain(9, softened), level=2)
    assert runs(fused)
    misses = [miss.node for miss in fused.near_misses if miss.node.endswith("LayerNormalization")]
    assert misses == [f"/layer.{number}/soft/LayerNormalization" for number in range(9)]
    assert set(misses) <= {node.name for node in fused.model.graph.node}


@pytest.mark.parametrize(("block", "count"), BLOCKS[:-1])
def test_blocks_for_another_target(block: Block, count: int) -> None:
    assert runs(both(chain(count, block), "ort")) or block is not mixture  # there others' weights are put together


def test_nodes_without_names() -> None:
    assert runs(both(chain(10, build=Build(named=False))))


def test_five_blocks_are_worked_on_and_the_others_are_not() -> None:
    model = chain(20)
    count = len(model.graph.node) // 20
    assert runs(both(model)) >= 14 * count
    assert runs(both(chain(5))) == 0


def masked() -> ModelProto:
    """Blocks that all read a mask, which each of them computes anew."""
    build = Build()
    mask = build.input("mask", ["batch", 1, "seq"])

    def block(build: Build, x: str, number: int) -> str:
        scope = f"/layer.{number}/attention"
        hidden = build.node(
            "Mul", build.node("Sub", build.number(1), mask, scope=scope), build.number(-1e4), scope=scope
        )
        return build.node("Add", build.attention(build.norm(x, scope), scope, mask=hidden), x, scope=scope)

    return chain(10, block, build=build)


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_blocks_that_alternate_by_what_they_read(target: str) -> None:
    """One has a mask, the next another (Gemma 2): their ops are the same."""
    build = Build()
    masks = [build.input(name, ["batch", 1, "seq"]) for name in ("window", "full")]

    def block(build: Build, x: str, number: int) -> str:
        scope = f"/layer.{number}/attention"
        attention = build.attention(build.norm(x, scope), scope, mask=masks[number % 2])
        return build.node("Add", attention, x, scope=scope)

    fused = both(chain(18, block, build=build), target, level=2)
    assert runs(fused)


@pytest.mark.parametrize("level", [1, 2])
def test_what_each_block_computes_of_the_start_belongs_to_the_first(level: int) -> None:
    fused = both(masked(), level=level)
    assert runs(fused)
    assert [node.op_type for node in fused.model.graph.node].count("Sub") <= 1


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_what_is_computed_for_each_block_before_all_of_them(target: str) -> None:
    """Exporters write the sizes that a decoder's layers give the keys of an encoder where they are first known."""
    build = Build()
    source, y = build.input("source", ["batch", "from", WIDTH]), build.input("target", ["batch", "seq", WIDTH])
    heads, sizes = build.constant("heads", np.array([2, WIDTH // 2])), list[str]()
    start, end = (build.constant(f"from {n}", np.array([n])) for n in (0, 2))
    for number in range(12):
        rows = build.node("Slice", build.node("Shape", source), start, end, scope=f"/decoder.{number}/keys")
        sizes.append(build.node("Concat", rows, heads, axis=0, scope=f"/decoder.{number}/keys"))
    for number in range(12):
        scope = f"/decoder.{number}"
        key, query = (build.linear(each, scope) for each in (source, build.norm(y, scope)))
        split = build.node("Transpose", build.node("Reshape", key, sizes[number], scope=scope), perm=[0, 2, 3, 1])
        own = build.node("Reshape", query, build.constant("own", np.array([0, 0, 2, WIDTH // 2])), scope=scope)
        scores = build.node("MatMul", build.node("Transpose", own, perm=[0, 2, 1, 3], scope=scope), split, scope=scope)
        shares = build.node("ReduceMean", build.node("Softmax", scores, axis=-1, scope=scope), axes=[1, 3], scope=scope)
        y = build.node("Add", build.node("Mul", query, shares, scope=scope), y, scope=scope)
    build.output(y)
    assert runs(both(build.model(), target, level=2))


def residual(build: Build, x: str, number: int) -> str:
    """A product between casts that change nothing, one of them of what goes on beside it (Mamba)."""
    scope, floats = f"/layer.{number}", onnx.TensorProto.FLOAT
    normal = build.norm(build.node("Cast", x, to=floats, scope=scope), f"{scope}/norm")
    beside = build.node("Cast", x, to=floats, scope=scope)
    inner = build.node("MatMul", normal, build.weight(scope, WIDTH, WIDTH), scope=f"{scope}/mixer")
    return build.node("Add", beside, build.node("Cast", inner, to=floats, scope=scope), scope=scope)


def test_what_the_first_block_leaves_to_the_second() -> None:
    """Its norm is no region with what stands before it, and its Cast belongs to that of the second."""
    build = Build()
    x = build.node("Softmax", build.input("x", ["batch", "seq", WIDTH]), axis=1)
    for number in range(12):
        x = residual(build, x, number)
    build.output(build.node("Relu", x))
    fused = both(build.model(), level=2)
    assert runs(fused)
    sizes = [len(site.replaced) for site in fused.sites if site.module]
    assert len(set(sizes[2:-1])) == 1
    assert sizes[1] == sizes[2] + 1


def projecting() -> ModelProto:
    """Blocks that all make keys of the same table (positions, or what an encoder gave)."""
    build = Build()
    table = build.input("table", ["rows", WIDTH])

    def block(build: Build, x: str, number: int) -> str:
        scope = f"/layer.{number}/attention"
        keys = build.node("MatMul", table, build.weight(scope, WIDTH, WIDTH), scope=scope)
        turned = build.node("Transpose", keys, perm=[1, 0], scope=scope)
        scores = build.node("MatMul", build.norm(x, scope), turned, scope=scope)
        shares = build.node("Softmax", scores, axis=-1, scope=scope)
        return build.node("Add", build.node("MatMul", shares, keys, scope=scope), x, scope=scope)

    return chain(12, block, build=build)


def test_what_one_region_computes_for_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules' passes work on few blocks, and regions are found in the whole."""
    model, sizes = projecting(), list[int]()

    def settled(first: ModelProto, *rest: Any) -> Fused:
        sizes.append(len(first.graph.node))
        return settle(first, *rest)

    fused = both(model, level=2)
    assert fused.blocks is None
    assert max(len(site.node.output) for site in fused.sites) == 12
    assert runs(both(model))
    assert runs(both(model, "ort", level=2))
    monkeypatch.setattr("onnxfuse.fusing.fuse.settle", settled)
    catalogue = CATALOGUE.serving(Target("onnxfuse"), level=2)
    fuse(Source(model, MODELS, catalogue, True), catalogue)
    assert max(sizes) < len(model.graph.node)


def test_blocks_that_are_unlike_after_a_pass_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended, model = list[int](), list[int](), chain(12)

    def settled(first: ModelProto, *rest: Any) -> Fused:
        begun.append(len(first.graph.node))
        fused = settle(first, *rest)
        ended.append(begun[-1])
        return fused

    def unlike(*_: object) -> None:
        raise DifferentError("they are said to be")

    monkeypatch.setattr("onnxfuse.fusing.repeats.once.alike", unlike)
    monkeypatch.setattr("onnxfuse.fusing.fuse.settle", settled)
    assert runs(both(model)) == 0
    few, *whole = begun
    assert few < len(model.graph.node) == min(whole)
    assert ended == whole


def two_runs() -> ModelProto:
    """An encoder and a decoder that reads what it gives."""
    build = Build()
    x, y = build.input("source", ["batch", "from", WIDTH]), build.input("target", ["batch", "seq", WIDTH])
    for number in range(8):
        x = mlp(build, x, number)
    for number in range(11):
        scope = f"/decoder.{number}"
        y = build.node("Add", build.attention(build.norm(y, scope), scope, keys=x), y, scope=scope)
    build.output(y)
    return build.model()


def test_two_runs() -> None:
    fused = both(two_runs())
    assert fused.blocks is not None
    assert len({len(copies) for copies in fused.blocks.before}) == 3


def odd(at: int, count: int = 20) -> ModelProto:
    return chain(count, lambda build, x, n: mlp(build, x, n, 1e-6 if n == at else 1e-5))


def test_a_run_ends_at_a_block_that_is_not_like_the_others() -> None:
    even, uneven = runs(both(chain(20))), runs(both(odd(10)))
    assert 0 < uneven < even
    assert runs(both(odd(0))) > uneven
    assert runs(both(odd(19))) > uneven


def test_a_hidden_state_that_is_an_output_ends_a_run() -> None:
    def block(build: Build, x: str, number: int) -> str:
        return build.output(mlp(build, x, number)) if number == 10 else mlp(build, x, number)

    assert 0 < runs(both(chain(20, block))) < runs(both(chain(20)))


def test_a_value_that_is_read_behind_a_run_ends_it() -> None:
    seen: list[str] = []

    def block(build: Build, x: str, number: int) -> str:
        seen.append(mlp(build, x, number))
        return build.node("Add", seen[-1], seen[8]) if number == 19 else seen[-1]

    assert 0 < runs(both(chain(20, block))) < runs(both(chain(20)))


def test_a_ban_ends_a_run_where_it_applies() -> None:
    model = chain(20)
    plain = both(model)
    site = plain.sites[len(plain.sites) // 2]
    left = both(model, banned=frozenset(keys(site, site.matches)))
    assert 0 < runs(left) < runs(plain)
    assert len(left.model.graph.node) > len(plain.model.graph.node)
    everywhere = frozenset(key for each in plain.sites for key in keys(each, each.matches))
    assert runs(both(model, banned=everywhere)) > runs(left)


def test_weights_in_another_order_end_a_run() -> None:
    model = chain(20)
    tensors = model.graph.initializer
    own = [n for n, tensor in enumerate(tensors) if tensor.name.startswith("/layer.10/")]
    copies = [numpy_helper.from_array(numpy_helper.to_array(tensors[n]), tensors[n].name) for n in reversed(own)]
    for place, tensor in zip(own, copies, strict=True):
        tensors[place].CopyFrom(tensor)
    assert 0 < runs(both(model)) < runs(both(chain(20)))


def scaled(values: list[float]) -> ModelProto:
    """Blocks with a scale that is 1 in some of them, as a vector."""

    def block(build: Build, x: str, number: int) -> str:
        scale = build.constant(f"scale {number}", np.linspace(1, values[number], WIDTH, dtype=np.float32))
        return build.node("Mul", mlp(build, x, number), scale)

    return chain(len(values), block)


def test_what_small_constants_hold_counts() -> None:
    assert runs(both(scaled([1.0] * 20)))
    assert runs(both(scaled([1.0] * 10 + [2.0] + [1.0] * 9))) < runs(both(scaled([1.0] * 20)))
    assert runs(both(scaled([float(n + 2) for n in range(20)])))


@pytest.mark.parametrize("stem", ["llama.ts", "bert.dynamo", "t5_encoder.dynamo", "vit.ts"])
def test_exports_of_more_layers(stem: str) -> None:
    model = stretched(exports.load(MODELS / f"{stem}.onnx"), 8)
    assert model is not None
    assert runs(both(model))


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_the_report_is_the_same(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = two_runs()
    few = report(model, Wanted(Target(target))).to_json()
    monkeypatch.setenv("ONNXFUSE_REPEATS", "0")
    whole = report(model, Wanted(Target(target))).to_json()
    assert few | {"seconds": 0} == whole | {"seconds": 0}


def test_control_flow_is_left_alone() -> None:
    model = chain(10)
    body = onnx.parser.parse_graph("g () => (float[1] y) { y = Constant<value = float[1] {1.0}>() }")
    model.graph.node.insert(0, onnx.helper.make_node("If", ["flag"], ["unused"], then_branch=body, else_branch=body))
    model.graph.input.insert(0, onnx.helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []))
    assert runs(both(model)) == 0
