"""Graph → terms: each value of a scope gets the term it computes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from onnxfuse.model.dims import Derived, Dim, Limited, Shape, Sym, broadcast, broadcast_dim, product, symbol
from onnxfuse.model.graph import Graph, captured_names
from onnxfuse.model.onnxruntime_ops import added
from onnxfuse.model.op_traits import BROADCAST, COERCED, COMMUTATIVE, DECLARES_DTYPE, FOLDABLE, SAME_ELEMENTS, SQUARES
from onnxfuse.model.schema import AXES_INPUT, attribute_value, attributes_of, old_bounds
from onnxfuse.model.standard import STANDARD, in_onnx
from onnxfuse.model.symbols import Apart, last, limit, same_if, single
from onnxfuse.model.types import CONSTANTS
from onnxfuse.model.walk import has_bodies
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.infer import infer, normal_axis
from onnxfuse.terms.normal.normal import closed, fold, make, reshape, slice_axis
from onnxfuse.terms.shape_values import shape_data
from onnxfuse.terms.term import REAL, SMALL, Array, Term, Terms, numpy_dtype, same_shape, static

from .effects import Effect, Effects
from .operand_dims import together

MICROSOFT = "com.microsoft"
"""The domain of ops whose results shape inference may know though onnx does not."""
MALFORMED: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What arithmetic over shapes and attributes raises where a node breaks the rules of its op."""
LOOKED_INTO = 1 << 16
"""Elements of a constant that is asked whether it repeats one number."""
COUNTABLE = 1 << 62
"""Integers from here on, in magnitude, are no sizes."""

NUMERIC = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.DOUBLE,
        TensorProto.INT8,
        TensorProto.INT16,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT8,
        TensorProto.UINT16,
        TensorProto.UINT32,
        TensorProto.UINT64,
        TensorProto.BOOL,
    }
)
"""Element types whose values may be read; all others (strings, float8, int4, ...) are only ever passed on."""


@dataclass
class View:
    """What each value of one scope computes.

    `terms_of` maps names to terms, `dtypes` to element types; `hidden` gives the values that an opaque leaf is computed
    from, which its term does not show; `shared` are the values that more than one computation uses; `effects` are those
    of the nodes.
    """

    graph: Graph
    terms: Terms
    base_dir: Path | None
    parent: View | None = None
    terms_of: dict[str, Term] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)
    hidden: dict[int, list[str]] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    effects: Sequence[Effect] = ()
    unread: set[str] = field(default_factory=set)
    """Tensors, of the scopes around this one too, whose values were wanted and are not there."""

    @property
    def held(self) -> frozenset[str]:
        """The standard ops that the graph has."""
        return frozenset(node.op_type for node in self.graph.nodes if node.domain in STANDARD)

    @property
    def lasting(self) -> list[int]:
        """The nodes that stay though nothing reads them, in order."""
        return [index for index, effect in enumerate(self.effects) if effect is Effect.UNKNOWN]

    def term(self, name: str) -> Term:
        """The term of a value of this scope or of one around it."""
        if not name:
            return self.terms.absent
        term = self.terms_of.get(name)
        if term is None:
            term, dtype = self._outer(name)
            self.terms_of[name], self.dtypes[name] = term, dtype
        return term

    def _outer(self, name: str) -> tuple[Term, int]:
        """The term of a value of a scope around this one, and its own element type, which terms do not tell."""
        view = self.parent
        while view is not None:
            if name in view.terms_of:
                outer = view.terms_of[name]
                dtype = view.dtypes.get(name, outer.dtype)
                if outer.op == "Constant" and outer.load is not None:
                    if outer.scalar is not None or outer.data is not None:
                        return self.terms.constant(outer.load(), dtype), dtype
                    return self.terms.stored(name, outer.shape or (), dtype, outer.load), dtype
                return self.terms.input(name, outer.shape, dtype), dtype
            view = view.parent
        dtype, shape = self.graph.type_of(name)
        return self.terms.input(name, shape, dtype), dtype


