"""Hash-consed terms: the normal-form view of a graph, used to search it and never written back.

A term is a mathematical expression over the graph's inputs and constants.  Two values of a graph that are equal in the
normal form share one term, however the exporter spelled them.  Floating-point terms stand for real numbers: a Cast
between float types is the identity here, and which dtype a *value* has is remembered beside the graph, not in the term.
So a float32 island in a float16 model looks like the same mathematics, and a fused op may keep more precision, never
less.

Terms are created in topological order: an argument's `id` is smaller than its user's.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from onnx import TensorProto

from onnxfuse.model.dims import Shape, Sym, symbol
from onnxfuse.model.op_traits import FOLDABLE, GROWING, PARTIAL
from onnxfuse.model.schema import Attrs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .blockwise import Blockwise, Families

REAL = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16})
HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
PRECISE = REAL - HALF
"""Real types that hold every size and position of a tensor: integers up to 2**24."""
INTEGER = frozenset({TensorProto.INT64, TensorProto.INT32})
SMALL = 1024
"""Constants up to so many elements are compared and folded by content when the graph is read, larger ones on demand."""
LEVELS = 8
"""How many steps below a term its ops are known without a walk."""
WIDTH = 128
"""Bits of a level of `Term.below`; ops beyond so many share a bit, which lets a few more terms through."""
_LEVEL = (1 << WIDTH) - 1
_ALL = (1 << LEVELS * WIDTH) - 1
_EVERY = sum(1 << level * WIDTH for level in range(LEVELS))

BLOCKWISE, STORED = "blockwise", "stored"
"""What the key of a constant begins with whose elements are not known: of a small one of which each block has its own,
and of one that is known by name."""
CLOSED = ("closed",)
"""The key of a sum or product that is one operand of a longer one, and not taken apart: several nodes use its value."""
Attributes: TypeAlias = Mapping[str, Any]
"""The attributes of an op that is about to become a term."""
Array: TypeAlias = "NDArray[Any]"
Mark: TypeAlias = tuple[int, int, int, int, int]
"""How much there is of each part of a table (`Terms.mark`); of terms first."""


class Term:
    """One expression.  `scalar` is its number if it is a constant with one element; `data` are the (symbolic) integers
    it holds if it computes with shapes."""

    __slots__ = ("args", "attrs", "below", "constant", "data", "dtype", "id", "key", "load", "op", "scalar", "shape")

    op: str
    args: tuple[Term, ...]
    attrs: Attrs
    key: object
    id: int
    shape: Shape | None
    dtype: int
    scalar: float | None
    data: Array | None
    constant: bool
    below: int
    load: Callable[[], Array] | Blockwise | None
    """What gives the elements of a constant; a Blockwise is one of which each block has its own."""

    def __repr__(self) -> str:
        if self.scalar is not None:
            return f"{self.scalar:.6g}"
        attrs = "".join(f", {k}={v}" for k, v in self.attrs) if self.op not in ("Constant", "Input") else ""
        return f"{self.op}#{self.id}({', '.join(f'#{a.id}' for a in self.args)}{attrs})"

    def __str__(self) -> str:
        """A few words for a user."""
        if self.scalar is not None:
            return f"{self.scalar:.6g}"
        if self.op == "Input":
            return "an input"
        return f"a constant of shape {list(self.shape or ())}" if self.op == "Constant" else self.op

    def attr(self, name: str, default: Any = None) -> Any:
        for key, value in self.attrs:
            if key == name:
                return value
        return default

    def ops_within(self, steps: int) -> int:
        """The bits (`Terms.bit`) of the ops at most so many steps below, the term's own among them."""
        return (self.below >> steps * WIDTH) & _LEVEL

    @property
    def closed(self) -> bool:
        """Is it a sum or product that a longer one does not take apart?"""
        return self.key is CLOSED

    @property
    def by_content(self) -> bool:
        """Is it a constant that is known by its elements, which it has?"""
        return self.op == "Constant" and isinstance(self.key, tuple) and self.key[0] not in (BLOCKWISE, STORED)

    @property
    def real(self) -> bool:
        return self.dtype in REAL

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)


