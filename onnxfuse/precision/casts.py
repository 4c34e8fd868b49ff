"""A scope written in two precisions: Casts where they meet, and constants in the type that they are read in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfuse.model.element_flow import UNKNOWN, Kind
from onnxfuse.model.external_data import is_external
from onnxfuse.model.graph import DOMAIN
from onnxfuse.model.spool import Spool
from onnxfuse.model.walk import has_bodies

from .decide import Decided
from .ports import ANY, MASK
from .scope import FLOAT
from .wanted import Precision


@dataclass(frozen=True)
class Made:
    """A Cast that was written: of which value, whether to half precision, and the node that wanted or made float32."""

    value: str
    half: bool
    island: int
    """Its number; -1 where the value is an input or an output."""


@dataclass
class Writer:
    """Writes what was decided of a scope; `write` is called once.

    A value has its name in the type that it is made in.  An output, and what the bodies of control flow read, has it in
    the type that is wanted of it, and is made under another."""

    decided: Decided
    precision: Precision
    unique: Callable[[str], str]
    call: Callable[[str, Sequence[Kind], Sequence[bool], Sequence[bool]], str]
    """What a fused op becomes: its arguments so far, and which inputs and outputs are in half precision."""
    outer: Writer | None = None
    """Of the graph around it, if the scope is a body of control flow."""
    given: Collection[str] = ()
    """Inputs that are the body's own, not values of the graph around."""
    within: Callable[[Writer, int, NodeProto], None] | None = None
    """Converts the bodies of a node of this number in its copy."""
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: dict[str, TensorProto] = field(default_factory=dict)
    """Constants of the scope that are new or no longer what they were."""
    made: list[Made] = field(default_factory=list)
    cut_off: bool = False
    """Whether a mask was cut off at the lowest number of half precision."""
    spool: Spool | None = None
    """For constants that have external data."""
    forms: dict[tuple[str, bool], str] = field(default_factory=dict)
    """Value and whether in half precision → its name there."""

    def write(self) -> None:
        scope = self.decided.scope
        for name in scope.constants:
            if name not in scope.producer:
                self._constant(name)
        for name in scope.inputs:
            if scope.real(name):
                outside = self.outer is not None and name not in self.given
                around = self.outer.forms if self.outer and outside else {(name, scope.inputs[name]): name}
                self.forms |= {(name, half): around[name, half] for half in (False, True) if (name, half) in around}
                if (name, not scope.inputs[name]) not in self.forms:
                    self._meet(name)
        for node in scope.nodes:
            if node.op_type == "Constant" and node.output[0] in scope.constants:
                self._constant(node.output[0])
        for index, node in enumerate(scope.nodes):
            if node.op_type != "Constant" or node.output[0] not in scope.constants:
                self._node(index, node)

    def _constant(self, name: str) -> None:
        """A constant in each of the types that it is read in: converted once, under its own name where it can be."""
        scope = self.decided.scope
        wanted = self.decided.wanted(name)
        pinned = name in scope.outputs or name in scope.captured
        others = pinned or any(port in (ANY, MASK) for _, port in scope.readers.get(name, ())) or not wanted
        stays = others or False in wanted
        if stays:
            self.forms[name, False] = name
            self._store(name, scope.constants[name], scope.constants[name].data_type)
        if True in wanted and (stays or self.outer is not None):
            self.constant(name)
        elif True in wanted:
            self.forms[name, True] = name
            tensor = self._converted(scope.constants[name], lambda: scope.array(name))
            self._store(self.forms[name, True], tensor, tensor.data_type)

    def constant(self, name: str) -> str:
        """The name of a constant in half precision, here or in the graph around; it is converted once."""
        if (name, True) not in self.forms:
            scope = self.decided.scope
            if self.outer is not None and name in self.outer.decided.scope.constants:
                self.forms[name, True] = self.outer.constant(name)
            else:
                self.forms[name, True] = self.unique(f"{name}_{self.precision.type_name}")
                tensor = self._converted(scope.constants[name], lambda: scope.array(name))
                self._store(self.forms[name, True], tensor, tensor.data_type)
        return self.forms[name, True]

    def _store(self, name: str, tensor: TensorProto, dtype: int) -> None:
        scope = self.decided.scope
        if name in scope.weights and dtype == FLOAT:
            return  # it is there
        if not (scope.body or (self.outer is not None and name in scope.constants)):
            self.tensors[name] = TensorProto.FromString(tensor.SerializeToString())
            self.tensors[name].name = name
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], name=name, value=tensor))

    def _converted(self, tensor: TensorProto, read: Callable[[], np.ndarray | None]) -> TensorProto:
        """A constant in half precision; without its numbers, one that has the type."""
        if self.spool is not None and is_external(tensor):
            return self.spool.store(tensor, self.precision.dtype, lambda: self._narrow(np.asarray(read())).tobytes())
        if (numbers := read()) is not None:
            return numpy_helper.from_array(self._narrow(numbers))
        made = TensorProto()
        made.CopyFrom(tensor)
        made.data_type = self.precision.dtype
        return made

    def _narrow(self, array: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return array.astype(helper.tensor_dtype_to_np_dtype(self.precision.dtype))

    def _node(self, index: int, node: NodeProto) -> None:
        scope, decided, ports = self.decided.scope, self.decided, self.decided.scope.ports[index]
        made = NodeProto()
        made.CopyFrom(node)
        halves = []
        for position, name in enumerate(node.input):
            halves.append(False)
            if scope.real(name):
                port = ports.inputs[position]
                half = (name, False) not in self.forms if port == ANY else decided.wants_half(index, port)
                if port == MASK:
                    half = index not in decided.single
                halves[-1] = half
                made.input[position] = self._mask(name) if half and port == MASK else self.forms[name, half]
        results = [name for name in node.output if scope.real(name)]
        for position, name in enumerate(node.output):
            if name in results:
                self._name(name, decided.is_half(name))
                made.output[position] = self.forms[name, decided.is_half(name)]
        narrow = any(decided.is_half(name) for name in results)
        if narrow:
            self._attributes(made)
        if node.op_type == "CastLike" and results:
            self._as_cast(made, self.precision.dtype if narrow else FLOAT)
        if node.domain == DOMAIN:
            outputs = [name in results and decided.is_half(name) for name in node.output]
            kinds = [scope.kinds.get(name, UNKNOWN) for name in node.input]
            made.op_type = self.call(node.op_type, kinds, halves, outputs)
        if self.within is not None and has_bodies(node):
            self.within(self, index, made)
        self.nodes.append(made)
        for name in results:
            self._meet(name)

    def _name(self, name: str, half: bool) -> None:
        """Give a value that is made in this type its name there."""
        scope = self.decided.scope
        pinned = scope.outputs.get(name, False if name in scope.captured else half)
        self.forms[name, half] = name if pinned == half else self.unique(f"{name}_{self._suffix(half)}")

    def _suffix(self, half: bool) -> str:
        return self.precision.type_name if half else "float32"

    def _meet(self, name: str) -> None:
        """Casts of a value to the other type, if somebody wants that."""
        scope, decided = self.decided.scope, self.decided
        half = decided.is_half(name)
        output = scope.outputs.get(name, half) != half
        if not (output or (not half) in decided.wanted(name) or (half and name in scope.captured)):
            return
        free = self.forms[name, half] != name
        self.forms[name, not half] = name if free else self.unique(f"{name}_{self._suffix(not half)}")
        result = self.forms[name, not half]
        # A node may be called as the value is.
        self._cast(self.forms[name, half], result, not half, self.unique(f"{result}_Cast") if free else result)
        if half:
            readers = [i for i, _ in scope.readers.get(name, ()) if i in decided.single]
        else:
            readers = [scope.producer.get(name, -1)]
        self.made.append(Made(name, not half, -1 if output or name in scope.inputs or not readers else readers[0]))

    def _cast(self, given: str, result: str, half: bool, name: str) -> None:
        dtype = self.precision.dtype if half else FLOAT
        self.nodes.append(helper.make_node("Cast", [given], [result], name=name, to=dtype))

    def _mask(self, name: str) -> str:
        """The name of a mask in half precision: of numbers that the type cannot say, the lowest that it can."""
        if (name, True) in self.forms:
            return self.forms[name, True]
        self.cut_off = True
        lowest, floor = self.unique(f"{name}_lowest"), self.unique(f"{name}_floor")
        self.tensors[lowest] = numpy_helper.from_array(np.asarray(-self.precision.largest, np.float32), lowest)
        self.nodes.append(helper.make_node("Max", [self.forms[name, False], lowest], [floor], name=floor))
        self.forms[name, True] = self.unique(f"{name}_{self.precision.type_name}")
        self._cast(floor, self.forms[name, True], True, self.forms[name, True])
        self.made.append(Made(name, True, self.decided.scope.producer.get(name, -1)))
        return self.forms[name, True]

    def _attributes(self, node: NodeProto) -> None:
        """Those that name the type of what a node makes."""
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == FLOAT:
                attribute.i = self.precision.dtype
            elif attribute.type == AttributeProto.TENSOR and attribute.t.data_type == FLOAT:
                attribute.t.CopyFrom(numpy_helper.from_array(self._narrow(numpy_helper.to_array(attribute.t))))
        if node.op_type == "ConstantOfShape" and not node.attribute:
            zero = numpy_helper.from_array(self._narrow(np.zeros(1, np.float32)))
            node.attribute.append(helper.make_attribute("value", zero))

    def _as_cast(self, node: NodeProto, dtype: int) -> None:
        del node.input[1:], node.attribute[:]
        node.op_type = "Cast"
        node.attribute.append(helper.make_attribute("to", dtype))
