"""Term → nodes: computes a term from values that the graph has already, with new nodes only where there is none.

The inverse of the normal form: a flat sum becomes binary nodes, (-1)x a Sub, Reciprocal a Div, Repeat what it stands
for, a symbolic dimension a Gather from the Shape of a value that has it.  What is written is valid for the scope's
opset, has the element type that is asked for, and reads only values that are computed before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, TypeAlias

from onnx import TensorProto

from onnxfuse.language.bodies import UNKNOWN, Use, asks_for_ranks, asks_for_shapes, output_dtype, real_dtype
from onnxfuse.model.dims import Sym
from onnxfuse.model.graph import DOMAIN, number_of
from onnxfuse.model.op_traits import MOVEMENT, SINGLE_INSIDE
from onnxfuse.model.schema import is_standard, single_precision
from onnxfuse.model.standard import schema_of
from onnxfuse.targets.contrib import SINGLE_PRECISION
from onnxfuse.terms.normal.normal import make
from onnxfuse.terms.normal.views import is_reshape
from onnxfuse.terms.term import HALF, REAL, SMALL, Term, numpy_dtype, static

from . import view_nodes
from .inverses import NODES, inverted, negated
from .operators import complete, counted, op_node
from .plan import Draft, NewNode, Plan, UnrealisableError
from .shape_vectors import shape_vector
from .view_nodes import as_reshape, reshape

Writing: TypeAlias = Callable[[Plan, Term, list[str], dict[str, Any], float, str], str]
"""(plan, term, names of its inputs, attrs, limit, wanted name) → name of the value that new nodes give."""

DEEP, STRIDE = 64, 16
"""Terms in each other beyond which what they are computed from is realized first, at every so manieth distance."""

VIEWS: Mapping[str, Writing] = {
    "Reshape": view_nodes.reshape,
    "Expand": view_nodes.expand,
    "Transpose": view_nodes.transpose,
    "Concat": view_nodes.concat,
}


def realize(
    draft: Draft,
    term: Term,
    dtype: int,
    limit: float,
    name: str = "",
    *,
    builds: Callable[[Term], bool] | None = None,
) -> Plan:
    """What it takes that a value with this term and dtype is there before `limit`; the draft stays as it is.

    `builds` says whether nodes may be written for a term.  Raises UnrealisableError."""
    realizer = _Realizer(draft, builds)
    realizer.plan.value = realizer.realize(term, dtype, limit, name)
    return realizer.plan


class _Realizer:
    """Plans what one value takes."""

    def __init__(self, draft: Draft, builds: Callable[[Term], bool] | None) -> None:
        self.plan = Plan(draft)
        self.draft, self.builds = draft, builds
        self.view, self.found = draft.view, draft.found
        self._depth = 0
        self.terms = draft.view.terms

    # ------------------------------------------------------------------------------------- values

    def realize(self, term: Term, dtype: int, limit: float, name: str = "") -> str:
        """The name of a value with this term and dtype, made before `limit` if there is none yet.

        Raises UnrealisableError."""
        if term.op == "Absent":
            return ""
        if term.dtype not in REAL:
            dtype = term.dtype
        known = self.plan.find(term, dtype, limit)
        if known is not None and (known[1] == dtype or known[1] not in REAL):
            return known[0]
        if term.constant:
            return self.plan.constant(term, dtype, name)
        if known is not None:
            cast = self.plan.node("Cast", [known[0]], {"to": dtype}, limit, name or f"{known[0]}_cast")
            self.plan.available.typed(cast, dtype)
            return cast
        if self._depth == DEEP:
            self._farthest_first(term, dtype, limit)
        self._depth += 1
        name = name or self.plan.vacant_name(term, dtype)
        made = self._reshaped_back(term, dtype, limit, name) or self._build(term, dtype, limit, name)
        self._depth -= 1
        self.plan.register(term, limit - 0.5, made, dtype)
        return made

    def _farthest_first(self, term: Term, dtype: int, limit: float) -> None:
        """Realize what a term is computed from and is not there yet, from the farthest to the nearest, so that a chain
        of any length is no deep recursion.  Every way passes each distance, so that it is enough to stop at a few."""
        levels, seen = [[term]], {term.id}
        while levels[-1]:
            found = {arg.id: arg for outer in levels[-1] for arg in outer.args if arg.id not in seen}
            seen |= found.keys()
            levels.append([a for a in found.values() if not a.constant and self.plan.find(a, dtype, limit) is None])
        for level in levels[:0:-STRIDE]:
            for inner in level:
                self._depth = 0
                with suppress(UnrealisableError):  # what is a part of another node alone
                    self._operand(inner, dtype, limit)
        self._depth = DEEP

    def _reshaped_back(self, term: Term, dtype: int, limit: float, name: str) -> str | None:
        """From a value that holds the same in another shape: what is computed once need not be again."""
        inner = term.args[0] if is_reshape(term) else term
        if self.plan.find(inner, dtype, limit) is not None:
            return None
        for outer in self.plan.available.reshapes(inner):
            known = self.plan.find(outer, dtype, limit)
            if known is not None and known[1] == dtype and term.shape is not None:
                back = as_reshape(self.terms, outer, term.shape)
                return reshape(self.plan, back, [known[0]], dict(back.attrs), limit, name)
        return None

    def _operand(self, term: Term, dtype: int, limit: float) -> str:
        """An operand of an op with a result of this dtype: of the same real type, or of its own if one is not real."""
        return self.realize(term, dtype if dtype in REAL and term.dtype in REAL else term.dtype, limit)

    def _operands(self, term: Term, dtype: int, limit: float) -> list[str]:
        """The operands of an op with a result of this dtype; those of a comparison have the type of the first."""
        if dtype not in REAL:
            dtype = next((a.dtype for a in term.args if a.dtype in REAL), dtype)
        single = SINGLE_PRECISION.get(term.op, frozenset()) | single_precision(term.op, self.draft.opset)
        kinds = (int(TensorProto.FLOAT) if i in single else dtype for i in range(len(term.args)))
        return [self._operand(a, kind, limit) for a, kind in zip(term.args, kinds, strict=True)]

    def _unrounded(self, term: Term, dtype: int, limit: float) -> int:
        """The real type that an op with a result of this dtype computes in: that of its operands, where none of them is
        there in so narrow a type.  What the model rounds last is not rounded first, unless it is only moved: in few
        bits the numbers are the same."""
        if dtype not in HALF or term.op in MOVEMENT:
            return dtype
        operands = [a for a in term.args if a.dtype in REAL and not a.constant and a.op != "Absent"]
        kinds = {self._there(a, dtype, limit, set()) for a in operands}
        return dtype if not kinds or dtype in kinds else max(kinds, key=lambda kind: numpy_dtype(kind).itemsize)

    def _there(self, term: Term, dtype: int, limit: float, seen: set[int]) -> int:
        """The real type that a value is there in, this one if there are several; the widest of what it is made of."""
        known = self.plan.find(term, dtype, limit)
        if (term.id, dtype) in self.draft.rounded or (known is not None and known[1] not in REAL):
            return dtype
        if known is not None:
            return known[1]
        seen.add(term.id)
        inner = [a for a in term.args if a.dtype in REAL and not a.constant and a.op != "Absent" and a.id not in seen]
        return max((dtype, *(self._there(a, dtype, limit, seen) for a in inner)), key=lambda k: numpy_dtype(k).itemsize)

    # ------------------------------------------------------------------------------------- nodes

    def _build(self, term: Term, dtype: int, limit: float, name: str) -> str:
        """New nodes for one term."""
        if term.op == "Input" or (self.builds is not None and not self.builds(term)):
            raise UnrealisableError(f"{term.op} is not to be computed here")
        op = term.op
        if term.attr("output") is not None:
            raise UnrealisableError(f"{op} is a node of the graph, whose bodies are where it stands")
        if (wide := self._unrounded(term, dtype, limit)) != dtype:
            return self.plan.node("Cast", [self.realize(term, wide, limit)], {"to": dtype}, limit, name)
        if op == "Output":
            return self._outputs(term, dtype, limit)
        if op in ("Add", "Mul") and (dtype in REAL or len(term.args) > 2):  # the type may not be told
            return self._chain(term, dtype, limit, name)
        if op == "Integers":
            assert term.data is not None
            return shape_vector(self.plan, term, limit, name)
        attrs = dict(term.attrs)
        total = term.args[0] if op == "Log" else None
        if total is not None and total.op == "ReduceSum" and len(total.args) == 1 and total.args[0].op == "Exp":
            # The op does not overflow where its parts do.
            x, attrs = total.args[0].args[0], counted(total.args[0], dict(total.attrs))
            return op_node(self.plan, "ReduceLogSumExp", [self._operand(x, dtype, limit)], attrs, dtype, limit, name)
        if is_reshape(term) and (made := self._squeezed(term, dtype, limit, name)):
            return made
        if op == "Slice" and "start" in attrs:
            cuts = self._cuts(term, dtype, limit)
            return view_nodes.slice_(self.plan, cuts, self._operands(cuts[-1], dtype, limit), limit, name)
        if op == "Pad" and self.draft.opset < 11 and term.args[1].data is not None:
            attrs["pads"] = tuple(term.args[1].data.ravel())
            return op_node(self.plan, op, [self._operand(term.args[0], dtype, limit)], attrs, dtype, limit, name)
        inputs = self._operands(term, dtype, limit)
        if op.removeprefix("ai.onnx.").startswith("Reduce"):
            attrs = counted(term.args[0], attrs)
        if term.id in self.found.origins:
            return self._fused(term, inputs, attrs, dtype, limit, name)
        if op == "Repeat":
            return self._repeat(term, inputs, attrs, limit, name)
        if op in VIEWS:
            return VIEWS[op](self.plan, term, inputs, attrs, limit, name)
        return op_node(self.plan, op, inputs, attrs, dtype, limit, name)

    def _cuts(self, term: Term, dtype: int, limit: float) -> list[Term]:
        """The slices along several axes that one node makes, the outermost first: nothing else wants the inner ones."""
        cuts, axes = [term], {term.attr("axis")}
        while (inner := cuts[-1].args[0]).op == "Slice" and inner.attr("axis") not in {None, *axes}:
            if inner.id not in self.draft.once or self.plan.find(inner, dtype, limit) is not None:
                break
            cuts.append(inner)
            axes.add(inner.attr("axis"))
        return cuts

    def _squeezed(self, term: Term, dtype: int, limit: float, name: str) -> str:
        """A reduction without the dims that it reduces, where nothing wants it with them; else the empty string."""
        inner = term.args[0]
        axes = inner.attr("axes") if inner.op.removeprefix("ai.onnx.").startswith("Reduce") else None
        if axes is None or inner.shape is None or len(inner.args) > 1 or inner.id not in self.draft.once:
            return ""
        rank = len(inner.shape)
        if term.shape != tuple(d for i, d in enumerate(inner.shape) if i - rank not in axes):
            return ""
        if self.builds is not None or self.plan.find(inner, dtype, limit) is not None:
            return ""
        attrs = counted(inner.args[0], dict(inner.attrs)) | {"keepdims": 0}
        inputs = self._operands(inner, dtype, limit)
        if inner.id in self.found.origins:
            return self._fused(inner, inputs, attrs, dtype, limit, name)
        return op_node(self.plan, inner.op, inputs, attrs, dtype, limit, name)

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
            return op_node(self.plan, term.op, inputs, attrs, dtype, limit, name)
        rule = matches[-1].rule
        catalogue, opset = self.draft.functions.catalogue, self.draft.opset
        target = catalogue.target
        primitive = rule.primitive and target.has_kernel(term.op, dtype, opset)
        as_it_is = term.op not in catalogue.definitions or primitive
        if as_it_is or (not target.functions and is_standard(term.op, attrs, opset)):
            output = op_node(self.plan, term.op, inputs, attrs, dtype, limit, name)
            node = self.plan.nodes[-1]
            self._declare(node, output, term, dtype)
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
            function = self.draft.functions.of(use, opset)
            numbers = [number_of(parameter) for parameter in function.input]
            operands = [i for i in inputs if i]
            operands += [self.plan.constant(self.terms.number(n, kinds), kinds) for n in numbers if n is not None]
            output = self.plan.node(function.name, operands, attrs, limit, name, DOMAIN)
            node = self.plan.nodes[-1]
        self.plan.fused.append((matches, node, output, term))
        if term.op == "Attention" and len(inputs) > 2 and term.args[2].rank == 3:
            self.plan.declared[inputs[2]] = (term.args[2], dtype)
        return output

    def _outputs(self, term: Term, dtype: int, limit: float) -> str:
        """One output of a fused op with several: the node is written once, with every output that a value waits for.

        All have the same element type: a value of another one keeps its name for the Cast that makes it; one whose own
        node stayed has its name already."""
        whole, current = term.args[0], self.found.current
        if whole.id not in self.found.origins:
            raise UnrealisableError(f"{whole.op} is a node of the graph, whose outputs are where it stands")
        named = sorted(self.draft.outputs_of.get(whole.id, ()), key=lambda name: name not in self.draft.graph.outputs)
        bound = [(current[name].attr("index"), name) for name in named]
        index, asked = term.attr("index"), dtype
        if index:
            dtype = next((self.view.dtypes[name] for i, name in bound if not i), dtype)
        # What was computed in float32 is not computed in half because another output is cast to that.
        own = [
            self.view.dtypes[name]
            for i, name in bound
            if i and output_dtype(whole.op, i, dtype) == dtype and not self._rounded(whole.op, name)
        ]
        dtype = self._unrounded(whole, max((dtype, *own), key=lambda kind: numpy_dtype(kind).itemsize), limit)
        wanted: dict[int, str] = {}
        for i, name in bound:
            if (
                self.view.dtypes[name] == output_dtype(whole.op, i, dtype)
                and name not in self.draft.named | self.plan.named
            ):
                wanted.setdefault(i, name)
        for i in sorted(self.draft.parts.get(whole.id, set()) | {index}):
            if i and i not in wanted:
                wanted[i] = self.plan.names.unique(f"onnxfuse/{whole.op}")
        inputs = self._operands(whole, dtype, limit)
        count = max(wanted, default=0) + 1
        used = tuple(i == 0 or i in wanted for i in range(count))
        first = self._fused(whole, inputs, dict(whole.attrs), dtype, limit, wanted.get(0, ""), used)
        node = self.plan.nodes[-1]
        names = [first, *(wanted.get(i, "") for i in range(1, count))]
        node.outputs = [n for n in names if n] if node.domain == DOMAIN else names
        complete(self.plan, whole.op, node)
        for i, name in enumerate(names):
            if name:
                part = self.terms.raw("Output", [whole], (("index", i),), shape=None, dtype=dtype)
                kind = output_dtype(whole.op, i, dtype)
                self.plan.register(part, limit - 0.5, name, kind)
                if not i or i in wanted:
                    self._declare(node, name, current.get(name, part), kind)
        if output_dtype(whole.op, index, dtype) != asked:
            return self.plan.node("Cast", [names[index]], {"to": asked}, limit)
        return str(names[index])

    def _rounded(self, op: str, name: str) -> bool:
        """Is a value what a Cast made of an output, or one that Casts alone read, where the op rounds what it gives?"""
        graph = self.draft.graph
        if graph.nodes[graph.producer[name]].op_type == "Cast":
            return True
        return op in SINGLE_INSIDE and self.draft.casts.get(name, 0) == graph.uses.get(name)

    def _declare(self, node: NewNode, output: str, term: Term, dtype: int) -> None:
        """Say the type of a node's output where onnx infers nothing: quantizers want to know it."""
        if node.domain != DOMAIN and schema_of(node.op, self.draft.opset, node.domain) is None:
            self.plan.declared[output] = (term, dtype)

    def _chain(self, term: Term, dtype: int, limit: float, name: str) -> str:
        """A flat sum or product as binary nodes; differences and quotients as Sub and Div."""
        result = ""
        operands = sorted(term.args, key=lambda a: a.op == "Reciprocal" or negated(a) is not None)
        fixed = list(takewhile(_is_small, operands))
        if len(fixed) > 1:  # which the next pass would make one
            operands[: len(fixed)] = [make(self.terms, term.op, fixed, {})]
        for i, operand in enumerate(operands):
            last = name if i == len(operands) - 1 else ""
            inverse = inverted(self.terms, term.op, operand, dtype) if result else None
            if inverse is not None and self.plan.find(operand, dtype, limit) is None:
                below = self.realize(inverse, dtype, limit)
                result = self.plan.node(NODES[term.op], [result, below], {}, limit, last)
            else:
                value = self.realize(operand, dtype, limit)
                result = self.plan.node(term.op, [result, value], {}, limit, last) if result else value
        return result

    # ------------------------------------------------------------------------------------- views

    def _repeat(self, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
        x, axis, n = term.args[0], attrs["axis"], attrs["n"]
        shape = x.shape or ()
        terms = self.terms
        split = as_reshape(terms, x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        wide = (*shape[: axis + 1], n, *shape[axis + 1 :])
        expanded = terms.raw("Expand", [split], (("shape", wide),), shape=wide, dtype=x.dtype)
        dtype = self.plan.available.kind(inputs[0]) or x.dtype
        source = self.realize(expanded, dtype, limit)
        merged = as_reshape(terms, expanded, term.shape or ())
        return reshape(self.plan, merged, [source], dict(merged.attrs), limit, name)


def _is_small(term: Term) -> bool:
    """Is it a constant that may be stored, whatever it is made of?"""
    dims = static(term.shape)
    return term.constant and dims is not None and math.prod(dims) <= SMALL


def _lettered(args: Sequence[Term]) -> tuple[tuple[int | str, ...] | None, ...]:
    """The shapes of operands; a symbol by its place among those that occur, so that layers share a function."""
    letters: dict[Sym, str] = {}
    return tuple(
        None
        if a.shape is None
        else tuple(letters.setdefault(d, f"d{len(letters)}") if isinstance(d, Sym) else d for d in a.shape)
        for a in args
    )