class Terms:
    """The table that makes equal expressions the same object."""

    def __init__(self, families: Families | None = None) -> None:
        """`families` are those of constants of which each block has its own, where there are any."""
        self.families = families
        self._table: dict[tuple[Any, ...], Term] = {}
        self.seen: dict[str, int] = {}
        """The ops that terms are of, and the bit that stands for each."""
        self._numbers: dict[tuple[float, int, int], Term] = {}
        self.unknowns = 0
        """How many dimensions were made of which nothing is known."""
        self.inferred: dict[tuple[Any, ...], list[tuple[Shape | None, int]]] = {}
        """What was inferred with such dimensions: op, arguments, attributes, outputs → (shape, dtype) of each."""

    def fork(self) -> Terms:
        """A table with the same terms, in which others can be made without this one's knowing.

        What is made there gets the ids that it would get here, so that no order depends on what was made in another
        fork."""
        other = Terms()
        vars(other).update({name: copy(value) for name, value in vars(self).items()})
        return other

    def mark(self) -> Mark:
        """How far the table has come."""
        return len(self._table), len(self.seen), len(self._numbers), self.unknowns, len(self.inferred)

    def rewind(self, mark: Mark) -> None:
        """Forget what was made since a mark: what is made next is what was made next then."""
        terms, bits, numbers, self.unknowns, inferred = mark
        parts: tuple[dict[Any, Any], ...] = (self._table, self.seen, self._numbers, self.inferred)
        for part, size in zip(parts, (terms, bits, numbers, inferred), strict=True):
            while len(part) > size:
                part.popitem()

    def __len__(self) -> int:
        return len(self._table)

    def bit(self, op: str) -> int:
        """The bit that stands for an op in `Term.ops_within`."""
        bit = self.seen.get(op)
        if bit is None:
            bit = self.seen[op] = 1 << len(self.seen) % WIDTH
        return bit

    def _every(self, op: str) -> int:
        """That bit on every level; all leaves of an op have the same integer."""
        return _every(self.bit(op))

    def bits(self, ops: Iterable[str]) -> int | None:
        """The bits of several ops; None if there is an op among them that no term is of."""
        bits, known = 0, self.seen
        for op in ops:
            bit = known.get(op)
            if bit is None:
                return None
            bits |= bit
        return bits

    def symbols(self) -> set[str]:
        """The symbols in the shapes of all terms."""
        dims = {dim for term in self._table.values() for dim in term.shape or () if isinstance(dim, Sym)}
        return {name for dim in dims for name in dim.symbols}

    def __iter__(self) -> Iterator[Term]:
        """Every term there is."""
        return iter(self._table.values())

    def fresh_dim(self) -> Sym:
        self.unknowns += 1
        return symbol(f"?{self.unknowns}")

    def fresh_shape(self, rank: int) -> Shape:
        return tuple(self.fresh_dim() for _ in range(rank))

    def raw(
        self,
        op: str,
        args: Iterable[Term] = (),
        attrs: Attrs = (),
        *,
        shape: Shape | None,
        dtype: int,
        key: object = None,
        data: Array | None = None,
        scalar: float | None = None,
        load: Callable[[], Array] | Blockwise | None = None,
    ) -> Term:
        """Intern a term as it is, with no rewriting; `key` tells apart what op, arguments and attributes do not."""
        args = tuple(args)
        identity = (op, tuple([a.id for a in args]), attrs, key)
        term = self._table.get(identity)
        if term is not None:
            return term
        term = Term()
        term.op, term.args, term.attrs, term.key, term.id = op, args, attrs, key, len(self._table)
        term.shape, term.dtype, term.data, term.scalar, term.load = shape, dtype, data, scalar, load
        below, constant = 0, bool(args)
        for a in args:
            below |= a.below
            constant = constant and (a.constant or (a.op == "Absent" and op in PARTIAL))
        term.constant = load is not None or (constant and op in FOLDABLE and _foldable_to(op, shape) and _fixed(attrs))
        # One integer, a level in each WIDTH bits: what is k steps below an argument is k + 1 steps below its user.
        term.below = (below << WIDTH) & _ALL | self._every(op) if args else self._every(op)
        self._table[identity] = term
        return term

    def input(self, name: str, shape: Shape | None, dtype: int) -> Term:
        """A leaf: a value that this graph does not compute, or computes in a way that no rule understands."""
        return self.raw("Input", shape=shape, dtype=dtype, key=name)

    @property
    def absent(self) -> Term:
        """An optional input that is not given."""
        return self.raw("Absent", shape=None, dtype=0)

    def constant(self, array: Array, dtype: int, key: object = None) -> Term:
        """A constant by content; floats of one element by their real value, whatever their dtype."""
        scalar = float(array.item()) if array.size == 1 and array.dtype != object else None
        shape = array.shape
        if key is None:
            if dtype not in REAL:
                key = (dtype, shape, array.tobytes() if array.dtype != object else repr(array.tolist()))
            elif scalar is not None:
                key = ("real", shape, struct.pack("<d", scalar))
            else:
                with np.errstate(invalid="ignore"):  # a signalling NaN is one all the same
                    key = ("real", shape, array.astype("f8").tobytes())
                if self.families is not None and 1 < array.size <= SMALL:
                    self.families.common(array)
        data = array.astype(object) if dtype in (*INTEGER, TensorProto.BOOL) and array.size <= 64 else None
        # A model may have a million constants: a method of the array is a fifth of a function that returns it.
        return self.raw("Constant", shape=shape, dtype=dtype, key=key, scalar=scalar, data=data, load=array.view)

    def like(self, other: Term) -> Term:
        """The constant that a term of another table is, whose elements need not be read once more."""
        shape, dtype, data = other.shape, other.dtype, other.data
        return self.raw(
            "Constant", shape=shape, dtype=dtype, key=other.key, scalar=other.scalar, data=data, load=other.load
        )

    def stored(self, name: object, shape: Shape, dtype: int, load: Callable[[], Array] | Blockwise) -> Term:
        """A constant known by name, whose elements are read only when somebody asks for them."""
        return self.raw("Constant", shape=shape, dtype=dtype, key=(STORED, name), load=load)

    def blockwise(self, own: Blockwise, shape: Shape, dtype: int) -> Term:
        """A small constant of real numbers of which each block has its own.  Raises UnevenError where it is another's
        in some blocks alone."""
        own = own.family.families.small(own)
        return self.raw("Constant", shape=shape, dtype=dtype, key=(BLOCKWISE, own.family.number, own.block), load=own)

    def number(self, value: float, dtype: int, rank: int = 0) -> Term:
        """A constant of one element and the given rank."""
        known = self._numbers.get((value, dtype, rank))
        if known is None or not value:  # 0 and -0 are equal
            kind = np.float64 if dtype in REAL else numpy_dtype(dtype)
            known = self._numbers[value, dtype, rank] = self.constant(np.full((1,) * rank, value, kind), dtype)
        return known

    def integers(self, data: Array, dtype: int = TensorProto.INT64) -> Term:
        """A tensor of integers that may be symbolic, such as the result of Shape."""
        if all(not isinstance(x, Sym) for x in data.ravel()):
            return self.constant(np.array(data.tolist(), numpy_dtype(dtype)).reshape(data.shape), dtype)
        key = (dtype, data.shape, tuple(data.ravel()))
        return self.raw("Integers", shape=tuple(data.shape), dtype=dtype, key=key, data=data)


