"""A random model: inputs, nodes, sometimes an If and local functions, outputs."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import helper

from . import blocks, elementwise, products, views
from .build import BOOL, FLOAT, HALF, INT64, ONE, Builder, Choices, Dim, Dims, Value

OPSETS = (17, 13, 18, 21, 23, 11, 12, 14, 15, 16, 19, 20, 22, 24)
SINGLE: tuple[Callable[[Builder], bool], ...] = (
    elementwise.unary, elementwise.binary, elementwise.same_twice, elementwise.chain, elementwise.clip,
    elementwise.compare, elementwise.where, elementwise.logic, elementwise.strange, elementwise.cast,
    elementwise.integer, elementwise.dropout, elementwise.full, elementwise.positions, views.transpose, views.merge,
    views.split_axis, views.flatten, views.unsqueeze, views.squeeze, views.slice_axis, views.split, views.concat,
    views.apart_and_together, views.gather, views.look_up, views.gather_nd, views.gather_elements, views.expand,
    views.pad, views.triangle, views.running_sum, views.scatter_nd, views.size_as_number, views.mask_as_number,
    products.reduction, products.reduction_of_all, products.reduction_of_none, products.arg_max, products.softmax,
    products.pool, products.matmul_constant, products.matmul, products.gemm, products.einsum, products.conv,
    products.normalized_channels, products.normalization, products.standard_attention,
)  # fmt: skip
SPELLED: tuple[Callable[[Builder], bool], ...] = (
    blocks.layer_norm, blocks.attention, blocks.gelu, blocks.rms_norm, blocks.swish, blocks.softplus, blocks.hyperbolic,
    blocks.choice, blocks.written_softmax, blocks.instance_norm, blocks.heads, blocks.rotate, blocks.repeat,
    blocks.causal_mask, blocks.residual_norm,
)  # fmt: skip
OFTEN: tuple[Callable[[Builder], bool], ...] = (
    elementwise.unary,
    elementwise.binary,
    products.reduction,
    views.transpose,
)
DEEPEST = 12
"""Steps of a model at most."""


def random_model(choices: Choices) -> onnx.ModelProto:
    """A model that onnx's checker accepts and onnxruntime loads."""
    opset = OPSETS[choices.integer(0, len(OPSETS) - 1)]
    b = Builder(choices, opset)
    b.from_the_end = b.chance(3)
    _inputs(b)
    for _ in range(b.integer(1, DEEPEST)):
        _step(b)
    if not any(node.output for node in b.nodes):
        elementwise.unary(b)
    return _model(b)


def _step(b: Builder) -> None:
    """One op or block, of which some are inside an If or a local function."""
    kind = b.integer(0, 23)
    if kind == 22 and _if(b):
        return
    if kind == 23 and _function(b):
        return
    table = OFTEN if kind < 3 else SPELLED if kind < 10 else SINGLE
    if not b.pick(table)(b):
        elementwise.unary(b)


def _inputs(b: Builder) -> None:
    batch, length = (Dim(2, ("b",)) if not b.chance(3) else Dim(2)), (Dim(3, ("s",)) if not b.chance(3) else Dim(3))
    other = Dim(5, ("t",)) if not b.chance(3) else Dim(3)
    eight = Dim(8)
    shapes: tuple[Dims, ...] = (
        (batch, length, eight), (batch, Dim(2), length, eight), (batch, length, Dim(4), Dim(6)),
        (batch, Dim(4), Dim(5), Dim(6)),
        (batch, length), (length, eight), (eight,), (), (batch, Dim(4), length, other),
        (batch, ONE, eight), (Dim(4), Dim(6)),
        (batch, Dim(2), length, length),
    )  # fmt: skip
    for i in range(b.integer(1, 3)):
        dims = b.pick(shapes) if i == 0 or b.chance(2) else b.inputs[0].dims[b.integer(0, 1) :]
        _input(b, Value(f"x{i}", HALF if b.chance(12) else FLOAT, dims))
    if b.chance(3):
        x = b.inputs[0]
        square = (x.dims[-2], x.dims[-2]) if x.rank > 1 else x.dims
        keys = (x.dims[0], *(ONE for _ in range(x.rank - 2)), x.dims[-2]) if x.rank > 1 else x.dims
        _input(b, Value("m", BOOL, b.pick((keys, square, x.dims, (batch, ONE, ONE, length)))))
    if b.chance(4):
        bound = b.pick((4, 0, 2))
        _input(b, Value(f"i{bound}", INT64, (batch, length), bound))


