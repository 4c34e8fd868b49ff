"""The attentions that are checked, forwards and backwards."""

from __future__ import annotations

from tests.attention_cases import Case

ATTENTIONS = {
    "square": Case(128, 128),
    "odd": Case(77, 131, head=40, kv_heads=1),
    "causal": Case(200, 200, attributes={"is_causal": 1}),
    "causal with a past": Case(5, 5, past=300, attributes={"is_causal": 1}),
    "one query": Case(1, 1, heads=8, kv_heads=1, past=999),
    "one query over many keys": Case(1, 5000, batches=1, head=128),
    "a bias": Case(65, 70, mask=(1, 2, 65, 70)),
    "a mask with hidden rows": Case(
        33, 50, mask=(2, 1, 33, 50), boolean=True, hidden=(0, 7), attributes={"nan_to_zero": 1}
    ),
    "a window": Case(150, 150, attributes={"left_window_size": 20, "right_window_size": 3}),
    "lengths": Case(6, 64, lengths=(64, 9)),
    "softcap and sinks": Case(40, 90, sink=True, attributes={"softcap": 30.0}),
    "rows of 3-D": Case(60, 60, head=96, heads=4, kv_heads=2, flat=True),
    "head of 256": Case(20, 45, head=256),
    "turned": Case(70, 70, heads=4, angles="chosen", attributes={"is_causal": 1}),
    "neighbours turned in part": Case(37, 37, head=80, angles="given", turned=32, interleaved=True),
    "one turned query": Case(1, 1, heads=8, past=999, angles="chosen", flat=True),
    "long": Case(512, 512, batches=1, head=128, heads=2, attributes={"is_causal": 1}),
}

ATTENTION_GRADIENTS = {
    "square": Case(128, 128),
    "odd": Case(77, 131, head=40, kv_heads=1, head_v=24),
    "causal": Case(200, 200, attributes={"is_causal": 1}),
    "causal, of groups": Case(130, 130, heads=6, attributes={"is_causal": 1}),
    "a bias": Case(65, 70, mask=(1, 2, 65, 70)),
    "a bias to heads of 128": Case(65, 70, head=128, mask=(65, 70)),
    "a mask with hidden rows": Case(
        33, 50, mask=(2, 1, 33, 50), boolean=True, hidden=(0, 7), attributes={"nan_to_zero": 1}
    ),
    "rows of 3-D": Case(60, 60, head=96, heads=4, kv_heads=2, flat=True),
    "head of 256": Case(20, 45, head=256),
    "long": Case(512, 512, batches=1, head=128, heads=2, attributes={"is_causal": 1}),
}
