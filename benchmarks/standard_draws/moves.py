"""Draws of ops that move elements, make ranges and windows, and rotate."""

from __future__ import annotations

from onnx import TensorProto, helper

from .drawing import DOUBLE, FLOAT, HALF, INT32, INT64, REAL, Drawing, Fill, Given, Size, fixed, integers, normal
from .table import draws


@draws("DepthToSpace", "SpaceToDepth")
def blocks(d: Drawing) -> None:
    dtype, block = d.allowed("T", (*REAL, INT32)), d.integer(1, 3)
    batch, channels = d.size(name="n"), d.integer(1, 3)
    rest = [d.size(name=name) for name in "hw"]
    d.set(blocksize=block)
    d.maybe(mode=d.pick(("DCR", "CRD")))
    if d.op == "DepthToSpace":
        d.give(dtype, (batch, fixed(channels * block**2), *rest), _fill(dtype))
    else:
        d.give(dtype, (batch, fixed(channels), *(s.times(block) for s in rest)), _fill(dtype))
    d.output(dtype)


def _fill(dtype: int) -> Fill:
    return normal if dtype in REAL else integers(-9, 9)


@draws("CenterCropPad")
def crop(d: Drawing) -> None:
    dtype = d.allowed("T", (*REAL, INT32))
    dims = d.dims(1, 4)
    axes = list(range(len(dims)))
    if d.chance(2):
        axes = [a for a in axes if d.chance(2)] or axes[-1:]
        d.set(axes=[a - len(dims) if d.chance(2) else a for a in axes])
    d.give(dtype, dims, _fill(dtype))
    wanted = [d.integer(1, 7) for _ in axes]
    other = [d.integer(1, 7) for _ in axes] if d.chance(3) else wanted
    d.exactly(d.allowed("Tind", (INT64, INT64, INT64, INT32)), wanted, other, constant=True)
    d.output(dtype, rank=len(dims))


@draws("AffineGrid")
def affine_grid(d: Drawing) -> None:
    dtype = d.allowed("T1")
    spatial = d.integer(2, 3)
    batch = d.size(name="n")
    d.maybe(align_corners=d.integer(0, 1))
    d.give(dtype, (batch, fixed(spatial), fixed(spatial + 1)))
    rest = [d.integer(1, 3), *(d.integer(2, 5) for _ in range(spatial))]
    other = [d.integer(1, 3), *(d.integer(2, 5) for _ in range(spatial))] if d.chance(3) else rest
    d.exactly(INT64, [batch.of(0), *rest], [batch.of(1), *other], constant=True)
    d.output(dtype)


@draws("Range")
def range_(d: Drawing) -> None:
    dtype = d.allowed("T", (INT64, INT64, INT32, FLOAT, DOUBLE, HALF, TensorProto.INT16))
    whole = dtype not in REAL
    start, step = d.integer(-5, 5), d.pick((1, 2, 3, -1, -2))
    count, then = d.integer(0, 6), d.integer(0, 8)
    scale = 1 if whole else d.pick((1.0, 0.5))
    slack = 0 if whole or d.chance(2) else -0.25 * step
    changes = d.chance(2)
    d.exactly(dtype, start * scale, constant=d.chance(2))
    d.exactly(
        dtype,
        (start + step * count + slack) * scale,
        (start + step * then + slack) * scale if changes else None,
        constant=d.chance(2),
    )
    d.exactly(dtype, step * scale, constant=d.chance(2))
    if dtype == HALF:
        d.lacks("no onnxruntime runs Range in half precision")
    d.output(dtype)


@draws("HannWindow", "HammingWindow", "BlackmanWindow")
def window(d: Drawing) -> None:
    out = d.allowed("T2", (FLOAT, FLOAT, DOUBLE, HALF, INT32)) if d.chance(2) else FLOAT
    d.maybe(periodic=d.integer(0, 1))
    if out != FLOAT or d.chance(2):
        d.set(output_datatype=out)
    if out == INT32:
        d.impossible = "integers: a last digit decides what is cut off a number beside one"
    d.exactly(d.allowed("T1", (INT64, INT32)), d.integer(2, 9), d.integer(2, 9), constant=d.chance(3))
    d.output(out, rank=1)


@draws("RotaryEmbedding")
def rotary(d: Drawing) -> None:
    dtype = d.allowed("T")
    heads, half, positions = d.integer(1, 4), d.integer(1, 4), 12
    batch, sequence = d.size(1, 3, name="b"), d.size(1, 4, name="s")
    head = 2 * half
    rotated = half
    if half > 1 and d.chance(3):
        rotated = d.integer(1, half - 1)
        d.set(rotary_embedding_dim=2 * rotated)
    if d.chance(2):
        d.set(num_heads=heads)
        d.give(dtype, (batch, sequence, fixed(heads * head)))
    else:
        d.give(dtype, (batch, fixed(heads), sequence, fixed(head)))
    d.maybe(interleaved=d.integer(0, 1))
    indexed = d.chance(2)
    shape: tuple[Size, ...] = (fixed(positions),) if indexed else (batch, sequence)
    stored = False
    for _ in range(2):
        stored = d.chance(3)
        d.give(dtype, (*shape, fixed(rotated)), constant=stored)
    if stored and not any(size.name or size.first != 1 for size in (*shape, fixed(rotated))):
        d.impossible = "one stored sine: -1 times that number is another number, not the same one taken away"
    if indexed:
        d.give(INT64, (batch, sequence), integers(0, positions - 1))
    d.output(dtype)


@draws("SequenceMap")
def sequence_map(d: Drawing) -> None:
    info = [helper.make_tensor_value_info(name, FLOAT, None) for name in "tr"]
    each = helper.make_node(d.pick(("Relu", "Neg", "Exp")), ["t"], ["r"])
    d.set(body=helper.make_graph([each], "body", info[:1], info[1:]))
    d.inputs.append(Given("x0", FLOAT, d.dims(1, 3), normal, sequence=True))
    d.outputs.append(("y0", helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))))
    d.impossible = "sequences of tensors, which terms do not know"
