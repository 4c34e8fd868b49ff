"""Sites of convolutions are judged on smaller pictures, and at their own sizes where those do not do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse.proof import cut_proof
from onnxfuse.proof.cut_proof import Compared, compare_sites
from onnxfuse.proof.cuts import Cut
from onnxfuse.proof.oracle import Oracle
from onnxfuse.proof.pictures import smaller

TENTHS = ", ".join(f"{(7 * n % 10) / 10 - 0.4}" for n in range(2 * 3 * 3 * 3))
ORIGINAL = f"""g (float[4,3,64,64] x) => (float[4,2,1,1] y)
    <float[2,3,3,3] k = {{{TENTHS}}}, float[2] b = {{0.5, -1}}, float two = {{2}}> {{
    c = Conv<pads = [1, 1, 1, 1]>(x, k, b) d = Mul(c, two) y = GlobalAveragePool(d) }}"""
FUSED = ORIGINAL[: ORIGINAL.index("> {")] + "> { y = own.Mean(x, k, b) }"
MEAN = """<domain: "own", opset_import: ["": 18]> Mean (x, k, b) => (y) {
    part = Constant<value_float = PART>() axes = Constant<value_ints = [2, 3]>()
    c = Conv<pads = [1, 1, 1, 1]>(x, k, b) s = ReduceSum(c, axes) y = Mul(s, part) }"""
ACTIVE = """<domain: "own", opset_import: ["": 18]> Mean (x, k, b) => (y) {
    number = Constant<value_float = NUMBER>() c = Conv<pads = [1, 1, 1, 1]>(x, k, b) d = Mul(c, number)
    y = GlobalAveragePool(d) }"""


def parse(*texts: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 18, "own": 1]>\n' + "\n".join(texts))


def compare(function: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Compared, list[int]]:
    """What is found of a fused model with this function, and the sizes of the pictures that it was judged on."""
    sizes: list[int] = []

    def fed(sites: Any, *args: Any, **options: Any) -> Any:
        found = feed(sites, *args, **options)
        sizes.extend(value.shape[-1] for name, value in found.items() if name.endswith("/x"))
        return found

    feed = cut_proof.cut_feeds.feed
    with monkeypatch.context() as patch:
        patch.setattr(cut_proof.cut_feeds, "feed", fed)
        original = parse(ORIGINAL)
        return compare_sites(original, parse(FUSED, function), Oracle(original).cases), list(dict.fromkeys(sizes))


def test_an_equation_of_windows_is_judged_on_smaller_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, sizes = compare(ACTIVE.replace("NUMBER", "2.0"), monkeypatch)
    assert (compared.count, len(compared.exactly), compared.wrong, sizes) == (1, 1, {}, [8])


def test_a_mistake_is_seen_on_smaller_pictures_and_confirmed_on_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, sizes = compare(ACTIVE.replace("NUMBER", "2.00002"), monkeypatch)
    assert (compared.count, len(compared.exactly), len(compared.wrong), sizes) == (1, 1, 1, [8, 64])


def test_an_equation_of_one_size_is_judged_at_that(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, sizes = compare(MEAN.replace("PART", repr(2 / 4096)), monkeypatch)
    assert (compared.count, compared.wrong, sizes) == (1, {}, [8, 64])


def picture(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def made(*values: np.ndarray, **changed: Any) -> Cut | None:
    names = tuple("xz"[: len(values)])
    return smaller(
        parse(ORIGINAL), replace(Cut("y", names, (), (0, 1), (0,)), **changed), [dict(zip(names, values, strict=True))]
    )


@pytest.mark.parametrize(
    ("shapes", "pictures"),
    [
        ([(3, 8, 112, 112)], [(14, 14)]),
        ([(3, 8, 901, 161)], [(15, 11)]),
        # Resolutions stay as many times as large as each other, and as they are where they are not.
        ([(1, 8, 224, 224), (1, 8, 56, 56)], [(56, 56), (14, 14)]),
        ([(1, 8, 225, 224), (1, 8, 113, 112)], [(225, 28), (113, 14)]),
        # What is one number for a channel stays so.
        ([(2, 32, 64, 64), (2, 32, 1, 1)], [(8, 8), (1, 1)]),
        ([(2, 8, 16000)], [(16,)]),
    ],
)
def test_pictures_are_made_smaller(shapes: list[tuple[int, ...]], pictures: list[tuple[int, ...]]) -> None:
    site = made(*(picture(*shape) for shape in shapes))
    assert site is not None
    assert list(site.pictures) == pictures


def test_what_is_small_or_no_picture_keeps_its_sizes() -> None:
    assert made(picture(1, 8, 32, 32)) is None
    assert made(picture(1 << 10, 64)) is None
    assert made(picture(1, 8, 112, 112), picture(1, 8, 112)) is None
    assert made(np.ones((1, 8, 112, 112), np.float32)) is None, "a mask is fed as it is"
    assert made(picture(3, 8, 112, 112), entangled=True) is None
    assert made(picture(3, 8, 112, 112), observed=("shape",)) is None
