"""Attention that is timed, from one token to 16,384: masks, biases, grouped heads, long caches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from . import expected
from .machine import Machine, Memory
from .sizes import Operand, Timed
from .timing import Set

LENGTHS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CACHES = (1024, 4096, 16384, 65536)
ROWS = 16384
"""Of all batches together, where a length leaves room for several."""
MOST_BATCHES = 64
WIDTH = 2048
"""Of all heads together."""
PLACES = 6
"""Rows whose results are compared with float64."""

MaskKind = Literal["", "bias", "shared bias", "boolean"]
Kind = Literal["unmasked", "bias", "boolean", "softcap", "decode", "present"]
"""What is asked of a node: "decode" is one query over a cache, "present" the same with past and present."""


def attention(
    batch: int,
    heads: int,
    queries: int,
    head: int,
    *,
    keys: int = 0,
    kv_heads: int = 0,
    past: int = 0,
    mask: MaskKind = "",
    causal: bool = False,
    softcap: float = 0.0,
    turned: bool = False,
    dtype: str = "float16",
) -> Timed:
    """A node on [batch, heads, queries, head]; `keys` are as many as queries where they are 0, `kv_heads` as heads.

    A bias is [batch, heads, queries, keys], a shared one [1, 1, queries, keys], a boolean mask
    [batch, 1, queries, keys].  `turned` queries and new keys have a rotary embedding, with angles for each of them.
    """
    keys, kv_heads = keys or queries, kv_heads or heads
    q = Operand((batch, heads, queries, head), batched=True)
    k = Operand((batch, kv_heads, keys, head), batched=True)
    cache = Operand((batch, kv_heads, past, head), batched=True) if past else None
    masks: dict[MaskKind, Operand | None] = {
        "": None,
        "bias": Operand((batch, heads, queries, past + keys), batched=True),
        "shared bias": Operand((1, 1, queries, past + keys)),
        "boolean": Operand((batch, 1, queries, past + keys), "seen", batched=True),
    }
    attributes: dict[str, Any] = {}
    if causal:
        attributes["is_causal"] = 1
    if softcap:
        attributes["softcap"] = softcap
    size = f"{batch}x{heads}{f':{kv_heads}' if kv_heads < heads else ''}x{queries}x{head}"
    over = f"over {past + keys}" if past + keys > queries else ""
    traits = (
        mask,
        "causal" if causal else "",
        "softcap" if softcap else "",
        "turned" if turned else "",
        "with past and present" if past else "",
    )
    label = " ".join(filter(None, (size, over, *traits)))
    angles = (Operand((batch, queries, head // 2), batched=True),) * 2 if turned else ()
    operands = (q, k, k, masks[mask], cache, cache, *((None, None, *angles) if turned else ()))
    return Timed("Attention", dtype, operands, attributes, (True, bool(past), bool(past)), label=label)


def kind(node: Timed) -> Kind:
    """By which goal a node is judged."""
    mask, past = node.operands[3], node.operands[4]
    if past is not None:
        return "present"
    if node.attributes.get("softcap"):
        return "softcap"
    if mask is not None:
        return "boolean" if mask.kind == "seen" else "bias"
    keys = node.operands[1]
    assert keys is not None
    return "decode" if node.first.shape[2] == 1 < keys.shape[2] else "unmasked"


def batches(length: int, rows: int = ROWS) -> int:
    """How many sequences of a length are one node."""
    return max(1, min(MOST_BATCHES, rows // length))


def telling() -> list[Timed]:
    """Those that tell most."""
    return [
        prefill(2048, 128),
        prefill(2048, 64, mask="bias"),
        decode(16384, 32, 64, 8),
        prefill(4096, 128, causal=True),
        prefill(2048, 64, mask="shared bias"),
        decode(16384, 32, 64, 8, present=True),
        prefill(512, 64),
        attention(1, 12, 128, 64),
        prefill(2048, 64, mask="boolean"),
        attention(1, 64, 4096, 128, kv_heads=8, causal=True),
    ]


def timed() -> Iterator[Timed]:
    """All of them, the most telling first, each once."""
    seen: set[str] = set()
    for node in (*telling(), *_grid()):
        if node.name not in seen:
            seen.add(node.name)
            yield node


def prefill(length: int, head: int, *, mask: MaskKind = "", causal: bool = False, dtype: str = "float16") -> Timed:
    """As many queries as keys, in heads of `head` that are WIDTH together; biases of all heads take fewer batches."""
    count = batches(length, ROWS // 2 if mask == "bias" else ROWS)
    return attention(count, WIDTH // head, length, head, mask=mask, causal=causal, dtype=dtype)


def decode(
    cache: int, most: int, heads: int, kv_heads: int, *, present: bool = False, dtype: str = "float16", **more: Any
) -> Timed:
    """One query over a cache, of up to `most` sequences that hold 256 thousand keys together at most."""
    batch = max(1, min(most, 2**18 // cache))
    if present:
        return attention(batch, heads, 1, 128, kv_heads=kv_heads, keys=1, past=cache - 1, dtype=dtype, **more)
    return attention(batch, heads, 1, 128, kv_heads=kv_heads, keys=cache, dtype=dtype, **more)


def _grid() -> Iterator[Timed]:
    for length in LENGTHS:
        for head in (64, 128):
            yield prefill(length, head)
    for length in LENGTHS[3:]:
        yield prefill(length, 128, causal=True)
    for cache in CACHES:
        yield decode(cache, 64, 64, 8)
        yield decode(cache, 64, 64, 8, present=True)
        yield decode(cache, 64, 64, 8, present=True, turned=True)
        yield decode(cache, 64, 32, 32)
        yield decode(cache, 1, 64, 8)
    for length in (128, 512, 1024, 4096, 8192):
        yield prefill(length, 64, mask="bias")
    for length in (512, 8192, 16384):
        yield prefill(length, 64, mask="shared bias")
    for length in (512, 8192):
        yield prefill(length, 64, mask="boolean")
        yield attention(batches(length), 64, length, 128, kv_heads=8, causal=True)
    for dtype in ("bfloat16", "float32"):
        yield prefill(1024, 128, dtype=dtype)
        yield prefill(1024, 64, mask="bias", dtype=dtype)
        yield decode(16384, 32, 64, 8, dtype=dtype)
    # What PyTorch has for these takes it half a minute to compile.
    yield attention(4, 16, 2048, 128, softcap=30.0)
    yield decode(16384, 16, 64, 8, softcap=30.0)


def verify(node: Timed, machine: Machine, made: Set) -> str:
    """Why some rows of Y, or the presents behind them, are wrong; empty if they are right.

    A row is one of float64's over the keys that it sees: causal order is a shorter cache.  Keys that are to be turned
    are as new as the query, of which there is one.
    """
    q, k, v, mask, past_k, past_v, *rest = made.inputs
    assert q is not None
    assert k is not None
    assert v is not None
    group, past = q.shape[1] // k.shape[1], 0 if past_k is None else past_k.shape[2]
    pairs = ((k, past_k), (v, past_v))
    attributes = {name: value for name, value in node.attributes.items() if name != "is_causal"}
    rng = np.random.default_rng(q.shape[2])
    places = [(0, 0, 0), tuple(size - 1 for size in q.shape[:3])]
    places += [tuple(int(rng.integers(size)) for size in q.shape[:3]) for _ in range(PLACES - len(places))]
    for batch, head, row in places:
        caches = [_cache(machine, part, None if rest else older, batch, head // group) for part, older in pairs]
        seen = past + row + 1 if node.attributes.get("is_causal") else past + k.shape[2]
        line = None
        if mask is not None:
            at = [min(place, size - 1) for place, size in zip((batch, head, row), mask.shape[:3], strict=True)]
            line = machine.read(mask.at(*at))[..., :seen]
        inputs = [machine.read(q.at(batch, head, row)), *(cache[:, :, :seen] for cache in caches), line]
        if rest:
            inputs += [None if older is None else machine.read(older.at(batch, head // group)) for _, older in pairs]
            inputs += [None if array is None else machine.read(array.at(batch)) for array in rest]
        wanted = expected.expected("Attention", attributes, inputs)
        places_of = ((batch, head, row), *((batch, head // group),) * 2)
        for number, (output, place, value) in enumerate(zip(made.outputs, places_of, wanted, strict=True)):
            if output is not None:
                reason, _ = expected.difference(machine.read(output.at(*place)), value)
                if reason:
                    return f"output {number} at {', '.join(map(str, place))}: {reason}"
    spoiled = any(output is not None and machine.spoiled(output) for output in made.outputs)
    return "written out of bounds" if spoiled else ""


def _cache(machine: Machine, new: Memory, past: Memory | None, batch: int, head: int) -> Any:
    """Keys or values [1, 1, past + new, size] of a head."""
    own = machine.read(new.at(batch, head))
    return own if past is None else np.concatenate([machine.read(past.at(batch, head)), own], 2)