def lift(graph: Graph, base_dir: Path | None, parent: View | None = None, effects: Effects | None = None) -> View:
    """The terms of every value of a scope; `effects` are those of its model, if they are known already.

    Names of dimensions lie: exporters give the same to a sequence and to its cache.  Where two inputs share one they
    are taken for different, until an op needs them to be equal.  What an op needs to be short, is."""
    known, effects = _Known(), effects or Effects.of(graph.model)
    unread = set[str]() if parent is None else parent.unread
    of_nodes = [effects(node, graph.opset) for node in graph.nodes]
    while True:
        view = _lift(View(graph, Terms(), base_dir, parent, effects=of_nodes, unread=unread), known)
        found = _known(view, _symbols(view) if parent is None else frozenset())
        if found.equal <= known.equal and found.limits.keys() <= known.limits.keys() and found.single <= known.single:
            return view
        known = _Known(known.equal | found.equal, {**found.limits, **known.limits}, known.single | found.single)


@dataclass(frozen=True)
class _Known:
    """What the ops of a scope tell of its inputs' dimensions."""

    equal: frozenset[str] = frozenset()
    """Those told apart that are what their labels say after all."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Symbols → the largest that they can be."""
    single: frozenset[str] = frozenset()
    """Symbols that are 1: an exporter declared a dynamic axis, and wrote the size that it saw into a view."""


def _symbols(view: View) -> frozenset[str]:
    """The names of dimensions of inputs."""
    shapes = [view.terms_of[name].shape or () for name in view.graph.inputs]
    return frozenset(name for shape in shapes for dim in shape if isinstance(dim, Sym) for name in dim.symbols)


def _known(view: View, inputs: frozenset[str]) -> _Known:
    """What the terms of a scope tell; `inputs` are symbols of which views may tell too, since they are computed in any
    case."""
    terms = view.terms
    pairs = [pair for term in terms for pair in together(term, view.graph.opset)]
    fitted = [broadcast_dim(a, b) for a, b in pairs]
    names = terms.symbols().union(*(dim.symbols for dim in fitted if isinstance(dim, Sym)))
    derived = [symbol for symbol in names if isinstance(symbol, Derived)]
    limits: dict[str, int] = {}
    if any(symbol.startswith("min(") for symbol in derived):
        for term in terms:
            operands = [a.shape[::-1] for a in term.args if a.shape is not None] if term.op in BROADCAST else []
            for dims in zip_longest(*operands, fillvalue=1):
                limits.update(found for a, b in combinations(dims, 2) if (found := limit(a, b)))
    views = [term for term in terms if inputs and term.op == "Reshape" and len(term.args) == 1]
    shapes = [(v.args[0].shape, v.shape) for v in views if v.args[0].shape is not None and v.shape is not None]
    ones = {single(before, after) for before, after in shapes} | {last(a, b) for a, b in pairs}
    return _Known(frozenset(name for symbol in derived for name in same_if(symbol)), limits, inputs & ones)


def _tell(name: str, shape: Shape | None, taken: set[str], known: _Known) -> Shape | None:
    """An input's shape, in which what is named like another input's dimension is told apart from it."""
    dims: list[Dim] = []
    for axis, dim in enumerate(shape or ()):
        if isinstance(dim, Sym):
            (text,) = dim.symbols
            other = Apart.of(text, f"{name}.{axis}")
            if text in taken and other not in known.equal:
                dim = 1 if other in known.single else symbol(other)
            elif text in known.single:
                dim = 1
            elif text in known.limits:
                dim = symbol(Limited.of(text, known.limits[text]))
            taken.add(text)
        dims.append(dim)
    return None if shape is None else tuple(dims)


