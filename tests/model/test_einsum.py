"""Letters of an Einsum's axes are those of the standard, an ellipsis and a missing arrow among them."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.model.dims import symbol
from onnxfuse.model.einsum import ELLIPSIS, dims_of, letters_of

FIRST, SECOND = ELLIPSIS, chr(ord(ELLIPSIS) + 1)


@pytest.mark.parametrize(
    ("equation", "ranks", "letters"),
    [
        ("ij,jk->ik", (2, 2), (["ij", "jk"], "ik")),
        (" i j , jk -> ki ", (2, 2), (["ij", "jk"], "ki")),
        ("ji", (2,), (["ji"], "ij")),
        ("ij,jk", (2, 2), (["ij", "jk"], "ik")),
        ("...ij,...jk->...ik", (4, 2), ([f"{FIRST}{SECOND}ij", "jk"], f"{FIRST}{SECOND}ik")),
        ("...ij,...jk->...ik", (4, 3), ([f"{FIRST}{SECOND}ij", f"{SECOND}jk"], f"{FIRST}{SECOND}ik")),
        ("...i", (3,), ([f"{FIRST}{SECOND}i"], f"{FIRST}{SECOND}i")),
        ("ij->", (2,), (["ij"], "")),
    ],
)
def test_each_axis_has_a_letter(equation: str, ranks: tuple[int, ...], letters: tuple[list[str], str]) -> None:
    assert letters_of(equation, ranks) == letters
    rank = np.einsum(equation, *(np.ones((2,) * rank) for rank in ranks)).ndim
    assert len(letters[1]) == rank


@pytest.mark.parametrize(("equation", "ranks"), [("ij,jk->ik", (2,)), ("ij->ji", (3,)), ("ijk->i", (2,))])
def test_operands_that_do_not_fit_are_no_equation(equation: str, ranks: tuple[int, ...]) -> None:
    assert letters_of(equation, ranks) is None


def test_a_letter_has_one_length() -> None:
    n = symbol("N")
    assert dims_of(["ij", "jk"], [(2, n), (n, 5)]) == {"i": 2, "j": n, "k": 5}
    assert dims_of(["ij", "jk"], [(2, n), (3, 5)]) == {"i": 2, "j": 3, "k": 5}
    assert dims_of(["ij", "jk"], [(2, 3), (n, 5)]) == {"i": 2, "j": 3, "k": 5}


@pytest.mark.parametrize("other", [1, 4])
def test_lengths_that_differ_are_not_one(other: int) -> None:
    assert dims_of(["ij", "jk"], [(2, 3), (other, 5)]) is None
    if other == 1:
        assert dims_of(["ij", "jk"], [(2, symbol("N")), (1, 5)]) is None