def _input(b: Builder, value: Value) -> None:
    b.inputs.append(value)
    b.values.append(value)


def _if(b: Builder) -> bool:
    """Two ways to compute a value of the same shape; what they read is around them."""
    x = b.value(lambda v: v.dtype == FLOAT)
    if x is None:
        return False
    total = b.add("ReduceSum", x, dims=(), keepdims=0)
    condition = b.joined("Greater", total, b.number(0.0), dtype=BOOL)
    branches, outer, known = list[onnx.GraphProto](), b.nodes, list(b.values)
    for branch in ("then", "else"):
        b.nodes, b.prefix = [], f"{b.prefix}{branch[0]}{len(outer)}_"
        b.values = [*known, x]
        y = x
        for _ in range(b.integer(1, 2)):
            b.pick((elementwise.unary, blocks.gelu, blocks.layer_norm, elementwise.binary))(b)
        last = b.values[-1]
        y = last if last.dims == x.dims and last.dtype == FLOAT and last is not x else b.add("Identity", x)
        branches.append(helper.make_graph(b.nodes, branch, [], [_info(y, named=False)]))
        b.prefix = b.prefix[: -len(f"{branch[0]}{len(outer)}_")]
    b.nodes, b.values = outer, known
    b.add("If", condition, dims=x.dims, dtype=FLOAT, then_branch=branches[0], else_branch=branches[1])
    return True


def _function(b: Builder) -> bool:
    """A local function of one input, called once or twice."""
    x = b.value(lambda v: v.dtype == FLOAT)
    if x is None:
        return False
    inner = Builder(b.choices, b.opset, prefix="f", from_the_end=b.from_the_end, inline=True)
    inner.values.append(Value("a", FLOAT, x.dims))
    for _ in range(b.integer(1, 3)):
        b.pick((elementwise.unary, blocks.gelu, blocks.layer_norm, elementwise.binary, blocks.swish))(inner)
    if inner.values[-1].name == "a":
        elementwise.unary(inner)
    y = inner.values[-1]
    name = f"Function{len(b.functions)}"
    opsets = [helper.make_opsetid("", b.opset)]
    b.functions.append(helper.make_function("local", name, ["a"], [y.name], inner.nodes, opsets))
    result = b.add(name, x, dims=y.dims, dtype=y.dtype, domain="local")
    if y.dims == x.dims and y.dtype == FLOAT and b.chance(2):
        b.add(name, result, domain="local")
    return True


def _model(b: Builder) -> onnx.ModelProto:
    """What nothing reads are outputs, and sometimes what something does."""
    read = {name for node in b.nodes for name in node.input} | _captured(b)
    made = [v for v in b.values if v not in b.inputs and not v.constant]
    leaves = [v for v in made if v.name not in read]
    outputs = (leaves or made)[-3:]
    if b.chance(4):
        outputs = [*outputs, b.pick(made)]
    unique = list({v.name: v for v in outputs}.values())
    used = read | {v.name for v in outputs}
    inputs = [v for v in b.inputs if v.name in used] or b.inputs[:1]
    infos = [_info(v, named=True) for v in inputs], [_info(v, named=False) for v in unique]
    graph = helper.make_graph(b.nodes, "g", *infos, initializer=b.initializers)
    opsets = [helper.make_opsetid("", b.opset)] + [helper.make_opsetid("local", 1)] * bool(b.functions)
    ir = max(helper.find_min_ir_version_for(opsets[:1]), 8 if b.functions else 7)
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir, functions=b.functions)


def _captured(b: Builder) -> set[str]:
    graphs = [a.g for node in b.nodes for a in node.attribute if a.HasField("g")]
    return {name for g in graphs for node in g.node for name in node.input} | {o.name for g in graphs for o in g.output}


def _info(v: Value, named: bool) -> onnx.ValueInfoProto:
    """The type of an input, or of a result, whose dimensions have no names."""
    return helper.make_tensor_value_info(
        v.name, v.dtype, [d.size if d.static else d.names[0] if named else None for d in v.dims]
    )
