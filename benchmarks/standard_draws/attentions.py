"""Draws of attention in its kinds, and of the convolution that goes with the linear one."""

from __future__ import annotations

from .drawing import BOOL, INT64, Drawing, Size, fixed, integers
from .table import draws


@draws("Attention")
def attention(d: Drawing) -> None:
    dtype = d.allowed("T1")
    kv_heads, repeats = d.integer(1, 3), d.pick((1, 1, 2))
    heads, size, v_size = kv_heads * repeats, d.integer(1, 4), 0
    v_size = size if d.chance(2) else d.integer(1, 4)
    batch, queries, keys = d.size(1, 3, "b"), d.size(1, 4, "s"), d.size(1, 4, "t")
    flat = d.chance(2)

    def operand(count: int, length: Size, columns: int) -> None:
        if flat:
            d.give(dtype, (batch, length, fixed(count * columns)))
        else:
            d.give(dtype, (batch, fixed(count), length, fixed(columns)))

    if flat:
        d.set(q_num_heads=heads, kv_num_heads=kv_heads)
    d.maybe(is_causal=d.integer(0, 1))
    d.maybe(4, scale=d.pick((0.5, 1.0, 0.25)))
    d.maybe(6, softcap=d.pick((0.0, 5.0)))
    cached = d.chance(3)
    masked = d.chance(2)
    # Two dims of which one is the sum of others cannot be told to be equal by their names.
    past = d.size(1, 3, "" if masked else "p")
    if cached and masked:
        keys = fixed(keys.first)
    total = keys.plus(past) if cached else keys
    operand(heads, queries, size)
    operand(kv_heads, keys, size)
    operand(kv_heads, keys, v_size)
    if masked:
        rows, columns = (queries, total)
        if d.opset >= 24 and total.name:
            d.lacks("onnxruntime refuses a mask that is shorter than the keys, and no name says that it is not")
        shape: list[Size] = [rows, columns]
        if d.chance(2):
            shape = [fixed(1) if d.chance(2) else fixed(heads), *shape]
            if d.chance(2):
                shape = [fixed(1) if d.chance(2) else batch, *shape]
        if d.chance(2):
            d.give(BOOL, shape, lambda rng, dims: rng.random(dims) < 0.7)
        else:
            d.give(dtype, shape)
    else:
        d.leave()
    if cached:
        d.give(dtype, (batch, fixed(kv_heads), past, fixed(size)))
        d.give(dtype, (batch, fixed(kv_heads), past, fixed(v_size)))
    elif d.opset >= 24 and d.chance(4):
        d.leave()
        d.leave()
        d.give(INT64, (batch,), integers(1, min(keys.of(0), keys.of(1))))
    if d.opset >= 25 and d.chance(4):
        d.set(left_window_size=d.integer(-1, 3), right_window_size=d.integer(-1, 3))
        d.lacking["onnx"] = "onnxruntime has no Attention of opset 25: for it a window stays a mask"
    ordered = d.attributes.get("is_causal") or d.attributes.get("right_window_size") == 0
    if cached and ordered and (queries.name or queries.first == 1) and (keys.name or keys.first > 1):
        d.lacks("onnxruntime takes one query behind a past for the last key, also where it brings several")
    d.output(dtype, rank=3 if flat else 4)
    present = cached or (d.chance(4) and len(d.inputs) < 7)
    d.output(dtype, given=present, rank=4)
    d.output(dtype, given=present, rank=4)
    d.output(dtype, given=d.chance(4), rank=4)
    if d.outputs[3][0]:
        d.maybe(qk_matmul_output_mode=d.integer(0, 3))
    computed = masked or queries.name or total.name  # an order of known sizes beside no mask is a constant
    hidden = len(d.inputs) > 6 or (computed and d.attributes.get("is_causal"))
    if hidden and d.attributes.get("qk_matmul_output_mode") == 2:
        reason = "onnxruntime shows the lowest number, not -inf, where lengths or an order hide scores"
        d.lacking.setdefault("onnx", reason)


@draws("LinearAttention")
def linear_attention(d: Drawing) -> None:
    dtype = d.allowed("T")
    kv_heads, repeats = d.integer(1, 2), d.pick((1, 1, 2))
    heads, size, v_size = kv_heads * repeats, d.integer(1, 4), d.integer(1, 4)
    batch, length = d.size(1, 3, "b"), d.size(1, 4, "s")
    rule = d.pick(("gated_delta", "linear", "gated", "delta"))
    d.set(q_num_heads=heads, kv_num_heads=kv_heads)
    d.set(update_rule=rule) if rule != "gated_delta" or d.chance(2) else None
    d.maybe(4, scale=0.5)
    d.give(dtype, (batch, length, fixed(heads * size)))
    d.give(dtype, (batch, length, fixed(kv_heads * size)))
    d.give(dtype, (batch, length, fixed(kv_heads * v_size)))
    if d.chance(2):
        d.give(dtype, (batch, fixed(kv_heads), fixed(size), fixed(v_size)))
    else:
        d.leave()
    if "gated" in rule:
        d.give(
            dtype, (batch, length, fixed(kv_heads * d.pick((1, size)))), lambda rng, shape: -rng.uniform(0, 1, shape)
        )
    else:
        d.leave()
    if "delta" in rule:
        d.give(dtype, (batch, length, fixed(d.pick((kv_heads, 1)))), lambda rng, shape: rng.uniform(0, 1, shape))
    d.output(dtype)
    d.output(dtype)


@draws("CausalConvWithState")
def causal_conv(d: Drawing) -> None:
    dtype = d.allowed("T")
    batch, channels, length, kernel = d.size(1, 3, "b"), d.integer(1, 4), d.size(1, 5, "s"), d.integer(1, 4)
    d.maybe(activation=d.pick(("none", "silu", "swish")))
    d.give(dtype, (batch, fixed(channels), length))
    d.give(dtype, (fixed(channels), fixed(1), fixed(kernel)), constant=d.chance(2))
    d.give(dtype, (fixed(channels),), constant=d.chance(2)) if d.chance(2) else d.leave()
    if d.chance(2):
        d.give(dtype, (batch, fixed(channels), fixed(kernel - 1)))
    d.output(dtype)
    d.output(dtype)