def _lift(view: View, known: _Known) -> View:
    """The terms of every value of a scope, in one pass over its nodes."""
    graph = view.graph
    view.shared = _shared(graph, view.effects)
    taken: set[str] = set()
    # Since IR version 4 an initializer that is also an input is a default, which a caller may override.
    overridable = set(graph.inputs) if graph.model.ir_version >= 4 else set()
    for name, tensor in graph.initializers.items():
        if name in overridable:
            continue
        _define(view, name, constant_term(view, name, tensor), tensor.data_type)
    for name in graph.inputs:
        if name not in view.terms_of:
            dtype, shape = graph.type_of(name)
            _define(view, name, view.terms.input(name, _tell(name, shape, taken, known), dtype), dtype)
    for index, node in enumerate(graph.nodes):
        for name, (term, dtype) in zip(node.output, _lifted(view, index, node), strict=False):
            if name:
                _define(view, name, term, dtype)
    return view


def _define(view: View, name: str, term: Term, dtype: int) -> None:
    view.terms_of[name] = closed(view.terms, term) if name in view.shared else term
    view.dtypes[name] = dtype or term.dtype


def _shared(graph: Graph, effects: Sequence[Effect]) -> set[str]:
    """The values that are used more than once, where nodes that compute the same count as one."""
    first: dict[tuple[Any, ...], int] = {}
    number: dict[str, object] = {}
    user: dict[object, object] = {}
    several: set[object] = set()

    def use(value: object, by: object) -> None:
        if user.setdefault(value, by) != by:
            several.add(value)

    for index, node in enumerate(graph.nodes):
        operands = [number.get(name, name) for name in node.input]
        if effects[index] or node.op_type in ("Constant", "Dropout") or index in graph.captures:
            own = index
        else:
            ordered = sorted(operands, key=str) if node.op_type in COMMUTATIVE else operands
            attributes = tuple(sorted([a.SerializeToString(deterministic=True) for a in node.attribute]))
            own = first.setdefault((node.op_type, node.domain, node.overload, *ordered, attributes), index)
        for position, operand in enumerate(operands):
            use(operand, (own, position))
        if operands and node.op_type in SQUARES:
            use(operands[0], (own, "again"))
        for name in graph.captures.get(index, ()):
            use(number.get(name, name), index)
        for position, name in enumerate(node.output):
            if name:
                number[name] = (own, position)
    for name in graph.outputs:
        use(number.get(name, name), name)
    for node in reversed(graph.nodes):  # who uses what only passes a value on uses that value
        if node.op_type in SAME_ELEMENTS and node.input and number.get(node.output[0]) in several:
            several.add(number.get(node.input[0], node.input[0]))
    return {name for name, own in number.items() if own in several}


def constant_term(view: View, name: str, tensor: TensorProto) -> Term:
    """The term of an initializer; elements of a large or external one are read only on demand."""
    dims = tuple(tensor.dims)
    small = int(np.prod(dims, dtype=np.int64)) <= SMALL
    if tensor.data_type not in NUMERIC:
        return view.terms.input(name, dims, tensor.data_type)
    load = reader(tensor, view.base_dir)
    if _is_missing(tensor, view.base_dir):
        if tensor.data_type not in REAL:
            view.unread.add(name)
            return view.terms.input(name, dims, tensor.data_type)
        load = partial(_unread, view, name, dims)
    if small and tensor.data_location != TensorProto.EXTERNAL:
        return view.terms.constant(load(), tensor.data_type)
    return view.terms.stored(name, dims, tensor.data_type, load)


def reader(tensor: TensorProto, base_dir: Path | None) -> Callable[[], Array]:
    """Reads a tensor's elements; bfloat16 comes as float32, which holds it exactly."""

    def load() -> Array:
        array = numpy_helper.to_array(tensor, str(base_dir) if base_dir is not None else "")
        return array.astype(np.float32) if tensor.data_type == TensorProto.BFLOAT16 else array

    return load


def _is_missing(tensor: TensorProto, base_dir: Path | None) -> bool:
    """Is the file that holds a tensor not there?"""
    if tensor.data_location != TensorProto.EXTERNAL:
        return False
    try:
        return not Path(base_dir or "", ExternalDataInfo(tensor).location).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return True


