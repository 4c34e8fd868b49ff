"""A fused model in float32 → the same in half precision.

requires     nodes in topological order; a fused op's function is written for the opset of its callers
guarantees   inputs and outputs keep names and types, unless the latter are asked for; a fused op is called with half
             precision by a copy of its function, in which products are in half precision and all else is in float32;
             each constant is converted once
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, inliner, numpy_helper

from onnxfuse.errors import ModelError
from onnxfuse.model import protobuf
from onnxfuse.model.element_flow import UNKNOWN, Flow, Kind
from onnxfuse.model.external_data import is_external
from onnxfuse.model.graph import DOMAIN, Names, captured_in, captured_names, label, opset_of, roots
from onnxfuse.model.op_traits import CONTROL_FLOW
from onnxfuse.model.spool import Spool
from onnxfuse.model.tensors import tensors
from onnxfuse.model.walk import attribute_graphs
from onnxfuse.reporting.conversion import Conversion, KeptCast, KeptNodes
from onnxfuse.targets.target import Target

from . import bodies
from .boundaries import boundaries
from .casts import Made, Writer
from .decide import Decided, decide
from .islands import islands
from .ports import Ports, ports
from .scope import FLOAT, Scope
from .wanted import CASTS, Overflow, Precision, Ranges

_SHORT = {int(TensorProto.FLOAT16): "fp16", int(TensorProto.BFLOAT16): "bf16"}


@dataclass
class Converted:
    """A model in half precision."""

    model: ModelProto
    told: Conversion
    overflows: list[Overflow]
    """What it computes in float32 since half precision cannot hold it."""
    opsets: set[int]
    """Those at which fewer ops lack the type."""
    cut_off: bool
    """Whether masks of float32 became masks of half precision."""
    mostly_half: bool
    """Whether half precision is what most products and fused ops of the main graph compute in."""
    boundaries: list[int]
    """Casts that it would take to change the type between two nodes of the main graph."""

    @property
    def few_casts(self) -> bool:
        """Is it what is asked for by a conversion that is not `mixed`, whatever the numbers ask for?"""
        return self.mostly_half and len(self.told.inner) <= CASTS


def convert(
    model: ModelProto,
    precision: Precision,
    ranges: Ranges | None = None,
    *,
    kept: range = range(0),
    rules: Sequence[Path] = (),
    base_dir: Path | None = None,
    weights: bool = True,
    spool: Spool | None = None,
    target: Target | None = None,
    bodies: Collection[str] = CONTROL_FLOW,
) -> Converted:
    """A copy of a fused model that computes in half precision what it may (`islands`).

    `ranges` are the numbers that its values had; without them nothing is known to overflow. Nodes of the main graph
    that are `kept` stay in float32. External data is read from `base_dir`, one tensor after the other, and without
    `weights` not at all, which is good for a report. All that the result has of it is written to the `spool`, if
    there is one, else what is converted is in memory. What the `target` does not run in half precision stays in
    float32. Raises ModelError where that data cannot be read, or functions of the model's own cannot be written
    out.
    """
    conversion = _Conversion(written_out(model), precision, rules, base_dir, weights, spool, target, bodies)
    return conversion.run(ranges or {}, kept)


def written_out(model: ModelProto) -> ModelProto:
    """The model with functions of its own, which nothing is known of, written out where they are called.

    Raises ModelError where onnx cannot do that."""
    others = [(f.domain, f.name) for f in model.functions if f.domain != DOMAIN]
    try:
        return inliner.inline_selected_functions(model, others) if others else model
    except Exception as error:  # onnx raises its own C++ errors, and ValueError above 2 GiB
        raise ModelError(f"its local functions cannot be written out, as half precision needs them: {error}") from None


@dataclass
class _Conversion:
    source: ModelProto
    precision: Precision
    rules: Sequence[Path]
    base_dir: Path | None
    weights: bool
    spool: Spool | None
    target: Target | None
    bodies: Collection[str]
    flow: Flow = field(init=False)
    functions: dict[str, FunctionProto] = field(init=False)
    inside: list[Conversion] = field(default_factory=list)
    """What there is to say of bodies of control flow."""
    copies: dict[tuple[str, tuple[bool, ...], tuple[bool, ...]], FunctionProto] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.flow = Flow(self.source)
        self.functions = {f.name: f for f in self.source.functions if f.domain == DOMAIN}

    def run(self, ranges: Ranges, kept: range) -> Converted:
        graph, weights = self.source.graph, {tensor.name: tensor for tensor in self.source.graph.initializer}
        opset, half = opset_of(self.source), self.precision.io
        inputs = {info.name: half for info in graph.input if self._real(info.name) and _is_tensor(info)}
        inputs |= {sparse.values.name: False for sparse in graph.sparse_initializer}
        outputs = {info.name: half for info in graph.output if self._real(info.name) and _is_tensor(info)}
        scope = Scope(
            graph.node,
            self.flow.main,
            self._ports(graph.node, opset),
            weights,
            inputs,
            outputs,
            self._numbers,
            converts=self._converts,
        )
        found = islands(scope, self.precision, ranges, opset, kept)
        decided = decide(scope, found.reasons)
        names = Names.of(graph for root in roots(self.source) for graph in root.scopes())
        writer = Writer(decided, self.precision, names.unique, self._call, within=self._bodies, spool=self.spool)
        writer.write()
        model = self._assembled(decided, writer)
        told = together([_told(decided, writer.made, self.precision), *self.inside])
        return Converted(
            model, told, found.overflows, found.opsets, writer.cut_off, decided.mostly_half, boundaries(scope)
        )

    def _ports(self, nodes: Sequence[NodeProto], opset: int) -> list[Ports]:
        """Of nodes in a graph or a function."""
        dtype = self.precision.dtype
        return [
            bodies.ports(node)
            if self._converts(node)
            else ports(node, opset, dtype, self.functions, self.rules, self.target)
            for node in nodes
        ]

    def _converts(self, node: NodeProto) -> bool:
        return bodies.converts(node, opset_of(self.source), self.bodies)

    def _real(self, name: str) -> bool:
        return name in self.flow.main and self.flow.main[name].dtype == FLOAT

    def _numbers(self, tensor: TensorProto) -> np.ndarray | None:
        if not self.weights and is_external(tensor):
            return None
        try:
            return numpy_helper.to_array(tensor, str(self.base_dir or Path.cwd()))
        except (onnx.checker.ValidationError, OSError, ValueError) as error:
            raise ModelError(f"the external data of {tensor.name!r} cannot be read: {error}") from None

    def _call(self, op: str, given: Sequence[Kind], inputs: Sequence[bool], outputs: Sequence[bool]) -> str:
        """What a fused op becomes whose arguments were `given`, and whose inputs and outputs are in half precision, or
        not."""
        body = self.functions.get(op)
        if body is None or not any((*inputs, *outputs)):
            return op
        key = op, tuple(inputs), tuple(outputs)
        if key not in self.copies:
            number = sum(name == op for name, _, _ in self.copies) + 1
            made = FunctionProto()
            made.CopyFrom(body)
            made.name = f"{op}_{_SHORT[self.precision.dtype]}" + f"_{number}" * (number > 1)
            self._function(made, given, inputs, outputs)
            self.copies[key] = made
        return self.copies[key].name

    def _function(
        self, body: FunctionProto, given: Sequence[Kind], inputs: Sequence[bool], outputs: Sequence[bool]
    ) -> None:
        """Convert a function in place."""
        opset = opset_of(body)
        scope = Scope(
            list(body.node),
            self.flow.inside(body, given),
            self._ports(body.node, opset),
            {},
            dict(zip(body.input, inputs, strict=False)),
            dict(zip(body.output, outputs, strict=False)),
            body=True,
        )
        decided = decide(scope, islands(scope, self.precision, {}, opset).reasons)
        taken = {name for node in body.node for name in (*node.input, *node.output, node.name)}
        names = Names(taken | set(body.input) | set(body.output))
        writer = Writer(decided, self.precision, names.unique, self._call)
        writer.write()
        del body.node[:], body.value_info[:]
        body.node.extend(writer.nodes)

    def _bodies(self, outer: Writer, index: int, made: NodeProto) -> None:
        """Convert the bodies of a node in its copy.  They read values of the graph around them in the type that is
        there, and give it what the node is in."""
        scope, node = outer.decided.scope, outer.decided.scope.nodes[index]
        if not self._converts(node):
            return
        made.name = made.name or label(node)  # its outputs may have other names, and it goes by the first of them
        given, half = self.flow.bodies(node, scope.kinds), index not in outer.decided.single
        wanted = [bool(name) and outer.decided.is_half(name) for name in node.output]
        for (_, graph), (_, kinds) in zip(attribute_graphs(made), given, strict=True):
            results = bodies.results(node, graph, wanted, half=half)
            self._body(graph, kinds, outer, label(made), half, results)

    def _body(
        self, graph: GraphProto, kinds: dict[str, Kind], outer: Writer, node: str, half: bool, wanted: Sequence[bool]
    ) -> None:
        """Convert a body in place; whether it is given half precision, and which of its results are `wanted` in it."""

        def real(name: str) -> bool:
            return kinds.get(name, UNKNOWN).dtype == FLOAT

        given = {info.name: half for info in graph.input if real(info.name)}
        kinds |= {name: kinds.get(value, UNKNOWN) for name, value in bodies.apart(graph, given).items()}
        own = {tensor.name: tensor for tensor in graph.initializer}
        read = sorted(name for name in captured_in(graph) if real(name))
        around = {name: tensor for name, tensor in outer.decided.scope.constants.items() if name in read}
        results = {info.name: half for info, half in zip(graph.output, wanted, strict=True) if real(info.name)}
        nodes, opset = [NodeProto.FromString(each.SerializeToString()) for each in graph.node], opset_of(self.source)
        scope = Scope(
            nodes,
            kinds,
            self._ports(nodes, opset),
            own | around,
            given | {name: outer.decided.is_half(name) for name in read if name not in around},
            results,
            self._numbers,
            converts=self._converts,
        )
        decided = decide(scope, islands(scope, self.precision, {}, opset).reasons)
        shared: dict[str, Any] = {"outer": outer, "given": given, "tensors": outer.tensors, "spool": self.spool}
        writer = Writer(decided, self.precision, outer.unique, self._call, within=self._bodies, **shared)
        writer.write()
        outer.cut_off |= writer.cut_off
        del graph.node[:], graph.value_info[:]
        graph.node.extend(writer.nodes)
        needed = {name for each in writer.nodes for name in (*each.input, *captured_names(each))} | set(results)
        protobuf.remove(graph.initializer, lambda tensor: tensor.data_type == FLOAT and tensor.name not in needed)
        told = _told(decided, writer.made, self.precision)
        for info in (*graph.input, *graph.output):
            if (given | results).get(info.name) and info.type.HasField("tensor_type"):
                info.type.tensor_type.elem_type = self.precision.dtype
        inputs = {info.name for info in self.source.graph.input}
        reason = f"what goes into the bodies of {node} and comes out of them"
        casts = [c if c.node or c.value in inputs else replace(c, node=node, reason=reason) for c in told.casts]
        self.inside.append(replace(told, casts=casts))

    def _assembled(self, decided: Decided, writer: Writer) -> ModelProto:
        source, dtype = self.source, self.precision.dtype
        model = protobuf.part(source, lambda number: number != protobuf.GRAPH)
        graph = protobuf.part(source.graph, lambda number: number != protobuf.INITIALIZER, into=model.graph)
        del graph.node[:]
        graph.node.extend(writer.nodes)
        read = {name for node in graph.node for name in (*node.input, *captured_names(node))}
        read |= {info.name for info in (*graph.input, *graph.output)}
        for tensor in source.graph.initializer:
            if tensor.name in writer.tensors:
                graph.initializer.append(writer.tensors.pop(tensor.name))
            elif tensor.name in read or tensor.name not in decided.scope.readers:
                graph.initializer.append(tensor)
        graph.initializer.extend(writer.tensors.values())
        for info in (*graph.input, *graph.output, *graph.value_info):
            if writer.forms.get((info.name, True)) == info.name and info.type.tensor_type.elem_type == FLOAT:
                info.type.tensor_type.elem_type = dtype
        self._replace_functions(model)
        if self.spool is not None:
            for tensor in filter(is_external, tensors(model)):
                self.spool.keep(tensor, self.base_dir or Path.cwd())
        return model

    def _replace_functions(self, model: ModelProto) -> None:
        """Add the copies of functions, callees first, and take out what nobody calls."""
        every = {f.name: f for f in model.functions if f.domain == DOMAIN}
        every |= {made.name: made for made in self.copies.values()}
        wanted: dict[str, FunctionProto] = {}

        def want(name: str) -> None:
            for node in every[name].node:
                if node.domain == DOMAIN and node.op_type in every and node.op_type not in wanted:
                    want(node.op_type)
            wanted[name] = every[name]

        scopes = (graph for root in roots(model) for graph in root.scopes())
        called = [node.op_type for graph in scopes for node in graph.nodes if node.domain == DOMAIN]
        for name in dict.fromkeys(called):
            if name in every and name not in wanted:
                want(name)
        kept = [FunctionProto.FromString(f.SerializeToString()) for f in model.functions if f.domain != DOMAIN]
        made = [FunctionProto.FromString(f.SerializeToString()) for f in wanted.values()]
        del model.functions[:]
        model.functions.extend([*kept, *made])


def _is_tensor(info: object) -> bool:
    return bool(info.type.HasField("tensor_type"))  # type: ignore[attr-defined]


def together(parts: Sequence[Conversion]) -> Conversion:
    """What there is to say of scopes, told of them as one."""
    half, single = sum(part.half for part in parts), sum(part.float32 for part in parts)
    kept = Counter[str]()
    for part in parts:
        kept.update({each.reason: each.nodes for each in part.kept})
    casts = [cast for part in parts for cast in part.casts]
    return replace(parts[0], half=half, float32=single, casts=casts, kept=_most_frequent(kept))


def _most_frequent(kept: Counter[str]) -> list[KeptNodes]:
    return [KeptNodes(nodes, reason) for reason, nodes in kept.most_common()]


def _told(decided: Decided, made: Sequence[Made], precision: Precision) -> Conversion:
    """What there is to say: where Casts remain and why, and what stayed in float32."""
    scope = decided.scope
    casts = [
        KeptCast(
            cast.value,
            precision.type_name if cast.half else "float32",
            "" if cast.island < 0 else scope.nodes[cast.island].name or scope.nodes[cast.island].output[0],
            "an input or output of the model" if cast.island < 0 else decided.why(cast.island),
        )
        for cast in made
    ]
    real = [i for i, node in enumerate(scope.nodes) if any(scope.real(name) for name in (*node.input, *node.output))]
    real = [i for i in real if scope.nodes[i].op_type != "Constant"]
    single = sum(i in decided.single for i in real)
    kept = _most_frequent(Counter(decided.reasons[i] for i in real if i in decided.reasons))
    return Conversion(precision.name, precision.type_name, len(real) - single, single, casts, kept)
