"""Inputs on which a model runs and means something, at several consistent sizes."""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from onnxfuse import usage
from onnxfuse.errors import UsageError

Sizes = dict[str, int]

LADDERS: dict[str, tuple[int, ...]] = {
    "batch": (3, 1, 2, 4),
    "sequence": (7, 13, 16, 5, 32, 3, 64, 128, 2, 1, 77, 256),
    "past": (5, 9, 8, 16, 1),
    "image": (37, 64, 96, 32, 224, 128, 28, 256, 299, 384, 512),
    "signal": (401, 1601, 3000, 50, 16000, 100),
}
"""Sizes to try for a dynamic axis, by kind.  Odd ones first: they catch a fusion that rounds or swaps dimensions."""
_ATTEMPTS = 48
_BATCH_NAME = re.compile(r"batch|^b$|^bs$", re.IGNORECASE)
_PAST_NAME = re.compile(r"past|cache", re.IGNORECASE)
_IMAGE_NAME = re.compile(r"height|width|^h$|^w$", re.IGNORECASE)
_SIGNAL_NAME = re.compile(r"samples|frames|audio", re.IGNORECASE)
_POSITION_NAME = re.compile(r"(^|_)pos(ition)?s?(_|$)", re.IGNORECASE)


_LARGEST = 1 << 31
"""Elements of a generated input: more is a mistake of the model, and more than the memory of most machines."""


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs: a name such as ``batch=3 seq=7``, and by input name what onnxruntime is fed.

    A tensor is an array of the input's dtype (ml_dtypes has those that numpy lacks), a sequence a list of arrays.
    """

    name: str
    inputs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Input:
    """A graph input that must be fed: its dims are sizes or the names of symbols."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[int | str, ...]
    sequence: bool
    usage: usage.Usage

    @property
    def past(self) -> bool:
        return bool(_PAST_NAME.search(self.name)) and len(self.dims) >= 3 and not self.integer

    @property
    def integer(self) -> bool:
        return bool(np.issubdtype(self.dtype, np.integer))


def generate(
    model: onnx.ModelProto,
    runs: Callable[[Case], str],
    *,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    given: Mapping[str, np.ndarray] | None = None,
    one: bool = False,
) -> tuple[list[Case], str]:
    """Cases that `model` runs on; without any, the reason why.

    `runs` runs the model on a case and returns an error in one line, or "".  Integer inputs stay inside the tables
    they index, masks are 0 and 1 with at least one 1 a row, equal symbols get equal sizes.  A model with dynamic axes
    gets two cases at different sizes and, where its inputs may differ in axes that bear one name, a third in which they
    do.  With `one`, the first case is enough.  `shapes` fixes the dims of inputs by name; `given` replaces generation
    altogether.

    Raises UsageError where `shapes` or `given` do not fit the model.
    """
    try:
        inputs = _inputs(model, shapes or {})
    except _UnsupportedError as unsupported:
        return [], str(unsupported)
    fixed = _fixed(inputs, shapes or {})
    if given is None and inputs:
        return _search(_Search(inputs, _kinds(inputs, fixed), fixed, runs, seed), one)
    case = Case("no inputs", {}) if given is None else _given(inputs, given)
    failure = runs(case)
    return ([], failure) if failure else ([case], "")


