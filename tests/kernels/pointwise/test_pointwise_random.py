"""Random expressions of elementwise ops and views as generated kernels, against onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, helper, numpy_helper

from onnxfuse.kernels.device.device import Launch, TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.pointwise.loops import loops
from tests.kernel_runs import FLOAT16, FLOAT32, Array, evaluate, far, shifted, wide

Shape = tuple[int, ...]
CASES, OUTPUTS = 20, 6
DEVICE = Emulated(order="random")


class Expressions:
    """Draws expressions from the result backward: `tensor(shape)` is the name of one of that shape."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.inputs: dict[str, Array] = {}
        self.seen: dict[str, int] = {}

    def fresh(self) -> str:
        return f"v{len(self.nodes)}"

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = self.fresh()
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        self.seen[op] = self.seen.get(op, 0) + 1
        return name

    def integers(self, *values: int) -> str:
        name = self.fresh()
        value = numpy_helper.from_array(np.array(values, np.int64))
        self.nodes.append(helper.make_node("Constant", [], [name], value=value))
        return name

    def leaf(self, shape: Shape) -> str:
        same = [name for name, a in self.inputs.items() if a.shape == shape and a.dtype.kind == "f"]
        if same and self.rng.random() < 0.5:
            return str(self.pick(*same))
        name = f"in{len(self.inputs)}"
        self.inputs[name] = self.rng.standard_normal(shape).astype(np.float16)
        return name

    def tensor(self, shape: Shape, depth: int) -> str:
        if depth == 0:
            return self.leaf(shape)
        return str(self.pick(*(self.computed, self.computed, *self.views(shape)))(shape, depth - 1))

    # ------------------------------------------------------------------------------------------------- elementwise

    def narrowed(self, shape: Shape) -> Shape:
        """A shape that broadcasts to this one."""
        kept = tuple(1 if self.rng.random() < 0.3 else n for n in shape)
        return kept[int(self.rng.integers(len(kept) + 1)) :] if self.rng.random() < 0.3 else kept

    def computed(self, shape: Shape, depth: int) -> str:
        kind = self.pick("unary", "binary", "binary", "where", "sum")
        if kind == "unary":
            op = self.pick("Neg", "Abs", "Tanh", "Sigmoid", "Relu", "Sin", "Softplus", "Erf", "HardSwish", "Identity")
            return self.node(op, self.tensor(shape, depth))
        a, b = self.tensor(shape, depth), self.tensor(self.narrowed(shape), depth)
        if self.rng.random() < 0.5:
            a, b = b, a
        if kind == "where":
            mask = self.node(self.pick("Greater", "LessOrEqual"), self.leaf(shape), self.leaf(self.narrowed(shape)))
            return self.node("Where", mask, a, b)
        if kind == "sum":
            return self.node(self.pick("Sum", "Max", "Min"), a, b, self.tensor(self.narrowed(shape), depth))
        return self.node(self.pick("Add", "Sub", "Mul"), a, b)

    # ------------------------------------------------------------------------------------------------------- views

    def views(self, shape: Shape) -> list[Callable[[Shape, int], str]]:
        """What can make a tensor of this shape."""
        found = [self.transposed, self.reshaped, self.sliced, self.concatenated, self.gathered, self.looked_up]
        found += [self.expanded, self.padded, self.tiled, self.split, self.lower]
        return found if shape else [self.reshaped]

    def transposed(self, shape: Shape, depth: int) -> str:
        perm = [int(p) for p in self.rng.permutation(len(shape))]
        before = [0] * len(shape)
        for i, p in enumerate(perm):
            before[p] = shape[i]
        return self.node("Transpose", self.tensor(tuple(before), depth), perm=perm)

    def reshaped(self, shape: Shape, depth: int) -> str:
        """From other dims: one of them split, two of them merged, or a 1 more."""
        dims = list(shape)
        at = int(self.rng.integers(len(dims) + 1))
        kind = self.pick("one", "merge", "split")
        if kind == "merge" and at + 1 < len(dims):
            dims[at : at + 2] = [dims[at] * dims[at + 1]]
        elif kind == "split" and at < len(dims) and dims[at]:
            divisors = [d for d in range(1, dims[at] + 1) if dims[at] % d == 0]
            d = self.pick(*divisors)
            dims[at : at + 1] = [d, dims[at] // d]
        else:
            dims.insert(at, 1)
        return self.node("Reshape", self.tensor(tuple(dims), depth), self.integers(*shape), allowzero=1)

    def sliced(self, shape: Shape, depth: int) -> str:
        axis = int(self.rng.integers(len(shape)))
        step = self.pick(1, 1, 2, -1) if shape[axis] else 1
        start, more = int(self.rng.integers(3)), int(self.rng.integers(3))
        span = max(0, (shape[axis] - 1) * abs(step) + 1)
        whole = (*shape[:axis], start + span + more, *shape[axis + 1 :])
        first, last = (start, start + span) if step > 0 else (start + span - 1, start - 1)
        end = last if last >= 0 else -whole[axis] - 1
        bounds = [self.integers(v) for v in (first, end, axis, step)]
        return self.node("Slice", self.tensor(whole, depth), *bounds)

    def concatenated(self, shape: Shape, depth: int) -> str:
        axis = int(self.rng.integers(len(shape)))
        cut = int(self.rng.integers(shape[axis] + 1))
        parts = [self.tensor((*shape[:axis], n, *shape[axis + 1 :]), depth) for n in (cut, shape[axis] - cut)]
        return self.node("Concat", *parts, axis=axis)

    def gathered(self, shape: Shape, depth: int) -> str:
        axis, rows = int(self.rng.integers(len(shape))), int(self.rng.integers(1, 6))
        whole = (*shape[:axis], rows, *shape[axis + 1 :])
        indices = self.integers(*self.rng.integers(-rows, rows, shape[axis]).tolist())
        return self.node("Gather", self.tensor(whole, depth), indices, axis=axis)

    def looked_up(self, shape: Shape, depth: int) -> str:
        """By indices that are an input."""
        axis, rows = int(self.rng.integers(len(shape))), int(self.rng.integers(1, 6))
        name = f"in{len(self.inputs)}"
        self.inputs[name] = self.rng.integers(-rows, rows, shape[axis])
        whole = (*shape[:axis], rows, *shape[axis + 1 :])
        return self.node("Gather", self.tensor(whole, depth), name, axis=axis)

    def expanded(self, shape: Shape, depth: int) -> str:
        return self.node("Expand", self.tensor(self.narrowed(shape), depth), self.integers(*shape))

    def tiled(self, shape: Shape, depth: int) -> str:
        repeats = [self.pick(1, *([2] if n % 2 == 0 else [])) for n in shape]
        inner = tuple(n // r for n, r in zip(shape, repeats, strict=True))
        return self.node("Tile", self.tensor(inner, depth), self.integers(*repeats))

    def padded(self, shape: Shape, depth: int) -> str:
        before = [int(self.rng.integers(0, min(2, n) + 1)) for n in shape]
        after = [int(self.rng.integers(0, min(2, n - b) + 1)) for n, b in zip(shape, before, strict=True)]
        inner = tuple(n - b - a for n, b, a in zip(shape, before, after, strict=True))
        return self.node("Pad", self.tensor(inner, depth), self.integers(*before, *after))

    def split(self, shape: Shape, depth: int) -> str:
        axis, before = int(self.rng.integers(len(shape))), int(self.rng.integers(1, 4))
        whole = (*shape[:axis], before + shape[axis], *shape[axis + 1 :])
        x, sizes = self.tensor(whole, depth), self.integers(before, shape[axis])
        name = self.fresh()
        self.nodes.append(helper.make_node("Split", [x, sizes], [f"{name}_rest", name], axis=axis))
        return name

    def lower(self, shape: Shape, depth: int) -> str:
        if len(shape) < 2:
            return self.tensor(shape, depth)
        return self.node("Trilu", self.tensor(shape, depth), upper=int(self.rng.integers(2)))


@pytest.mark.parametrize("seed", range(CASES))
def test_expressions_are_what_they_mean(seed: int) -> None:
    drawn = Expressions(seed)
    shape = [(2, 3, 4), (6, 8), (2, 2, 3, 4), (24,), (3, 5), (4, 2, 8), (5, 7)][seed % 7]
    outputs = [drawn.node("Identity", drawn.tensor(shape, 4)) for _ in range(OUTPUTS)]
    dtype = (FLOAT32, FLOAT16)[seed % 2]
    inputs = {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in drawn.inputs.items()}
    typed = {n: TensorType(a.dtype, a.shape) for n, a in inputs.items()}
    kinds, made = loops("expressions", drawn.nodes, typed, outputs)
    assert [k.shape for k in kinds] == [shape] * OUTPUTS
    feeds = {n: w for n, a in inputs.items() if (w := wide(a)) is not None}
    expected = evaluate(drawn.nodes, feeds, outputs)
    results = [shifted(shape, k.dtype, 0) for k in kinds]
    given = list(inputs.values())
    with DEVICE.fresh(*results):
        for loop in made:
            arrays = [*(given[k] for k in loop.inputs), *(results[k] for k in loop.outputs)]
            DEVICE.launch(Launch(loop.source, loop.entry, (2,), (32,)), [*arrays, *loop.parameters])
    for actual, wanted in zip(results, expected, strict=True):
        scale = float(np.abs(wanted).max(initial=1.0))
        if actual.dtype == FLOAT16:  # sums that cancel: 2 ulp of the largest
            assert np.abs(actual.astype(float) - wanted).max(initial=0) <= 2**-9 * scale
        else:
            assert not far(actual, wanted, scale)


def test_the_expressions_are_many_and_varied() -> None:
    seen: dict[str, int] = {}
    for seed in range(CASES):
        drawn = Expressions(seed)
        for _ in range(OUTPUTS):
            drawn.tensor((2, 3, 4), 4)
        for op, count in drawn.seen.items():
            seen[op] = seen.get(op, 0) + count
    assert CASES * OUTPUTS >= 100
    assert sum(seen.values()) > 600
    assert min(seen[op] for op in "Transpose Reshape Slice Concat Gather Expand Pad Tile Trilu Where Sum".split()) >= 5