def _unread(view: View, name: str, dims: Sequence[int]) -> Array:
    """What stands for the elements of a tensor that is not there: NaNs of its own, which equal nothing."""
    view.unread.add(name)
    quiet = np.uint32(0x7FC00000 | zlib.crc32(name.encode()) & 0x3FFFFF)
    return np.broadcast_to(quiet.view(np.float32), tuple(dims))


def _opaque(view: View, node: NodeProto) -> list[tuple[Term, int]]:
    """Outputs as leaves: what the node does is not looked into."""
    sources = [name for name in node.input if name] + sorted(captured_names(node))
    for name in sources:
        view.term(name)
    result = []
    for name in node.output:
        dtype, shape = view.graph.type_of(name) if name else (0, None)
        leaf = view.terms.input(name, shape, dtype)
        view.hidden[leaf.id] = sources
        result.append((leaf, dtype))
    return result


def _lifted(view: View, index: int, node: NodeProto) -> list[tuple[Term, int]]:
    """The outputs of a node; of one that is not what its op demands, as leaves.

    A step of 0, an axis that is none, 4 heads of 6 columns: the node may never run, and if it does it is for the
    runtime to complain.  Here it is only a node that nothing is known of.
    """
    try:
        return _lift_node(view, index, node)
    except MALFORMED:
        return _opaque(view, node)


def _lift_node(view: View, index: int, node: NodeProto) -> list[tuple[Term, int]]:
    terms, graph, op = view.terms, view.graph, _standard(view, node)
    if not op:
        return _foreign(view, index, node)
    if op == "Constant":
        return [_constant_node(view, node)]
    if view.effects[index] or has_bodies(node):
        return _opaque(view, node)
    if graph.is_function and any(a.ref_attr_name for a in node.attribute):
        return _opaque(view, node)
    args = [view.term(name) for name in node.input]
    while args and args[-1].op == "Absent":
        args.pop()
    attrs = attributes_of(node, graph.opset)
    count = len(node.output)
    while count > 1 and not node.output[count - 1]:
        count -= 1
    if op == "Dropout" and (graph.opset < 12 or len(args) < 3 or args[2].op == "Absent"):
        args, op = args[:1], "Identity" if count == 1 else op
    if op == "CastLike" and view.dtypes[node.input[1]]:
        op, args, attrs = "Cast", args[:1], attrs | {"to": view.dtypes[node.input[1]]}
    _to_canonical(view, op, args, attrs)
    if op in BROADCAST:
        args = _numbers(terms, args)
    inferred = infer(terms, op, args, attrs, count)
    for i, (shape, dtype) in enumerate(inferred):
        dtype = _value_dtype(view, node, dtype)
        inferred[i] = (shape, dtype)
        if shape is None or not dtype:
            known_dtype, known_shape = graph.type_of(node.output[i]) if node.output[i] else (0, None)
            inferred[i] = (shape if shape is not None else known_shape, dtype or known_dtype)
    if count == 1:
        shape, dtype = inferred[0]
        return [(_normal(view, op, args, attrs, shape, dtype), dtype)]
    if op == "Split" and args[0].shape is not None and len(args) == 1:
        return _split(terms, args[0], attrs, inferred)
    whole = terms.raw(op, args, _frozen(attrs), shape=None, dtype=inferred[0][1])
    if op == "Dropout":
        return _opaque(view, node)
    return [
        (terms.raw("Output", [whole], (("index", i),), shape=shape, dtype=dtype) if name else terms.absent, dtype)
        for i, (name, (shape, dtype)) in enumerate(zip(node.output, inferred, strict=False))
    ]


