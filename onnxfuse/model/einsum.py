"""Equations of Einsum: which letter each axis has, and how long it is (ai.onnx Einsum-12)."""

from __future__ import annotations

from collections.abc import Sequence

from .dims import Dim, Shape

ELLIPSIS = "\u2460"
"""The first of the letters that stand for the axes of an ellipsis."""


def letters_of(equation: str, ranks: Sequence[int]) -> tuple[list[str], str] | None:
    """(letters of each operand, letters of the result), a letter for each axis; None for what is no such equation."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    if len(operands) != len(ranks):
        return None
    widths = [rank - len(text.replace("...", "")) for text, rank in zip(operands, ranks, strict=True)]
    if any(w < 0 or (w and "..." not in text) for text, w in zip(operands, widths, strict=True)):
        return None
    axes = "".join(chr(ord(ELLIPSIS) + i) for i in range(max(widths, default=0)))
    named = [text.replace("...", axes[len(axes) - w :]) for text, w in zip(operands, widths, strict=True)]
    if not arrow:
        alone = sorted(c for c in set("".join(operands)) - {"."} if "".join(operands).count(c) == 1)
        return named, axes + "".join(alone)
    return named, right.replace("...", axes)


def dims_of(operands: Sequence[str], shapes: Sequence[Shape]) -> dict[str, Dim] | None:
    """The length of each letter; None where two axes may differ, as where one of them is 1 and broadcast."""
    dims: dict[str, Dim] = {}
    for letters, shape in zip(operands, shapes, strict=True):
        for letter, dim in zip(letters, shape, strict=True):
            known = dims.setdefault(letter, dim)
            if known == dim:
                continue
            if 1 in (known, dim) or (isinstance(known, int) and isinstance(dim, int)):
                return None
            dims[letter] = known if isinstance(known, int) else dim  # equal in every run that does not fail
    return dims
