"""One node → the terms of its outputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from onnxfuse.language.bodies import output_dtype
from onnxfuse.language.reading import read
from onnxfuse.model.broadcast import broadcast
from onnxfuse.model.dims import Dim, Shape, Sym, product
from onnxfuse.model.graph import DOMAIN, REGION, RULE_KEY, captured_names, family_of
from onnxfuse.model.onnxruntime_ops import NAMED, added
from onnxfuse.model.op_traits import BROADCAST, COERCED, DECLARES_DTYPE, FOLDABLE
from onnxfuse.model.schema import AXES_INPUT, attribute_value, attributes_of, old_bounds
from onnxfuse.model.standard import STANDARD, in_onnx
from onnxfuse.terms.fold import decided
from onnxfuse.terms.infer import infer
from onnxfuse.terms.infer_table import normal_axis
from onnxfuse.terms.normal.normal import fold, make, reshape, slice_axis
from onnxfuse.terms.normal.ranges import throughout
from onnxfuse.terms.normal.table import turning
from onnxfuse.terms.shape_values import shape_data
from onnxfuse.terms.term import REAL, SMALL, Array, Term, Terms, same_shape, static

from .bodies import enclosed
from .called import types_of
from .constants import constant_node
from .progression import progression
from .view import View

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

FROM_SEQUENCE = frozenset({"SequenceAt", "ConcatFromSequence"})
"""Ops whose results have the type that a sequence has, which only its declaration tells."""

LOOKED_INTO = 1 << 16
"""Elements of a constant that is asked whether it repeats one number."""

COUNTABLE = 1 << 62
"""Integers from here on, in magnitude, are no sizes."""


def lift_node(view: View, index: int, node: NodeProto) -> list[tuple[Term, int]]:
    """The outputs of a node; of one that is not what its op demands, as leaves.

    A step of 0, an axis that is none, 4 heads of 6 columns: the node may never run, and if it does it is for the
    runtime to complain.  Here it is only a node that nothing is known of.
    """
    try:
        return _lift(view, index, node)
    except MALFORMED as error:
        if isinstance(error, RecursionError):
            view.endless[index] = turning(error)
        return _opaque(view, node)


def _lift(view: View, index: int, node: NodeProto) -> list[tuple[Term, int]]:
    terms, graph, op = view.terms, view.graph, _standard(view, node)
    if not op:
        return _foreign(view, index, node)
    if op == "Constant":
        return [constant_node(view, node)]
    drops_nothing = op == "Dropout" and _is_inference(view, node)
    if (view.effects[index] and not drops_nothing) or index in graph.captures:
        counted = progression(view, node)
        if counted is not None:
            return _counted(view, node, counted)
        known = None if view.effects[index] else enclosed(view, node, lift_node)
        return _opaque(view, node) if known is None else known
    if graph.is_function and any(a.ref_attr_name for a in node.attribute):
        return _opaque(view, node)
    if op in FROM_SEQUENCE and not graph.type_of(node.output[0])[0]:
        return _opaque(view, node)  # terms do not tell real types apart
    args = [view.term(name) for name in node.input]
    while args and args[-1].op == "Absent":
        args.pop()
    attrs = attributes_of(node, graph.opset)
    count = len(node.output)
    while count > 1 and not node.output[count - 1]:
        count -= 1
    if drops_nothing:
        args, op = args[:1], "Identity" if count == 1 else op
    if op == "CastLike" and view.dtypes[node.input[1]]:
        op, args, attrs = "Cast", args[:1], attrs | {"to": view.dtypes[node.input[1]]}
    known = _read(view, index, node, f"ai.onnx.{op}", args, attrs) if args else None
    if known is not None:
        return known
    _to_canonical(view, op, args, attrs)
    if op in BROADCAST:
        args = _numbers(terms, args)
    inferred = infer(terms, op, args, attrs, count)[:count]
    for i, (shape, dtype) in enumerate(inferred):
        dtype = _value_dtype(view, node, dtype)
        inferred[i] = (shape, dtype)
        name = node.output[i] if i < count else ""
        other = bool(i and name) and op != "Split"
        if shape is None or not dtype or other:
            known_dtype, known_shape = graph.type_of(name) if name else (0, None)
            if other:  # statistics and indices have types of their own
                dtype = known_dtype or output_dtype(op, i, dtype)
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


def _is_inference(view: View, node: NodeProto) -> bool:
    """Does a Dropout drop nothing?  Since ai.onnx 12 its third input says whether it trains, if it is there."""
    mode = node.input[2] if view.graph.opset >= 12 and len(node.input) > 2 else ""
    return not mode or view.term(mode).scalar == 0


def _counted(view: View, node: NodeProto, args: list[Term]) -> list[tuple[Term, int]]:
    """The outputs of a Loop that is a Range: nothing reads the first."""
    unread, name = node.output
    dtype = view.dtypes[node.input[2]]
    ((shape, _),) = infer(view.terms, "Range", args, {})
    view.counted[name] = unread
    return [_opaque(view, node)[0], (_normal(view, "Range", args, {}, shape, dtype), dtype)]


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


def _numbers(terms: Terms, args: list[Term]) -> list[Term]:
    """What repeats one number over the shape of another operand is that number."""
    if not any(arg.op in ("Expand", "Constant") for arg in args):
        return args
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
    if dims is None or not 1 < math.prod(dims) <= LOOKED_INTO:
        return None
    return decided(term, throughout)


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


def _standard(view: View, node: NodeProto) -> str:
    """The op of ai.onnx that a node computes, however it is called; the empty string if it is none that is known."""
    op = node.op_type
    if node.domain not in STANDARD:
        return ""
    if in_onnx(op, view.graph.opset):
        return op
    if not added(node, view.graph.opset) or "stash_type" in attributes_of(node, view.graph.opset):
        return ""
    later = next((later for later, own in NAMED.items() if own == op), None)
    if later is None:
        return op
    for name in node.input:
        view.term(name)
    alike = len({view.dtypes[name] for name in node.input}) == 1
    return later if alike and not any(node.output[1:]) else ""


def _foreign(view: View, index: int, node: NodeProto) -> list[tuple[Term, int]]:
    """A node of another domain, or of ai.onnx and unknown there: rules may match it by its full name; nothing else is
    known of it."""
    if index in view.graph.captures or any(a.ref_attr_name for a in node.attribute):
        return _opaque(view, node)
    args = [view.term(name) for name in node.input]
    while args and args[-1].op == "Absent":
        args.pop()
    attrs = {a.name: attribute_value(a) for a in node.attribute}
    name = f"{node.domain or 'ai.onnx'}.{node.op_type}"
    key = (node.overload, index) if view.effects[index] else node.overload or None
    if not node.output:
        return []
    known = _read(view, index, node, name, args, attrs)
    if known is not None:
        return known
    # What is declared is asked last: where nothing is, onnx goes through the whole model for it.
    types = types_of(view, node, lift_node) if node.domain == DOMAIN and family_of(node) == REGION else None
    types = types or [view.graph.type_of(output) if output else (0, None) for output in node.output]
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


def _read(
    view: View, index: int, node: NodeProto, name: str, args: list[Term], attrs: dict[str, Any]
) -> list[tuple[Term, int]] | None:
    """The outputs of a node of another domain as what it means; None where the catalogue does not say that.

    A node that a rule has made for the model's target is what it was made to be."""
    made_by_rule = node.metadata_props and any(entry.key == RULE_KEY for entry in node.metadata_props)
    if view.catalogue is None or name not in view.catalogue.foreign or view.effects[index] or made_by_rule:
        return None
    results = read(view.terms, name, args, attrs, view.context, view.catalogue)
    if results is None:
        return None
    made: list[tuple[Term, int]] = []
    for position, output in enumerate(node.output):
        result = results[position] if position < len(results) else None
        if not output or not view.graph.uses.get(output):
            result = result or view.terms.absent
        elif result is None or result.shape is None:  # the op may know it all the same
            return None
        made.append((result, _value_dtype(view, node, result.dtype)))
    view.read.add(index)
    return made
