"""What a scope says of its values."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from .written import scope

TEXT = """g (float[N,6] x) => (float[N,6] y)
<float[1] number = {2}, float[6] vector = {1, 2, 3, 4, 5, 6}, int64[2] target = {-1, 6}> {
    r = Reshape(x, target) a = Mul(r, number) b = Add(a, vector) s = Reshape(b, target) y = Exp(s) }"""


def test_a_reshape_is_the_tensor_that_it_is_of() -> None:
    found = scope(TEXT)
    assert found.root("s") == "b"
    assert found.root("r") == "x"


def test_numbers_and_bounds_stand_in_bodies_and_vectors_do_not() -> None:
    found = scope(TEXT)
    number, target = found.embedded("number"), found.embedded("target")
    assert number is not None
    assert not number.name
    assert target is not None
    assert numpy_helper.to_array(target).tolist() == [-1, 6]
    assert found.embedded("vector") is None
    assert found.embedded("x") is None


def test_element_types_and_bytes() -> None:
    found = scope(TEXT)
    assert found.kind("x") == "float32"
    assert found.kind("target") == np.dtype(np.int64).name
    assert found.bytes("vector") == 24
    assert found.constant("vector")
    assert not found.constant("a")
