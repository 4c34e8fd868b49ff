"""split_stack, as written and fused: op by op on this machine, in PyTorch, and in onnxruntime.

Op by op is how a runtime without a compiler runs a graph: a launch for each node that moves or computes.  Products are
the array module's (CuPy: cuBLAS), Split and Concat its copies, everything else our kernels; a fused product's bias and
activation are one generated kernel behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

import onnxfuse
from models import split_stack
from onnxfuse import kernels
from onnxfuse.kernels.device.device import Argument, TensorType
from onnxfuse.kernels.device.kernel import Kernel
from onnxfuse.kernels.pointwise.loops import loops
from onnxfuse.model.graph import REGION, family_of
from onnxfuse.runtime.served import arguments

from . import expected, peers, timing
from .machine import Machine, Memory, Run
from .plan import Row, SkippedError, one_line
from .timing import Side

FEATURES, BATCH, WIDTH = 16, 1024, 256
VIEWS = ("Reshape", "Unsqueeze")
COPIES = ("Split", "Concat")
TOLERANCE = 1e-4
"""‖y − reference‖ / ‖reference‖."""


class Program:
    """A model of float32 tensors of known shapes, as launches on memory that is allocated beforehand."""

    def __init__(self, model: ModelProto, feeds: Mapping[str, Memory], machine: Machine) -> None:
        self.machine, self.calls = machine, list[Run]()
        self.values: dict[str, Memory] = dict(feeds)
        self.numbers = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        for name, array in self.numbers.items():
            if array.dtype == np.float32:
                self.values[name] = machine.allocate(TensorType(array.dtype, array.shape))
                machine.write(self.values[name], array)
        self.functions = {f.name: f for f in model.functions}
        for node in model.graph.node:
            self._node(node)
        self.launches = len(self.calls)
        self.output = self.values[model.graph.output[0].name]

    def __call__(self) -> None:
        for call in self.calls:
            call()

    def _node(self, node: NodeProto) -> None:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
        op, inputs = family_of(node), [self.values.get(name) for name in node.input]
        x = inputs[0]
        if op == "Constant":
            self.numbers[node.output[0]] = numpy_helper.to_array(attributes["value"])
        elif op == "Split":
            assert x is not None
            rows = 0
            for name, count in zip(node.output, self.numbers[node.input[1]].tolist(), strict=True):
                part = self._new(name, (count, *x.shape[1:]))
                self._copy(self._part(x, rows, part.shape), part)
                rows += count
        elif op == "Concat":
            parts = [self.values[name] for name in node.input]
            whole = self._new(node.output[0], (sum(p.shape[0] for p in parts), *parts[0].shape[1:]))
            rows = 0
            for part in parts:
                self._copy(part, self._part(whole, rows, part.shape))
                rows += part.shape[0]
        elif op in VIEWS:
            assert x is not None
            target = self.numbers[node.input[1]].tolist()
            self.values[node.output[0]] = self._viewed(x, op, target)
        elif op in ("MatMul", "FusedMatMul"):
            self._product(node, attributes)
        elif op in ("Add", "Relu", "Tanh") and node.domain == "":
            self._loop([node], node.output[0])
        else:
            kernel = self._region(node) if op == REGION else expected.kernel(op, attributes)
            taken, made = arguments(kernel.signature, self.functions.get(node.op_type))
            by_number = dict(zip(taken, inputs, strict=False))
            operands = [by_number.get(at) for at in range(len(kernel.signature.inputs))]
            types = kernel.outputs([None if i is None else i.type for i in operands])
            named = dict(zip(made, node.output, strict=False))
            results = [self._new(named[at], t.shape) if at in named else None for at, t in enumerate(types)]
            self.calls.append(lambda: kernel.launch(self.machine.device, operands, results))

    def _region(self, node: NodeProto) -> Kernel:
        """The kernel that is generated from a region's function, whose values are all float32."""
        function = self.functions[node.op_type]
        return kernels.of_region(function, ["float32"] * len(function.input), ["float32"] * len(function.output))({})

    def _product(self, node: NodeProto, attributes: Mapping[str, Any]) -> None:
        a, b = (self.values[name] for name in node.input[:2])
        if attributes.get("transB") or attributes.get("alpha", 1.0) != 1.0 or len(b.shape) != 2:
            raise SkippedError(f"a product with {dict(attributes)} is not one that this runs")
        shape = (*a.shape[:-1], b.shape[1])
        function = self.functions.get(node.op_type)
        added = dict(zip(function.input, node.input, strict=True)) if function is not None else {}
        bias, activation = added.get("bias", ""), attributes.get("activation", "")
        if "residual" in added:
            raise SkippedError("a product with a residual is not one that this runs")
        name = node.output[0]
        raw = self._new(f"{name}/product" if bias or activation else name, shape)
        left, right, result = (self._array(m) for m in (a, b, raw))
        left, result = left.reshape(-1, a.shape[-1]), result.reshape(-1, b.shape[1])
        self.calls.append(lambda: self.machine.arrays.matmul(left, right, out=result))
        nodes, last = [], f"{name}/product"
        for op, operands in (("Add", [bias] if bias else None), (activation, [] if activation else None)):
            if operands is not None:
                nodes.append(helper.make_node(op, [last, *operands], [f"{name}/{op}"]))
                last = f"{name}/{op}"
        if nodes:
            nodes[-1].output[0] = name
            self._loop(nodes, name)

    def _loop(self, nodes: Sequence[NodeProto], name: str) -> None:
        """Elementwise nodes as one generated kernel."""
        made = {output for node in nodes for output in node.output}
        names = list(dict.fromkeys(i for node in nodes for i in node.input if i not in made))
        types = {n: self.values[n].type for n in names}
        ((type,), (loop,)) = loops("elementwise", nodes, types, [name])
        output = self._new(name, type.shape)
        launch = loop.launch(self.machine.device.multiprocessors)
        arguments: list[Argument] = [*(self.values[names[k]] for k in loop.inputs), output, *loop.parameters]
        self.calls.append(lambda: self.machine.device.launch(launch, arguments))

    def _viewed(self, x: Memory, op: str, target: list[int]) -> Memory:
        if op == "Unsqueeze":
            shape = list(x.shape)
            for axis in sorted(target):
                shape.insert(axis, 1)
        else:
            shape = [x.shape[i] if n == 0 else n for i, n in enumerate(target)]
            rest = math.prod(n for n in shape if n != -1)
            shape = [math.prod(x.shape) // rest if n == -1 else n for n in shape]
        return _at(x, 0, tuple(shape))

    def _part(self, x: Memory, rows: int, shape: tuple[int, ...]) -> Memory:
        return _at(x, rows * math.prod(x.shape[1:]) * x.dtype.itemsize, shape)

    def _copy(self, source: Memory, target: Memory) -> None:
        self.calls.append(lambda: self.machine.copy(source, target))

    def _new(self, name: str, shape: Sequence[int]) -> Memory:
        self.values[name] = self.machine.allocate(TensorType(np.dtype(np.float32), tuple(shape)))
        return self.values[name]

    def _array(self, memory: Memory) -> Any:
        return self.machine.view(memory)


def _at(x: Memory, offset: int, shape: tuple[int, ...]) -> Memory:
    made = Memory(x.pointer + offset, shape, x.dtype)
    made.owner = x.owner
    return made


def reference(model: ModelProto, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The output in float64."""
    weights = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    rows = x.astype(np.float64).reshape(-1, int(weights["matrix"][0]), int(weights["matrix"][1]))
    centered = rows - rows.mean(-1, keepdims=True)
    normal = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + split_stack.EPSILON)
    return np.asarray(np.maximum(np.tanh(normal) @ weights["weight"] + weights["bias"], 0.0))


def distance(y: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """‖y − wanted‖ / ‖wanted‖."""
    return float(np.linalg.norm(y.astype(np.float64).reshape(wanted.shape) - wanted) / np.linalg.norm(wanted))


def forward(module: Any, weights: Mapping[str, Any], features: int, batch: int, width: int) -> Callable[[Any], Any]:
    """The model in PyTorch, feature by feature as it is written."""
    weight, bias = weights["weight"], weights["bias"]
    scales = [(weights[f"scale{i}"], weights[f"shift{i}"]) for i in range(features)]

    def run(x: Any) -> Any:
        parts = x.split(batch * width)
        bent = [
            module.tanh(
                module.nn.functional.layer_norm(part.view(batch, width), (width,), *affine, split_stack.EPSILON)
            )
            for part, affine in zip(parts, scales, strict=True)
        ]
        return module.relu(module.stack(bent) @ weight + bias)

    return run


def compare(
    machine: Machine, modes: Sequence[str] = tuple(peers.MODES), size: tuple[int, int, int] = (FEATURES, BATCH, WIDTH)
) -> Iterator[Row]:
    """One row: every side's time, its launches, its distance from float64; PyTorch's where it is there."""
    features, batch, width = size
    if modes:
        peers.torch()
    model = split_stack.build(features, batch, width)
    fused = onnxfuse.optimize(model, validate="off").model
    rng = np.random.default_rng(0)
    values = rng.standard_normal(features * batch * width).astype(np.float32)
    wanted = reference(model, values)
    count = min(timing.MOST_SETS, 1 + -(-timing.CACHES * machine.cache // values.nbytes))
    feeds = []
    for _ in range(count):
        feeds.append(machine.allocate(TensorType(values.dtype, values.shape)))
        machine.write(feeds[-1], values)
    sides: dict[str, Side] = {}
    row: Row = {"name": f"{features} features, batch {batch}, width {width}", "launches": {}, "error": {}, "failed": {}}
    for name, proto in (("as written", model), ("fused", fused)):
        try:
            programs = [Program(proto, {"x": feed}, machine) for feed in feeds]
            for program in programs:
                program()
            row["error"][name] = distance(machine.read(programs[-1].output), wanted)
            row["launches"][name] = programs[0].launches
            sides[name] = timing.side(machine, programs.__getitem__, count, machine.graph)
        except Exception as error:
            row["failed"][name] = one_line(error)
    try:
        module = peers.torch()
    except SkippedError as reason:
        row["failed"]["torch"] = str(reason)
    else:
        with module.no_grad(), module.cuda.stream(module.cuda.ExternalStream(machine.stream)):
            _torch(module, model, feeds, modes, size, machine, wanted, sides, row)
    samples = timing.measure(machine, sides) if sides else {}
    row["sides"] = {name: timing.summary(found) for name, found in samples.items()}
    row["how"] = {name: side.how for name, side in sides.items()}
    wrong = [name for name, error in row["error"].items() if not error <= TOLERANCE]
    if wrong or not sides:
        row["outcome"] = f"{' and '.join(wrong) or 'every side'} failed: {row['error'] or row['failed']}"
    yield row


def _torch(
    module: Any,
    model: ModelProto,
    feeds: Sequence[Memory],
    modes: Sequence[str],
    size: tuple[int, int, int],
    machine: Machine,
    wanted: np.ndarray[Any, Any],
    sides: dict[str, Side],
    row: Row,
) -> None:
    """PyTorch's sides, eager and compiled."""
    weights = {t.name: module.from_numpy(numpy_helper.to_array(t).copy()).cuda() for t in model.graph.initializer}
    inputs = [[peers.tensor(module, feed)] for feed in feeds]
    for name in ("eager", *modes):
        try:
            run = forward(module, weights, *size)
            if name in peers.MODES:
                module._dynamo.reset()
                run = module.compile(run, dynamic=False, fullgraph=True, **peers.MODES[name])
                for _ in range(3):
                    run(*inputs[0])
            row["error"][name] = distance(run(*inputs[-1]).cpu().numpy(), wanted)
            made = peers.call(run, inputs)
            sides[name] = timing.side(machine, made, len(feeds), lambda calls: peers.graph(module, machine, calls))
        except Exception as error:
            row["failed"][name] = one_line(error)
            machine.wait()
