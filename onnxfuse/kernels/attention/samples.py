"""The attention kernels as they are compiled for typical heads: what NVRTC is asked about."""

from __future__ import annotations

from collections.abc import Iterable

from onnxfuse.kernels.device.device import Source

from .grad_source import bias_tiles, grad_source, grad_tiles, together
from .source import Rotary, combine_source, present_source, source
from .tiles import TENSOR_MEMORY, WARPGROUPS, Form, Tiles, tiles

LONG, SINGLE = 1024, 1
"""Rows of a head."""


def samples() -> Iterable[tuple[str, Source]]:
    """Each head size and element type for many queries with each kind of mask, turned, and for one query."""
    for dtype, vector in (("float32", 4), ("float16", 8), ("bfloat16", 8)):
        tensor = dtype != "float32"
        for head in (64, 80, 128, 256) if dtype != "bfloat16" else (64, 128):
            long, single = tiles(LONG, head, head, tensor), tiles(SINGLE, head, head, tensor)
            yield f"Attention {dtype} {head}", source(dtype, long, head, head, (vector, vector))
            yield f"Attention {dtype} {head} one query", source(dtype, single, head, head, (vector, vector))
            yield from _masked(dtype, head, vector)
        long = tiles(LONG, 48, 48, tensor)
        yield f"Attention {dtype} 40 odd", source(dtype, long, 48, 48, (1, 1), True, dtype)
        yield f"Attention {dtype} parts", combine_source(dtype, 128)
        yield f"Attention {dtype} present", present_source(dtype, vector)
        for head in (64, 128, 256) if dtype != "bfloat16" else (128,):
            long, turned = tiles(LONG, head, head, tensor), Rotary(head // 2, False, vector)
            yield f"Attention {dtype} {head} turned", source(dtype, long, head, head, (vector, vector), rotary=turned)
        single, name = tiles(SINGLE, 128, 128, tensor), f"Attention {dtype} 128 turned one query"
        yield name, source(dtype, single, 128, 128, (vector, vector), rotary=Rotary(64, False, vector))
        if dtype == "bfloat16":
            continue
        neighbours = Rotary(16, True, vector)
        name = f"Attention {dtype} 80 neighbours turned in part"
        yield name, source(dtype, tiles(LONG, 80, 80, tensor), 80, 80, (vector, vector), rotary=neighbours)
        yield f"Attention {dtype} present turned", present_source(dtype, vector, Rotary(64, False, vector))
        yield f"Attention {dtype} present neighbours turned", present_source(dtype, vector, neighbours)
    yield from _gradients()


def _masked(dtype: str, head: int, vector: int) -> Iterable[tuple[str, Source]]:
    """With each kind of mask, by warps and in the forms of a single architecture, where these are for it, and without
    one by these alone."""
    long = tiles(LONG, head, head, dtype != "float32")
    for mask in ("", "bool", dtype) if dtype != "bfloat16" else ("",):
        kind = {"": "", "bool": " boolean mask"}.get(mask, " added mask")
        wide = 1 if not mask else 8 if long.keys % 32 == 0 and mask != "float32" else 2
        made: list[tuple[str, Tiles, Form | None]] = [("", long, None)] if mask else []
        for name, form in ((" warpgroups", WARPGROUPS), (" tensor memory", TENSOR_MEMORY)):
            least = form.tiles(LONG, head, head, dtype, vector)
            if least is None:
                continue
            if form is WARPGROUPS and not mask:
                made.append((" one warpgroup", least, form))
            made.append((name, form.widened(LONG, 1, 1), form))
        for name, tile, by in made:
            code = source(dtype, tile, head, head, (vector, vector), False, mask, wide, form=by)
            yield f"Attention {dtype} {head}{name}{kind}", code


def _gradients() -> Iterable[tuple[str, Source]]:
    """Each head size and element type with each kind of mask."""
    for dtype, vector in (("float32", 4), ("float16", 8), ("bfloat16", 8)):
        for head in (64, 80, 128, 256) if dtype != "bfloat16" else (64, 128):
            for mask in ("", "bool", dtype) if head in (64, 128) and dtype != "bfloat16" else ("",):
                tile = grad_tiles(LONG, head, head, dtype != "float32", mask == dtype)
                kind = {"": "", "bool": " boolean mask"}.get(mask, " added mask")
                name = f"AttentionGrad {dtype} {head}{kind}"
                yield name, grad_source("attention_grad_queries.cu", dtype, tile, head, head, vector, mask)
                for wanted in ("BOTH",) if together(head, head) else ("KEY", "VALUE"):
                    of = {"BOTH": "keys and values", "KEY": "keys", "VALUE": "values"}[wanted]
                    file = "attention_grad_keys.cu"
                    yield f"{name} of {of}", grad_source(file, dtype, tile, head, head, vector, mask, WANTED=wanted)
        for head, mask, apart in ((64, dtype, vector), (128, dtype, vector), (48, "", 1)):
            tile, name = (
                bias_tiles(LONG, head, head, 4 if dtype == "float32" else 2),
                "odd" if apart == 1 else "added mask",
            )
            code = grad_source("attention_grad_bias.cu", dtype, tile, head, head, apart, mask, BIAS_VECTOR=apart)
            yield f"AttentionGrad {dtype} {head} {name} of a bias", code
        tile = grad_tiles(LONG, 48, 48, dtype != "float32")
        yield f"AttentionGrad {dtype} 40 odd", grad_source("attention_grad_queries.cu", dtype, tile, 48, 48, 1)
        name = f"AttentionGrad {dtype} 40 odd of keys and values"
        yield name, grad_source("attention_grad_keys.cu", dtype, tile, 48, 48, 1, WANTED="BOTH")