def _numbers(terms: Terms, args: list[Term]) -> list[Term]:
    """What repeats one number over the shape of another operand is that number."""
    shapes = [arg.shape for arg in args if arg.shape is not None]
    if len(shapes) < len(args) or not shapes or len(whole := broadcast(*shapes)) < 2:
        return args
    repeated = [_repeated(arg) if arg.dtype in REAL and same_shape(arg.shape, whole) else None for arg in args]
    if not any(n is None and same_shape(arg.shape, whole) for n, arg in zip(repeated, args, strict=True)):
        return args
    return [arg if n is None else terms.number(n, arg.dtype) for n, arg in zip(repeated, args, strict=True)]


def _repeated(term: Term) -> float | None:
    """The number that all elements of an Expand or of a constant are."""
    if term.op == "Expand" and len(term.args) == 1:
        return term.args[0].scalar
    dims = static(term.shape) if term.op == "Constant" else None
    if dims is None or not 1 < np.prod(dims, dtype=np.int64) <= LOOKED_INTO:
        return None
    values = value_of(term).ravel()
    return float(values[0]) if (values == values[0]).all() else None


def _value_dtype(view: View, node: NodeProto, dtype: int) -> int:
    """The element type of a real result: that of the operand's value, since terms do not tell real types apart."""
    if dtype not in REAL or node.op_type in DECLARES_DTYPE:
        return dtype
    operands = node.input[1:] if node.op_type == "Where" else node.input
    return next((view.dtypes[name] for name in operands if name and view.dtypes[name] in REAL), dtype)


def _frozen(attrs: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(attrs.items()))


