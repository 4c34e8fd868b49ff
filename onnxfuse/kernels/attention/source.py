"""The sources of an attention."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from onnxfuse.kernels.device.device import Source
from onnxfuse.kernels.device.types import TYPES

from .tiles import FORMS, Form, Tiles


class Rotary(NamedTuple):
    """How the kernels turn what they read; see attention_rotary.cuh."""

    pairs: int = 0
    interleaved: bool = False
    vector: int = 1

    @property
    def defines(self) -> dict[str, int]:
        return {"ROTARY": self.pairs, "INTERLEAVED": int(self.interleaved), "VECTOR_ROTARY": self.vector}

    @property
    def step(self) -> int:
        """Elements of a head of which an access may not cross a multiple."""
        return 2 * self.pairs if self.interleaved else self.pairs


UNTURNED = Rotary()


@cache
def source(
    dtype: str,
    tile: Tiles,
    head: int,
    head_v: int,
    vectors: tuple[int, int],
    capped: bool = False,
    mask: str = "",
    mask_vector: int = 1,
    rotary: Rotary = UNTURNED,
    form: Form | None = None,
) -> Source:
    """attention.cu; `mask` is the element type of the mask, empty if there is none."""
    made = Source.file(
        "attention.cu",
        TYPE=TYPES[dtype],
        TENSOR=int(dtype != "float32"),
        **{each.macro: int(each is form) for each in FORMS.values()},
        WARPS=tile.warps,
        KEYS=tile.keys,
        HEAD=head,
        HEAD_V=head_v,
        VECTOR=vectors[0],
        VECTOR_Y=vectors[1],
        CAPPED=int(capped),
        MASK="BOOLEAN" if mask == "bool" else "ADDED" if mask else "NONE",
        MASK_TYPE=TYPES.get(mask, "bool"),
        MASK_VECTOR=mask_vector,
        **rotary.defines,
    )
    return replace(made, architecture=form.architecture) if form else made


@cache
def combine_source(dtype: str, head_v: int) -> Source:
    return Source.file("attention_combine.cu", TYPE=TYPES[dtype], HEAD_V=head_v)


@cache
def present_source(dtype: str, vector: int, rotary: Rotary = UNTURNED) -> Source:
    return Source.file("attention_present.cu", TYPE=TYPES[dtype], VECTOR=vector, **rotary.defines)


def padded(size: int) -> int:
    """A head size as products take it."""
    return -(-size // 16) * 16