@cache
def _every(bit: int) -> int:
    return bit * _EVERY


def _foldable_to(op: str, shape: Shape | None) -> bool:
    """Is a constant of this shape to be folded?  One of few arguments may be larger than any file."""
    dims = static(shape)
    return dims is not None and (op not in GROWING or math.prod(dims) <= _ROOM)


def _fixed(attrs: Attrs) -> bool:
    """Do the attributes say the same for every input?  A table sliced at a position that a cache's length gives is no
    constant, though its shape may be."""
    return not any(isinstance(v, Sym) for _, value in attrs for v in (value if isinstance(value, tuple) else (value,)))


@cache
def numpy_dtype(dtype: int) -> np.dtype[Any]:
    from onnx.helper import tensor_dtype_to_np_dtype

    return np.dtype(tensor_dtype_to_np_dtype(dtype))


class UnknownValueError(ValueError):
    """What a constant term computes has no value: an index beyond its axis, or more elements than there is room for."""


def same_shape(a: Shape | None, b: Shape | None) -> bool:
    """Are the shapes known and equal for every input?"""
    return a is not None and b is not None and a == b


def is_number(term: Term) -> bool:
    return term.scalar is not None and term.dtype in REAL


def static(shape: Shape | None) -> tuple[int, ...] | None:
    """The shape as integers, or None where a dimension is unknown."""
    if shape is None or any(isinstance(d, Sym) for d in shape):
        return None
    return tuple(int(d) for d in shape if not isinstance(d, Sym))


_ROOM = 1 << 26
"""Elements that one of these may have to be folded."""
