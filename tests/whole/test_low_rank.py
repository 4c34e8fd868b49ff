"""Branches of low rank beside linear layers (LoRA): part of the weight where they are stored and it serves no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from onnxfuse.pipeline import optimize, report
from tests.spellings.build import Array, Graph
from tests.spellings.mutants import run

CATALOGUE = catalogue.load()
S, M, N, R = 5, 32, 24, 4
Build = Callable[[Graph], str]


def weights(*shape: int, dtype: type[np.generic] = np.float32) -> Array:
    rng = np.random.default_rng(sum(shape))
    return np.asarray(rng.standard_normal(shape) * 0.2).astype(dtype)


def graph(build: Build, dtype: type[np.generic] = np.float32) -> Graph:
    g = Graph(17)
    g.input("x", weights(2, S, M, dtype=dtype), ["batch", "seq", M])
    g.output(build(g), np.zeros((2, S, N), dtype), ["a", "b", "c"])
    return g


def products(g: Graph) -> Counter[str]:
    """What the linear layers of the fused model are, which computes what the original does."""
    spelling = g.spelling("low rank", {})
    fused = fuse(spelling.model, CATALOGUE).model
    for got, wanted in zip(run(fused, g.inputs), run(spelling.model, g.inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    return Counter(name for node in fused.graph.node if "MatMul" in (name := family_of(node)))


def branch(g: Graph, x: str = "x", scale: float = 2.0, rank: int = R) -> str:
    return g.Mul(g.MatMul(g.MatMul(x, weights(M, rank)), weights(rank, N)), scale)


def flat(g: Graph, x: str) -> str:
    return g.Reshape(x, np.array([-1, M], np.int64))


FOLDED: dict[str, Build] = {
    "as it is": lambda g: g.Add(g.MatMul("x", weights(M, N)), branch(g)),
    "behind the bias": lambda g: g.Add(g.Add(g.MatMul("x", weights(M, N)), weights(N)), branch(g)),
    "before the bias": lambda g: g.Add(weights(N), g.Add(branch(g), g.MatMul("x", weights(M, N)))),
    "scaled between": lambda g: g.Add(
        g.MatMul("x", weights(M, N)), g.MatMul(g.Mul(g.MatMul("x", weights(M, R)), 0.25), weights(R, N))
    ),
    "without a scale": lambda g: g.Add(
        g.MatMul("x", weights(M, N)), g.MatMul(g.MatMul("x", weights(M, R)), weights(R, N))
    ),
    "scaled together": lambda g: g.Mul(g.Add(g.MatMul("x", weights(M, N)), branch(g)), 0.5),
    "twice": lambda g: g.Add(g.Add(g.MatMul("x", weights(M, N)), branch(g)), branch(g, scale=0.5, rank=3)),
    "taken off": lambda g: g.Sub(g.MatMul("x", weights(M, N)), branch(g)),
    "transposed weights": lambda g: g.Add(
        g.MatMul("x", g.Transpose(weights(N, M), perm=[1, 0])),
        g.MatMul(g.MatMul("x", g.Transpose(weights(R, M), perm=[1, 0])), g.Transpose(weights(N, R), perm=[1, 0])),
    ),
}


@pytest.mark.parametrize("form", FOLDED)
def test_a_branch_of_low_rank_is_part_of_the_weight(form: str) -> None:
    assert sum(products(graph(FOLDED[form])).values()) == 1


def test_so_it_is_as_a_gemm() -> None:
    g = Graph(17)
    g.input("x", weights(S, M), ["rows", M])
    low = g.Gemm(g.Gemm("x", weights(R, M), transB=1), weights(N, R), transB=1, alpha=0.5)
    g.output(g.Add(g.Gemm("x", weights(M, N), weights(N)), low), np.zeros((S, N)), ["a", "b"])
    spelling = g.spelling("gemm", {})
    fused = fuse(spelling.model, CATALOGUE).model
    assert [family_of(node) for node in fused.graph.node] == ["FusedMatMul"]
    np.testing.assert_allclose(run(fused, g.inputs)[0], run(spelling.model, g.inputs)[0], rtol=1e-4, atol=1e-5)


def shared(g: Graph) -> str:
    w = g.constant(weights(M, N))
    other = g.input("other", weights(2, S, M), ["batch", "seq", M])
    g.output(g.Relu(g.MatMul(other, w)), np.zeros((2, S, N)), ["d", "e", "f"])
    return g.Add(g.MatMul("x", w), branch(g))


def of_inputs(g: Graph) -> str:
    a, b = (g.input(name, weights(*shape)) for name, shape in (("a", (M, R)), ("b", (R, N))))
    return g.Add(g.MatMul("x", weights(M, N)), g.MatMul(g.MatMul("x", a), b))


def of_another(g: Graph) -> str:
    return g.Add(g.MatMul("x", weights(M, N)), branch(g, g.Tanh("x")))


def between(g: Graph) -> str:
    low = g.MatMul(g.Tanh(g.MatMul("x", weights(M, R))), weights(R, N))
    return g.Add(g.MatMul("x", weights(M, N)), low)


KEPT: dict[str, tuple[Build, int]] = {
    "a weight that another layer shares": (shared, 4),
    "factors that are inputs": (of_inputs, 3),
    "a branch of something else": (of_another, 3),
    "a function between": (between, 3),
    "no low rank": (lambda g: g.Add(g.MatMul("x", weights(M, N)), branch(g, rank=28)), 3),
}


@pytest.mark.parametrize("form", KEPT)
def test_what_is_no_branch_or_not_the_weights_own_stays(form: str) -> None:
    build, count = KEPT[form]
    assert sum(products(graph(build)).values()) == count


def test_weights_in_half_precision_stay_since_their_sum_would_be_rounded() -> None:
    def build(g: Graph) -> str:
        low = g.MatMul(g.MatMul("x", weights(M, R, dtype=np.float16)), weights(R, N, dtype=np.float16))
        return g.Add(g.MatMul("x", weights(M, N, dtype=np.float16)), low)

    fused = fuse(graph(build, np.float16).spelling("half", {}).model, CATALOGUE).model
    assert sum("MatMul" in family_of(node) for node in fused.graph.node) == 3


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("a weight that another layer shares", "not reused(W)"),
        ("factors that are inputs", "wants a constant, saw an input"),
        ("no low rank", "dim(A, 1) < dim(W, 1)"),
    ],
)
def test_why_it_stays_is_told_though_the_sum_is_fused_otherwise(form: str, reason: str) -> None:
    model = graph(KEPT[form][0]).spelling(form, {}).model
    told = [miss.reason for miss in report(model, why="LowRank").near_misses if miss.rule == "LowRank"]
    assert any(reason in each for each in told), told
    assert [miss for miss in report(model).near_misses if miss.rule == "LowRank"] == []


def test_it_is_proved() -> None:
    done = optimize(graph(FOLDED["behind the bias"]).spelling("lora", {}).model)
    assert done.report.validation.verdict == "equal"
    assert done.report.left_out == []