def assumed(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[dict[str, tuple[int, ...]], str]:
    """Shapes of all inputs as `generate` tries them first, and the sizes among them that `shapes` does not give, such
    as ``batch=3 sequence=7``.  Nothing is run; both are empty where nothing can be generated.

    Raises UsageError where `shapes` do not fit the model.
    """
    try:
        inputs = _inputs(model, shapes or {})
    except _UnsupportedError:
        return {}, ""
    fixed = _fixed(inputs, shapes or {})
    search = _Search(inputs, _kinds(inputs, fixed), fixed, lambda case: "", 0)
    search.covers_past = any(item.past for item in inputs)
    sizes = search.sizes(dict.fromkeys(search.kinds.values(), 0))
    free = {
        name: {dim: size for dim, size in own.items() if dim not in fixed and f"{name}:{dim}" not in fixed}
        for name, own in sizes.items()
    }
    return {item.name: _sizes(item, sizes) for item in inputs}, _named(free)


@dataclass(slots=True)
class _Search:
    """The walk over sizes until the model has run on enough of them."""

    inputs: list[_Input]
    kinds: dict[str, str]
    fixed: Sizes
    runs: Callable[[Case], str]
    seed: int
    covers_past: bool = True
    """A mask beside a key/value cache spans the cached positions and the new ones, whatever its symbol says."""
    careful: bool = False
    """Integers whose use could not be traced are 0 and 1 only."""
    cases: list[Case] = field(default_factory=list)
    tried: list[dict[str, Sizes]] = field(default_factory=list)
    first_error: str = ""

    def attempt(self, rung: dict[str, int], split: frozenset[str] = frozenset(), kind: str = "") -> bool:
        """Runs the model at the sizes of `rung`, inputs or symbols in `split` one step on in axes of `kind`."""
        shapes = self.sizes(rung, split, kind)
        if kind and shapes in self.tried:
            return False
        self.tried.append(shapes)
        error = _impossible(self.inputs, shapes)
        if not error:
            case = _case(self.inputs, shapes, self.seed, len(self.cases), self.careful)
            error = self.runs(case)
            if not error:
                self.cases.append(case)
        self.first_error = self.first_error or error
        return not error

    def sizes(self, rung: dict[str, int], split: frozenset[str] = frozenset(), kind: str = "") -> dict[str, Sizes]:
        """The size of each dynamic dim, by input."""
        shapes = {item.name: self._sizes(item, rung, split, kind) for item in self.inputs}
        if self.covers_past:
            _cover_past(self.inputs, self.fixed, shapes)
        return shapes

    def _sizes(self, item: _Input, rung: dict[str, int], split: frozenset[str], kind: str) -> Sizes:
        """The size of each dynamic dim of `item`."""
        symbols = {}
        for symbol, own_kind in self.kinds.items():
            step = rung[own_kind] + (own_kind == kind and (item.name in split or symbol in split))
            symbols[symbol] = LADDERS[own_kind][step % len(LADDERS[own_kind])]
        sizes = {}
        for dim in item.dims:
            if isinstance(dim, str):
                own = self.fixed.get(f"{item.name}:{dim}")
                sizes[dim] = _evaluate(dim, self.fixed | symbols) if own is None else own
        return sizes


def _search(search: _Search, one: bool) -> tuple[list[Case], str]:
    axes = sorted(set(search.kinds.values()))
    steps = itertools.product(*(range(len(LADDERS[kind])) for kind in axes))
    ladder = sorted((dict(zip(axes, step, strict=True)) for step in steps), key=lambda rung: sum(rung.values()))
    ladder = ladder[:_ATTEMPTS]
    has_past = any(item.past for item in search.inputs)
    for search.careful, search.covers_past in ((False, has_past), (False, False), (True, has_past)):
        first = next((rung for rung in ladder if search.attempt(rung)), None)
        if first is not None:
            break
    else:
        return [], search.first_error
    if one:
        return search.cases, ""
    # Where the model fixes one axis inside, a second size must differ in the others alone; most different first.
    others = [rung for rung in ladder if rung != first]
    others.sort(key=lambda rung: (sum(rung[kind] == first[kind] for kind in axes), sum(rung.values())))
    any(search.attempt(rung) for rung in others)
    splits = ((kind, split) for kind in axes if kind != "batch" for split in _splits(search.inputs, search.kinds, kind))
    any(search.attempt(first, split, kind) for kind, split in splits)
    return search.cases, ""


def _splits(inputs: list[_Input], kinds: dict[str, str], kind: str) -> Iterator[frozenset[str]]:
    """Sets of inputs, or symbols, that may take another size than the rest: inputs can share a symbol by mistake."""
    if kind == "image":
        widths = (symbol for item in inputs for dim in item.dims[-1:] for symbol in _symbols(dim))
        yield frozenset(symbol for symbol in widths if kinds.get(symbol) == kind)
    groups: dict[tuple[Any, ...], list[str]] = {}
    for item in inputs:
        if any(kinds.get(symbol) == kind for dim in item.dims for symbol in _symbols(dim)):
            groups.setdefault((item.dims, item.dtype.str) if item.past else (item.name,), []).append(item.name)
    members = list(groups.values())
    # Every division in two once: the first group stays where it is.
    for count in range(1, len(members)) if len(members) <= 4 else (1,):
        for chosen in itertools.combinations(members[1:], count):
            yield frozenset(itertools.chain.from_iterable(chosen))


def _inputs(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> list[_Input]:
    used = usage.trace(model)
    initializers = {tensor.name for tensor in model.graph.initializer}
    initializers |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    result = []
    for info in model.graph.input:
        if info.name in initializers:
            continue
        kind, sequence = info.type, False
        while (wrapper := kind.WhichOneof("value")) in ("optional_type", "sequence_type"):
            sequence |= wrapper == "sequence_type"
            kind = getattr(kind, wrapper).elem_type
        if wrapper != "tensor_type":
            raise _UnsupportedError(
                f"no values can be generated for input {info.name!r} of type {wrapper or 'unknown'}"
            )
        tensor = kind.tensor_type
        if not tensor.HasField("shape") and info.name not in shapes:
            raise _UnsupportedError(f"input {info.name!r} has no rank: say --shape {info.name}:DIM,DIM,...")
        dims: tuple[int | str, ...] = tuple(
            dim.dim_value
            if dim.HasField("dim_value") and dim.dim_value >= 0
            else dim.dim_param or f"{info.name}.{axis}"
            for axis, dim in enumerate(tensor.shape.dim)
        )
        if not tensor.HasField("shape"):
            dims = tuple(f"{info.name}.{axis}" for axis in range(len(shapes[info.name])))
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        result.append(_Input(info.name, dtype, dims, sequence, used[info.name]))
    return result


class _UnsupportedError(Exception):
    """An input for which nothing can be generated; the text is the reason."""


def _fixed(inputs: list[_Input], shapes: Mapping[str, Sequence[int]]) -> Sizes:
    """What `shapes` says about the symbols."""
    by_name = {item.name: item for item in inputs}
    fixed: Sizes = {}
    for name, sizes in shapes.items():
        if name not in by_name:
            raise UsageError(f"--shape {name}: no such input; the model has {', '.join(by_name) or 'none'}")
        dims = by_name[name].dims
        if not _fits(sizes, dims):
            raise UsageError(f"--shape {name}:{_text(sizes)} does not fit the declared [{_text(dims)}]")
        for dim, size in zip(dims, sizes, strict=True):
            if isinstance(dim, str):
                fixed.setdefault(dim, size)
                fixed[f"{name}:{dim}"] = size
    return fixed


def _given(inputs: list[_Input], given: Mapping[str, np.ndarray]) -> Case:
    by_name = {item.name: item for item in inputs}
    for name in given:
        if name not in by_name:
            raise UsageError(f"--inputs: {name!r} is no input of the model, which wants {', '.join(by_name) or 'none'}")
    for item in inputs:
        wanted = f"{item.dtype}[{_text(item.dims)}]"
        if item.name not in given:
            raise UsageError(f"--inputs: input {item.name!r} is missing; the model wants {wanted}")
        array = given[item.name]
        kind_fits = array.dtype == item.dtype or (item.dtype.kind == "O" and array.dtype.kind in "OUST")
        if not kind_fits or not (item.sequence or _fits(array.shape, item.dims)):
            raise UsageError(
                f"--inputs: input {item.name!r} is {array.dtype}[{_text(array.shape)}]; the model wants {wanted}"
            )
    return Case("given", {n: list(a) if by_name[n].sequence else a for n, a in given.items()})


def _fits(sizes: Sequence[int], dims: tuple[int | str, ...]) -> bool:
    return len(sizes) == len(dims) and all(isinstance(d, str) or d == s for s, d in zip(sizes, dims, strict=True))


def _text(dims: Sequence[int | str]) -> str:
    return ",".join(map(str, dims))


def _kinds(inputs: list[_Input], fixed: Sizes) -> dict[str, str]:
    """The ladder that each free symbol climbs, guessed from its name, else from where it stands."""
    kinds: dict[str, str] = {}
    for item in inputs:
        for axis, dim in enumerate(item.dims):
            for symbol in _symbols(dim):
                if symbol not in fixed:
                    kinds.setdefault(symbol, _kind(item, axis, symbol))
    return kinds


def _kind(item: _Input, axis: int, symbol: str) -> str:
    label = "" if "." in symbol else symbol
    if _BATCH_NAME.search(label) or (label.lower() == "n" and not axis):
        return "batch"
    if _PAST_NAME.search(label):
        return "past"
    if _IMAGE_NAME.search(label):
        return "image"
    if _SIGNAL_NAME.search(label):
        return "signal"
    rank = len(item.dims)
    if axis == 0 and rank > 1:
        return "batch"
    if item.past:
        return "past"
    if item.dtype.kind in "fV" and not item.usage.mask:
        if rank >= 4 and axis >= 2:
            return "image"
        if rank == 2 or (rank == 3 and axis == 2):
            return "signal"
    return "sequence"


def _symbols(dim: int | str) -> set[str]:
    """The symbols of a dim; exporters also write sums and products such as ``past_length + seq``."""
    tree = _expression(dim) if isinstance(dim, str) else None
    if tree is None:
        return {dim} if isinstance(dim, str) else set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}


def _expression(dim: str) -> ast.expr | None:
    """The arithmetic in a dim_param; None where it is just a label, such as ``batch-size``."""
    if re.search(r"\w-[A-Za-z_]", dim):
        return None
    try:
        tree = ast.parse(dim.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None
    known = (ast.BinOp, ast.Name, ast.Constant, ast.operator, ast.expr_context)
    arithmetic = all(
        isinstance(node, known)
        and (not isinstance(node, ast.operator) or type(node) in _OPERATORS)
        and (not isinstance(node, ast.Constant) or type(node.value) is int)
        for node in ast.walk(tree)
    )
    return tree if arithmetic else None


def _evaluate(dim: str, sizes: Sizes) -> int:
    """The size of a dim, given those of its symbols."""

    def walk(tree: ast.expr) -> int:
        match tree:
            case ast.Name(name):
                return sizes[name]
            case ast.BinOp(left, kind, right):
                return _OPERATORS[type(kind)](walk(left), walk(right) or 1)
            case ast.Constant(int(value)):
                return value
        raise AssertionError(ast.dump(tree))

    tree = _expression(dim)
    return sizes[dim] if tree is None else walk(tree)


def _cover_past(inputs: list[_Input], fixed: Sizes, shapes: dict[str, Sizes]) -> None:
    """Sets the length of masks beside a key/value cache to cached plus new positions."""
    past = next((item for item in inputs if item.past), None)
    tokens = next((item for item in inputs if item.integer and len(item.dims) == 2 and not item.usage.mask), None)
    if past is None or tokens is None:
        return
    # The cached axis is the dynamic one besides the batch; [batch, heads, length, size] where all are static.
    axis = next((a for a, dim in enumerate(past.dims) if a and isinstance(dim, str)), len(past.dims) - 2)
    length = _sizes(past, shapes)[axis] + _sizes(tokens, shapes)[1]
    for item in inputs:
        last = item.dims[-1] if item.dims else 1
        # A sum in the symbol already says so.
        if item.usage.mask and isinstance(last, str) and len(_symbols(last)) < 2 and f"{item.name}:{last}" not in fixed:
            shapes[item.name][last] = length


def _sizes(item: _Input, shapes: dict[str, Sizes]) -> tuple[int, ...]:
    return tuple(shapes[item.name][dim] if isinstance(dim, str) else dim for dim in item.dims)


def _impossible(inputs: list[_Input], shapes: dict[str, Sizes]) -> str:
    """Why an input cannot have the shape that the model declares, such as a size of ``batch - 9``; "" if all can."""
    for item in inputs:
        sizes = _sizes(item, shapes)
        if min(sizes, default=0) < 0 or math.prod(sizes) > _LARGEST:
            return f"input {item.name!r} would have the shape {list(sizes)}: give it --inputs or --shape"
    return ""


def _case(inputs: list[_Input], shapes: dict[str, Sizes], seed: int, number: int, careful: bool) -> Case:
    feeds: dict[str, Any] = {}
    for item in inputs:
        rng = np.random.default_rng([seed, number, zlib.crc32(item.name.encode())])
        sizes = _sizes(item, shapes)
        draw = [_values(item, sizes, rng, shapes, number, careful) for _ in range(2 if item.sequence else 1)]
        feeds[item.name] = draw if item.sequence else draw[0]
    return Case(_named(shapes) or "static shapes", feeds)


def _named(shapes: Mapping[str, Sizes]) -> str:
    """The sizes of all inputs by symbol: ``batch=3 sequence=7/12``."""
    label: dict[str, list[int]] = {}
    for known in shapes.values():
        for dim, size in known.items():
            label.setdefault(dim, []).append(size)
    return " ".join(f"{dim}={'/'.join(map(str, dict.fromkeys(sizes)))}" for dim, sizes in label.items())


def _values(
    item: _Input, sizes: tuple[int, ...], rng: np.random.Generator, shapes: dict[str, Sizes], number: int, careful: bool
) -> np.ndarray:
    symbols: Sizes = {}
    for known in shapes.values():
        for symbol, size in known.items():
            symbols[symbol] = min(size, symbols.get(symbol, size))
    bound = item.usage.bound(symbols)
    if item.dtype.kind == "O":
        return np.array(rng.choice(["", "a", "onnx", "fusion"], sizes), dtype=object).reshape(sizes)
    if item.dtype == np.bool_ and not sizes:
        return np.array(number % 2 == 0)  # a switch: both ways over two cases
    if item.dtype == np.bool_ or item.usage.mask:
        values = rng.integers(0, 2, sizes)
        if sizes and values.size:
            values[..., 0] = 1  # a row that attends to nothing has no meaning, and often no number
    elif item.integer and _POSITION_NAME.search(item.name) and sizes:
        values = np.broadcast_to(np.arange(sizes[-1]) % (bound or sizes[-1] or 1), sizes)
    elif bound is not None:
        values = rng.integers(0, bound, sizes)
    elif item.usage.count:
        values = rng.integers(1, 4, sizes)
    elif item.integer:
        top = 2 if careful else 10 if item.dtype.itemsize > 1 else min(np.iinfo(item.dtype).max + 1, 128)
        values = rng.integers(0, top, sizes)
    elif item.usage.positive:
        return np.asarray(rng.uniform(0.1, 2.0, sizes)).astype(item.dtype)
    elif item.dtype.kind == "c":
        return np.asarray(rng.standard_normal(sizes) + 1j * rng.standard_normal(sizes)).astype(item.dtype)
    else:
        return np.asarray(rng.standard_normal(sizes)).astype(item.dtype)
    return np.asarray(values).astype(item.dtype)