def _normal(view: View, op: str, args: list[Term], attrs: dict[str, Any], shape: Shape | None, dtype: int) -> Term:
    terms = view.terms
    data = shape_data(op, args, attrs, shape)
    if (
        data is not None
        and _countable(data, dtype)
        and data.size <= 64
        and dtype in (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
    ):
        return terms.integers(data, dtype)
    if args and all(a.constant for a in args) and op in FOLDABLE:
        size = product(shape) if shape is not None else None
        if isinstance(size, int) and size <= SMALL:
            folded = fold(terms, op, args, attrs, shape, dtype)
            if folded is not None:
                return folded
    if view.graph.opset < 13 and op in COERCED:
        return _old_softmax(terms, op, args[0], attrs.get("axis", 1))
    return make(terms, op, args, attrs, shape, dtype)


def _countable(data: Array, dtype: int) -> bool:
    """Are these integers, and the coefficients of symbols, those of sizes?  Others may wrap around in a run."""
    most = COUNTABLE if dtype != TensorProto.INT32 else 1 << 31
    return all(abs(c) < most for x in data.ravel() for c in ([c for _, c in x.terms] if isinstance(x, Sym) else [x]))


def _old_softmax(terms: Terms, op: str, x: Term, axis: int) -> Term:
    """Before opset 13 Softmax works on the input flattened to two dimensions at `axis`."""
    if x.shape is None:
        return terms.raw(f"{op}-1", [x], (("axis", axis),), shape=None, dtype=x.dtype)
    axis = normal_axis(axis, len(x.shape))
    if all(d == 1 for d in x.shape[axis + 1 :]):
        return make(terms, op, [x], {"axis": axis - len(x.shape)})
    flat = reshape(terms, x, (product(x.shape[:axis]), product(x.shape[axis:])))
    return reshape(terms, make(terms, op, [flat], {"axis": -1}), x.shape)


def _split(
    terms: Terms, x: Term, attrs: dict[str, Any], inferred: list[tuple[Shape | None, int]]
) -> list[tuple[Term, int]]:
    assert x.shape is not None
    axis, parts = normal_axis(attrs.get("axis", 0), len(x.shape)), list[tuple[Term, int]]()
    start: Dim = 0
    for shape, dtype in inferred:
        assert shape is not None
        stop = start + shape[axis]
        parts.append((slice_axis(terms, x, axis, start, stop), dtype))
        start = stop
    return parts


def _to_canonical(view: View, op: str, args: list[Term], attrs: dict[str, Any]) -> None:
    """Edit inputs and attributes into the canonical form: small integers as attributes, bounds as inputs."""
    if op in AXES_INPUT:
        position, name, _ = AXES_INPUT[op]
        data = args[position].data if len(args) > position and args[position].op == "Constant" else None
        if data is not None:
            attrs[name] = tuple(int(i) for i in data.ravel())
            del args[position:]
    bounds = old_bounds(op, attrs)
    for _, value in bounds:
        if value is None:
            args.append(view.terms.absent)
        elif isinstance(value, float):
            args.append(view.terms.number(value, args[0].dtype))
        elif op == "TopK":
            args.append(view.terms.constant(np.array([value], np.int64), TensorProto.INT64))
        else:
            args.append(view.terms.constant(np.array(value, np.int64), TensorProto.INT64))
    while args and args[-1].op == "Absent":
        args.pop()


def _constant_node(view: View, node: NodeProto) -> tuple[Term, int]:
    attribute, name = node.attribute[0], node.output[0]
    if attribute.ref_attr_name:
        dtype = {"value_float": TensorProto.FLOAT, "value_int": TensorProto.INT64}.get(attribute.name, 0)
        return view.terms.input(name, () if dtype else None, dtype), dtype
    if attribute.name == "value":
        return constant_term(view, name, attribute.t), attribute.t.data_type
    value = attribute_value(attribute)
    if dtype := CONSTANTS.get(attribute.name, 0):
        return view.terms.constant(np.array(value, numpy_dtype(dtype)), dtype), dtype
    dtype, shape = view.graph.type_of(name)
    return view.terms.input(name, shape, dtype), dtype


def _standard(view: View, node: NodeProto) -> str:
    """The op of ai.onnx that a node computes, however it is called; the empty string if it is none that is known."""
    op = node.op_type
    if node.domain not in STANDARD:
        return ""
    if in_onnx(op, view.graph.opset):
        return op
    if not added(node, view.graph.opset) or "stash_type" in attributes_of(node, view.graph.opset):
        return ""
    if op == "SimplifiedLayerNormalization":
        for name in node.input:
            view.term(name)
        alike = len({view.dtypes[name] for name in node.input}) == 1
        return "RMSNormalization" if alike and not any(node.output[1:]) else ""
    return op


def _foreign(view: View, index: int, node: NodeProto) -> list[tuple[Term, int]]:
    """A node of another domain, or of ai.onnx and unknown there: rules may match it by its full name; nothing else is
    known of it."""
    if has_bodies(node) or any(a.ref_attr_name for a in node.attribute):
        return _opaque(view, node)
    args = [view.term(name) for name in node.input]
    while args and args[-1].op == "Absent":
        args.pop()
    attrs = {a.name: attribute_value(a) for a in node.attribute}
    name = f"{node.domain or 'ai.onnx'}.{node.op_type}"
    key = (node.overload, index) if view.effects[index] else node.overload or None
    types = [view.graph.type_of(output) if output else (0, None) for output in node.output]
    if not types:
        return []
    if node.domain == MICROSOFT:
        found = infer(view.terms, name, args, attrs, len(types))
        found = [*found, *[(None, 0)] * len(types)][: len(types)]
        # A declaration may leave open what the operands tell.
        types = [
            (dtype, shape) if like is None else (dtype or _value_dtype(view, node, other), like)
            for (dtype, shape), (like, other) in zip(types, found, strict=True)
        ]
    if len(types) == 1:
        dtype, shape = types[0]
        return [(view.terms.raw(name, args, _frozen(attrs), shape=shape, dtype=dtype, key=key), dtype)]
    whole = view.terms.raw(name, args, _frozen(attrs), shape=None, dtype=types[0][0], key=key)
    return [
        (view.terms.raw("Output", [whole], (("index", i),), shape=shape, dtype=dtype), dtype)
        for i, (dtype, shape) in enumerate(types)
    ]
