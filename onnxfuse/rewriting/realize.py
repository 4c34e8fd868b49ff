"""Term → nodes: computes a term from values that the graph has already, with new nodes only where there is none.

The inverse of the normal form: a flat sum becomes binary nodes, (-1)x a Sub, Reciprocal a Div, Repeat what it stands
for, a symbolic dimension a Gather from the Shape of a value that has it.  What is written is valid for the scope's
opset, has the element type that is asked for, and reads only values that are computed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto, TensorProto

from onnxfuse.language.bodies import UNKNOWN, Use, asks_for_ranks, asks_for_shapes, output_dtype, real_dtype
from onnxfuse.language.functions import Functions
from onnxfuse.lifting.lift import View
from onnxfuse.matching.match import Match
from onnxfuse.matching.search import Found
from onnxfuse.model.dims import END, Dim, Shape, Sym, product, viewed
from onnxfuse.model.graph import DOMAIN, Names, family, number_of
from onnxfuse.model.schema import integers_as_input, is_standard, make_attribute, tensor
from onnxfuse.model.standard import STANDARD
from onnxfuse.targets.contrib import REQUIRED_OUTPUTS, SINGLE_PRECISION
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.normal.views import is_reshape
from onnxfuse.terms.term import REAL, Array, Attributes, Term, Terms, UnknownValueError, is_number

from .shape_sources import Dimensions, Numbers, Part, Run, without_ones

Spelling: TypeAlias = Callable[[Term, list[str], dict[str, Any], float, str], str]
"""(term, names of its inputs, attrs, limit, wanted name) → name of the value that new nodes give."""


class UnrealisableError(Exception):
    """A term that cannot be computed from the values at hand; the fusion behind it is left out."""


class Speller:
    """Spells the terms of one scope.

    Positions are indices of the scope's nodes; -1 for inputs and constants.  A value that has to be there at `limit` is
    computed from values of smaller positions, and its own nodes stand half a position before it."""

    def __init__(self, view: View, found: Found, names: Names, functions: Functions) -> None:
        self.view, self.found, self.names, self.functions = view, found, names, functions
        self.graph = view.graph
        self.opset = self.graph.opset
        self.own = {node.op_type for node in self.graph.nodes}
        self.nodes: list[tuple[float, int, NodeProto]] = []
        """(position, tie-break, node) of everything that is to be in the scope."""
        self.constants: dict[str, TensorProto] = {}
        self.alias: dict[str, str] = {}
        """Values that are gone → the value that stands for each."""
        self.sites: list[tuple[tuple[Match, ...], NodeProto, str, Term]] = []
        """(matches, node, output, term) of every fused node."""
        self.outputs_of: dict[int, list[str]] = {}
        """Fused ops with several outputs → the values that are such an output, in order."""
        self.declared: dict[str, tuple[Term, int]] = {}
        """Values that have to be declared → (term, element type): onnx's shape inference of Attention-23 takes an
        unknown size of V for 0, and sees nothing behind an op of another domain."""
        self.parts: dict[int, set[int]] = {}
        """Fused ops with several outputs → which of them something needs."""
        self.vacant: dict[int, list[str]] = {}
        """Terms → values whose own nodes are gone: where a new node computes the same, it takes their name."""
        self._known: dict[int, list[tuple[float, str, int]]] = {}
        self._reshapes: dict[int, list[Term]] = {}
        """Terms → the Reshapes of them that are known."""
        self._dims = Dimensions()
        self.named: set[str] = set()
        """Values that some node of the scope to be gives: their own, or a new one."""
        self.kinds: dict[str, int] = {}
        """The element types of values that nodes can read."""
        self._spellings: dict[str, Spelling] = {
            "Reshape": self._reshape,
            "Expand": self._expand,
            "Transpose": self._transpose,
            "Slice": self._slice,
            "Repeat": self._repeat,
            "Concat": self._concat,
        }

    # ------------------------------------------------------------------------------------- values

    def realise(self, term: Term, dtype: int, limit: float, name: str = "") -> str:
        """The name of a value with this term and dtype, made before `limit` if there is none yet.

        Raises UnrealisableError."""
        if term.op == "Absent":
            return ""
        if term.dtype not in REAL:
            dtype = term.dtype
        known = self._lookup(term, dtype, limit)
        if known is not None and (known[1] == dtype or known[1] not in REAL):
            return known[0]
        if term.constant:
            return self.constant(term, dtype, name)
        if known is not None:
            cast = self.node("Cast", [known[0]], {"to": dtype}, limit, name or f"{known[0]}_cast")
            self.kinds[cast] = dtype
            return cast
        name = name or self._vacant_name(term, dtype)
        made = self._reshaped_back(term, dtype, limit, name) or self._build(term, dtype, limit, name)
        self.register(term, limit - 0.5, made, dtype)
        return made

    def _reshaped_back(self, term: Term, dtype: int, limit: float, name: str) -> str | None:
        """From a value that holds the same in another shape: what is computed once need not be again."""
        inner = term.args[0] if is_reshape(term) else term
        if self._lookup(inner, dtype, limit) is not None:
            return None
        for outer in self._reshapes.get(inner.id, ()):
            known = self._lookup(outer, dtype, limit)
            if known is not None and known[1] == dtype and term.shape is not None:
                back = as_reshape(self.view.terms, outer, term.shape)
                return self._reshape(back, [known[0]], dict(back.attrs), limit, name)
        return None

    def _vacant_name(self, term: Term, dtype: int) -> str:
        names = self.vacant.get(term.id, [])
        name = next((name for name in names if self.view.dtypes[name] == dtype), "")
        if name:
            names.remove(name)
        return name

    def register(self, term: Term, position: float, name: str, dtype: int) -> None:
        """A value with this term is computed at this position."""
        self._known.setdefault(term.id, []).append((position, name, dtype))
        if is_reshape(term):
            self._reshapes.setdefault(term.args[0].id, []).append(term)
        self.named.add(name)
        self.kinds[name] = dtype
        self._dims.add(name, term.shape, position)

    def _lookup(self, term: Term, dtype: int, limit: float) -> tuple[str, int] | None:
        """A value with this term that is computed before `limit`, of the wanted dtype if there is one."""
        other = None
        for position, name, kind in self._known.get(term.id, ()):
            if position < limit and name not in self.alias:
                if kind == dtype or dtype not in REAL:
                    return name, kind
                other = other or (name, kind)
        return other

    def _operand(self, term: Term, dtype: int, limit: float) -> str:
        """An operand of an op with a result of this dtype: of the same real type, or of its own if one is not real."""
        return self.realise(term, dtype if dtype in REAL and term.dtype in REAL else term.dtype, limit)

    def _operands(self, term: Term, dtype: int, limit: float) -> list[str]:
        """The operands of an op with a result of this dtype; those of a comparison have the type of the first."""
        if dtype not in REAL:
            dtype = next((a.dtype for a in term.args if a.dtype in REAL), dtype)
        single = SINGLE_PRECISION.get(term.op, frozenset())
        kinds = (int(TensorProto.FLOAT) if i in single else dtype for i in range(len(term.args)))
        return [self._operand(a, kind, limit) for a, kind in zip(term.args, kinds, strict=True)]

    def constant(self, term: Term, dtype: int, name: str = "") -> str:
        """The name of an initializer with the elements of a constant term."""
        if term.dtype not in REAL:
            dtype = term.dtype
        known = self._lookup(term, dtype, 0) if not name else None
        if known is not None and known[1] == dtype:
            return known[0]
        try:
            array = value_of(term)
        except UnknownValueError as error:
            raise UnrealisableError(str(error)) from error
        name = name or self.names.unique(f"onnxfuse/constant_{len(self.constants)}")
        self.constants[name] = tensor(array, name, dtype)
        self.register(term, -1.0, name, dtype)
        return name

    def _integers(self, values: Sequence[int]) -> str:
        array = np.array(list(values), np.int64)
        return self.constant(self.view.terms.constant(array, TensorProto.INT64), TensorProto.INT64)

    def node(
        self, op: str, inputs: Sequence[str], attrs: Attributes, limit: float, name: str = "", domain: str = ""
    ) -> str:
        """A new node just before `limit`; the name of its output, which is `name` if that is a value of the scope.

        Raises UnrealisableError for an op that the graph does not have and the target has no kernel for."""
        if domain == "" and op not in self.own and not self.functions.catalogue.target.has_edition(op, self.opset):
            raise UnrealisableError(f"the provider has no kernel for {op} at opset {self.opset}")
        kind = family(op) if domain == DOMAIN else op
        output = name if name and name in self.graph.producer else self.names.unique(name or f"onnxfuse/{kind}")
        node = NodeProto(op_type=op, domain=domain, input=inputs, output=[output])
        node.name = self.names.unique(self._node_name(output, kind))
        node.attribute.extend(make_attribute(k, v) for k, v in sorted(attrs.items()))
        self.nodes.append((limit - 0.5, len(self.nodes), node))
        return output

    def _node_name(self, output: str, op: str) -> str:
        """The module scope of the value's own node, and the op."""
        index = self.graph.producer.get(output)
        if index is None:
            return f"onnxfuse/{op}"
        own = self.graph.nodes[index].name
        return f"{own.rsplit('/', 1)[0]}/{op}" if "/" in own else (f"{own}_{op}" if own else op)

    # ------------------------------------------------------------------------------------- nodes

    def _build(self, term: Term, dtype: int, limit: float, name: str) -> str:
        """New nodes for one term."""
        op = term.op
        if op == "Output":
            return self._outputs(term, dtype, limit)
        if op in ("Add", "Mul") and dtype in REAL:
            return self._chain(term, dtype, limit, name)
        if op == "Integers":
            assert term.data is not None
            return self._shape_vector(term, limit, name)
        attrs = dict(term.attrs)
        total = term.args[0] if op == "Log" else None
        if total is not None and total.op == "ReduceSum" and len(total.args) == 1 and total.args[0].op == "Exp":
            # The op does not overflow where its parts do.
            x, attrs = total.args[0].args[0], _counted(total.args[0], dict(total.attrs))
            return self._plain("ReduceLogSumExp", [self._operand(x, dtype, limit)], attrs, dtype, limit, name)
        inputs = self._operands(term, dtype, limit)
        if op.startswith("Reduce"):
            attrs = _counted(term.args[0], attrs)
        if term.id in self.found.origins:
            return self._fused(term, inputs, attrs, dtype, limit, name)
        spelling = self._spellings.get(op)
        if spelling is not None:
            return spelling(term, inputs, attrs, limit, name)
        return self._plain(op, inputs, attrs, dtype, limit, name)

    def _plain(self, op: str, inputs: list[str], attrs: dict[str, Any], dtype: int, limit: float, name: str) -> str:
        domain, _, kind = op.rpartition(".")
        domain = "" if domain in STANDARD else domain  # ai.onnx.Sum is the op as it is, not its normal form
        moved = integers_as_input(op, self.opset)
        if moved is not None and moved[1] in attrs:
            inputs = [*inputs, self._integers(attrs.pop(moved[1]))]
        if op == "Cast":
            attrs["to"] = dtype
        if op in ("Softmax", "LogSoftmax"):
            axis = attrs.setdefault("axis", -1)
            if self.opset < 13 and axis != -1:
                raise UnrealisableError(f"before opset 13 {op} works on all axes from {axis} on")
        output = self.node(kind, inputs, attrs, limit, name, domain)
        self._complete(op, self.nodes[-1][2])
        return output

    def _complete(self, op: str, node: NodeProto) -> None:
        """Name the outputs that an op's nodes must have."""
        for i in range(1, REQUIRED_OUTPUTS.get(op, 1)):
            unread = "" if node.output[i:] and node.output[i] else self.names.unique(f"onnxfuse/{node.op_type}")
            node.output[i : i + 1] = [unread or node.output[i]]

    def _fused(
        self,
        term: Term,
        inputs: list[str],
        attrs: dict[str, Any],
        dtype: int,
        limit: float,
        name: str,
        outputs: tuple[bool, ...] = (True,),
    ) -> str:
        matches = self.found.origins.get(term.id)
        if matches is None:  # an op of the original with several outputs, on new operands
            return self._plain(term.op, inputs, attrs, dtype, limit, name)
        rule = matches[-1].rule
        catalogue = self.functions.catalogue
        plain = term.op not in catalogue.definitions or rule.primitive
        if plain or (not catalogue.target.functions and is_standard(term.op, attrs, self.opset)):
            output = self._plain(term.op, inputs, attrs, dtype, limit, name)
            node = self.nodes[-1][2]
            if node.domain not in STANDARD:  # onnx infers nothing behind it, and quantizers want to know the type
                self.declared[output] = (term, dtype)
        else:
            kinds = real_dtype([dtype, *(a.dtype for a in term.args)])
            shapes: tuple[tuple[int | str, ...] | None, ...] = ()
            booleans: tuple[bool, ...] = ()
            if asks_for_shapes(catalogue.definitions[term.op]):
                shapes = _lettered(term.args)
                booleans = tuple(a.dtype == TensorProto.BOOL for a in term.args)
            elif asks_for_ranks(catalogue.definitions[term.op]):
                shapes = tuple(None if a.rank is None else (UNKNOWN,) * a.rank for a in term.args)
            given = tuple(bool(i) for i in inputs)
            use = Use(term.op, given, tuple(sorted(attrs.items())), outputs, kinds, shapes, booleans)
            function = self.functions.of(use, self.opset)
            numbers = [number_of(parameter) for parameter in function.input]
            operands = [i for i in inputs if i]
            operands += [self.constant(self.view.terms.number(n, kinds), kinds) for n in numbers if n is not None]
            output = self.node(function.name, operands, attrs, limit, name, DOMAIN)
            node = self.nodes[-1][2]
        self.sites.append((matches, node, output, term))
        if term.op == "Attention" and len(inputs) > 2 and term.args[2].rank == 3:
            self.declared[inputs[2]] = (term.args[2], dtype)
        return output

    def _outputs(self, term: Term, dtype: int, limit: float) -> str:
        """One output of a fused op with several: the node is written once, with every output that a value waits for.

        All have the same element type: a value of another one keeps its name for the Cast that makes it; one whose own
        node stayed has its name already."""
        whole, current = term.args[0], self.found.current
        if whole.id not in self.found.origins:
            raise UnrealisableError(f"{whole.op} is a node of the graph, whose outputs are where it stands")
        named = sorted(self.outputs_of.get(whole.id, ()), key=lambda name: name not in self.graph.outputs)
        bound = [(current[name].attr("index"), name) for name in named]
        index, asked = term.attr("index"), dtype
        if index:
            dtype = next((self.view.dtypes[name] for i, name in bound if not i), dtype)
        wanted: dict[int, str] = {}
        for i, name in bound:
            if self.view.dtypes[name] == output_dtype(whole.op, i, dtype) and name not in self.named:
                wanted.setdefault(i, name)
        for i in sorted(self.parts.get(whole.id, set()) | {index}):
            if i and i not in wanted:
                wanted[i] = self.names.unique(f"onnxfuse/{whole.op}")
        inputs = self._operands(whole, dtype, limit)
        count = max(wanted, default=0) + 1
        used = tuple(i == 0 or i in wanted for i in range(count))
        first = self._fused(whole, inputs, dict(whole.attrs), dtype, limit, wanted.get(0, ""), used)
        node = self.nodes[-1][2]
        names = [first, *(wanted.get(i, "") for i in range(1, count))]
        node.output[:] = [n for n in names if n] if node.domain == DOMAIN else names
        self._complete(whole.op, node)
        for i, name in enumerate(names):
            if name:
                part = self.view.terms.raw("Output", [whole], (("index", i),), shape=None, dtype=dtype)
                self.register(part, limit - 0.5, name, output_dtype(whole.op, i, dtype))
        if output_dtype(whole.op, index, dtype) != asked:
            return self.node("Cast", [names[index]], {"to": asked}, limit)
        return str(names[index])

    def _chain(self, term: Term, dtype: int, limit: float, name: str) -> str:
        """A flat sum or product as binary nodes; differences and quotients as Sub and Div."""
        inverse, minus = ("Div", "Reciprocal") if term.op == "Mul" else ("Sub", "")
        result = ""
        operands = sorted(term.args, key=lambda a: a.op == "Reciprocal" or _negated(a) is not None)
        for i, operand in enumerate(operands):
            last = name if i == len(operands) - 1 else ""
            if result and minus and operand.op == minus and self._lookup(operand, dtype, limit) is None:
                below = self.realise(operand.args[0], dtype, limit)
                result = self.node(inverse, [result, below], {}, limit, last)
            elif result and not minus and _negated(operand) is not None and self._lookup(operand, dtype, limit) is None:
                positive = _negated(operand)
                assert positive is not None
                result = self.node(inverse, [result, self.realise(positive, dtype, limit)], {}, limit, last)
            else:
                value = self.realise(operand, dtype, limit)
                result = self.node(term.op, [result, value], {}, limit, last) if result else value
        return result

    # ------------------------------------------------------------------------------------- views

    def _reshape(self, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
        if len(inputs) > 1:
            return self._plain("Reshape", inputs, attrs, term.dtype, limit, name)
        target, source = attrs["shape"], term.args[0].shape or ()
        dims: list[Dim] = [
            0 if i < len(source) and d == source[i] and isinstance(d, Sym) else d for i, d in enumerate(target)
        ]
        # A 0 copies the dimension of the input, which is no 0 where only another one is.
        open_dims = [
            i for i, d in enumerate(dims) if isinstance(d, Sym) or (target[i] == 0 and source[i : i + 1] != (0,))
        ]
        # The rest of the elements; beside other symbols only what nothing else tells.
        for i in open_dims:
            rest = product(d for j, d in enumerate(target) if j != i)
            if viewed(product(source), rest) == target[i] and (len(open_dims) == 1 or not self._told(target[i], limit)):
                dims[i], target = -1, (*target[:i], -1, *target[i + 1 :])
                open_dims.remove(i)
                break
        computed = any(isinstance(dims[i], Sym) for i in open_dims)
        undecided = -1 in dims and any(isinstance(d, Sym) for d in target)
        if computed or undecided:
            # A dimension that is 0 in a run leaves -1 undecided: dims of 1 that come, go or move need neither.
            for op, short, long in (("Unsqueeze", source, attrs["shape"]), ("Squeeze", attrs["shape"], source)):
                if axes := _ones(short, long):
                    return self._plain(op, inputs, {"axes": axes}, term.dtype, limit, name)
            moved = _moved_ones(source, attrs["shape"])
            if moved is not None:
                return self.node("Transpose", inputs, {"perm": moved}, limit, name)
            gone, come = ([i for i, d in enumerate(dims) if d == 1] for dims in (source, attrs["shape"]))
            if without_ones(source) == without_ones(attrs["shape"]):
                bare = self._plain("Squeeze", inputs, {"axes": tuple(gone)}, term.dtype, limit, "")
                return self._plain("Unsqueeze", [bare], {"axes": tuple(come)}, term.dtype, limit, name)
        if undecided and all(self._told(d, limit) for d in attrs["shape"]):
            target, computed = attrs["shape"], True
        if not computed:
            shape = self._integers([d for d in dims if not isinstance(d, Sym)])
            return self.node("Reshape", [inputs[0], shape], {}, limit, name)
        # A dimension that is computed may be 0 in a run, and means it.
        meant = {"allowzero": 1} if self.opset >= 14 and -1 not in target else {}
        return self.node("Reshape", [inputs[0], self._dims_of(target, limit)], meant, limit, name)

    def _expand(self, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
        if len(inputs) > 1:
            return self._plain("Expand", inputs, attrs, term.dtype, limit, name)
        target, source = attrs["shape"], term.args[0].shape or ()
        offset = len(target) - len(source)
        dims = [1 if i >= offset and d == source[i - offset] else d for i, d in enumerate(target)]
        return self.node("Expand", [inputs[0], self._dims_of(dims, limit)], {}, limit, name)

    def _transpose(self, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
        return self.node("Transpose", inputs, {"perm": attrs["perm"]} if "perm" in attrs else {}, limit, name)

    def _slice(self, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
        if "start" not in attrs:
            return self._plain("Slice", inputs, attrs, term.dtype, limit, name)
        bounds = [attrs["start"], attrs["stop"]]
        if self.opset < 10:
            plain = {"starts": (bounds[0],), "ends": (bounds[1],), "axes": (attrs["axis"],)}
            return self.node("Slice", inputs, plain, limit, name)
        vectors = [self._dims_of([END if b is None else b], limit) for b in bounds]
        steps = [self._integers([attrs["step"]])] if attrs["step"] != 1 else []
        return self.node("Slice", [*inputs, *vectors, self._integers([attrs["axis"]]), *steps], {}, limit, name)

    def _repeat(self, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
        x, axis, n = term.args[0], attrs["axis"], attrs["n"]
        shape = x.shape or ()
        terms = self.view.terms
        split = as_reshape(terms, x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        wide = (*shape[: axis + 1], n, *shape[axis + 1 :])
        expanded = terms.raw("Expand", [split], (("shape", wide),), shape=wide, dtype=x.dtype)
        dtype = self.kinds.get(inputs[0], x.dtype)
        source = self.realise(expanded, dtype, limit)
        merged = as_reshape(terms, expanded, term.shape or ())
        return self._reshape(merged, [source], dict(merged.attrs), limit, name)

    def _concat(self, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
        axis = attrs["axis"]
        if axis < 0 and self.opset < 11 and term.shape is not None:
            axis += len(term.shape)
        return self.node("Concat", inputs, {"axis": axis}, limit, name)

    # ------------------------------------------------------------------------------------- dimensions

    def _shape_vector(self, term: Term, limit: float, name: str) -> str:
        assert term.data is not None
        vector = self._dims_of(list(term.data.ravel()), limit)
        if term.data.ndim == 0:
            return self.node("Squeeze", [vector], {}, limit, name)
        return vector

    def _dims_of(self, dims: Sequence[Dim], limit: float) -> str:
        """A vector of dimensions: a constant where all are known, else from shapes of existing values."""
        term = self.view.terms.integers(_vector(dims))
        if term.constant:
            return self._integers([int(d) for d in dims if not isinstance(d, Sym)])
        known = self._lookup(term, term.dtype, limit)
        if known is not None:
            return known[0]
        parts = self._dims.parts(dims, limit)
        if parts is None:
            raise UnrealisableError(f"dimensions {list(dims)} are not those of any value at this place")
        written = [self._part(part, limit) for part in parts]
        vector = written[0] if len(written) == 1 else self.node("Concat", written, {"axis": 0}, limit)
        self.register(term, limit - 0.5, vector, term.dtype)
        return vector

    def _told(self, dim: Dim, limit: float) -> bool:
        """Can a dimension be had from the values before a place?"""
        return self._dims.parts([dim], limit) is not None

    def _part(self, part: Part, limit: float) -> str:
        """One part of a vector of dimensions."""
        if isinstance(part, Numbers):
            return self._integers(part.dims)
        if isinstance(part, Run):
            return self._run(part, limit)
        total = ""
        for runs, coefficient in part.terms:
            factors = [self._run(run, limit) for run in runs]
            if coefficient != 1 or not factors:
                factors.append(self._integers([coefficient]))
            value = factors[0]
            for factor in factors[1:]:
                value = self.node("Mul", [value, factor], {}, limit)
            total = self.node("Add", [total, value], {}, limit) if total else value
        return total

    def _run(self, run: Run, limit: float) -> str:
        """Some dimensions of a value, as a vector."""
        shape = self.view.terms_of[run.value].shape if run.value in self.view.terms_of else None
        term = None if shape is None else self.view.terms.integers(_vector(shape[run.start : run.stop]))
        known = self._lookup(term, term.dtype, limit) if term is not None else None
        if known is not None:
            return known[0]
        value = self.alias.get(run.value, run.value)
        if run.whole or self.opset >= 15:
            bounds = {} if run.whole else {"start": run.start, "end": run.stop}
            name = self.node("Shape", [value], bounds, limit)
        else:
            whole = self.node("Shape", [value], {}, limit)
            axes = list(range(run.start, run.stop))
            name = self.node("Gather", [whole, self._integers(axes)], {"axis": 0}, limit)
        if term is not None:
            self.register(term, limit - 0.5, name, term.dtype)
        return name


def _counted(x: Term, attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a reduction with its axes counted from the first: onnxruntime (1.31) gives the wrong shape to
    what is reduced of an empty tensor along axes that count from the end."""
    if x.rank is None or "axes" not in attrs:
        return attrs
    return attrs | {"axes": tuple(axis % x.rank for axis in attrs["axes"])}


def _ones(short: Sequence[Dim], long: Sequence[Dim]) -> tuple[int, ...] | None:
    """The axes of 1 that the longer shape has beyond the shorter; None if that is not all."""
    axes, i = list[int](), 0
    for axis, dim in enumerate(long):
        if i < len(short) and short[i] == dim:
            i += 1
        elif dim == 1:
            axes.append(axis)
        else:
            return None
    return tuple(axes) if i == len(short) else None


def _moved_ones(source: Sequence[Dim], target: Sequence[Dim]) -> tuple[int, ...] | None:
    """The permutation that a Reshape is which moves dims of 1 alone; None for any other."""
    rest, ones = ([i for i, d in enumerate(source) if (d == 1) is one] for one in (False, True))
    if without_ones(source) != without_ones(target) or len(source) != len(target):
        return None
    return tuple(ones.pop(0) if d == 1 else rest.pop(0) for d in target)


def as_reshape(terms: Terms, x: Term, shape: Shape) -> Term:
    """The Reshape of a term as it stands, even where the normal form has none."""
    return terms.raw("Reshape", [x], (("shape", shape),), shape=shape, dtype=x.dtype)


def _vector(dims: Sequence[Dim]) -> Array:
    array = np.empty(len(dims), object)
    array[:] = dims
    return array


def _negated(term: Term) -> Term | None:
    """x of (-1) * x, else None."""
    if term.op == "Mul" and len(term.args) == 2 and is_number(term.args[1]) and term.args[1].scalar == -1:
        return term.args[0]
    return None


def _lettered(args: Sequence[Term]) -> tuple[tuple[int | str, ...] | None, ...]:
    """The shapes of operands; a symbol by its place among those that occur, so that layers share a function."""
    letters: dict[Sym, str] = {}
    return tuple(
        None
        if a.shape is None
        else tuple(letters.setdefault(d, f"d{len(letters)}") if isinstance(d, Sym) else d for d in a.shape)
        for a in args
    )
